// Use Claude Code in print mode. The model is scripted to call the shell once.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'

const home = join(process.cwd(), 'home')
const work = join(process.cwd(), 'work')
mkdirSync(home, { recursive: true })
mkdirSync(work, { recursive: true })
const model = process.env.PLUMBLINE_MODEL
const environment = {
  ...process.env, HOME: home, CLAUDE_CONFIG_DIR: home, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1', DISABLE_AUTOUPDATER: '1',
  ANTHROPIC_MODEL: model, ANTHROPIC_SMALL_FAST_MODEL: model, ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
}
const options = ['-p', '--output-format', 'stream-json', '--verbose', '--allowedTools', 'Bash']
const ended = spawnSync(join(process.cwd(), 'node_modules', '.bin', 'claude'), [...options, '--', 'Run a command.'], {
  cwd: work, env: environment, input: '', encoding: 'utf8', timeout: 200_000,
})
assert.equal(ended.status, 0, ended.stdout + ended.stderr)
const events = ended.stdout.trim().split('\n').map((line) => JSON.parse(line))
const results = events.filter((event) => event.type === 'user').flatMap((event) => event.message.content)
assert.ok(results.some((block) => block.type === 'tool_result' && JSON.stringify(block).includes('plumbline-was-here')), ended.stdout)
assert.equal(events.at(-1).result, 'The command has printed its line.')
console.log('   print mode: a command and an answer')
