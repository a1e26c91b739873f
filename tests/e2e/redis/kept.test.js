'use strict';
//
// Responses that are kept: `store`, `previous_response_id`, references to items,
// GET and DELETE, with OpenAI's client and the AI SDK's provider.  What a model
// is told of a conversation is compared with the whole conversation, sent by
// hand: the same number of tokens, of texts that are all of another length.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const OpenAI = require('openai');
const { createOpenAI } = require('@ai-sdk/openai');
const { Redis } = require('../lib/redis');
const { scripted, call } = require('../lib/scripted');
const { aiSdkRounds, rounds } = require('../lib/rounds');
const { post, request, stream } = require('../lib/http');
const { story } = require('../lib/prompts');
const { Stack, until } = require('../lib/stack');

const model = 'scripted';
const tools = ['get_weather', 'get_time'].map((name) => ({ type: 'function',
  name, strict: false, parameters: { type: 'object',
    properties: { city: { type: 'string' } } } }));
const THINK = `<think>\nHm, let me look.\n</think>\n\nOne moment.\n${
  call('get_weather', { city: 'Paris "é"' })}`;

const SAYS = [];
const says = (...texts) => { SAYS.push(...texts); };
let redis, stack, client, stranger;

before(async () => {
  await new Promise(setImmediate); // all of this file has been read
  redis = await Redis.start({ appendonly: 'yes', appendfsync: 'always' });
  stack = await scripted(SAYS, {
    engine: { redis: redis.address, redis_flush: '200ms' },
    http: `tokenring_redis ${redis.address};`,
  });
  client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: 'mine',
    maxRetries: 0 });
  stranger = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: 'another',
    maxRetries: 0 });
});

after(async () => {
  if (stack) await stack.stop();
  if (redis) await redis.stop();
});

// One turn, whole or streamed; of a stream every event.
async function turn(body, streamed) {
  if (!streamed) return client.responses.create({ model, tools, ...body });
  const events = [];
  for await (const e of await client.responses.create({ model, tools,
    ...body, stream: true })) events.push(e);
  return Object.assign(events.at(-1).response, { events });
}

const idOf = (r) => r.id.replace('resp_', '');
const key = (r) => `tr:req:{${idOf(r)}}`;
const done = (r) => until(async () => ((await redis.hash(key(r))) || {}).state
  === 'done', 'it is written');
const fails = async (promise, status, code, param, message) => {
  const e = await promise.then(() => assert.fail('it worked'), (x) => x);
  assert.deepEqual([e.status, e.code, e.param], [status, code, param],
    String(e));
  assert.match(e.message, message);
};

for (const streamed of [false, true]) {
  says(THINK, 'It is mild.', 'Take a coat, I would say.');
  // the same three answers to whole conversations
  says(THINK, 'It is mild.', 'Take a coat, I would say.');
  test(`three turns with a tool, ${streamed ? 'streamed' : 'whole'}`,
    async () => {
      const told = [];
      const whole = [{ role: 'user', content: 'What is it like in Paris?' }];
      const first = await turn({ input: whole[0].content,
        instructions: 'Be brief, and be very kind to everybody.' }, streamed);
      assert.equal(first.store, true);
      assert.equal(first.previous_response_id, null);
      const [thought, said, asked] = first.output;
      assert.equal(asked.name, 'get_weather');
      told.push([first, [...whole]]);

      const result = { type: 'function_call_output', call_id: asked.call_id,
        output: '{"temperature": 17}' };
      const second = await turn({ previous_response_id: first.id,
        input: [result] }, streamed);
      assert.equal(second.previous_response_id, first.id);
      assert.equal(second.output[0].content[0].text, 'It is mild.');
      whole.push(thought, said, asked, result);
      told.push([second, [...whole]]);

      whole.push(second.output[0], { role: 'user', content: 'What to wear?' });
      const third = await turn({ previous_response_id: second.id,
        input: 'What to wear?' }, streamed);
      told.push([third, [...whole]]);

      // `instructions` are of one turn alone
      for (const [r, input] of told) {
        const same = await turn({ input, store: false,
          instructions: r === first ? first.instructions : undefined });
        assert.equal(r.usage.input_tokens, same.usage.input_tokens);
        assert.equal(same.store, false);
        assert.equal(await redis.command('HGET', key(same), 'input'), null);
      }
      await done(third);
      const kept = await redis.hash(key(third));
      assert.equal(kept.ancestors, idOf(first) + idOf(second));
      assert.deepEqual(JSON.parse(kept.input),
        [{ type: 'message', role: 'user', status: 'completed',
          content: [{ type: 'input_text', text: 'What to wear?' }] }]);
      assert.ok(await redis.command('PTTL', key(first)) > 2.5e9); // 30 days
      assert.ok(await redis.command('PTTL', `tr:out:{${idOf(first)}}`) > 2.5e9);

      // read again, in either form
      for (const r of [first, second, third]) {
        const { events, output_text: text, ...plain } = r;
        const again = await client.responses.retrieve(r.id);
        assert.deepEqual({ ...again, output_text: undefined },
          { ...plain, output_text: undefined });
        const all = [];
        for await (const e of await client.responses.retrieve(r.id,
          { stream: true })) all.push(e);
        assert.deepEqual(all.at(-1).response, { ...plain });
        if (events) {
          assert.deepEqual(all.slice(0, -1), events.slice(0, -1));
        }
        for (const n of [0, 3, all.length - 2, all.length - 1]) {
          const rest = [];
          for await (const e of await client.responses.retrieve(r.id,
            { stream: true, starting_after: n })) rest.push(e);
          assert.deepEqual(rest, all.slice(n + 1), `after ${n}`);
        }
      }
    });
}

says('One.', 'Two.', 'Three.', 'Four.');
test('after Redis was restarted, and while it is away', async () => {
  const first = await turn({ input: 'First?' });
  await done(first);
  await redis.restart();
  const second = await until(() => turn({ previous_response_id: first.id,
    input: 'Second?' }).catch(() => null), 'Redis is back');
  assert.equal(second.output_text, 'Two.');
  await done(second);
  await redis.kill();
  await fails(turn({ previous_response_id: second.id, input: 'Third?' }), 503,
    'redis_unavailable', null, /cannot be read/);
  assert.equal((await turn({ input: 'Alone?' })).output_text, 'Three.');
  await fails(client.responses.retrieve(second.id), 503, 'redis_unavailable',
    null, /cannot be read/);
  await redis.run();
  const third = await until(() => turn({ previous_response_id: second.id,
    input: 'Third?' }).catch(() => null), 'Redis is back');
  assert.equal(third.output_text, 'Four.');
});

says('Mine.', 'Gone.', 'Child.');
test('of somebody else, unknown, deleted', async () => {
  const mine = await turn({ input: 'Whose?' });
  await done(mine);
  const unknown = `resp_${'0'.repeat(32)}`;
  for (const [who, id] of [[stranger, mine.id], [client, unknown]]) {
    await fails(who.responses.create({ model, input: 'x',
      previous_response_id: id }), 400, 'previous_response_not_found',
    'previous_response_id',
    new RegExp(`Previous response with id '${id}' not found`));
    await fails(who.responses.retrieve(id), 404, 'not_found', null,
      /no response with this id/);
    await fails(who.responses.delete(id), 404, 'not_found', null,
      /no response with this id/);
  }
  for (const id of ['resp_1', 'x', mine.id.replace('resp', 'msg'),
    `${mine.id}0`, `${mine.id}/x`]) {
    await fails(turn({ previous_response_id: id, input: 'x' }), 400,
      'previous_response_not_found', 'previous_response_id', /not found/);
    assert.equal((await request(`${stack.url}/v1/responses/${id}`)).status,
      404);
  }
  const away = await turn({ input: 'This goes.' });
  const child = await turn({ input: 'On.', previous_response_id: away.id });
  await done(child);
  const url = `${stack.url}/v1/responses/${away.id}`;
  assert.deepEqual((await request(url, { method: 'DELETE',
    headers: { Authorization: 'Bearer mine' } })).json(), { id: away.id,
    object: 'response', deleted: true });
  assert.equal(await redis.hash(key(away)), null);
  assert.equal(await redis.command('EXISTS', `tr:out:{${idOf(away)}}`), 0);
  await fails(client.responses.retrieve(away.id), 404, 'not_found', null, /./);
  // what went on from it has lost its beginning
  await fails(turn({ previous_response_id: child.id, input: 'x' }), 400,
    'previous_response_not_found', 'previous_response_id',
    new RegExp(away.id));
  assert.equal((await client.responses.retrieve(child.id)).output_text,
    'Child.');
  const other = await request(url, { method: 'PUT' });
  assert.equal(other.status, 405);
});

says('Fine.', 'Again.', 'One.');
test('input_items: what a response was asked, in pages', async () => {
  const given = [{ role: 'user', content: 'A "é"\n1' },
    { type: 'function_call', id: 'fc_"own', call_id: 'c1', name: 'get_time',
      arguments: '{"city":"Oslo"}' },
    { type: 'function_call_output', call_id: 'c1', output: '12' },
    { role: 'assistant', content: 'Noon.' },
    { type: 'message', role: 'user', content: [{ type: 'input_text',
      text: 'And now?' }] },
    { type: 'message', role: 'user', content: 'No id.', id: null },
    { type: null, role: 'user', content: 'No type.', status: null }];
  const r = await turn({ input: given });
  await done(r);
  const id = idOf(r);
  const asked = (i, text) => ({ id: `item_${id}_${i}`, type: 'message',
    role: 'user', status: 'completed',
    content: [{ type: 'input_text', text }] });
  const wanted = [
    asked(0, 'A "é"\n1'),
    given[1],
    { id: `item_${id}_2`, ...given[2] },
    { id: `item_${id}_3`, type: 'message', role: 'assistant',
      status: 'completed', content: [{ type: 'output_text', text: 'Noon.' }] },
    { id: `item_${id}_4`, ...given[4], status: 'completed' },
    // members that are null are none
    asked(5, 'No id.'), asked(6, 'No type.')];
  const all = await client.responses.inputItems.list(r.id, { order: 'asc' });
  assert.deepEqual(all.data, wanted);
  const headers = { Authorization: 'Bearer mine' };
  const raw = (await request(`${stack.url}/v1/responses/${r.id}/input_items`
    + '?order=asc&limit=2', { headers })).json();
  // a parser would take the last of two ids
  const { text } = await request(
    `${stack.url}/v1/responses/${r.id}/input_items`, { headers });
  assert.equal(text.match(/"id":/g).length, given.length);
  assert.deepEqual([raw.has_more, raw.first_id, raw.last_id],
    [true, wanted[0].id, wanted[1].id]);
  assert.deepEqual((await client.responses.inputItems.list(r.id)).data,
    [...wanted].reverse());
  const paged = [];
  for await (const item of client.responses.inputItems.list(r.id, { limit: 2,
    order: 'asc' })) paged.push(item);
  assert.deepEqual(paged, wanted);
  // what goes on from it reads the same
  const on = await turn({ previous_response_id: r.id, input: 'x' });
  const by = await post(`${stack.url}/v1/responses`, { model, tools,
    store: false, input: [...given, { role: 'assistant', content: 'Fine.' },
      { role: 'user', content: 'x' }] });
  assert.equal(on.usage.input_tokens, by.json().usage.input_tokens);
  for (const [who, query] of [[stranger, {}], [client, { after: 'no' }],
    [client, { limit: 0 }], [client, { limit: 101 }], [client, { order: 'x' }]]) {
    await fails(who.responses.inputItems.list(r.id, query),
      who === stranger ? 404 : 400, who === stranger ? 'not_found' : null,
      null, /./);
  }
  await redis.command('HSET', key(r), 'input', '[{"a": 1},\n2]');
  await fails(client.responses.inputItems.list(r.id), 500,
    'internal_error', null, /cannot be read/);
  const url = `${stack.url}/v1/responses/${r.id}/input_items`;
  assert.equal((await request(url, { method: 'DELETE' })).status, 405);
});

says('Kept.', 'Kept.', 'Alive.');
test('what Redis has is not what was written', async () => {
  for (const [spoil, status] of [
    [(r) => redis.command('HSET', key(r), 'input', '{"not": "items"}'), 500],
    [(r) => redis.command('HSET', key(r), 'input', 'x'), 500],
  ]) {
    const spoilt = await turn({ input: 'Keep this.' });
    await done(spoilt);
    await spoil(spoilt);
    const e = await turn({ previous_response_id: spoilt.id, input: [
      { role: 'user', content: 'And this.' }] }).then(
      () => assert.fail('it worked'), (x) => x);
    assert.equal(e.status, status, String(e));
  }
  assert.equal((await turn({ input: 'Hello?' })).output_text, 'Alive.');
});

says(THINK, 'Referred.', 'The same.', ...rounds);
test('references to items', async () => {
  const first = await turn({ input: 'Look.' });
  const question = { role: 'user', content: 'And?' };
  const result = { type: 'function_call_output',
    call_id: first.output[2].call_id, output: 'mild' };
  const refer = (id) => ({ type: 'item_reference', id });
  const r = await turn({ input: [question, ...first.output.map((o) =>
    refer(o.id)), result] });
  const same = await turn({ input: [question, ...first.output, result],
    store: false });
  assert.equal(r.usage.input_tokens, same.usage.input_tokens);
  await done(r);
  // items are kept, and not what refers to them
  assert.deepEqual(JSON.parse((await redis.hash(key(r))).input)
    .map((o) => o.type), ['message', 'reasoning', 'message',
    'function_call', 'function_call_output']);
  for (const id of [first.output[0].id.replace(/_0$/, '_9'), 'msg_1',
    first.output[0].id.replace('rs_', 'msg_'), `msg_${'0'.repeat(32)}_0`]) {
    await fails(turn({ input: [question, refer(id)] }), 400,
      'previous_response_not_found', 'input[1].id',
      /Item with id '.*' not found/);
  }
  await fails(stranger.responses.create({ model, input: [question,
    refer(first.output[0].id)] }), 400, 'previous_response_not_found',
  'input[1].id', /not found/);
  await fails(turn({ input: [{ type: 'item_reference' }] }), 400, null,
    'input[0].id', /Expected a string|expected a string/);
  // the AI SDK refers to items by default
  const provider = createOpenAI({ baseURL: `${stack.url}/v1`, apiKey: 'mine' });
  await aiSdkRounds(provider.responses(model), false);
});

says('A long story. '.repeat(200));
test('one whose client has left is no beginning', async () => {
  const s = stream(`${stack.url}/v1/responses`, { model, input: 'Tell me.',
    stream: true }, { headers: { Authorization: 'Bearer mine' } });
  await s.when(() => s.events.length > 4);
  const { id } = s.events[0].response;
  s.hangUp();
  await s.finished;
  await until(async () => ((await redis.hash(`tr:req:{${id.slice(5)}}`)) || {})
    .state === 'cancelled', 'it is over');
  await fails(turn({ previous_response_id: id, input: 'x' }), 400, null,
    'previous_response_id', /failed, or was cancelled/);
  const r = await client.responses.retrieve(id);
  assert.equal(r.status, 'failed');
  assert.equal(r.error.code, 'server_error');
});

test('what a URL may say', async () => {
  const get = (query) => request(`${stack.url}/v1/responses/resp_${
    '0'.repeat(32)}${query}`);
  for (const [query, message] of [['?stream=yes', /Invalid 'stream'/],
    ['?starting_after=1', /starting_after/],
    ['?stream=true&starting_after=-1', /starting_after/]]) {
    const r = await get(query);
    assert.equal(r.status, 400);
    assert.match(r.json().error.message, message);
  }
  const r = await post(`${stack.url}/v1/responses`, { model, input: 'x',
    store: 'yes' });
  assert.deepEqual([r.status, r.json().error.param], [400, 'store']);
});

test('one that went on at another engine is kept whole', async () => {
  const store = await Redis.start();
  const moving = await Stack.start({
    engine: { kv_policy: 'full', kv_memory: '64m', redis: store.address },
    http: `tokenring_redis ${store.address};`,
    location: 'tokenring_migrate 9 timeout=60s;',
  });
  moving.complaints = () => []; // what a killed engine leaves
  try {
    const url = `${moving.url}/v1/responses`;
    const body = { model: 'pocket', input: story(3), ignore_eos: true,
      max_output_tokens: 160, temperature: 0 };
    const s = stream(url, { ...body, stream: true });
    for (const n of [10, 60]) {
      await s.when(() => s.events.length > n);
      await moving.engine.kill();
      await moving.engine.start();
    }
    await s.finished;
    const { response } = s.events.at(-1);
    assert.equal(response.status, 'incomplete');
    const again = await request(`${url}/${response.id}`);
    assert.deepEqual(again.json(), response);
    const next = await post(url, { ...body, input: 'On.',
      previous_response_id: response.id });
    const same = await post(url, { ...body, store: false, input: [
      { role: 'user', content: body.input }, ...response.output,
      { role: 'user', content: 'On.' }] });
    assert.equal(next.status, 200, next.text);
    assert.equal(next.json().output[0].content[0].text,
      same.json().output[0].content[0].text);
    const m = await moving.metrics();
    assert.ok(m.value('tokenring_gateway_migrations_total') >= 1);
  } finally {
    await moving.stop();
    await store.stop();
  }
});

// Its engine gets to read it when its client has left.
test('one whose client left before it was accepted is kept', async () => {
  const store = await Redis.start();
  const alone = await Stack.start({
    engine: { kv_policy: 'full', kv_memory: '64m', redis: store.address },
    http: `tokenring_redis ${store.address};`, workers: 1,
    location: 'tokenring_resumable on;',
  });
  try {
    await alone.connected(1);
    alone.engine.signal('SIGSTOP');
    const url = `${alone.url}/v1/responses`;
    const body = { model: 'pocket', input: story(3), max_output_tokens: 12,
      temperature: 0, ignore_eos: true };
    const s = stream(url, { ...body, stream: true },
      { headers: { 'X-Tokenring-Detach': '1' } });
    await until(async () => (await alone.metrics())
      .value('tokenring_gateway_active_requests') === 1, 'it was sent');
    s.hangUp();
    await s.finished;
    alone.engine.signal('SIGCONT');
    const keys = await until(async () => {
      const all = await store.command('KEYS', 'tr:req:*');
      return all.length === 1 && (await store.hash(all[0])).state === 'done'
        && all;
    }, 'it is done');
    const kept = await store.hash(keys[0]);
    assert.equal(JSON.parse(kept.input)[0].content[0].text, story(3));
    const id = `resp_${/[{](.*)[}]/.exec(keys[0])[1]}`;
    const next = await post(url, { ...body, previous_response_id: id,
      input: 'On.' });
    assert.equal(next.status, 200, next.text);
  } finally {
    alone.engine.signal('SIGCONT');
    await alone.stop();
    await store.stop();
  }
});
