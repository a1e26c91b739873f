'use strict';
//
// Tool loops of other clients than OpenAI's: the AI SDK and LangChain, with
// nothing set but the base URL and a key.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible');
const { ChatOpenAI } = require('@langchain/openai');
const { HumanMessage, ToolMessage } = require('@langchain/core/messages');
const { scripted } = require('../lib/scripted');
const { rounds, cities, aiSdkRounds } = require('../lib/rounds');

let stack, base;

before(async () => {
  stack = await scripted([0, 1, 2, 3].flatMap(() => rounds));
  base = `${stack.url}/v1`;
});

after(async () => { if (stack) await stack.stop(); });

for (const streamed of [false, true]) {
  test(`AI SDK, ${streamed ? 'streamed' : 'whole'}`, async () => {
    const provider = createOpenAICompatible({ name: 'tokenring',
      baseURL: base });
    const steps = await aiSdkRounds(provider('scripted'), streamed);
    assert.deepEqual(steps.map((s) => s.reasoningText),
      ['Number 0.', 'Number 1.', 'Number 2.', 'Done.']);
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
