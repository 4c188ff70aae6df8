// Use the Codex CLI: a run with a tool, and its continuation. The model is scripted to call the shell once.
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
model_context_window = 65536
[model_providers.plumbline]
name = "Plumbline"
base_url = "${process.env.OPENAI_BASE_URL}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
`)

function codex(...options) {
  const command = join(process.cwd(), 'node_modules', '.bin', 'codex')
  // The command that the model runs is `echo`, and a sandbox inside a container often cannot start.
  const always = ['--skip-git-repo-check', '--json', '-c', 'sandbox_mode="danger-full-access"']
  const ended = spawnSync(command, ['exec', ...options.slice(0, -1), ...always, options.at(-1)], {
    cwd: work, env: { ...process.env, CODEX_HOME: home }, input: '', encoding: 'utf8', timeout: 120_000,
  })
  assert.equal(ended.status, 0, ended.stdout + ended.stderr)
  return ended.stdout.trim().split('\n').map((line) => JSON.parse(line)).filter((event) => event.type === 'item.completed')
}

for (const [feature, options] of [['exec', []], ['exec resume', ['resume', '--last']]]) {
  const items = codex(...options, 'Run a command.').map((event) => event.item)
  const ran = items.find((item) => item.type === 'command_execution')
  assert.ok(ran.aggregated_output.includes('plumbline-was-here'))
  assert.equal(items.findLast((item) => item.type === 'agent_message').text, 'The command has printed its line.')
  console.log(`   ${feature}: a command and an answer`)
}
