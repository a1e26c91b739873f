'use strict';
//
// Answers that are stored in Redis and lose their engine: they go on at another
// one under the same id, also for those who follow them.  Redis has each record
// once, whenever the engine was killed.  What an engine writes that was only
// stopped, when it goes on, is refused there.

const { describe, test } = require('node:test');
const assert = require('node:assert/strict');
const { execFile } = require('node:child_process');
const path = require('node:path');
const { promisify } = require('node:util');
const { BUILD, Stack, until, sleep, halt } = require('../lib/stack');
const { post, request, stream } = require('../lib/http');
const { story } = require('../lib/prompts');
const { Redis } = require('../lib/redis');

const KEY = { headers: { Authorization: 'Bearer me' } };

async function fleet(run, { engines = 2, more = {}, timeout = '60s' } = {}) {
  const redis = await Redis.start();
  const cpu = (name) => ({ name, kv_policy: 'full', kv_memory: '64m',
    max_num_seqs: 16, redis: redis.address, ...more });
  const stack = await Stack.start({ engine: cpu('main'),
    engines: engines > 1 ? { second: cpu('second') } : {}, pass: 'fleet',
    http: `tokenring_engine fleet unix:DIR/main.sock${
      engines > 1 ? ' unix:DIR/second.sock' : ''};
      tokenring_redis ${redis.address};`,
    location: `tokenring_migrate 100 timeout=${timeout} strict;
      tokenring_resumable on; tokenring_request_key $http_authorization;` });
  stack.complaints = () => []; // what a killed engine leaves
  try {
    await stack.connected(engines);
    await run(stack, redis, [stack.engine, ...stack.others]);
  } finally {
    await Promise.all([stack.engine, ...stack.others].map((e) => e.pid
      && e.signal('SIGCONT')));
    await stack.stop();
    process.kill(redis.pid, 'SIGCONT');
    await redis.stop();
  }
}

function ask(stack, i, more = {}) {
  const text = { model: 'pocket', prompt: `${story(i)} `, max_tokens: 160,
    ignore_eos: true, temperature: 0.9, seed: 300 + i, ...more };
  const [where, body] = [
    ['completions', text],
    ['completions', { ...text, n: 3, logprobs: 2 }],
    ['completions', { ...text, echo: true }],
    ['chat/completions', { ...text, prompt: undefined, messages: [
      { role: 'user', content: story(i) }] }],
  ][i % 4];
  return stream(`${stack.url}/v1/${where}`, { ...body, stream: true,
    stream_options: { include_usage: true, include_kv: i % 4 === 3,
      continuous_usage_stats: i % 4 === 3 } }, KEY);
}

const follow = (stack, id, after) => stream(
  `${stack.url}/v1/requests/${id}/stream`, undefined, { headers: {
    ...KEY.headers, ...(after ? { 'Last-Event-ID': String(after) } : {}) } });

// What a client has of a stream, whatever the order of its choices.
function said(s) {
  const choices = [];
  let usage;
  for (const event of s.events) {
    if (event.usage) usage = [event.usage.prompt_tokens, event.usage.completion_tokens];
    for (const c of event.choices) {
      choices[c.index] = (choices[c.index] || '') + (c.text
        || (c.delta && c.delta.content) || '') + (c.finish_reason || '')
        + (c.logprobs ? c.logprobs.token_logprobs : '');
    }
  }
  return { choices, usage };
}

const without = (raw) => raw.replace(/^:.*\n\n/gm, '');

const state = async (stack, id) => (await request(
  `${stack.url}/v1/requests/${id}`, KEY)).json();
const done = (stack, id) => until(async () =>
  (await state(stack, id)).state === 'done', 'its state is final');

// The numbers of its entries: they grow, and the records between are all there,
// or a reader would have said so.
async function written(stack, redis, s) {
  const id = s.headers['x-tokenring-id'];
  await done(stack, id);
  const at = await state(stack, id);
  assert.deepEqual([at.gap, at.error], [false, null]);
  const again = await follow(stack, id).finished;
  assert.equal(without(again.raw), without(s.raw));
  assert.equal((await redis.hash(`tr:req:{${id}}`)).gap, undefined);
}

const whole = async (s) => {
  await s.finished;
  assert.ok(s.done, s.raw.slice(-600));
  return said(s);
};

const some = [0, 1, 2, 3];

describe('stored answers move', { concurrency: 2 }, () => {
  test('killed again and again: clients and followers see a pause', () =>
    fleet(async (stack, redis, engines) => {
      const more = { max_tokens: 300 };
      const want = await Promise.all(some.map((i) => whole(ask(stack, i, more))));
      const streams = some.map((i) => ask(stack, i, more));
      const followers = [];
      for (let k = 0; k < 4; k++) {
        await Promise.all(streams.map((s) => s.when(() => s.over
          || s.events.length > 4 + 50 * k)).map((p) => p.catch(() => {})));
        for (const s of streams) {
          followers.push([s, follow(stack, s.headers['x-tokenring-id'])]);
        }
        await sleep(17 * k);
        await engines[k % 2].kill();
        await engines[k % 2].start();
        await until(() => engines[k % 2].connects(), 'it is back');
      }
      assert.deepEqual(await Promise.all(streams.map(whole)), want);
      for (const [s, f] of followers) {
        await f.finished;
        assert.equal(without(f.raw), without(s.raw));
      }
      for (const s of streams) await written(stack, redis, s);
      const m = await stack.metrics();
      assert.ok(m.value('tokenring_gateway_migrations_total') >= 2);
      assert.equal(m.value('tokenring_gateway_unmovable_total'), 0);
      await stack.idle();
    }));

  test('one engine that comes back: who follows waits for it', () =>
    fleet(async (stack, redis, [engine]) => {
      const s = ask(stack, 0, { max_tokens: 200 });
      await s.begun();
      const id = s.headers['x-tokenring-id'];
      const f = follow(stack, id);
      await f.begun();
      const { created } = await until(() => redis.hash(`tr:req:{${id}}`),
        'Redis knows it');
      await engine.kill();
      // Longer than the heartbeat's life, and the looks of those who follow.
      await sleep(9500);
      assert.ok(!f.over && !s.over);
      const late = follow(stack, id, f.ids.at(-1));
      await engine.start();
      await whole(s);
      await f.finished;
      assert.equal(without(f.raw), without(s.raw));
      await late.finished;
      assert.ok(without(s.raw).endsWith(without(late.raw)), late.raw);
      await written(stack, redis, s);
      assert.ok(created);
      assert.equal((await redis.hash(`tr:req:{${id}}`)).created, created);
    }, { engines: 1 }));

  test('engines that are killed before they could write, long apart', () =>
    fleet(async (stack, redis, [engine]) => {
      const more = { max_tokens: 300 };
      const want = await Promise.all([0, 3].map((i) => whole(ask(stack, i, more))));
      const streams = [0, 3].map((i) => ask(stack, i, more));
      const go = (n) => Promise.all(streams.map((s) => {
        const { length } = s.events;
        return s.when(() => s.events.length > length + n);
      }));
      await go(2);
      await halt(redis.pid); // nothing of what follows is written
      await go(12);
      for (let k = 0; k < 3; k++) {
        await engine.kill();
        // longer than records are kept while an engine has the request
        await sleep(2100);
        if (k === 2) process.kill(redis.pid, 'SIGCONT');
        await engine.start();
        if (k < 2) await go(0);
      }
      assert.deepEqual(await Promise.all(streams.map(whole)), want);
      for (const s of streams) await written(stack, redis, s);
      await stack.idle();
    }, { engines: 1 }));

  test('nobody takes it: followers get the error, too', () =>
    fleet(async (stack, redis, [engine]) => {
      const s = ask(stack, 0, { max_tokens: 200 });
      await s.begun();
      const id = s.headers['x-tokenring-id'];
      const f = follow(stack, id);
      await f.begun();
      await engine.kill();
      await s.finished;
      assert.match(s.raw, /engine_unavailable/);
      await f.finished;
      assert.match(f.raw, /engine_unavailable/);
      assert.equal((await state(stack, id)).state, 'failed');
    }, { engines: 1, timeout: '1s' }));

  test('drain --move: it is given to the other engine', () =>
    fleet(async (stack, redis, [engine]) => {
      const want = await Promise.all(some.map((i) => whole(ask(stack, i))));
      const streams = some.map((i) => ask(stack, i));
      await Promise.all(streams.map((s) => s.begun()));
      const followers = streams.map((s) =>
        follow(stack, s.headers['x-tokenring-id']));
      await promisify(execFile)(path.join(BUILD, 'bin/tokenring'),
        ['drain', '--move', engine.socket]);
      assert.deepEqual(await Promise.all(streams.map(whole)), want);
      for (const [i, f] of followers.entries()) {
        await f.finished;
        assert.equal(without(f.raw), without(streams[i].raw));
        await written(stack, redis, streams[i]);
      }
      assert.ok((await stack.metrics())
        .value('tokenring_gateway_migrations_total') > 0);
    }));

  test('an engine that was stopped writes nothing when it goes on', () =>
    fleet(async (stack, redis, engines) => {
      const want = await Promise.all(some.map((i) => whole(ask(stack, i))));
      const streams = some.map((i) => ask(stack, i));
      const kept = stream(`${stack.url}/v1/responses`, { model: 'pocket',
        input: story(5), ignore_eos: true, max_output_tokens: 160, stream: true,
        temperature: 0 }, KEY);
      await Promise.all(streams.map((s) => s.begun()));
      await kept.when(() => kept.events.length > 5);
      const { id } = kept.events[0].response;
      await until(async () => ((await redis.hash(`tr:req:{${id.slice(5)}}`))
        || {}).holder, 'it is known');
      const rereads = stream(`${stack.url}/v1/responses/${id}?stream=true`,
        undefined, KEY);
      await halt(engines[0].pid);
      assert.deepEqual(await Promise.all(streams.map(whole)), want);
      await kept.finished;
      await rereads.finished;
      assert.ok(rereads.events.length, rereads.raw);
      const { response } = kept.events.at(-1);
      assert.equal(response.status, 'incomplete');
      assert.deepEqual(rereads.events.at(-1).response, response);
      assert.match(stack.errorLog(), /channel closed, .*does not answer/);
      for (const s of streams) await written(stack, redis, s);
      const keys = await Promise.all([...streams.map((s) =>
        s.headers['x-tokenring-id']), id.slice(5)].map(async (k) =>
        [await redis.hash(`tr:req:{${k}}`), await redis.stream(`tr:out:{${k}}`)]));
      const monitor = await redis.monitor();
      engines[0].signal('SIGCONT'); // with requests that are over elsewhere
      await until(() => monitor.lines.some((l) => /"EVAL"/.test(l)), 'it tries');
      await sleep(600);
      monitor.stop();
      assert.deepEqual(await Promise.all([...streams.map((s) =>
        s.headers['x-tokenring-id']), id.slice(5)].map(async (k) =>
        [await redis.hash(`tr:req:{${k}}`),
          await redis.stream(`tr:out:{${k}}`)])), keys);
      for (const s of streams) await written(stack, redis, s);
      const r = await post(`${stack.url}/v1/responses`, { model: 'pocket',
        input: 'On.', previous_response_id: id, max_output_tokens: 4 }, KEY.headers);
      assert.equal(r.status, 200, r.text);
      await stack.connected(2);
      await stack.idle();
    }));
});
