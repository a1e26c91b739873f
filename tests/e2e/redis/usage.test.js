'use strict';
//
// What tenants have used, in Redis (docs/redis.md, tr:usage): the sums of the
// access log, over engines that come, go and take requests over.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const { Stack, until } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { Redis } = require('../lib/redis');
const { Proxy } = require('../lib/redis_proxy');
const { withStack, FAST } = require('../lib/redis_stack');

const TENANTS = ['acme', 'zoo', 'say "hi" {co}'];

// Sums by tenant, as the log has them; the tenant is X-Mark.
function logged(stack) {
  const out = {};
  for (const line of fs.readFileSync(`${stack.dir}/access.log`, 'utf8')
    .split('\n').filter(Boolean).map((l) => JSON.parse(l))) {
    if (!line.uri.startsWith('/v1/')) continue;
    const t = out[line.mark] = out[line.mark] || { requests: 0, in: 0, out: 0 };
    t.requests++;
    t.in += Number(line.prompt_tokens);
    t.out += Number(line.completion_tokens);
  }
  return out;
}

// The same from Redis, of all days, and how many engines' runs it is of.
async function told(redis, tenants) {
  const out = {};
  const runs = new Set();
  for (const tenant of tenants) {
    const hash = crypto.createHash('sha1')
      .update(`tenant:${tenant}`).digest('hex').slice(0, 16);
    const sum = { requests: 0, in: 0, out: 0 };
    for (const key of await redis.command('KEYS', `tr:usage:{${hash}}:*`)) {
      assert.match(key, /:20\d\d-\d\d-\d\d$/);
      assert.ok(await redis.command('PTTL', key) > 39 * 86400000);
      for (const [field, value] of Object.entries(await redis.hash(key))) {
        const [name, run, kind] = field.split('/');
        runs.add(`${name}/${run}`);
        sum[kind] += Number(value);
      }
    }
    out[tenant] = sum;
  }
  return { sums: out, runs: runs.size };
}

const headers = (tenant) => ({ 'X-Mark': tenant });

test('the sums of tenants are those of the log', async () => {
  await withStack({
    engines: { second: {} },
    engine: (redis) => ({ ...FAST, null_rate: 300, redis: redis.address }),
    location: 'tokenring_tenant $http_x_mark; tokenring_migrate 3;',
    workers: 2,
  }, async (stack, redis) => {
    const other = stack.others[0];
    await other.kill();
    await other.start({ ...FAST, null_rate: 300, redis: redis.address,
      name: 'second', drain_timeout: '0' });
    await stack.connected(4);
    const run = (tenant, more = {}) => post(`${stack.url}/v1/completions`,
      { prompt: 'one two three', max_tokens: 9, ...more }, headers(tenant));
    const check = async () => {
      let want, got;
      await until(async () => {
        want = logged(stack);
        got = await told(redis, TENANTS);
        return JSON.stringify(Object.entries(want).sort())
          === JSON.stringify(Object.entries(got.sums).sort());
      }, () => `${JSON.stringify(want)}\n${JSON.stringify(got)}`);
      return got;
    };
    await Promise.all(TENANTS.flatMap((t, i) => Array.from({ length: 8 },
      (_, k) => run(t, { n: 1 + i, max_tokens: 3 + k, ignore_eos: true }))));
    // Refused, and left in the middle.
    await run('acme', { max_tokens: -1 });
    const gone = stream(`${stack.url}/v1/completions`, { prompt: 'x',
      max_tokens: 4000, ignore_eos: true, stream: true },
    { headers: headers('zoo') });
    await gone.begun();
    gone.hangUp();
    await gone.finished.catch(() => {});
    await stack.active(0);
    const before = await check();
    assert.equal(before.runs, 2);
    assert.equal(before.sums.acme.requests, 9);

    // Streams that an engine which leaves gives to the other are counted once.
    const moved = Array.from({ length: 6 }, () =>
      stream(`${stack.url}/v1/completions`, { prompt: 'x', max_tokens: 300,
        ignore_eos: true, stream: true },
      { headers: headers('zoo') }));
    await Promise.all(moved.map((s) => s.begun()));
    assert.equal((await other.kill('SIGTERM')).code, 0);
    await Promise.all(moved.map((s) => s.finished));
    moved.forEach((s) => assert.ok(s.done, s.raw.slice(-200)));
    await stack.active(0);
    await check();

    // A new run counts anew, beside what stands there.
    await other.start();
    await stack.connected(4);
    await Promise.all(Array.from({ length: 20 }, () => run('acme')));
    assert.equal((await check()).runs, 3);
  });
});

// An engine has 4,096 rows.  Those who come back after theirs was given to others
// are counted on, also after a lost connection and at the engine's end.
test('more tenants than an engine has rows for: none is lost', async () => {
  const redis = await Redis.start();
  const proxy = await Proxy.start(redis);
  const agent = new http.Agent({ keepAlive: true, maxSockets: 16 });
  let stack, asked = 0;
  try {
    stack = await Stack.start({ http: 'tokenring_redis off;',
      engine: { ...FAST, redis: proxy.address },
      location: 'tokenring_tenant $http_x_mark;' });
    const run = async (from, to) => {
      for (let at = from; at < to; at += 16) {
        const names = Array.from({ length: Math.min(16, to - at) },
          (_, i) => `t${at + i}`);
        for (const r of await Promise.all([...names, 'acme'].map((t) =>
          post(`${stack.url}/v1/completions`, { prompt: 'x'.repeat(1 + at % 9),
            max_tokens: 1 + at % 3, ignore_eos: true }, headers(t), agent)))) {
          assert.equal(r.status, 200, r.text);
          asked++;
        }
      }
    };
    const up = (want) => until(async () => (await stack.metrics())
      .value('tokenring_redis_up') === want, `redis up: ${want}`);
    await run(0, 1500);
    proxy.mode = 'refuse';
    proxy.cut();
    await up(0);
    await run(1500, 1700);
    proxy.mode = 'pass';
    await up(1);
    await run(1700, 4700);
    await run(0, 1700);
    assert.equal((await stack.metrics())
      .value('tokenring_redis_lost_requests_total'), 0);
    await stack.engine.kill('SIGTERM');
    let want;
    await until(() => {
      want = logged(stack);
      return Object.values(want).reduce((n, t) => n + t.requests, 0) === asked;
    }, 'all are logged');
    assert.equal(Object.keys(want).length, 4701);
    const got = {};
    for (const key of await redis.command('KEYS', 'tr:usage:*')) {
      const sum = got[/\{(\w+)\}/.exec(key)[1]] ??= { requests: 0, in: 0, out: 0 };
      for (const [field, value] of Object.entries(await redis.hash(key))) {
        sum[field.split('/')[2]] += Number(value);
      }
    }
    for (const [tenant, sum] of Object.entries(want)) {
      assert.deepEqual(got[crypto.createHash('sha1').update(`tenant:${tenant}`)
        .digest('hex').slice(0, 16)], sum, tenant);
    }
    assert.equal(Object.keys(got).length, 4701);
    assert.deepEqual(stack.complaints(), []);
  } finally {
    agent.destroy();
    if (stack) await stack.stop();
    await proxy.stop();
    await redis.stop();
  }
});
