'use strict';
//
// What an engine tells a real Redis, and what it makes of a Redis in trouble.
// The faults (killed, paused, full, stalled) are in redis_faults.test.js.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { until, read, ROOT, VERSION } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { output } = require('../lib/redis');
const { withStack, completion, idOf, state, states, FAST, SLOW }
  = require('../lib/redis_stack');

test('a request from its arrival to its end', async () => {
  await withStack({ engine: { ...SLOW, max_num_seqs: 1 } },
    async (stack, redis) => {
      const monitor = await redis.monitor();
      const url = `${stack.url}/v1/chat/completions`;
      const body = { messages: [{ role: 'user', content: 'hi' }],
        max_tokens: 50 };
      const before = Date.now();
      const [a, b] = await Promise.all([
        post(url, body, { 'X-Request-Id': 'the-first' }), post(url, body)]);
      for (const [answer, name] of [[a, 'the-first'], [b, null]]) {
        assert.equal(answer.status, 200);
        const id = idOf(answer.text);
        const hash = await state(redis, id, 'done');
        const usage = answer.json().usage;
        assert.equal(hash.engine, 'main');
        assert.equal(hash.model, 'pocket');
        assert.equal(hash.endpoint, 'chat');
        if (name) assert.equal(hash.request_id, name);
        assert.equal(hash.finish_reason, 'length');
        assert.equal(hash.choices, '1');
        assert.equal(Number(hash.prompt_tokens), usage.prompt_tokens);
        assert.equal(Number(hash.completion_tokens), 50);
        assert.equal(Number(hash.kv_bytes), usage.kv_cache.bytes);
        assert.equal(Number(hash.kv_full_bytes), usage.kv_cache.fp16_bytes);
        assert.equal(hash.error, undefined);
        const times = ['created', 'started', 'first_token', 'finished']
          .map((field) => Number(hash[field]));
        assert.ok(times[0] >= before - 1000, 'Unix milliseconds');
        for (let i = 1; i < 4; i++) assert.ok(times[i] >= times[i - 1]);
        assert.ok(times[3] <= Date.now() + 1000);
      }
      await until(() => [a, b].every((x) =>
        states(monitor.lines, idOf(x.text)).at(-1) === 'done'),
      'the monitor has heard of it, too');
      monitor.stop();
      // One of them had to wait for the other.
      const both = [a, b].map((x) => states(monitor.lines, idOf(x.text)));
      for (const seen of both) {
        assert.equal(seen[seen.length - 1], 'done');
        assert.ok(seen.includes('decode'), seen.join());
      }
      assert.ok(both.some((seen) => seen[0] === 'queued'), both.join(' '));
      const recent = await redis.command('ZRANGE', 'tr:requests:{main}', 0, -1);
      assert.deepEqual([...recent].sort(), [a, b].map((x) => idOf(x.text))
        .sort());
    });
});

test('tokens that were cached', async () => {
  await withStack({ engine: { backend: 'cpu', kv_policy: 'full' } },
    async (stack, redis) => {
      const body = { prompt: 'the fox and the key. '.repeat(40), max_tokens: 1 };
      for (const again of [false, true]) {
        const answer = await post(`${stack.url}/v1/completions`, body);
        assert.equal(answer.status, 200);
        const { cached_tokens } = answer.json().usage.prompt_tokens_details;
        assert.equal(cached_tokens > 0, again);
        const hash = await state(redis, idOf(answer.text), 'done');
        assert.equal(Number(hash.cached_tokens), cached_tokens);
      }
    });
});

// The model computes, since `backend null` has its first token at once: a long
// prompt in small pieces takes many flushes.
test('queued, prefill, decode, done', async () => {
  await withStack({ engine: { max_num_seqs: 1, max_batch_tokens: 64,
    redis_flush: '1ms' } }, async (stack, redis) => {
    const url = `${stack.url}/v1/completions`;
    const monitor = await redis.monitor();
    const before = stream(url, completion(3000,
      { stream: true, ignore_eos: true }));
    await before.begun();
    const answer = post(url, { prompt: 'once '.repeat(2000), max_tokens: 100,
      ignore_eos: true }, { 'X-Request-Id': 'waits' });
    await until(() => monitor.lines.some((line) =>
      / "state" "queued" .* "request_id" "waits"/.test(line)), 'it waits');
    before.hangUp();
    const r = await answer;
    assert.equal(r.status, 200, r.text);
    const id = idOf(r.text);
    await until(() => states(monitor.lines, id).includes('done'), 'its end');
    monitor.stop();
    assert.deepEqual(states(monitor.lines, id),
      ['queued', 'prefill', 'decode', 'done']);
  });
});

test('requests that fail', async () => {
  await withStack({ engine: { ...SLOW, max_num_seqs: 1, max_queue: 1 } },
    async (stack, redis) => {
      const url = `${stack.url}/v1/completions`;
      const monitor = await redis.monitor();
      const bad = await post(url, completion(4, { temperature: 9 }),
        { 'X-Request-Id': 'bad' });
      assert.equal(bad.status, 400);
      const line = await until(() => monitor.lines.find((one) =>
        / "state" "failed" /.test(one)), 'a failed request');
      const hash = await redis.hash(/"(tr:req:[^"]+)"/.exec(line)[1]);
      assert.equal(hash.request_id, 'bad');
      assert.equal(hash.error_status, 'TR_ERR_INVALID');
      assert.match(hash.error, /temperature/);
      assert.equal(hash.choices, undefined);
      monitor.stop();
    });
});

test('a cancelled request ends for its client, too', async () => {
  await withStack({ engine: SLOW }, async (stack, redis) => {
    const url = `${stack.url}/v1/completions`;
    const s = stream(url, completion(4000, { stream: true }));
    await s.when(() => s.events.length > 2);
    const id = s.events[0].id.replace('cmpl-', '');
    await state(redis, id, 'decode');
    assert.equal(await redis.command('PUBLISH', 'tr:ctl:{main}',
      `cancel ${id}`), 1);
    await s.finished;
    const error = s.events.find((e) => e.error);
    assert.equal(error && error.error.code, 'request_cancelled',
      JSON.stringify(s.events.slice(-2)));
    const hash = await state(redis, id, 'cancelled');
    assert.equal(hash.error_status, 'TR_ERR_CANCELLED');
    // Nobody there: nothing happens.
    await redis.command('PUBLISH', 'tr:ctl:{main}', `cancel ${'0'.repeat(32)}`);
    await redis.command('PUBLISH', 'tr:ctl:{main}', 'nonsense');
    await stack.idle();

    // An answer that was not begun is an error with a status of its own.
    const whole = post(url, completion(4000), { 'X-Request-Id': 'whole' });
    const running = await until(async () => {
      for (const one of await redis.command('ZRANGE', 'tr:requests:{main}', 0,
        -1)) {
        const h = await redis.hash(`tr:req:{${one}}`);
        if (h.state === 'decode' && h.request_id === 'whole') return one;
      }
      return null;
    }, 'the request to decode');
    await redis.command('PUBLISH', 'tr:ctl:{main}', `cancel ${running}`);
    const answer = await whole;
    assert.equal(answer.status, 499);
    assert.equal(answer.json().error.code, 'request_cancelled');
    await stack.idle();
  });
});

test('a client that leaves', async () => {
  await withStack({ engine: SLOW }, async (stack, redis) => {
    const s = stream(`${stack.url}/v1/completions`,
      completion(4000, { stream: true }));
    await s.when(() => s.events.length > 2);
    const id = s.events[0].id.replace('cmpl-', '');
    s.hangUp();
    const hash = await state(redis, id, 'cancelled');
    assert.equal(hash.error, 'The client has left');
    assert.equal(hash.error_status, undefined);
    assert.ok(Number(hash.completion_tokens) > 0);
    await stack.idle();
  });
});

test('its heartbeat says what the weights take', async () => {
  await withStack({ engine: { name: 'main' } }, async (stack, redis) => {
    const beat = await until(() => redis.hash('tr:engine:{main}'), 'a heartbeat');
    const m = await stack.metrics();
    assert.equal(beat.weights, 'BF16');
    for (const name of ['weights_bytes', 'weights_file_bytes']) {
      assert.ok(Number(beat[name]) > 0, name);
      assert.equal(Number(beat[name]), m.value(`tokenring_${name}`), name);
    }
    assert.equal(2 * Number(beat.parameters), Number(beat.weights_file_bytes));
  });
});

test('heartbeat, samples, times to live', async () => {
  await withStack({ engine: { ...FAST, name: 'night-shift', redis_samples: 3,
    redis_recent: 2, redis_request_ttl: '10s', redis_output_ttl: '10s' },
  location: 'tokenring_resumable on;' }, async (stack, redis) => {
    const key = 'tr:engine:{night-shift}';
    const beat = await until(() => redis.hash(key), 'a heartbeat');
    assert.match(beat.run, /^[0-9a-f]{16}$/);
    assert.equal(beat.backend, 'null');
    assert.equal(beat.version, VERSION);
    assert.equal(Number(beat.pid), stack.engine.pid);
    assert.equal(beat.levels.split(' ').length,
      beat.level_bytes.split(' ').length);
    await until(async () => (await redis.hash(key)).state === 'ready', 'ready');
    assert.ok(await redis.command('PTTL', key) <= 5000);
    await until(async () => (await redis.hash(key)).heartbeat
      !== beat.heartbeat, 'another heartbeat');

    const { state: ready, heartbeat, ...rest } = await redis.hash(key);
    assert.ok(ready && heartbeat);
    assert.deepEqual(await redis.hash('tr:card:{night-shift}'), rest);

    const ids = [];
    for (let i = 0; i < 4; i++) {
      ids.push(idOf((await post(`${stack.url}/v1/completions`,
        completion(5))).text));
    }
    await state(redis, ids[3], 'done');
    const samples = await until(async () => {
      const all = await redis.stream('tr:metrics:{night-shift}');
      return all.length === 3
        && Number(all[2].generation_tokens) === 20 ? all : null;
    }, 'three samples with all tokens');
    const last = samples[2];
    assert.equal(String(last.run), beat.run);
    assert.equal(Number(last.length), 4);
    for (const name of ['preemptions', 'kv_request_bytes',
      'kv_request_full_bytes']) {
      assert.match(String(last[name]), /^\d+$/, name);
    }
    for (const name of ['ttft', 'inter_token', 'e2e', 'queue', 'step']) {
      assert.equal(String(last[name]).split(' ').length, 29, name);
    }
    assert.equal(String(last.e2e).split(' ').reduce((a, n) => a + Number(n), 0),
      4);
    await until(async () => (await redis.command('ZCARD',
      'tr:requests:{night-shift}')) === 2, 'the two latest requests');
    assert.ok(await redis.command('ZSCORE', 'tr:engines', 'night-shift'));
    for (const one of await redis.command('KEYS', '*')) {
      const left = await redis.command('PTTL', one); // -2: it just has
      assert.ok(left > 0 || left === -2, `${one} expires`);
    }

    // What is not touched any more goes.
    await until(async () => (await redis.command('EXISTS',
      ...ids.map((id) => `tr:req:{${id}}`))) === 0, 'states expire');
    await until(async () => (await redis.command('EXISTS',
      `tr:out:{${ids[3]}}`)) === 0, 'and output');

    // A killed engine is silent after five seconds.
    await stack.engine.kill('SIGKILL');
    await until(async () => (await redis.command('EXISTS', key)) === 0,
      'the heartbeat expires');
    // One that is stopped says so.
    await stack.engine.start();
    await until(() => redis.hash(key), 'a heartbeat again');
    assert.notEqual((await redis.hash(key)).run, beat.run);
    await stack.engine.kill('SIGTERM');
    assert.equal(await redis.command('EXISTS', key), 0);
    assert.equal((await redis.hash('tr:card:{night-shift}')).model, 'pocket');
  });
});

// The commands that the documentation says a user needs.
function documentedAcl() {
  const text = read(path.join(ROOT, 'docs/engine.md'));
  const m = /ACL SETUSER tokenring on >PASSWORD ([^`]+)```/.exec(text);
  return m[1].trim().replace(/\s+/g, ' ');
}

test('a user with just the documented rights, a database, a socket, a prefix',
  async () => {
    const acl = documentedAcl().replaceAll('tr:', 'my.');
    await withStack({
      redis: { lines: [`user tokenring on >sesame ${acl}`,
        'user default on nopass ~* &* +@all'] },
      engine: (redis) => {
        const file = path.join(redis.dir, 'password');
        fs.writeFileSync(file, 'sesame\n');
        return { ...FAST, redis: `unix:${redis.socket}`,
          redis_user: 'tokenring', redis_password_file: file, redis_db: 3,
          redis_prefix: 'my.' };
      },
      location: 'tokenring_resumable on;',
    }, async (stack, redis) => {
      await redis.command('SELECT', 3);
      const answer = await post(`${stack.url}/v1/completions`, completion(30));
      const id = idOf(answer.text);
      await until(async () => {
        const hash = await redis.hash(`my.req:{${id}}`);
        return hash && hash.state === 'done';
      }, 'the state in database 3');
      output(await redis.stream(`my.out:{${id}}`));
      await until(async () => (await redis.command('ZCARD',
        'my.requests:{main}')) === 1, 'the list of requests');
      await until(() => redis.command('EXISTS', 'my.metrics:{main}'), 'samples');
      await until(async () => (await redis.command('PUBSUB', 'NUMSUB',
        'my.ctl:{main}'))[1] === 1, 'somebody who hears commands');
      const m = await stack.metrics();
      assert.equal(m.value('tokenring_redis_refusals_total'), 0);
      assert.equal(m.value('tokenring_redis_up'), 1);
      assert.equal((await redis.command('ACL', 'LOG')).length, 0);
      const keys = await redis.command('KEYS', '*');
      assert.ok(keys.every((k) => k.startsWith('my.')), keys.join(' '));
    });
  });

test('keys of one request, or engine, are in one slot of a cluster',
  async () => {
    await withStack({ redis: { 'cluster-enabled': 'yes' },
      engine: { ...FAST, name: 'main' }, location: 'tokenring_resumable on;' },
    async (stack, redis) => {
      await redis.command('CLUSTER', 'ADDSLOTSRANGE', 0, 16383);
      await until(async () => (await stack.metrics())
        .value('tokenring_redis_up') === 1, 'the cluster takes what is written');
      const id = idOf((await post(`${stack.url}/v1/completions`,
        completion(30))).text);
      await state(redis, id, 'done');
      const slot = (key) => redis.command('CLUSTER', 'KEYSLOT', key);
      const req = await slot(`tr:req:{${id}}`);
      assert.equal(await slot(`tr:out:{${id}}`), req);
      assert.equal(await slot(`tr:live:{${id}}`), req);
      assert.equal(await slot(`{${id}}`), req);
      const engine = await slot('tr:engine:{main}');
      for (const kind of ['metrics', 'requests', 'ctl']) {
        assert.equal(await slot(`tr:${kind}:{main}`), engine);
      }
      output(await redis.stream(`tr:out:{${id}}`));
    });
  });
