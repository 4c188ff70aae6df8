// Use the official package for Node: streams, a tool and its result, an error.
import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'

const client = new Anthropic()
const model = process.env.PLUMBLINE_MODEL
const user = { role: 'user', content: 'What is the weather in Paris?' }
const tools = [{
  name: 'get_weather', description: 'Get the weather of a city.',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
}]

const stream = client.messages.stream({ model, max_tokens: 60, messages: [{ role: 'user', content: 'Hello!' }] })
let text = ''
stream.on('text', (part) => { text += part })
const streamed = await stream.finalMessage()
assert.equal(streamed.content.at(-1).text, text)
assert.ok(streamed.usage.output_tokens > 0)
console.log('   streamed')

const called = await client.messages.stream({ model, max_tokens: 200, messages: [user], tools, tool_choice: { type: 'tool', name: 'get_weather' } }).finalMessage()
const call = called.content.find((block) => block.type === 'tool_use')
assert.equal(called.stop_reason, 'tool_use')
assert.equal(typeof call.input.city, 'string')
const answered = await client.messages.create({
  model, max_tokens: 100, tools,
  messages: [user, { role: 'assistant', content: called.content },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: '21 degrees' }] }],
})
assert.equal(answered.content.at(-1).type, 'text')
console.log('   a tool, its result')

await assert.rejects(client.messages.create({ model: 'nothing', max_tokens: 9, messages: [user] }), Anthropic.NotFoundError)
console.log('   an error')
