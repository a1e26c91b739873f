'use strict';
//
// A fleet with a Redis: a resumable request that has moved to another engine
// stands in Redis as if it had always been there, and an engine that is being
// drained says so.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const { Stack, until, BUILD } = require('../lib/stack');
const { post, stream, request } = require('../lib/http');
const { Redis } = require('../lib/redis');

let redis, stack, url;

before(async () => {
  redis = await Redis.start();
  const settings = (name) => ({
    name, backend: 'null', null_rate: 25, kv_memory: '64m', max_num_seqs: 1,
    redis: redis.address,
  });
  stack = await Stack.start({
    engine: settings('main'), engines: { second: settings('second') },
    http: `tokenring_redis ${redis.address};`,
    location: 'tokenring_resumable on;',
  });
  await stack.connected(2);
  url = `${stack.url}/v1/completions`;
});

after(async () => {
  if (stack) await stack.stop();
  if (redis) await redis.stop();
});

const body = (more = {}) => ({
  model: 'pocket', prompt: 'one two three', max_tokens: 60, stream: true,
  ...more,
});
const waiting = async (i) => (await stack.metrics())
  .value('tokenring_num_requests_waiting', { replica: String(i) });
const running = async (i) => (await stack.metrics())
  .value('tokenring_num_requests_running', { replica: String(i) });
const again = (id) =>
  stream(`${stack.url}/v1/requests/${id}/stream`, undefined, {}).finished;

test('a resumable stream moves to another engine, and is read again there',
  async () => {
    const first = [0, 1].map(() => stream(url, body({ max_tokens: 9000 })));
    await Promise.all(first.map((s) => s.begun()));
    await until(async () => await running(0) === 1 && await running(1) === 1,
      'both have one');
    const moved = stream(url, body({ max_tokens: 20 }));
    await until(async () => await waiting(0) + await waiting(1) === 1,
      'it waits');
    const at = await waiting(0) === 1 ? 0 : 1;
    await [stack.engine, ...stack.others][at].kill('SIGKILL');
    for (const s of first) s.hangUp(); // one of them is in the way
    const s = await moved.finished;
    assert.ok(s.done, s.raw.slice(-300));
    assert.equal((await stack.metrics())
      .value('tokenring_gateway_retries_total'), 1);
    const id = s.headers['x-tokenring-id'];
    assert.equal(s.events[0].id, `cmpl-${id}`);
    const state = await until(async () => {
      const r = await request(`${stack.url}/v1/requests/${id}`);
      return r.status === 200 && r.json().state === 'done' ? r.json() : null;
    }, 'its state is final');
    assert.equal(state.engine, at === 0 ? 'second' : 'main');
    const copy = await again(id);
    assert.equal(copy.raw, s.raw, 'byte for byte');
    await Promise.all(first.map((x) => x.finished));
    await [stack.engine, ...stack.others][at].start();
    await stack.connected(2);
  });

test('an answer that is not streamed moves, too, and its state is whole',
  async () => {
    // The first one alone, which does not get far; then there is another.
    const [first, second] = [stack.engine, stack.others[0]];
    await second.kill('SIGKILL');
    await first.kill('SIGTERM');
    await stack.connected(0);
    await first.start({ null_rate: 0.1 });
    await stack.connected(1);
    const answer = post(url, body({ stream: false, max_tokens: 50 }));
    await until(async () => await running(0) === 1, 'it runs');
    await second.start();
    await stack.connected(2);
    await first.kill('SIGKILL');
    const r = await answer;
    assert.equal(r.status, 200, r.text);
    const id = r.headers['x-tokenring-id'];
    assert.equal(r.json().id, `cmpl-${id}`);
    const state = await until(async () => {
      const got = await request(`${stack.url}/v1/requests/${id}`);
      return got.status === 200 && got.json().state === 'done' ? got.json()
        : null;
    }, 'its state is final');
    assert.equal(state.engine, 'second');
    await first.start({ null_rate: 25 });
  });

test('an engine that is drained says so in Redis', async () => {
  const heartbeat = async () => ((await redis.hash('tr:engine:{second}')) || {}).state;
  await until(async () => await heartbeat() === 'ready', 'ready');
  const drain = (...args) => spawnSync(path.join(BUILD, 'bin/tokenring'),
    ['drain', ...args, stack.others[0].socket], { encoding: 'utf8' });
  assert.equal(drain().status, 0);
  await until(async () => await heartbeat() === 'draining', 'draining');
  assert.equal(drain('--undo').status, 0);
  await until(async () => await heartbeat() === 'ready', 'ready again');
  assert.deepEqual(stack.complaints(), []);
});
