'use strict';
//
// Budgets of tenants and answers that are kept in Redis (tokenring_resumable): they
// end where the budget does, as others do, and Redis says so; also those that go on
// without their client (X-Tokenring-Detach), whatever becomes of their worker.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until } = require('../lib/stack');
const { post, request, stream } = require('../lib/http');
const { Redis } = require('../lib/redis');
const { state } = require('../lib/redis_stack');

const budgeted = (rate, body) => async () => {
  const redis = await Redis.start();
  let stack;
  try {
    stack = await Stack.start({
      engine: { backend: 'null', null_rate: rate, redis: redis.address,
        redis_flush: '10ms' },
      http: `tokenring_redis ${redis.address}; tokenring_plan out out=1000/d;
        map $http_x_key $plan { default ""; "~^(?<name>[a-z]+)-" $name; }`,
      location: `tokenring_resumable on; tokenring_tenant $http_x_key;
        tokenring_limits $plan;`,
      workers: 1,
    });
    await body(stack, redis);
    assert.deepEqual(stack.complaints(), []);
  } finally {
    if (stack) await stack.stop();
    await redis.stop();
  }
};

const ask = (stack, key, n, headers = {}) => stream(`${stack.url}/v1/completions`,
  { prompt: 'x', max_tokens: n, ignore_eos: true, stream: true,
    stream_options: { include_usage: true } },
  { headers: { 'X-Key': key, ...headers } });
const DETACH = { 'X-Tokenring-Detach': '1' };
const idOf = (s) => s.headers['x-tokenring-id'];

// Tokens that the tenant's other requests get, until there are no more.
async function rest(stack, key) {
  let sum = 0;
  await until(async () => {
    const r = await post(`${stack.url}/v1/completions`, { prompt: 'x',
      max_tokens: 4000, ignore_eos: true }, { 'X-Key': key });
    if (r.status === 200) sum += r.json().usage.completion_tokens;
    else assert.equal(r.status, 429, r.text);
    return r.status === 429;
  }, 'the budget is empty');
  return sum;
}

// How it ended, and with how many tokens, as Redis has it.
async function ended(redis, id, reason) {
  const hash = await state(redis, id, 'done');
  assert.equal(hash.finish_reason, reason);
  return Number(hash.completion_tokens);
}

test('many at once: not a token more than there is, and Redis has their ends',
  budgeted(400, async (stack, redis) => {
    const all = Array.from({ length: 12 }, () => ask(stack, 'out-a', 4000));
    await Promise.all(all.map((s) => s.finished));
    const told = all.filter((s) => s.status === 200);
    let sum = 0;
    for (const s of told) {
      assert.ok(s.done, s.raw.slice(-600));
      const usage = s.events.at(-1).usage;
      assert.equal(usage.cut, 'token_budget');
      assert.equal(s.events.at(-2).choices[0].finish_reason, 'length');
      sum += usage.completion_tokens;
      assert.equal(await ended(redis, idOf(s), 'length'), usage.completion_tokens);
      const again = await request(
        `${stack.url}/v1/requests/${idOf(s)}/stream`);
      assert.equal(again.text, s.raw);
    }
    assert.equal(sum, 1000);
  }));

test('one that goes on alone, to its own end: what it has not used comes back',
  budgeted(100, async (stack, redis) => {
    const s = ask(stack, 'out-a', 80, DETACH);
    await s.begun();
    s.hangUp();
    assert.equal(await ended(redis, idOf(s), 'length'), 80);
    await until(async () => (await stack.metrics())
      .value('tokenring_num_requests_running') === 0, 'it is over');
    assert.equal(await rest(stack, 'out-a'), 1000 - 80);
  }));

test('one that goes on alone, to the end of the budget',
  budgeted(400, async (stack, redis) => {
    const s = ask(stack, 'out-a', 4000, DETACH);
    await s.begun();
    s.hangUp();
    assert.equal(await ended(redis, idOf(s), 'length'), 1000);
    assert.equal(await rest(stack, 'out-a'), 0);
    const again = await request(
      `${stack.url}/v1/requests/${idOf(s)}/stream`);
    assert.match(again.text, /"cut":"token_budget"/);
  }));

test('one whose client left before it was accepted: it gets what it asked for',
  budgeted(400, async (stack, redis) => {
    stack.engine.signal('SIGSTOP');
    try {
      const s = ask(stack, 'out-a', 80, DETACH);
      await until(async () => (await stack.metrics())
        .value('tokenring_gateway_active_requests') === 1, 'it was sent');
      s.hangUp();
      await s.finished;
    } finally {
      stack.engine.signal('SIGCONT');
    }
    const [key] = await until(async () => {
      const all = await redis.command('KEYS', 'tr:req:*');
      return all.length === 1 && all;
    }, 'it is known');
    assert.equal(await ended(redis, /[{](.*)[}]/.exec(key)[1], 'length'), 80);
    assert.equal(await rest(stack, 'out-a'), 1000 - 80);
  }));

test('one whose worker dies goes on with what it holds, and no further',
  budgeted(400, async (stack, redis) => {
    const complaints = stack.complaints;
    stack.complaints = () => complaints.call(stack)
      .filter((line) => !/exited on signal 9/.test(line));
    const s = ask(stack, 'out-a', 4000, DETACH);
    await s.begun();
    process.kill(stack.workers()[0], 'SIGKILL');
    await s.finished.catch(() => {});
    const had = await ended(redis, idOf(s), 'length');
    assert.ok(had >= s.events.length - 1, `${had} of ${s.events.length}`);
    await until(async () => (await stack.metrics())
      .value('tokenring_connected_workers') === 1, 'the next worker');
    const others = await rest(stack, 'out-a');
    assert.ok(had + others <= 1000, `${had} and ${others}`);
    assert.ok(others >= 1000 - had - 256, `${had} and ${others}`);
  }));
