'use strict';
//
// Requests that only their engine can finish, in a gateway that moves the others
// (tokenring_migrate): their client has left (X-Tokenring-Detach).  Their end
// stands in Redis.

const { describe, test } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until } = require('../lib/stack');
const { request, stream } = require('../lib/http');
const { Redis } = require('../lib/redis');

const KEY = { Authorization: 'Bearer me' };

async function alone(run, { engine = {}, migrate = '' } = {}) {
  const redis = await Redis.start();
  const stack = await Stack.start({
    engine: { name: 'main', backend: 'null', null_rate: 25, kv_memory: '64m',
      max_num_seqs: 8, redis: redis.address, ...engine },
    http: `tokenring_redis ${redis.address};`, workers: 1,
    location: `${migrate} tokenring_resumable on;
      tokenring_request_key $http_authorization;` });
  stack.complaints = () => []; // what an engine leaves that was stopped
  try {
    await stack.connected(1);
    await run(stack, redis);
  } finally {
    if (stack.engine.pid) stack.engine.signal('SIGCONT');
    await stack.stop();
    await redis.stop();
  }
}

const ask = (stack, headers, more) => stream(`${stack.url}/v1/completions`,
  { model: 'pocket', prompt: 'Once upon a time ', max_tokens: 9000,
    ignore_eos: true, stream: true, ...more },
  { headers: { ...KEY, ...headers } });

const state = async (stack, id) => (await request(
  `${stack.url}/v1/requests/${id}`, { headers: KEY })).json();

const id = (s) => s.headers['x-tokenring-id'];

const known = (stack, s) => until(async () => (await state(stack, id(s))).engine,
  'Redis knows it');

async function left(stack, s) {
  s.hangUp();
  await until(async () => (await state(stack, id(s))).state === 'detached',
    'it goes on without its client');
}

describe('requests that nobody moves', { concurrency: 3 }, () => {
  for (const migrate of ['', 'tokenring_migrate 3 timeout=20s;']) {
    test(`the engine stops: who follows is told${migrate && ', with moves'}`, () =>
      alone(async (stack, redis) => {
        const s = ask(stack, { 'X-Tokenring-Detach': '1' });
        await s.begun();
        await known(stack, s);
        await left(stack, s);
        const follower = stream(`${stack.url}/v1/requests/${id(s)}/stream`,
          undefined, { headers: KEY });
        await follower.begun();
        await stack.engine.kill('SIGTERM');
        await follower.finished;
        assert.match(follower.raw, /"code": ?"engine_draining"/);
        const hash = await redis.hash(`tr:req:{${id(s)}}`);
        assert.equal(hash.state, 'failed');
        assert.equal(hash.error_status, 'TR_ERR_DRAINING');
        assert.notEqual(hash.run, '-');
        assert.ok(hash.finished);
      }, { engine: { drain_timeout: '500ms' }, migrate }));
  }
});
