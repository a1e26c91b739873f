'use strict';
//
// Requests that outlive a connection, with a real engine, a real Redis and two
// NGINX that share nothing but it.  resumable.test.js has what needs an engine
// that does as it is told.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until, sleep } = require('../lib/stack');
const { post, request, stream } = require('../lib/http');
const { chat, story } = require('../lib/prompts');
const { withStack, completion, state, FAST, SLOW } = require('../lib/redis_stack');
const { Redis } = require('../lib/redis');
const { Proxy } = require('../lib/redis_proxy');

const DETACH = { headers: { 'X-Tokenring-Detach': '1' } };
const PACED = { ...FAST, null_rate: 100 };

// A first NGINX with the engine, and a second one that has only Redis.
function withTwo(engine, what, more = {}) {
  const settings = { location: 'tokenring_resumable on;', ...more };
  return withStack({ ...settings,
    engine: (redis) => {
      settings.http = `tokenring_redis ${redis.address};`;
      return engine;
    } }, async (first, redis) => {
    first.configure({ http: settings.http });
    await first.reload();
    await until(() => first.workers().length === 1, 'old workers have left');
    const second = await Stack.start({ engine: null, ...settings });
    try {
      await what(first, second, redis);
      assert.deepEqual(second.complaints(), []);
    } finally {
      await second.stop();
    }
  });
}

const place = (stack, id) => `${stack.url}/v1/requests/${id}`;
const look = async (stack, id) => (await request(place(stack, id))).json();
const follow = (stack, id, after) => stream(`${place(stack, id)}/stream`,
  undefined, { headers: after ? { 'Last-Event-ID': String(after) } : {} });
const idOf = (s) => s.headers['x-tokenring-id'];

// Until the state, as a client sees it.
const becomes = (stack, id, want) => until(async () => {
  const s = await look(stack, id);
  return s.state === want ? s : null;
}, async () => `${want}: ${JSON.stringify(await look(stack, id))}`);

// What two answers to one question may differ in.
const same = (raw) => raw.replace(/"id":"[^"]*"/g, '"id"')
  .replace(/"created":\d+/g, '"created"');

// Up to the end of the event with this id.
const upTo = (raw, id) => raw.slice(0, raw.indexOf('\n\n',
  raw.indexOf(`id: ${id}\n`)) + 2);

test('read half, dropped, resumed elsewhere; and when the engine is gone',
  async () => {
    await withTwo({ redis_flush: '20ms' }, async (first, second, redis) => {
      const url = `${first.url}/v1/chat/completions`;
      // Asked more than once, with the same usage each time.
      const ask = chat(story(3), { stream: true, max_tokens: 60,
        kv_reuse: false,
        stream_options: { include_usage: true } });
      const whole = await stream(url, ask).finished;
      assert.equal(whole.done, true);

      const half = stream(url, ask, DETACH);
      await half.when(() => half.ids.length >= 5);
      half.hangUp();
      await half.finished;
      const id = idOf(half);
      const last = half.ids[4];
      // known there: Redis is a little behind who streams
      await until(async () => (await look(second, id)).state, 'in Redis');
      const rest = await follow(second, id, last).finished;
      assert.equal(rest.done, true);
      const joined = upTo(half.raw, last) + rest.raw;
      assert.equal(same(joined), same(whole.raw));

      const done = await becomes(second, id, 'done');
      assert.equal(done.detach, true);
      assert.equal(done.finish_reason,
        whole.events.filter((e) => e.choices.length).at(-1)
          .choices[0].finish_reason);
      assert.deepEqual(done.usage, whole.events.at(-1).usage);

      await first.engine.kill();
      await redis.command('DEL', 'tr:engine:{main}');
      for (const stack of [first, second]) {
        assert.equal((await follow(stack, id).finished).raw, joined);
        assert.equal((await follow(stack, id, last).finished).raw, rest.raw);
        assert.equal((await look(stack, id)).state, 'done');
      }
      // the one before was not detached, and is there as well
      assert.equal((await follow(second, idOf(whole)).finished).raw,
        whole.raw);
    });
  });

test('a request and its choices, not streamed, read again', async () => {
  await withTwo(FAST, async (first, second) => {
    const r = await post(`${first.url}/v1/completions`,
      completion(20, { n: 3, logprobs: 2 }));
    assert.equal(r.status, 200, r.text);
    const id = r.headers['x-tokenring-id'];
    await becomes(second, id, 'done');
    assert.equal((await request(`${place(second, id)}/stream`)).text, r.text);
    const s = await stream(`${first.url}/v1/completions`, completion(20,
      { n: 3, logprobs: 2, stream: true })).finished;
    await becomes(second, idOf(s), 'done');
    const again = await follow(second, idOf(s)).finished;
    assert.equal(again.raw, s.raw);
    for (const last of [s.ids[s.ids.length >> 2], s.ids[s.ids.length >> 1],
      s.ids.at(-2)]) {
      assert.equal((await follow(second, idOf(s), last).finished).raw,
        s.raw.slice(upTo(s.raw, last).length), `after ${last}`);
    }
  });
});

test('the engine is killed midway', async () => {
  await withTwo(PACED, async (first, second, redis) => {
    const s = stream(`${first.url}/v1/completions`, completion(20000,
      { stream: true }));
    await s.when(() => s.ids.length > 10);
    const id = idOf(s);
    const f = follow(second, id);
    await f.when(() => f.ids.length > 10);
    await first.engine.kill();
    const end = await s.finished;
    assert.equal(end.events.at(-1).error.code, 'engine_unavailable');
    const other = await f.finished;
    assert.equal(other.cut, false);
    assert.equal(other.events.at(-1).error.code, 'engine_unavailable');
    assert.ok(end.text().startsWith(other.text()), 'nothing else came');
    await until(async () => await redis.hash('tr:engine:{main}') === null,
      'the heartbeat is over');
    assert.equal((await look(second, id)).state, 'failed');
    assert.equal((await redis.hash(`tr:req:{${id}}`)).state, 'decode');
  });
});

test('states: queued, decode, done, cancelled by its client', async () => {
  await withTwo({ ...SLOW, max_num_seqs: 1 }, async (first, second) => {
    const url = `${first.url}/v1/completions`;
    const a = stream(url, completion(4000, { stream: true }));
    await a.when(() => a.ids.length > 2);
    const b = stream(url, completion(5, { stream: true }), DETACH);
    await b.start;
    assert.equal((await becomes(second, idOf(b), 'queued')).started, null);
    assert.equal((await becomes(second, idOf(a), 'decode')).finished, null);
    a.hangUp();
    const left = await becomes(second, idOf(a), 'cancelled');
    assert.equal(left.error.message, 'The client has left');
    const read = await follow(second, idOf(a)).finished;
    assert.equal(read.events.at(-1).error.code, 'request_cancelled');
    assert.equal((await b.finished).done, true);
    const done = await becomes(second, idOf(b), 'done');
    assert.equal(done.usage.completion_tokens, 5);
    assert.ok(done.timings.queue > 0);
  });
});

test('DELETE of what runs, what waits, and what was left alone', async () => {
  await withTwo({ ...SLOW, max_num_seqs: 1 }, async (first, second) => {
    const url = `${first.url}/v1/completions`;
    const cancel = (id) => request(place(second, `cmpl-${id}`),
      { method: 'DELETE' });
    const a = stream(url, completion(4000, { stream: true }));
    await a.when(() => a.ids.length > 2);
    const b = stream(url, completion(4000, { stream: true }), DETACH);
    await b.start;
    await becomes(second, idOf(b), 'queued');
    const f = follow(second, idOf(b));
    assert.equal((await cancel(idOf(b))).status, 202);
    const waited = await b.finished;
    assert.equal(waited.events.at(-1).error.code, 'request_cancelled');
    await becomes(second, idOf(b), 'cancelled');
    // nothing was told of it: its end is a status
    assert.equal((await f.finished).status, 499);

    assert.equal((await cancel(idOf(a))).status, 202);
    const ran = await a.finished;
    assert.equal(ran.events.at(-1).error.code, 'request_cancelled');
    await becomes(second, idOf(a), 'cancelled');
    assert.equal((await follow(second, idOf(a)).finished).raw, ran.raw);

    const c = stream(url, completion(4000, { stream: true }), DETACH);
    await c.when(() => c.ids.length > 2);
    c.hangUp();
    await becomes(second, idOf(c), 'detached');
    const g = follow(second, idOf(c));
    await g.when(() => g.ids.length > 6);
    assert.equal((await cancel(idOf(c))).status, 202);
    assert.equal((await g.finished).events.at(-1).error.code,
      'request_cancelled');
    await becomes(second, idOf(c), 'cancelled');
    assert.equal((await cancel(idOf(c))).status, 200);
    await first.idle();
  });
});

test('detached, through reloads; its log says so', async () => {
  await withTwo(PACED, async (first, second) => {
    const s = stream(`${first.url}/v1/completions`, completion(1000,
      { stream: true }), { headers: { ...DETACH.headers, 'X-Mark': 'left' } });
    await s.when(() => s.ids.length > 5);
    s.hangUp();
    await becomes(second, idOf(s), 'detached');
    const [line] = await first.logged('left');
    assert.equal(line.finish_reason, 'detached');
    assert.equal(line.status, 499);
    const old = first.workers();
    await first.reload();
    await until(() => !first.workers().includes(old[0]), 'it waits for nobody');
    const all = await follow(second, idOf(s)).finished;
    assert.equal(all.done, true);
    assert.equal((await becomes(second, idOf(s), 'done'))
      .usage.completion_tokens, 1000);
    await first.idle();
  });
});

test('owners, as the engine keeps them', async () => {
  await withTwo(FAST, async (first, second) => {
    const url = `${first.url}/v1/completions`;
    const mine = { Authorization: 'Bearer mine' };
    const id = (await post(url, completion(3), mine))
      .headers['x-tokenring-id'];
    await until(async () => (await request(place(second, id),
      { headers: mine })).status === 200, 'its owner sees it');
    for (const headers of [{}, { Authorization: 'Bearer yours' }]) {
      for (const [method, tail] of [['GET', ''], ['GET', '/stream'],
        ['DELETE', '']]) {
        const r = await request(place(second, id) + tail, { method, headers });
        assert.equal(r.status, 404);
      }
    }
    const again = await request(`${place(second, id)}/stream`,
      { headers: mine });
    assert.equal(again.status, 200);
  }, { location: `tokenring_resumable on;
    tokenring_request_key $http_authorization;` });
});

test('what is kept expires', async () => {
  await withTwo({ ...FAST, redis_request_ttl: '20s', redis_output_ttl: '10s' },
    async (first, second, redis) => {
      const r = await post(`${first.url}/v1/completions`, completion(3));
      const id = r.headers['x-tokenring-id'];
      await state(redis, id, 'done');
      await until(async () => {
        const s = await request(`${place(second, id)}/stream`);
        return s.status === 404
          && /has expired/.test(s.json().error.message);
      }, 'its output is gone');
      await until(async () =>
        (await request(place(second, id))).status === 404, 'and all of it');
    });
});

test('Redis is killed under followers, and comes back empty', async () => {
  await withTwo(PACED, async (first, second, redis) => {
    const s = stream(`${first.url}/v1/completions`, completion(600,
      { stream: true }));
    await s.when(() => s.ids.length > 10);
    const all = Array.from({ length: 10 }, () => follow(second, idOf(s)));
    await Promise.all(all.map((f) => f.when(() => f.ids.length > 10)));
    await redis.kill();
    assert.equal((await request(place(second, idOf(s)))).status, 503);
    await sleep(500);
    await redis.run();
    // whoever streams from the engine notices nothing
    const live = await s.finished;
    assert.equal(live.done, true);
    // the others get the end of the answer or an error, without a hole
    for (const f of all) {
      const end = await f.finished;
      assert.equal(end.cut, false);
      assert.ok(end.done || end.events.at(-1).error, end.raw.slice(-200));
      assert.ok(live.text().startsWith(end.text()), 'a hole');
    }
    const later = stream(`${first.url}/v1/completions`, completion(20,
      { stream: true }));
    await later.finished;
    await becomes(second, idOf(later), 'done');
    assert.equal((await follow(second, idOf(later)).finished).raw, later.raw);
  });
});

test('how far a request is; and a hash that is lost comes back', async () => {
  await withTwo({ ...FAST, null_rate: 30 }, async (first, second, redis) => {
    const s = stream(`${first.url}/v1/completions`, completion(9000,
      { stream: true }));
    await s.when(() => s.events.length > 2);
    const id = idOf(s);
    const far = (more) => until(async () => {
      const { state: now, usage } = await look(second, id);
      return now === 'decode' && usage.completion_tokens > more
        && usage.total_tokens === usage.prompt_tokens + usage.completion_tokens
        ? usage.completion_tokens : null;
    }, `more than ${more} tokens`);
    const some = await far(0);
    const more = await far(some);
    await redis.command('DEL', `tr:req:{${id}}`);
    await until(async () => (await redis.hash(`tr:req:{${id}}`)
      || {}).endpoint === 'completions', 'all of it is back');
    assert.ok(await redis.command('PTTL', `tr:req:{${id}}`) > 0);
    await far(more);
    s.hangUp();
    const end = await becomes(second, id, 'cancelled');
    assert.ok(end.usage.completion_tokens > more);
    assert.equal(end.model, 'pocket');
  });
});

test('a Redis that is away in two ways by turns is not a line each time',
  async () => {
    const redis = await Redis.start();
    const proxy = await Proxy.start(redis);
    let stack;
    try {
      stack = await Stack.start({ engine: FAST,
        http: `tokenring_redis ${proxy.address} timeout=150ms;` });
      const ask = async () =>
        (await request(place(stack, '0'.repeat(32)))).status;
      await until(async () => await ask() === 404, 'Redis is reached');
      for (let i = 0; i < 16; i++) {
        proxy.mode = i % 2 ? 'refuse' : 'stall';
        proxy.cut();
        assert.equal(await ask(), 503);
        await sleep(110);
      }
      proxy.mode = 'pass';
      proxy.cut();
      await until(async () => await ask() === 404, 'Redis is reached again');
      const lines = stack.errorLog().split('\n')
        .filter((l) => /cannot use Redis/.test(l));
      assert.ok(lines.length >= 2 && lines.length <= 4, lines.join('\n'));
      // and the next outage is told again
      proxy.mode = 'refuse';
      proxy.cut();
      await until(async () => await ask() === 503, 'away');
      await until(() => stack.errorLog().split('\n')
        .filter((l) => /cannot use Redis/.test(l)).length > lines.length, 'a new line');
      assert.deepEqual(stack.complaints(), []);
    } finally {
      if (stack) await stack.stop();
      proxy.stop();
      await redis.stop();
    }
  });
