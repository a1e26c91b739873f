'use strict';
//
// A Redis that is killed, paused, full, refuses the password, or is behind a
// network that stalls and cuts, all of it under load.  Whatever it does: no
// request fails, what stands in Redis in the end has no hole, and the outages are
// counted and logged once each.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until, sleep, read } = require('../lib/stack');
const { stream } = require('../lib/http');
const { Redis, Client, output, RECORD, deltaText } = require('../lib/redis');
const { Proxy } = require('../lib/redis_proxy');

const ENGINE = { backend: 'null', null_rate: 200, redis_flush: '10ms' };
// A busy machine may be as slow as this: then there are more outages.
const HASTY = { redis_timeout: '500ms' };

async function withStack(options, what) {
  const { redis: settings = {}, engine = {}, through, ...rest } = options;
  const redis = await Redis.start(settings);
  const between = through ? await through(redis) : null;
  let stack;
  try {
    stack = await Stack.start({ http: 'tokenring_redis off;',
      location: 'tokenring_resumable on;', ...rest,
      engine: { ...ENGINE, redis: between ? between.address : redis.address,
        ...engine } });
    await what(stack, redis, between);
    assert.deepEqual(stack.complaints(), []);
  } finally {
    if (stack) await stack.stop();
    if (between) between.stop();
    await redis.stop();
  }
}

// Clients that stream one request after the other until they are told to stop;
// each answer must be whole.  Returns {answers: [{id, text, begun}], stop()}.
function load(stack, clients = 8, tokens = 60) {
  const answers = [];
  let over = false;
  const one = async () => {
    while (!over) {
      const begun = Date.now();
      const s = stream(`${stack.url}/v1/completions`,
        { prompt: 'once', max_tokens: tokens, stream: true });
      await s.finished;
      assert.equal(s.status, 200, s.raw);
      assert.ok(s.done && !s.cut, s.raw.slice(-300));
      assert.deepEqual(s.events.filter((e) => e.error), []);
      assert.equal(s.events.at(-1).choices[0].finish_reason, 'length');
      answers.push({ id: s.events[0].id.replace('cmpl-', ''), text: s.text(),
        begun });
    }
  };
  const all = Promise.all(Array.from({ length: clients }, one));
  all.catch(() => { over = true; });
  return { answers,
    stop: async () => { over = true; await all; return answers; } };
}

async function up(stack, want = 1) {
  await until(async () =>
    (await stack.metrics()).value('tokenring_redis_up') === want,
  () => `redis up: ${want}\n${stack.logs()}`);
}

// An outage that may be over again before anybody looks.
const outage = (stack) => until(async () => (await stack.metrics())
  .value('tokenring_redis_outages_total') > 0,
() => `an outage\n${stack.logs()}`);

const count = (stack, what) =>
  read(stack.engine.log).split('\n').filter((l) => l.includes(what)).length;

// Every outage is two lines.
async function logged(stack) {
  await until(async () => {
    const n = (await stack.metrics()).value('tokenring_redis_outages_total');
    return n > 0 && count(stack, 'redis lost') === n
      && count(stack, 'redis back') === n;
  }, () => `one line for each outage\n${stack.logs()}`);
}

// Everything that stands in Redis of these answers: without a hole, equal to
// what the client got, or ended by an ERROR where it says that there is a gap.
async function check(redis, answers) {
  const seen = { whole: 0, gap: 0, absent: 0 };
  for (const { id, text } of answers) {
    const hash = await until(async () => {
      const h = await redis.hash(`tr:req:{${id}}`);
      return h === null || h.state === 'done' ? { h } : null;
    }, async () => `${id} is done: ${JSON.stringify(
      await redis.hash(`tr:req:{${id}}`))}`);
    const records = output(await redis.stream(`tr:out:{${id}}`));
    if (hash.h === null || records.length === 0) {
      seen.absent++;
      continue;
    }
    const last = records.at(-1);
    const got = records.filter((r) => r.type === RECORD.DELTA)
      .map((r) => deltaText(r.payload)).join('');
    if (hash.h.gap) {
      assert.equal(last.type, RECORD.ERROR, id);
      assert.ok(text.startsWith(got), id);
      seen.gap++;
    } else {
      assert.equal(last.type, RECORD.FINISH, id);
      assert.equal(got, text, id);
      seen.whole++;
    }
  }
  return seen;
}

test('killed and restarted twenty times', async () => {
  await withStack({}, async (stack, redis) => {
    const clients = load(stack);
    await up(stack);
    let back;
    for (let i = 0; i < 20; i++) {
      await redis.kill();
      await up(stack, 0);
      await redis.run();
      back = Date.now();
      await up(stack);
    }
    // It came back empty each time: what began after the last time is there.
    const late = () => clients.answers.filter((a) => a.begun > back);
    await until(() => late().length >= 16, 'answers after the last time');
    await clients.stop();
    const seen = await check(redis, late());
    assert.ok(seen.whole >= 16, JSON.stringify(seen));
    assert.equal(seen.absent, 0, JSON.stringify(seen));
    assert.equal(seen.gap, 0, 'all of it fits the memory for what waits');
    const m = await stack.metrics();
    // a machine that stalls may make one of its own
    assert.ok(m.value('tokenring_redis_outages_total') >= 20);
    assert.equal(m.value('tokenring_redis_lost_requests_total'), 0);
    assert.equal(m.value('tokenring_request_errors_total'), 0);
    await logged(stack);
  });
});

test('restarted with what it had a while ago', async () => {
  await withStack({ engine: { null_rate: 50 } }, async (stack, redis) => {
    const clients = load(stack, 8, 200);
    await sleep(1000);
    await redis.command('SAVE'); // the snapshot that it comes back with
    await sleep(1500);
    await redis.restart();
    await up(stack);
    const answers = await clients.stop();
    const seen = await check(redis, answers);
    assert.equal(seen.gap, 0, JSON.stringify(seen));
    assert.ok(seen.whole >= 8, JSON.stringify(seen));
  });
});

test('paused', async () => {
  await withStack({ engine: HASTY }, async (stack, redis) => {
    const clients = load(stack);
    await up(stack);
    await until(() => clients.answers.length >= 8, 'answers before');
    const pause = 5000;
    const begun = Date.now();
    await redis.command('CLIENT', 'PAUSE', pause, 'ALL');
    await outage(stack);
    await sleep(Math.max(0, begun + pause - Date.now()));
    await up(stack);
    const before = clients.answers.length;
    await until(() => clients.answers.length >= before + 8, 'answers after');
    const answers = await clients.stop();
    const seen = await check(redis, answers);
    assert.equal(seen.whole, answers.length, JSON.stringify(seen));
    await logged(stack);
  });
});

test('full', async () => {
  await withStack({ redis: { 'maxmemory-policy': 'noeviction' } },
    async (stack, redis) => {
      const clients = load(stack);
      await up(stack);
      await until(() => clients.answers.length >= 8, 'answers before');
      await redis.command('CONFIG', 'SET', 'maxmemory', 1);
      await up(stack, 0);
      const before = clients.answers.length;
      await until(() => clients.answers.length >= before + 16, 'answers meanwhile');
      await redis.command('CONFIG', 'SET', 'maxmemory', 0);
      await up(stack);
      const answers = await clients.stop();
      const seen = await check(redis, answers);
      assert.equal(seen.whole, answers.length, JSON.stringify(seen));
      assert.equal(count(stack, 'redis lost'), 1);
      assert.match(read(stack.engine.log), /redis lost .*refused with OOM/);
      assert.ok((await stack.metrics())
        .value('tokenring_redis_refusals_total') > 0);
    });
});

test('away for longer than memory lasts', async () => {
  await withStack({ engine: { redis_buffer: '1m', null_rate: 1000 } },
    async (stack, redis) => {
      // 16 streams of 1000 tokens a second: 1 MiB is full within 3 seconds.
      const clients = load(stack, 16, 6000);
      await up(stack);
      await sleep(500);
      process.kill(redis.pid, 'SIGSTOP');
      await up(stack, 0);
      await until(async () => (await stack.metrics())
        .value('tokenring_redis_lost_requests_total') > 0, 'a loss', 60);
      assert.ok((await stack.metrics())
        .value('tokenring_redis_held_bytes') <= 1.5 * 1024 * 1024);
      const answers = await clients.stop();
      assert.ok(answers.length >= 16);
      process.kill(redis.pid, 'SIGCONT');
      await up(stack);
      const seen = await check(redis, answers);
      assert.ok(seen.gap > 0, JSON.stringify(seen));
      assert.equal(seen.absent, 0, JSON.stringify(seen));
      assert.equal((await stack.metrics())
        .value('tokenring_redis_lost_requests_total'), seen.gap,
      'what is counted is what is missing');
      assert.match(read(stack.engine.log), /redis back .*lost_requests=[1-9]/);
    });
});

test('wrong password', async () => {
  await withStack({ redis: { requirepass: 'sesame' },
    engine: { redis_password: 'open-says-me' } }, async (stack, redis) => {
    const clients = load(stack);
    await until(() => clients.answers.length >= 16, 'answers');
    await up(stack, 0);
    await until(() => count(stack, 'redis lost') === 1, 'a line in the log');
    const text = read(stack.engine.log);
    assert.match(text, /redis lost .*refused with WRONGPASS/);
    assert.ok(!text.includes('open-says-me'));
    await redis.command('CONFIG', 'SET', 'requirepass', 'open-says-me');
    await up(stack);
    const answers = await clients.stop();
    const seen = await check(redis, answers);
    assert.equal(seen.whole, answers.length, JSON.stringify(seen));
  });
});

test('a network that stalls and cuts', async () => {
  const seed = Number(process.env.TR_SEED || Date.now() % 1000000);
  console.log(`# TR_SEED=${seed}`);
  let dice = seed;
  const roll = (n) => {
    dice = (Math.imul(dice, 1103515245) + 12345) & 0x7fffffff;
    return (dice >> 8) % n;
  };
  await withStack({ engine: HASTY, through: (redis) => Proxy.start(redis) },
    async (stack, redis, proxy) => {
      const clients = load(stack);
      await up(stack);
      for (let i = 0; i < 25; i++) {
        proxy.mode = ['pass', 'stall', 'stall-up', 'stall-down', 'half',
          'refuse'][roll(6)];
        if (proxy.mode === 'refuse' || roll(3) === 0) proxy.cut();
        await sleep(50 + roll(400));
        proxy.mode = 'pass';
        if (roll(2) === 0) await up(stack);
      }
      proxy.mode = 'pass';
      proxy.cut();
      await up(stack);
      const answers = await clients.stop();
      const seen = await check(redis, answers);
      assert.equal(seen.whole, answers.length, JSON.stringify(seen));
      const m = await stack.metrics();
      assert.equal(m.value('tokenring_redis_lost_requests_total'), 0);
      await logged(stack);
    });
});

test('a former connection is ended before the next one writes', async () => {
  await withStack({ engine: HASTY, through: (redis) => Proxy.start(redis) },
    async (stack, redis, proxy) => {
      await up(stack);
      // What the engine gives up stays open on the other side.
      proxy.keep = true;
      for (let i = 0; i < 3; i++) {
        const before = [...proxy.pairs];
        proxy.mode = 'stall';
        for (const { a } of before) a.destroy();
        await up(stack, 0);
        proxy.mode = 'pass';
        await up(stack);
        await until(() => before.every((pair) => !proxy.pairs.has(pair)),
          'Redis ended them');
      }
      // In another Redis the number is somebody else's.
      await redis.restart();
      const others = [];
      for (let i = 0; i < 40; i++) {
        others.push(await Client.connect({ host: '127.0.0.1',
          port: redis.port }));
      }
      proxy.cut();
      await up(stack);
      await Promise.all(others.map((c) => c.raw('PING')));
      for (const c of others) c.close();
    });
});
