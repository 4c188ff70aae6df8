// Use the Vercel AI SDK in its default mode: the Responses API, which assumes that responses are stored.
import assert from 'node:assert/strict'
import { createOpenAI } from '@ai-sdk/openai'
import { generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

const sent = []
const openai = createOpenAI({
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
  fetch: (url, options) => {
    sent.push(options.body)
    return fetch(url, options)
  },
})
const model = openai(process.env.PLUMBLINE_MODEL)
const done = (feature) => console.log(`   ${feature}`)

const first = await generateText({ model, prompt: 'Hello, I am Ada.', maxOutputTokens: 40 })
assert.ok(first.text.length > 0)
assert.ok(first.usage.inputTokens > 0)
done('generateText')

// The second turn refers to the stored message of the first one (item_reference).
const messages = [{ role: 'user', content: 'Hello, I am Ada.' }, ...first.response.messages]
const second = await generateText({
  model,
  messages: [...messages, { role: 'user', content: 'What is my name?' }],
  maxOutputTokens: 40,
})
assert.ok(sent.at(-1).includes('item_reference'))
assert.ok(second.usage.inputTokens > first.usage.inputTokens)
done('several turns with item references')

const streamed = streamText({ model, prompt: 'Hello!', maxOutputTokens: 40 })
let text = ''
for await (const piece of streamed.textStream) text += piece
assert.equal(text, await streamed.text)
assert.ok(['stop', 'length'].includes(await streamed.finishReason))
done('streamText')

const weather = tool({
  description: 'Tell the weather of a city.',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `It rains in ${city}.`,
})
for (const run of [generateText, streamText]) {
  const result = run({
    model,
    tools: { weather },
    prompt: 'What is the weather in Paris?',
    maxOutputTokens: 60,
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' }),
  })
  const ended = await result
  const steps = await ended.steps
  assert.equal(steps.length, 2)
  assert.equal(steps[0].toolCalls[0].toolName, 'weather')
  assert.match(steps[0].toolResults[0].output, /^It rains in /)
  assert.equal(steps[1].toolCalls.length, 0)
  done(`a tool loop with ${run.name}`)
}

const linked = await generateText({
  model,
  prompt: 'And now?',
  maxOutputTokens: 40,
  providerOptions: { openai: { previousResponseId: first.providerMetadata.openai.responseId } },
})
assert.ok(linked.usage.inputTokens > first.usage.inputTokens)
done('previousResponseId')

const unstored = await generateText({
  model,
  prompt: 'Hello!',
  maxOutputTokens: 40,
  providerOptions: { openai: { store: false, include: ['reasoning.encrypted_content'] } },
})
assert.ok(unstored.text.length > 0)
done('store: false')

const chat = await generateText({ model: openai.chat(process.env.PLUMBLINE_MODEL), prompt: 'Hello!', maxOutputTokens: 40 })
assert.ok(chat.text.length > 0)
const plain = await generateText({ model: openai.completion(process.env.PLUMBLINE_MODEL), prompt: 'Once', maxOutputTokens: 10 })
assert.equal(plain.finishReason, 'length')
done('chat and completions')
