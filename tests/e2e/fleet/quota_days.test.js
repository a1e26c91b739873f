'use strict';
//
// Days of budgets that hosts share (`shared` of tokenring_plan): they begin and end
// by Redis's clock, which this test sets, whatever the clocks of hosts say.  What
// was drawn on one day is never given back to another, also by answers that come
// over midnight.  And what a tenant owes outlives the worker that was to tell
// Redis.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { Redis } = require('../lib/redis');
const { Proxy } = require('../lib/redis_proxy');

const DAY = 86400;
const now = () => Math.floor(Date.now() / 1000);

let redis, proxy, quick, slow;

const host = (rate, name) => Stack.start({
  engine: { backend: 'null', null_rate: rate, kv_memory: '64m', name },
  http: `tokenring_redis ${proxy.address} timeout=10s;
    tokenring_plan out out=1000/d shared;
    tokenring_plan in in=100/d shared;
    map $http_x_key $plan { default ""; "~^(?<name>[a-z]+)-" $name; }`,
  location: 'tokenring_tenant $http_x_key; tokenring_limits $plan;',
  workers: 1,
});

before(async () => {
  redis = await Redis.start({ clock: true });
  proxy = await Proxy.start(redis);
  [quick, slow] = await Promise.all([host(400, 'quick'), host(4, 'slow')]);
});

after(async () => {
  await Promise.all([quick, slow].map((h) => h && h.stop()));
  if (proxy) await proxy.stop();
  if (redis) await redis.stop();
});

const body = (more) => ({ prompt: 'x', ignore_eos: true, ...more });
const ask = (h, key, n) => post(`${h.url}/v1/completions`,
  body({ max_tokens: n }), { 'X-Key': key });
const open = (h, key, n) => stream(`${h.url}/v1/completions`,
  body({ max_tokens: n, stream: true }), { headers: { 'X-Key': key } });
async function leave(s) {
  s.hangUp();
  await s.finished.catch(() => {});
}

// Sets Redis's clock to so many seconds after a midnight that is some days off.
let days = 0;
const clock = (seconds) => redis.setAhead(DAY - now() % DAY + days * DAY + seconds);

// Of the one account that has used some: one of a test before may just have given
// something back.
async function used(budget) {
  const all = await Promise.all((await redis.command('KEYS', 'tr:quota:*'))
    .map((key) => redis.hash(key)));
  return Math.max(...all.map((hash) => Number(hash?.[budget] || 0)));
}
async function settled(n) {
  let is;
  await until(async () => (is = await used('out/d')) === n,
    () => `${n} are used, not ${is}`);
}

async function afresh() {
  await redis.command('FLUSHALL');
  days += 2;
  clock(DAY / 2);
}

// For hosts, too, whose last reply may have been slow.
const midnight = () => until(async () => {
  const second = Number((await redis.command('TIME'))[0]) % DAY;
  return second >= 1 && second < DAY / 2;
}, 'midnight');

// All that is left, which is `n`.
async function drain(key, n) {
  let sum = 0;
  await until(async () => {
    const r = await ask(quick, key, 4000);
    if (r.status !== 200) assert.equal(r.status, 429, r.text);
    else sum += r.json().usage.completion_tokens;
    return r.status === 429;
  }, 'it is used up');
  assert.equal(sum, n);
}

for (const [name, by] of [['ahead', -DAY], ['behind', DAY]]) {
  test(`a host whose clock is ${name} by a day`, async () => {
    await redis.command('FLUSHALL');
    redis.setAhead(by);
    for (let i = 1; i <= 12; i++) {
      assert.equal((await ask(i % 2 ? quick : slow, `out-${name}`, 2)).status, 200);
      await settled(2 * i);
    }
    await drain(`out-${name}`, 1000 - 24);
  });
}

test('an answer over midnight gives nothing back to the day that follows', async () => {
  await afresh();
  const s = open(slow, 'out-over', 20); // all of it is drawn at once
  await s.begun();
  clock(DAY + 60);
  assert.equal((await ask(quick, 'out-over', 500)).status, 200);
  await settled(500);
  await leave(s);
  await slow.active(0);
  await drain('out-over', 500);
});

test('nor where its host has begun that day with it', async () => {
  await afresh();
  clock(DAY - 3);
  const s = open(slow, 'out-begun', 20);
  await s.begun();
  await midnight();
  assert.equal((await ask(slow, 'out-begun', 1)).status, 200);
  assert.equal((await ask(quick, 'out-begun', 500)).status, 200);
  await leave(s);
  await settled(501);
  await drain('out-begun', 499);
});

test('a day ends by the clock that Redis had, also when Redis is gone', async () => {
  await afresh();
  clock(DAY - 4);
  const s = open(slow, 'out-gone', 4000);
  await s.begun();
  await until(async () => (await used('out/d')) >= 50, 'a part is drawn');
  proxy.mode = 'refuse';
  proxy.cut();
  await midnight();
  await until(async () => (await ask(slow, 'out-gone', 1)).status === 429,
    'nothing of yesterday is given');
  proxy.mode = 'pass';
  await until(async () => (await ask(slow, 'out-gone', 1)).status === 200,
    'Redis is there again');
  await leave(s);
});

test('what is owed outlives the worker that was to tell Redis', async () => {
  await afresh();
  const complaints = slow.complaints;
  slow.complaints = () => complaints.call(slow)
    .filter((line) => !/exited on signal 9/.test(line));
  // One keeps a part here; then comes a prompt of more than there is, which
  // Redis never hears of.
  const streams = [open(slow, 'in-dead', 4000)];
  await streams[0].begun();
  await until(async () => (await used('in/d')) >= 1, 'a part is drawn');
  proxy.mode = 'stall-up';
  streams.push(stream(`${slow.url}/v1/completions`,
    body({ prompt: 'word '.repeat(300), max_tokens: 4000, stream: true }),
    { headers: { 'X-Key': 'in-dead' } }));
  await streams[1].begun();
  process.kill(slow.workers()[0], 'SIGKILL');
  await Promise.all(streams.map((s) => s.finished.catch(() => {})));
  proxy.cut();
  proxy.mode = 'pass';
  await until(async () => {
    await ask(slow, 'in-dead', 1).catch(() => {});
    return (await used('in/d')) >= 300;
  }, 'Redis has what was owed');
});
