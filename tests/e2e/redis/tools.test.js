'use strict';
//
// Tool calls and reasoning in streams that can be taken up again: what Redis
// holds gives the same bytes as the live stream, after any event.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Redis } = require('../lib/redis');
const { scripted } = require('../lib/scripted');
const { stream } = require('../lib/http');
const { until } = require('../lib/stack');

const SAYS = `<think>\nHm.\n</think>\n\nSo:\n${['a', 'b'].map((x) =>
  `<tool_call>\n{"name": "get_${x}", "arguments": {"x": "é ${x}"}}\n</tool_call>`)
  .join('\n')}`;
let redis, stack;

before(async () => {
  redis = await Redis.start();
  stack = await scripted([SAYS, SAYS, SAYS], {
    engine: { redis: redis.address },
    http: `tokenring_redis ${redis.address} timeout=10s;`,
    location: 'tokenring_resumable on;',
  });
});

after(async () => {
  if (stack) await stack.stop();
  if (redis) await redis.stop();
});

test('the same bytes live, again, and after any event', async () => {
  const live = await stream(`${stack.url}/v1/chat/completions`, {
    messages: [{ role: 'user', content: 'Do it.' }], stream: true,
    tools: ['get_a', 'get_b'].map((name) => ({ type: 'function',
      function: { name } })),
  }).finished;
  assert.equal(live.done, true);
  assert.ok(live.ids.length > 10);
  const calls = live.events.flatMap((e) => e.choices)
    .flatMap((c) => c.delta.tool_calls || []);
  assert.deepEqual([0, 1].map((i) => calls.filter((c) => c.index === i)
    .map((c) => c.function.arguments).join('')),
  ['{"x": "é a"}', '{"x": "é b"}']);
  assert.match(live.raw, /"reasoning_content":"H"/);
  const id = live.events[0].id.replace('chatcmpl-', '');
  const url = `${stack.url}/v1/requests/${id}/stream`;
  const again = async (after) => (await stream(url, undefined, after
    ? { headers: { 'Last-Event-ID': String(after) } } : {}).finished).raw;
  await until(async () => (await again()) === live.raw, 'all of it is stored');
  for (const last of live.ids) {
    const raw = await again(last);
    assert.ok(live.raw.endsWith(raw), `after ${last}`);
    assert.equal(raw.includes('data: [DONE]'), true);
  }
});

const functions = ['get_a', 'get_b'].map((name) => ({ name }));
const others = {
  messages: {
    body: { messages: [{ role: 'user', content: 'Do it.' }], max_tokens: 500,
      tools: functions.map((f) => ({ ...f, input_schema: { type: 'object' } })) },
    id: (e) => e.message.id,
    items: (events) => events.filter((e) => e.type === 'content_block_start')
      .map((e) => e.content_block.type),
    expected: ['thinking', 'text', 'tool_use', 'tool_use'],
    end: 'message_stop',
  },
  responses: {
    body: { input: 'Do it.', instructions: 'Now.',
      tools: functions.map((f) => ({ ...f, type: 'function' })) },
    id: (e) => e.response.id,
    items: (events) => events.at(-1).response.output.map((o) => o.type),
    expected: ['reasoning', 'message', 'function_call', 'function_call'],
    end: 'response.completed',
  },
};
for (const [path, { body, id, items, expected, end }] of Object.entries(others)) {
  test(`the same of /v1/${path}`, async () => {
    const live = await stream(`${stack.url}/v1/${path}`, { ...body,
      stream: true }).finished;
    assert.deepEqual(items(live.events), expected);
    assert.equal(live.events.at(-1).type, end);
    assert.ok(live.ids.length > 10);
    const url = `${stack.url}/v1/requests/${id(live.events[0])}/stream`;
    const again = async (after) => (await stream(url, undefined, after
      ? { headers: { 'Last-Event-ID': String(after) } } : {}).finished).raw;
    await until(async () => (await again()) === live.raw, 'all of it is stored');
    for (const last of live.ids) {
      const raw = await again(last);
      assert.ok(live.raw.endsWith(raw), `after ${last}`);
      assert.equal(raw.includes(`"${end}"`), last !== live.ids.at(-1)
        || path === 'messages');
    }
  });
}
