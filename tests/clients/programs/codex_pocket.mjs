// Use the Codex CLI with the pocket model, which has to hold the whole first request and answer it.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const home = join(process.cwd(), 'home')
const work = join(process.cwd(), 'work')
mkdirSync(home, { recursive: true })
mkdirSync(work, { recursive: true })
writeFileSync(join(home, 'config.toml'), `
model = "${process.env.PLUMBLINE_MODEL}"
model_provider = "plumbline"
model_context_window = 16384
[model_providers.plumbline]
name = "Plumbline"
base_url = "${process.env.OPENAI_BASE_URL}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
`)

const command = join(process.cwd(), 'node_modules', '.bin', 'codex')
const options = ['exec', '--skip-git-repo-check', '--json', '-c', 'sandbox_mode="read-only"', 'Can you count to 3?']
const ended = spawnSync(command, options, {
  cwd: work, env: { ...process.env, CODEX_HOME: home }, input: '', encoding: 'utf8', timeout: 280_000,
})
assert.equal(ended.status, 0, ended.stdout + ended.stderr)
const events = ended.stdout.trim().split('\n').map((line) => JSON.parse(line))
const { usage } = events.find((event) => event.type === 'turn.completed')
assert.ok(usage.input_tokens > 10_000, `the first request had ${usage.input_tokens} tokens`)
assert.ok(usage.output_tokens > 0)
assert.ok(events.some((event) => event.type === 'item.completed'))
console.log(`   exec: a request of ${usage.input_tokens} tokens is answered`)
