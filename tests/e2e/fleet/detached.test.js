'use strict';
//
// Requests that only their engine can finish, in a gateway that moves the others
// (tokenring_migrate): the client of one has left (X-Tokenring-Detach), another
// was too large to be kept.  Their end stands in Redis, whatever becomes of the
// engine's channel.

const { describe, test } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until, halt } = require('../lib/stack');
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

const final = (stack, s) => until(async () => {
  const is = await state(stack, id(s));
  return ['done', 'failed', 'cancelled'].includes(is.state) && is;
}, 'its state is final');

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

  test('one that is still queued when the engine stops has its turn', () =>
    alone(async (stack) => {
      const first = ask(stack, { 'X-Tokenring-Detach': '1' }, { max_tokens: 30 });
      await first.begun();
      // Its head is sent, and the client has the id.
      const queued = ask(stack, { 'X-Tokenring-Detach': '1' }, { max_tokens: 3 });
      await queued.start;
      await until(async () => (await state(stack, id(queued))).state === 'queued',
        'it waits');
      assert.equal((await stack.engine.kill('SIGTERM')).code, 0);
      await Promise.all([first.finished, queued.finished]);
      for (const s of [first, queued]) assert.ok(s.done, s.raw.slice(-300));
    }, { engine: { max_num_seqs: 1, null_rate: 10 } }));

  test('the channel is fenced for one that moves: they go on', () =>
    alone(async (stack) => {
      const detach = { 'X-Tokenring-Detach': '1' };
      const some = { max_tokens: 150 };
      const large = { ...some, user: 'x'.repeat(22000) };
      const early = ask(stack, detach, some), late = ask(stack, detach, some);
      const big = ask(stack, detach, large), bound = ask(stack, {}, large);
      const moves = ask(stack, {}, some);
      const all = [early, late, big, bound, moves];
      await Promise.all(all.map((s) => s.begun()));
      for (const s of all) await known(stack, s);
      await left(stack, early);
      await halt(stack.engine.pid);
      late.hangUp(); // the engine cannot see it before the channel is closed
      await until(() => /channel closed, .*: the engine does not answer/
        .test(stack.errorLog()), 'its channel is closed');
      stack.engine.signal('SIGCONT');
      await moves.finished;
      assert.ok(moves.done, moves.raw.slice(-300));
      for (const s of [early, late, big]) {
        const is = await final(stack, s);
        assert.deepEqual([is.state, is.finish_reason, is.gap],
          ['done', 'length', false]);
        const again = await stream(`${stack.url}/v1/requests/${id(s)}/stream`,
          undefined, { headers: KEY }).finished;
        assert.ok(again.done);
      }
      // Without the header it ends with its channel, and Redis has that end.
      assert.equal((await final(stack, bound)).state, 'cancelled');
    }, { migrate: 'tokenring_migrate 100 timeout=20s strict memory=20k;' }));
});
