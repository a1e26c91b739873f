'use strict';
//
// Tool loops of other clients than OpenAI's: the AI SDK and LangChain, with
// nothing set but the base URL and a key.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { generateText, streamText, tool, stepCountIs } = require('ai');
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible');
const { ChatOpenAI } = require('@langchain/openai');
const { HumanMessage, ToolMessage } = require('@langchain/core/messages');
const { z } = require('zod');
const { scripted } = require('../lib/scripted');

const call = (name, args) => `<tool_call>\n${JSON.stringify({
  name, arguments: args })}\n</tool_call>`;
const loop = ['City 1', 'City 2', 'City 3'].map((city, i) =>
  `<think>\nNumber ${i}.\n</think>\n\n${call('get_weather', { city })}${
    i === 1 ? `\n${call('get_weather', { city: 'Oslo' })}` : ''}`);
loop.push('<think>\nDone.\n</think>\n\nMild everywhere.');
const cities = ['City 1', 'City 2', 'Oslo', 'City 3'];
let stack, base;

before(async () => {
  stack = await scripted([0, 1, 2, 3].flatMap(() => loop));
  base = `${stack.url}/v1`;
});

after(async () => { if (stack) await stack.stop(); });

for (const streamed of [false, true]) {
  test(`AI SDK, ${streamed ? 'streamed' : 'whole'}`, async () => {
    const seen = [];
    const options = {
      model: createOpenAICompatible({ name: 'tokenring', baseURL: base })(
        'scripted'),
      prompt: 'What is it like?',
      stopWhen: stepCountIs(6),
      tools: {
        get_weather: tool({
          description: 'The weather of a city.',
          inputSchema: z.object({ city: z.string() }),
          execute: async ({ city }) => { seen.push(city); return 'mild'; },
        }),
      },
    };
    const result = streamed ? streamText(options) : await generateText(options);
    assert.equal(await result.text, 'Mild everywhere.');
    const steps = await result.steps;
    assert.deepEqual(steps.map((s) => s.finishReason),
      ['tool-calls', 'tool-calls', 'tool-calls', 'stop']);
    assert.deepEqual(steps.map((s) => s.reasoningText),
      ['Number 0.', 'Number 1.', 'Number 2.', 'Done.']);
    assert.deepEqual(seen, cities);
  });
}

for (const streaming of [false, true]) {
  test(`LangChain, ${streaming ? 'streamed' : 'whole'}`, async () => {
    const model = new ChatOpenAI({ model: 'scripted', apiKey: 'none',
      configuration: { baseURL: base } }).bindTools([{
      type: 'function',
      function: { name: 'get_weather', description: 'The weather of a city.',
        parameters: { type: 'object',
          properties: { city: { type: 'string' } } } },
    }]);
    const messages = [new HumanMessage('What is it like?')];
    const seen = [];
    for (let round = 0; round < 5; round++) {
      let answer;
      if (streaming) {
        for await (const chunk of await model.stream(messages)) {
          answer = answer ? answer.concat(chunk) : chunk;
        }
      } else {
        answer = await model.invoke(messages);
      }
      messages.push(answer);
      if (answer.tool_calls.length === 0) break;
      for (const c of answer.tool_calls) {
        seen.push(c.args.city);
        messages.push(new ToolMessage({ tool_call_id: c.id, content: 'mild' }));
      }
    }
    assert.equal(messages.at(-1).content, 'Mild everywhere.');
    assert.deepEqual(seen, cities);
  });
}
