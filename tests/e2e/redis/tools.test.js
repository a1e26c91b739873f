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
  stack = await scripted([SAYS, SAYS], {
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

test('the same of /v1/messages', async () => {
  const live = await stream(`${stack.url}/v1/messages`, {
    messages: [{ role: 'user', content: 'Do it.' }], stream: true,
    max_tokens: 500,
    tools: ['get_a', 'get_b'].map((name) => ({ name,
      input_schema: { type: 'object' } })),
  }).finished;
  const { id } = live.events[0].message;
  assert.deepEqual(live.events.filter((e) => e.type === 'content_block_start')
    .map((e) => e.content_block.type),
  ['thinking', 'text', 'tool_use', 'tool_use']);
  assert.equal(live.events.at(-1).type, 'message_stop');
  assert.ok(live.ids.length > 10);
  const url = `${stack.url}/v1/requests/${id}/stream`;
  const again = async (after) => (await stream(url, undefined, after
    ? { headers: { 'Last-Event-ID': String(after) } } : {}).finished).raw;
  await until(async () => (await again()) === live.raw, 'all of it is stored');
  for (const last of live.ids) {
    const raw = await again(last);
    assert.ok(live.raw.endsWith(raw), `after ${last}`);
    assert.ok(raw.includes('"message_stop"'));
  }
});
