// Use the official client for Node: streams and their helpers, tools, structured output, stored responses.
import assert from 'node:assert/strict'
import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { ResponsesWS } from 'openai/resources/responses/ws'
import { z } from 'zod'

const client = new OpenAI()
const model = process.env.PLUMBLINE_MODEL
const messages = [{ role: 'user', content: 'Hello, I am Ada.' }]
const done = (feature) => console.log(`   ${feature}`)

const listed = []
for await (const one of client.models.list()) listed.push(one.id)
assert.ok(listed.includes(model))
done('models')

const whole = await client.chat.completions.create({ model, messages, max_tokens: 30 })
assert.ok(whole.choices[0].message.content)
const runner = client.chat.completions.stream({ model, messages, max_tokens: 30, stream_options: { include_usage: true } })
let text = ''
runner.on('content', (delta) => { text += delta })
assert.equal((await runner.finalChatCompletion()).choices[0].message.content, text)
assert.ok((await runner.totalUsage()).completion_tokens > 0)
done('chat: whole and streamed')

const Place = z.object({ city: z.string().max(20), days: z.number().int() })
const parsed = await client.chat.completions.parse({
  model, messages, max_tokens: 200, response_format: zodResponseFormat(Place, 'place'),
})
assert.equal(typeof parsed.choices[0].message.parsed.city, 'string')
done('chat: parsed by a schema')

const tools = client.chat.completions.runTools({
  model,
  messages: [{ role: 'user', content: 'What is the weather in Paris?' }],
  max_tokens: 60,
  tools: [{
    type: 'function',
    function: {
      name: 'weather',
      parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
      function: ({ city }) => `It rains in ${city}.`,
      parse: JSON.parse,
    },
  }],
  tool_choice: { type: 'function', function: { name: 'weather' } },
}, { maxChatCompletions: 2 })
await tools.done()
assert.match(await tools.finalFunctionToolCallResult(), /^It rains in /)
done('chat: runTools')

const response = await client.responses.create({ model, input: 'Hello, I am Ada.', max_output_tokens: 40 })
assert.ok(response.output_text)
assert.deepEqual((await client.responses.retrieve(response.id)).output, response.output)
assert.equal((await client.responses.inputItems.list(response.id)).data[0].role, 'user')
done('responses: create, retrieve, input items')

const stream = client.responses.stream({ model, input: 'And now?', previous_response_id: response.id, max_output_tokens: 40 })
const events = []
for await (const event of stream) events.push(event)
const streamed = await stream.finalResponse()
assert.equal(streamed.previous_response_id, response.id)
const replayed = []
for await (const event of await client.responses.retrieve(streamed.id, { stream: true })) replayed.push(event)
assert.equal(replayed.length, events.length)
const rest = []
for await (const event of await client.responses.retrieve(streamed.id, { stream: true, starting_after: 3 })) rest.push(event)
assert.equal(rest[0].sequence_number, 4)
done('responses: stream, previous_response_id, replay, resume')

let background = await client.responses.create({ model, input: 'Hi', background: true, max_output_tokens: 40 })
while (['queued', 'in_progress'].includes(background.status)) {
  await new Promise((resolve) => setTimeout(resolve, 20))
  background = await client.responses.retrieve(background.id)
}
assert.ok(['completed', 'incomplete'].includes(background.status))
await client.responses.cancel(background.id)
await client.responses.delete(background.id)
await assert.rejects(client.responses.retrieve(background.id), OpenAI.NotFoundError)
done('responses: background, cancel, delete')

const conversation = await client.conversations.create({ metadata: { topic: 'names' }, items: [{ role: 'user', content: 'I am Ada.' }] })
await client.responses.create({ model, conversation: conversation.id, input: 'Who am I?', max_output_tokens: 40 })
const items = []
for await (const item of client.conversations.items.list(conversation.id, { order: 'asc' })) items.push(item)
assert.deepEqual(items.map((item) => item.role).slice(0, 2), ['user', 'user'])
assert.ok(items.length >= 3)
await client.conversations.delete(conversation.id)
done('conversations')

const compacted = await client.responses.compact({ model, previous_response_id: response.id })
const after = await client.responses.create({ model, input: [...compacted.output, { role: 'user', content: 'Sure?' }], max_output_tokens: 40 })
assert.ok(after.output_text)
done('compact')

const stored = await client.chat.completions.create({ model, messages, max_tokens: 30, store: true, metadata: { run: 'node' } })
assert.equal((await client.chat.completions.retrieve(stored.id)).id, stored.id)
const found = []
for await (const one of client.chat.completions.list({ metadata: { run: 'node' } })) found.push(one.id)
assert.deepEqual(found, [stored.id])
await client.chat.completions.delete(stored.id)
done('stored chat completions')

const socket = new ResponsesWS(client)
const seen = []
await new Promise((resolve, reject) => {
  socket.on('error', reject)
  socket.on('event', (event) => {
    seen.push(event.type)
    if (['response.completed', 'response.incomplete'].includes(event.type)) resolve()
  })
  socket.send({ type: 'response.create', model, input: 'Hello!', max_output_tokens: 40 })
})
socket.close()
assert.equal(seen[0], 'response.created')
done('responses over a WebSocket')
