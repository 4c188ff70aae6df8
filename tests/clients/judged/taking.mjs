// Take the cases of `plumbline client --once`, and post what a client did in each.

import { strict as assert } from "node:assert";

export const model = process.env.PLUMBLINE_MODEL;
export const same = assert.deepEqual;

export async function take(uses) {
  const cases = await (await fetch(process.env.PLUMBLINE_CASES)).json();
  for (const { base_url, outcome_url, expected } of cases) {
    let error = "";
    for (const use of uses) error ||= await broken(use, base_url, expected);
    await fetch(outcome_url, { method: "POST", body: JSON.stringify({ ok: !error, error }) });
  }
  process.exit(0);
}

async function broken(use, url, expected) {
  const late = new Promise((_, fail) => setTimeout(() => fail(new Error("no end in 20 s")), 20_000).unref());
  try {
    await Promise.race([use(url, expected), late]);
  } catch (error) {
    return expected.error ? "" : `${use.name}: ${error.name}: ${error.message}`.slice(0, 300);
  }
  return expected.error ? `${use.name}: no error is raised` : "";
}
