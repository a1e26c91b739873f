'use strict';
//
// A plan that hosts share (`shared` of tokenring_plan): two stacks, each an NGINX
// with its engine as on a host of its own, and one Redis, reached through a proxy
// that can be closed.  Together they give what the plan has, and not a token more.
// Budgets are by the day, which begins anew at midnight: a test that would run
// into it waits for it.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const { Stack, until, alive, sleep } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { Redis } = require('../lib/redis');
const { Proxy } = require('../lib/redis_proxy');
const { checkLimited } = require('../lib/plans');

const DAY = 86400;
const PLANS = `
  tokenring_plan few requests=10/d shared;
  tokenring_plan out out=1000/d shared;
  tokenring_plan both tokens=2k/d shared;
  tokenring_plan away out=400/d shared;
  tokenring_plan part out=400/d shared hosts=2;
  tokenring_plan keep out=1m/d shared;
  tokenring_plan quick requests=600/m out=600k/m shared;
  tokenring_plan eight requests=90/d requests=600/m tokens=9k/d tokens=90k/m
    in=9k/d in=90k/m out=9k/d out=90k/m shared;`;

let redis, proxy, hosts;

function host(i, more = {}) {
  return Stack.start({
    engine: { backend: 'null', null_rate: 400, kv_memory: '64m', name: `h${i}` },
    http: `tokenring_redis ${proxy.address} timeout=500ms;
      ${PLANS} map $http_x_key $plan { default ""; "~^(?<name>[a-z]+)-" $name; }`,
    location: 'tokenring_tenant $http_x_key; tokenring_limits $plan;',
    workers: 2, ...more,
  });
}

before(async () => {
  const left = DAY - Math.floor(Date.now() / 1000) % DAY;
  if (left < 120) await sleep((left + 2) * 1000);
  redis = await Redis.start();
  proxy = await Proxy.start(redis);
  hosts = await Promise.all([0, 1].map((i) => host(i)));
});

after(async () => {
  await Promise.all((hosts || []).map((h) => h.stop()));
  if (proxy) await proxy.stop();
  if (redis) await redis.stop();
});

const ask = (h, key, more = {}) => post(`${h.url}/v1/completions`,
  { prompt: 'x', max_tokens: 2, ...more }, { 'X-Key': key });
const long = { max_tokens: 4000, ignore_eos: true };
const tokens = (all) => all.reduce((n, r) =>
  n + (r.status === 200 ? r.json().usage.completion_tokens : 0), 0);

// Of one budget, what Redis has as used of all accounts that are there now.
async function used(budget) {
  const out = [];
  for (const key of await redis.command('KEYS', 'tr:quota:*')) {
    const value = (await redis.hash(key))[budget];
    if (value !== undefined) out.push(Number(value));
  }
  return out;
}
function away(yes) {
  proxy.mode = yes ? 'refuse' : 'pass';
  if (yes) proxy.cut();
}
const reset = () => redis.command('FLUSHALL');

test('all the budgets that a plan can have: Redis grants them at once', async () => {
  await reset();
  const r = await ask(hosts[0], 'eight-a');
  assert.equal(r.status, 200, r.text);
  const [key] = await redis.command('KEYS', 'tr:quota:*');
  assert.equal(Object.keys(await redis.hash(key)).length, 16);
});

test('requests: as many as the plan has, wherever they come', async () => {
  await reset();
  const all = await Promise.all(Array.from({ length: 40 }, (_, i) =>
    ask(hosts[i % 2], 'few-a')));
  assert.equal(all.filter((r) => r.status === 200).length, 10);
  for (const r of all.filter((one) => one.status !== 200)) {
    checkLimited(r, { type: 'insufficient_quota', code: 'insufficient_quota',
      most: DAY });
  }
  await until(async () => (await used('requests/d'))[0] === 10, 'Redis has ten');
  // Somebody else has ten of its own.
  const r = await ask(hosts[1], 'few-b');
  assert.equal(r.status, 200, r.text);
  assert.equal(r.headers['x-ratelimit-limit-requests'], '10');
  assert.equal(r.headers['x-ratelimit-remaining-requests'], '9');
});

// Each comes while what the one before it did not use goes back to Redis.
test('one after the other: none is refused while there is something', async () => {
  await reset();
  for (const key of ['few-c', 'few-d', 'few-e']) {
    for (let i = 0; i < 10; i++) {
      const r = await ask(hosts[0], key);
      assert.equal(r.status, 200, `${key} ${i}: ${r.text}`);
    }
    assert.equal((await ask(hosts[0], key)).status, 429);
  }
});

test('64 streams on two hosts: exactly what the plan has', async () => {
  await reset();
  const all = await Promise.all(Array.from({ length: 64 }, (_, i) =>
    ask(hosts[i % 2], 'out-a', long)));
  assert.equal(tokens(all), 1000);
  for (const r of all.filter((one) => one.status === 200)) {
    assert.equal(r.json().usage.cut, 'token_budget');
    assert.equal(r.json().choices[0].finish_reason, 'length');
  }
  assert.deepEqual(await used('out/d'), [1000]);
  for (const h of hosts) {
    await until(async () => (await ask(h, 'out-a')).status === 429, 'it is dry');
  }
});

test('what is not used comes back, and the other host has it', async () => {
  await reset();
  let n = 0;
  for (let i = 0; i < 12; i++) {
    const r = await ask(hosts[i % 2], 'both-a', { max_tokens: 7,
      ignore_eos: true });
    assert.equal(r.status, 200, r.text);
    n += r.json().usage.total_tokens;
    await until(async () => (await used('tokens/d'))[0] === n,
      `${n} are used`);
    assert.equal(r.headers['x-ratelimit-limit-tokens'], '2000');
    assert.equal(Number(r.headers['x-ratelimit-remaining-tokens']), 2000 - n);
  }
});

test('a budget that refills', async () => {
  await reset();
  const all = await Promise.all(Array.from({ length: 60 }, (_, i) =>
    ask(hosts[i % 2], 'quick-a')));
  for (const r of all) assert.equal(r.status, 200, r.text);
  // Ten a second come back.
  await until(async () => {
    await sleep(500);
    const r = await ask(hosts[0], 'quick-a');
    return Number(r.headers['x-ratelimit-remaining-requests']) >= 590;
  }, 'it has come back');
});

test('a host that dies takes no more with it than it had taken', async () => {
  await reset();
  const third = await host(2);
  const complaints = third.complaints;
  third.complaints = () => complaints.call(third)
    .filter((line) => !/exited on signal 9/.test(line));
  try {
    const streams = Array.from({ length: 6 }, () => stream(
      `${third.url}/v1/completions`, { prompt: 'x', ...long, stream: true },
      { headers: { 'X-Key': 'out-b' } }));
    await Promise.all(streams.map((s) => s.begun()));
    const pids = [third.master, ...third.workers()];
    pids.forEach((pid) => process.kill(pid, 'SIGKILL'));
    await until(() => pids.every((pid) => !alive(pid)), 'it is dead');
    await Promise.all(streams.map((s) => s.finished.catch(() => {})));
    const told = streams.reduce((n, s) => n + s.events.length, 0);
    const [taken] = await used('out/d');
    assert.ok(taken >= told && taken <= 1000, `${taken} taken, ${told} told`);
    const all = await Promise.all(Array.from({ length: 8 }, (_, i) =>
      ask(hosts[i % 2], 'out-b', long)));
    assert.equal(tokens(all), 1000 - taken);
  } finally {
    fs.rmSync(`${third.dir}/nginx.pid`, { force: true });
    await third.stop();
  }
});

// Old workers charge by the old plan when one of their streams is hung up.
test('a reload with other kinds: what was drawn stays drawn', async () => {
  await reset();
  const one = await host(3, { engine: { backend: 'null', null_rate: 40,
    kv_memory: '64m', name: 'h3' } });
  try {
    const streams = Array.from({ length: 8 }, () => stream(
      `${one.url}/v1/completions`, { prompt: 'x', ...long, stream: true },
      { headers: { 'X-Key': 'keep-a' } }));
    await Promise.all(streams.map((s) => s.begun()));
    one.configure({ http: one.options.http
      .replace('keep out=1m/d', 'keep requests=40/d') });
    await one.reload();
    for (let i = 0; i < 40; i++) {
      const r = await ask(one, 'keep-a');
      assert.equal(r.status, 200, `${i}: ${r.text}`);
      if (i % 5 === 0) {
        const s = streams.pop();
        s.hangUp();
        await s.finished.catch(() => {});
        await one.active(streams.length);
      }
    }
    assert.equal((await ask(one, 'keep-a')).status, 429);
    assert.deepEqual(await used('requests/d'), [40]);
  } finally {
    await one.stop();
  }
});

test('without Redis: what was taken, or with hosts= its part', async () => {
  await reset();
  for (const h of hosts) {
    for (const key of ['away-a', 'part-a']) {
      assert.equal((await ask(h, key)).status, 200);
    }
  }
  await until(async () => (await used('out/d')).every((n) => n === 4), 'all is back');
  away(true);
  const refused = await until(async () => {
    const r = await ask(hosts[0], 'away-a', long);
    return r.status === 429 && r;
  }, 'nothing is left');
  assert.ok(Number(refused.headers['retry-after']) >= 1);
  // Each its half, of which it has used two.
  for (const h of hosts) {
    const all = await Promise.all(Array.from({ length: 4 }, () =>
      ask(h, 'part-a', long)));
    assert.equal(tokens(all), 198, all.map((r) => r.text).join());
  }
  away(false);
  for (const h of hosts) {
    await until(async () => (await ask(h, 'away-a')).status === 200,
      'Redis is there again');
  }
  // What was given meanwhile is counted.
  await until(async () => {
    for (const h of hosts) await ask(h, 'part-a');
    return (await used('out/d')).some((n) => n >= 400);
  }, 'Redis has what both gave');
});

test('a Redis that goes while answers come', async () => {
  await reset();
  const streams = Array.from({ length: 8 }, (_, i) => stream(
    `${hosts[i % 2].url}/v1/completions`, { prompt: 'x', ...long, stream: true,
      stream_options: { include_usage: true } },
    { headers: { 'X-Key': 'out-c' } }));
  await Promise.all(streams.map((s) => s.begun()));
  away(true);
  await Promise.all(streams.map((s) => s.finished));
  away(false);
  const told = streams.map((s) => s.events.at(-1).usage);
  for (const usage of told) assert.equal(usage.cut, 'token_budget');
  const first = told.reduce((n, u) => n + u.completion_tokens, 0);
  await sleep(1000);
  let more = 0;
  await until(async () => {
    const all = await Promise.all(hosts.map((h) => ask(h, 'out-c', long)));
    more += tokens(all);
    return (await used('out/d'))[0] === 1000
      && all.every((r) => r.status === 429);
  }, 'it is used up');
  assert.ok(first + more <= 1000, `${first} and ${more}`);
});

test('configurations that cannot be', async () => {
  for (const [http, message] of [
    ['tokenring_plan p out=1/d shared;', /is shared and there is no tokenring_red/],
    [`tokenring_redis ${proxy.address};
      tokenring_plan p out=900g/h shared;`, /"out=900g\/h" of the shared plan "p"/],
  ]) {
    await assert.rejects(Stack.start({ engine: { backend: 'null' }, http }),
      message);
  }
});
