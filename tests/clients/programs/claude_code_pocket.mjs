// Use Claude Code in print mode with the pocket model, without its tools and its long instructions, which need 30,000 tokens.
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

function ask(...options) {
  const ended = spawnSync(
    join(process.cwd(), 'node_modules', '.bin', 'claude'),
    ['-p', '--output-format', 'json', ...options, '--', 'Hello, I am Ada.'],
    { cwd: work, env: environment, input: '', encoding: 'utf8', timeout: 140_000 },
  )
  return { status: ended.status, result: JSON.parse(ended.stdout || 'null'), all: ended.stdout + ended.stderr }
}

const short = ask('--system-prompt', 'You are a helpful assistant.', '--tools', '')
assert.equal(short.status, 0, short.all)
assert.equal(short.result.is_error, false, short.all)
assert.ok(short.result.result.length > 0, short.all)
assert.ok(short.result.usage.input_tokens + short.result.usage.cache_read_input_tokens > 0, short.all)
console.log(`   print mode: ${short.result.usage.input_tokens} tokens are answered`)

const long = ask()
assert.match(long.result.result, /context|too long|tokens/i, long.all)
console.log('   its whole instructions do not fit: the refusal is shown')
