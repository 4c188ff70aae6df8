// Use the reference server of the Model Context Protocol from npm. The model is scripted to call its tool `echo` once.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import OpenAI from 'openai'

const model = process.env.PLUMBLINE_MODEL
const port = process.env.PLUMBLINE_MCP_PORT
const answer = 'The command has printed its line.'
const printed = 'Echo: plumbline-was-here'

const command = join(process.cwd(), 'node_modules', '.bin', 'mcp-server-everything')
const server = spawn(command, ['streamableHttp'], { env: { ...process.env, PORT: port }, stdio: 'ignore' })
const url = `http://127.0.0.1:${port}/mcp`
for (let left = 100; ; left--) {
  try {
    await fetch(url)
    break
  } catch (error) {
    if (left === 0) throw error
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

try {
  const client = new OpenAI()
  const tools = [{ type: 'mcp', server_label: 'box', server_url: url, require_approval: 'never' }]
  const body = { model, input: 'Run a command.', tools }
  const whole = await client.responses.create(body)
  const stream = await client.responses.stream(body)
  const seen = []
  for await (const event of stream) seen.push(event.type)
  for (const response of [whole, await stream.finalResponse()]) {
    const [listed, made, said] = response.output
    assert.deepEqual([listed.type, made.type, said.type], ['mcp_list_tools', 'mcp_call', 'message'])
    assert.ok(listed.tools.length > 5)
    assert.deepEqual([made.status, made.output, made.error], ['completed', printed, null])
    assert.equal(response.output_text, answer)
  }
  for (const name of ['list_tools.completed', 'call.in_progress', 'call_arguments.done', 'call.completed']) {
    assert.ok(seen.includes(`response.mcp_${name}`), name)
  }
  console.log(`   ${whole.output[0].tools.length} tools listed; a call, whole and streamed`)

  const next = await client.responses.create({ ...body, input: 'Run a command.', previous_response_id: whole.id })
  assert.deepEqual(next.output.map((item) => item.type), ['mcp_call', 'message'])
  console.log('   previous_response_id: nothing is listed again')

  const gated = [{ ...tools[0], allowed_tools: ['echo'], require_approval: 'always' }]
  const asked = await client.responses.create({ ...body, tools: gated })
  const request = asked.output.at(-1)
  assert.deepEqual([asked.output[0].tools.length, request.type], [1, 'mcp_approval_request'])
  const approval = { type: 'mcp_approval_response', approval_request_id: request.id, approve: true }
  const made = await client.responses.create({ model, tools: gated, input: [approval], previous_response_id: asked.id })
  assert.deepEqual(made.output.map((item) => item.type), ['mcp_call', 'message'])
  assert.equal(made.output[0].approval_request_id, request.id)
  console.log('   allowed_tools, require_approval')
} finally {
  server.kill()
}
