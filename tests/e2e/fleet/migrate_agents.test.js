'use strict';
//
// Streams that survive their engine, of agents: answers that are held to calls
// and to schemas, with reasoning ahead of them, in all three APIs, and what is
// kept of responses.  Two engines are killed in turns; each answer is the one
// of a run that nobody disturbed, whole or streamed, and what is kept is what
// was sent (tests/e2e/redis/kept.test.js: always, where one engine is lost).

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until, sleep } = require('../lib/stack');
const { Redis } = require('../lib/redis');
const { post, request, stream } = require('../lib/http');
const { said, joinedChoices, wholeChoices, joinedMessage, wholeMessage,
  joinedResponse, wholeResponse } = require('../lib/joined');
const { story } = require('../lib/prompts');

const KEY = { Authorization: 'Bearer mine' };
// so many numbers that a kill meets them
const numbers = { type: 'array', minItems: 20, maxItems: 25,
  items: { type: 'integer', minimum: 100, maximum: 999 } };
const schema = { type: 'object', required: ['list', 'note'],
  additionalProperties: false, properties: { list: numbers,
    note: { type: 'string', pattern: '^[a-z ]{20,30}$' } } };
const fn = (name) => ({ name, description: `Does ${name}.`, strict: true,
  parameters: schema });
const functions = ['save', 'send'].map(fn);
const tools = functions.map((f) => ({ type: 'function', function: f }));
const format = { name: 'thing', strict: true, schema };
const think = { chat_template_kwargs: { enable_thinking: true },
  thinking_token_budget: 30 };

// The i-th request: its path and its body.
function ask(i) {
  const messages = [{ role: 'user', content: story(i) }];
  const chat = { messages, temperature: 1, seed: i, max_tokens: 220 };
  const response = { input: story(i), temperature: 1, max_output_tokens: 220 };
  return [
    ['chat/completions', { ...chat, tools, tool_choice: 'required' }],
    ['chat/completions', { ...chat, ...think, tools, tool_choice: 'required',
      parallel_tool_calls: false }],
    ['chat/completions', { ...chat, ...think, n: 2, response_format: {
      type: 'json_schema', json_schema: format } }],
    ['chat/completions', { ...chat, ...think, tools, response_format: {
      type: 'json_schema', json_schema: format } }],
    ['responses', { ...response, seed: i, tool_choice: 'required',
      parallel_tool_calls: false,
      tools: functions.map((f) => ({ type: 'function', ...f })) }],
    ['responses', { ...response, seed: i, text: { format: {
      type: 'json_schema', ...format } } }],
    ['messages', { ...chat, tool_choice: { type: 'any' },
      tools: functions.map(({ parameters, ...f }) => ({ ...f,
        input_schema: parameters })) }],
    ['messages', { ...chat, output_config: { format: { type: 'json_schema',
      schema } } }],
  ][i % 8];
}

async function run(stack, i, streamed) {
  const [path, body] = ask(i);
  const url = `${stack.url}/v1/${path}`;
  if (!streamed) {
    const r = await post(url, body, KEY);
    assert.equal(r.status, 200, `${i}: ${r.text}`);
    const answer = r.json();
    if (path === 'chat/completions') return wholeChoices(answer);
    return path === 'messages' ? wholeMessage(answer)
      : { id: answer.id, ...wholeResponse(answer) };
  }
  const s = stream(url, { ...body, stream: true }, { headers: KEY });
  await s.finished;
  if (path === 'chat/completions') {
    assert.ok(s.done, `${i}: ${s.raw.slice(-600)}`);
    return joinedChoices(s.events);
  }
  return path === 'messages' ? joinedMessage(s.events)
    : { id: s.events.at(-1).response.id, ...joinedResponse(s.events) };
}

const N = 12;
const all = (stack, streamed) => Promise.all(Array.from({ length: N },
  (_, i) => run(stack, i, streamed(i))));
const plain = (answers) => answers.map(({ id, ...a }) => ({ ...a }));

test('two engines are killed in turns beside agents', async () => {
  const redis = await Redis.start();
  const engine = { kv_policy: 'full', kv_memory: '96m', max_num_seqs: 32,
    redis: redis.address, redis_flush: '50ms' };
  const stack = await Stack.start({
    engine, engines: { second: engine }, pass: 'fleet',
    http: `tokenring_redis ${redis.address};
      tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;`,
    location: 'tokenring_migrate 100 timeout=60s strict;',
  });
  stack.complaints = () => []; // what a killed engine leaves in the log
  try {
    await stack.connected(2);
    const want = await all(stack, () => false);
    assert.ok(want[0][0].calls.length > 0);
    assert.ok(want[2][0].content.length > 100);
    assert.ok(want.some((w) => w[0] && w[0].thought));
    let over = false, kills = 0;
    const answers = all(stack, (i) => i % 3 !== 2).finally(() => {
      over = true;
    });
    const engines = [stack.engine, stack.others[0]];
    while (kills < 4 && !over) {
      await until(async () => over || /_requests_running\S* [1-9]/.test(
        (await stack.metrics()).text), 'requests run');
      await sleep(60 + 37 * kills);
      const e = engines[kills++ % 2];
      await e.kill();
      await e.start();
      await until(() => over || e.connects(), 'it is back');
    }
    const got = await answers;
    assert.deepEqual(plain(got), plain(want));
    const metrics = await stack.metrics();
    assert.ok(metrics.value('tokenring_gateway_migrations_total') > 0);
    assert.equal(metrics.value('tokenring_gateway_unmovable_total'), 0);
    // what is kept is what was sent; what is complete may be gone on from
    for (const { id, status, output } of got.filter((a) => a.id)) {
      const key = `tr:req:{${id.replace('resp_', '')}}`;
      await until(async () => ((await redis.hash(key)) || {}).state === 'done',
        'it is written');
      const kept = (await request(`${stack.url}/v1/responses/${id}`, {
        headers: KEY })).json();
      assert.deepEqual([kept.status, said(kept.output)], [status, output]);
      if (status !== 'completed') continue;
      const on = await post(`${stack.url}/v1/responses`, { input: 'And?',
        previous_response_id: id, max_output_tokens: 2 }, KEY);
      assert.equal(on.status, 200, on.text);
    }
    await stack.idle();
  } finally {
    await stack.stop();
    await redis.stop();
  }
});
