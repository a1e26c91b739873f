'use strict';
//
// The dashboard, the module's side over plain HTTP: files, headers, one stream
// for everybody, nothing asked while nobody looks, hostile contents of Redis.
// The fleet is a synthetic one (lib/dashboard.js).

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const net = require('node:net');
const path = require('node:path');
const { Stack, until, sleep, freePort } = require('../lib/stack');
const { Redis } = require('../lib/redis');
const { Browser, when, live } = require('../lib/browser');
const { random } = require('../lib/synthetic_fleet');
const { request, stream } = require('../lib/http');
const { PAGE, location, all, with_fleet, watch } = require('../lib/dashboard');

// ---- the arithmetic ---------------------------------------------------------

test('percentiles lie where the values were, within their bucket', async () => {
  const { percentile } = await import('../../../dashboard/series.js');
  const seed = Number(process.env.TR_SEED) || Date.now() % 1e9;
  console.log(`# seed ${seed}`);
  const rnd = random(seed);
  const bounds = [1, 2, 5, 10, 20, 50, 100];
  for (let round = 0; round < 200; round++) {
    const values = Array.from({ length: 1 + Math.floor(rnd() * 300) },
      () => 120 * rnd() ** 3).sort((a, b) => a - b);
    const counts = new Array(bounds.length + 1).fill(0);
    for (const v of values) {
      const i = bounds.findIndex((b) => v <= b);
      counts[i < 0 ? bounds.length : i] += 1;
    }
    for (const p of [0.5, 0.95, 0.99]) {
      const exact = values[Math.min(values.length - 1,
        Math.ceil(p * values.length) - 1)];
      const got = percentile(counts, bounds, p);
      const i = bounds.findIndex((b) => exact <= b);
      const low = i < 0 ? bounds[bounds.length - 1] : i ? bounds[i - 1] : 0;
      const high = i < 0 ? low : bounds[i];
      assert.ok(got >= low && got <= high,
        `p${p * 100} of ${values.length} values is ${exact}, not ${got}`);
    }
  }
  assert.ok(Number.isNaN(percentile([0, 0], [1], 0.5)), 'of nothing: nothing');
});

test('sums go on over a restart of an engine and leave out one that has gone',
  async () => {
    const { Fleet } = await import('../../../dashboard/fleet.js');
    const { series, latest } = await import('../../../dashboard/series.js');
    const t0 = 1.7e12;
    const fleet = new Fleet();
    const sample = (t, run, made, used) => ({ id: `${t}-0`, run, running: '2',
      waiting: '1', prompt_tokens: '0', generation_tokens: String(made),
      stop: String(made / 10), length: '0', aborted: '0', error: '0',
      kv_free: '90', kv_used: used, kv_swapped: '0', kv_cached: '20',
      kv_tokens: '100',
      kv_full_bytes: '40000', ttft: `0 ${made / 10} 0`, inter_token: '0 0 0',
      e2e: '0 0 0' });
    const card = (run) => ({ run, state: 'ready', page_bytes: '1000',
      pages: '100', levels: '16/16 8/4' });
    fleet.apply({ type: 'hello', bounds: [100, 200] });
    // `a` makes 100 tokens a second and starts anew after 100 s; `b` ends then.
    const a = [];
    const b = [];
    for (let i = 0; i < 100; i++) a.push(sample(t0 + i * 1000, 'r1', i * 100, '2 8'));
    for (let i = 100; i < 200; i++) {
      a.push(sample(t0 + i * 1000, 'r2', (i - 100) * 100, '2 8'));
    }
    for (let i = 0; i < 100; i++) b.push(sample(t0 + i * 1000, 'x', i * 10, '5 5'));
    fleet.apply({ type: 'history', engine: 'a', samples: a.reverse() });
    fleet.apply({ type: 'history', engine: 'b', samples: b });
    const now = t0 + 200000;
    fleet.apply({ type: 'tick', now, redis: 'up', requests: [], engines: [
      { name: 'a', seen: String(now), heart: card('r2'), samples: [] },
      { name: 'b', seen: String(t0 + 99000), heart: card('x'), samples: [] }] });
    const s = series(fleet.sorted(), fleet.bounds, now, 180);
    const at = (seconds) => s.x.indexOf((t0 + seconds * 1000) / 1000);
    assert.equal(s.running[at(50)], 4);
    assert.equal(s.running[at(150)], 2, 'b is left out');
    assert.equal(Math.round(s.tokensOut[at(90)]), 110);
    assert.ok(s.tokensOut[at(101)] >= 0 && s.tokensOut[at(101)] <= 110,
      'no rate below zero at the restart');
    assert.equal(Math.round(latest(s.tokensOut)), 100);
    assert.deepEqual(s.order, ['16/16', '8/4']);
    assert.equal(s.levels.get('8/4')[at(50)], 13000);
    assert.equal(s.held[at(150)], 10000, 'prefixes are free to whoever asks');
    assert.equal(s.cached[at(150)], 20000);
    assert.equal(s.full[at(150)], 40000);
    assert.equal(s.pool[at(150)], 100000);
    assert.ok(s.ttft.p50[at(150)] > 0.1 && s.ttft.p50[at(150)] <= 0.2);
  });

test('a request of an engine that has gone reads as failed', async () => {
  const { Fleet, view } = await import('../../../dashboard/fleet.js');
  const fleet = new Fleet();
  const one = { id: 'f'.repeat(32), state: 'decode', engine: 'a', run: 'r1' };
  const tick = (engines) => fleet.apply({ type: 'tick', now: 1e12, redis: 'up',
    engines, requests: [] });
  const engine = (run) => [{ name: 'a', seen: '1', samples: [],
    heart: run ? { run, state: 'ready' } : null }];
  tick(engine('r1'));
  assert.equal(view(one, fleet).state, 'decode');
  tick(engine('r2'));
  assert.equal(view(one, fleet).state, 'failed');
  tick(engine(null));
  assert.equal(view(one, fleet).state, 'failed');
  assert.equal(view({ ...one, state: 'done' }, fleet).state, 'done');
  fleet.apply({ type: 'tick', now: 1e12, redis: 'away' });
  assert.equal(view(one, fleet).state, 'decode', 'nobody knows');
});

// ---- the module -------------------------------------------------------------

test('the page\'s files have types, validators and a strict policy', async () => {
  const stack = await Stack.start({ engine: null, server: location() });
  const url = `${stack.url}/dashboard/`;
  try {
    const served = [];
    const folder = (dir) => fs.readdirSync(path.join(PAGE, dir)).forEach((f) => {
      const name = path.join(dir, f);
      if (fs.statSync(path.join(PAGE, name)).isDirectory()) folder(name);
      else if (!/package\.json$|README|LICENSE/.test(name)) served.push(name);
    });
    folder('');
    const types = { '.html': 'text/html; charset=utf-8', '.svg': 'image/svg+xml',
      '.css': 'text/css; charset=utf-8', '.js': 'text/javascript; charset=utf-8' };
    for (const name of ['', ...served]) {
      const r = await request(url + name);
      const file = path.join(PAGE, name || 'index.html');
      assert.equal(r.status, 200, name);
      assert.equal(r.text, fs.readFileSync(file, 'utf8'), name);
      assert.equal(r.headers['content-type'], types[path.extname(file)]);
      assert.equal(r.headers['x-content-type-options'], 'nosniff');
      const policy = r.headers['content-security-policy'];
      assert.match(policy, /default-src 'none'/);
      assert.doesNotMatch(policy, /unsafe|\*|http/);
      for (const validator of [{ 'If-None-Match': r.headers.etag },
        { 'If-Modified-Since': r.headers['last-modified'] }]) {
        const again = await request(url + name, { headers: validator });
        assert.equal(again.status, 304, name);
        assert.equal(again.text, '');
      }
    }
    for (const name of ['package.json', 'vendor/', 'vendor/README.md', 'nothing',
      'app.js/', 'requests/', 'requests/zz', `requests/${'g'.repeat(32)}`,
      '..%2f..%2fetc%2fpasswd', 'vendor/../package.json']) {
      assert.ok([400, 404].includes((await request(url + name)).status), name);
    }
    assert.equal((await request(`${url}app.js`, { method: 'POST' })).status, 405);
    const head = await request(`${url}app.js`, { method: 'HEAD' });
    assert.equal(head.status, 200);
    assert.equal(head.text, '');
    const moved = await request(url.slice(0, -1));
    assert.equal(moved.status, 301);
    assert.match(moved.headers.location, /\/dashboard\/$/);
    const of = await request(`${url}requests/${'a'.repeat(32)}`);
    assert.equal(of.status, 503, 'without Redis');
    assert.deepEqual(stack.complaints(), []);
  } finally {
    await stack.stop();
  }
});

test('nginx refuses a dashboard without its files, or in an odd place', async () => {
  const stack = await Stack.start({ engine: null });
  try {
    for (const [server, want] of [
      ['location /d/ { tokenring_dashboard /nowhere; }', /index\.html" was not found/],
      [`location /d { tokenring_dashboard ${PAGE}; }`, /prefix location/],
      [`location = /d/ { tokenring_dashboard ${PAGE}; }`, /prefix location/],
      [`location ~ /d/ { tokenring_dashboard ${PAGE}; }`, /prefix location/],
      [`location /d/ { tokenring_dashboard ${PAGE}; tokenring_dashboard ${PAGE}; }`,
        /duplicate/],
      [`location /d/ { tokenring_dashboard ${PAGE} more; }`, /number of arguments/],
    ]) {
      stack.configure({ server });
      const out = stack.nginx('-t');
      assert.notEqual(out.status, 0, server);
      assert.match(out.text, want);
    }
  } finally {
    await stack.stop();
  }
});

test('viewers share one reading of Redis, and none looking means none reading',
  with_fleet({}, async ({ redis, feed, url }) => {
    const asked = async () => {
      const info = await redis.command('INFO', 'commandstats');
      const m = /cmdstat_zrevrange:calls=(\d+)/.exec(info);
      return m ? Number(m[1]) : 0;
    };
    const quiet = async () => {
      for (let n = await asked(), since = Date.now(); ;) {
        await sleep(200);
        const next = await asked();
        if (next !== n) { n = next; since = Date.now(); }
        if (Date.now() - since > 2500) return n;
      }
    };
    assert.equal(await asked(), 0, 'nobody looks yet');
    const viewers = Array.from({ length: 12 }, () => watch(url));
    await until(() => viewers.every((v) => v.of('tick').length > 0), 'first ticks');
    const [first] = viewers;
    assert.equal(first.status, 200);
    assert.match(first.headers['content-type'], /^text\/event-stream/);
    assert.equal(first.of('hello')[0].bounds.length, 28);
    const from = first.of('tick').length;
    const before = await asked();
    await until(() => first.of('tick').length >= from + 4, 'four more ticks');
    const rounds = (await asked() - before) / (1 + feed.fleet.engines.length);
    const ticks = first.of('tick').length - from;
    assert.ok(rounds <= ticks + 2, `${rounds} rounds for ${ticks} ticks of 12`);
    // The history of each viewer is whole, and without a sample twice.
    await until(() => viewers.every((v) =>
      feed.fleet.engines.every((e) => v.of('history')
        .filter((h) => h.engine === e.name)
        .reduce((n, h) => n + h.samples.length, 0) >= 90)), 'histories');
    for (const v of viewers) {
      const ids = v.of('history').filter((h) => h.engine === 'gpu-a')
        .flatMap((h) => h.samples.map((s) => s.id));
      assert.equal(new Set(ids).size, ids.length);
      assert.equal(v.of('requests').length, 1);
    }
    viewers.forEach((v) => v.close());
    const end = await quiet();
    assert.equal(await quiet(), end);
  }));

// Events over a socket that reads when it is told to.
function slow(port) {
  const out = { text: '' };
  out.socket = net.connect(port, '127.0.0.1', () => out.socket.write(
    'GET /dashboard/events HTTP/1.0\r\nHost: x\r\n\r\n'));
  out.socket.setEncoding('utf8').on('data', (d) => { out.text += d; })
    .on('error', () => {});
  out.events = () => out.text.slice(out.text.indexOf('\r\n\r\n') + 4)
    .split('\n\n').slice(0, -1).filter((b) => b.startsWith('data: '))
    .map((b) => JSON.parse(b.slice(6)));
  return out;
}

test('a viewer that does not read holds nobody up, and misses nothing', async () => {
  const port = await freePort();
  await with_fleet({ feed: { past: 400 }, server: `${location()}
    listen 127.0.0.1:${port} sndbuf=16k;` }, async ({ redis, url }) => {
    const late = slow(port);
    await until(() => late.text.includes('"hello"'), 'a greeting');
    late.socket.pause();
    const good = watch(url);
    await until(() => good.of('tick').length >= 5, 'ticks of another viewer');
    late.socket.resume();
    const ticks = () => late.events().filter((e) => e.type === 'tick').length;
    const now = ticks();
    await until(() => ticks() >= now + 4, 'ticks again');
    good.close();
    const events = late.events();
    late.socket.destroy();
    for (const name of ['gpu-a', 'gpu-b', 'gpu-c']) {
      const got = new Set(events.flatMap((e) => (e.type === 'history'
        ? (e.engine === name ? e.samples : [])
        : e.type === 'tick' && e.redis === 'up'
          ? e.engines.find((x) => x.name === name).samples : []))
        .map((x) => x.id));
      const last = [...got].sort().at(-1);
      const all = (await redis.stream(`tr:metrics:{${name}}`)).map((x) => x.id)
        .filter((id) => id <= last);
      assert.ok(all.length > 400);
      assert.deepEqual(all.filter((id) => !got.has(id)), [], `holes of ${name}`);
    }
  })();
});

test('a viewer goes on under limit_rate', with_fleet({ feed: { past: 400 },
  server: location('limit_rate 200k;') }, async ({ url }) => {
  const v = watch(url);
  // what was before is more than a second's worth; ticks are less
  await until(() => v.of('history').length >= 12, 'all that was before');
  const now = v.of('tick').length;
  await until(() => v.of('tick').length >= now + 3, 'ticks after it');
  v.close();
}));

test('a viewer that never reads is let go after send_timeout', async () => {
  const port = await freePort();
  await with_fleet({ feed: { past: 400 }, server: `${location('send_timeout 1s;')}
    listen 127.0.0.1:${port} sndbuf=16k;` }, async ({ stack }) => {
    const late = slow(port);
    late.socket.once('connect', () => late.socket.pause());
    await until(() => stack.errorLog().includes('client timed out'), 'its end');
    late.socket.destroy();
  })();
});

test('what a request holds is read for its page, and no more', with_fleet({},
  async ({ redis, feed, url }) => {
    const { id } = feed.fleet.engines[0].recent[0];
    await redis.command('HSET', `tr:req:{${id}}`, 'owner', 'a'.repeat(40),
      'prompt', 'a secret', 'error', 'a "quoted" \\ error\n');
    const r = await request(`${url}requests/${id}`);
    assert.equal(r.status, 200);
    assert.equal(r.headers['cache-control'], 'no-store');
    const state = r.json();
    assert.equal(state.id, id);
    assert.equal(state.engine, feed.fleet.engines[0].name);
    assert.equal(state.error, 'a "quoted" \\ error\n');
    assert.equal(state.owner, undefined);
    assert.equal(state.prompt, undefined);
    assert.equal((await request(`${url}requests/${'0'.repeat(32)}`)).status, 404);
    await redis.kill();
    await until(async () => (await request(`${url}requests/${id}`)).status === 503,
      '503 without Redis');
  }));

test('whatever stands in Redis, the stream is well-formed', with_fleet({},
  async ({ redis, url }) => {
    const bad = '<img src=x onerror="window.pwned=1">';
    const now = Date.now();
    // So that nothing that comes meanwhile is newer: the latest are shown.
    const later = now + 3600000;
    const e = `"${bad}' {}`;
    await all(redis, [
      ['ZADD', 'tr:engines', now, e], ['ZADD', 'tr:engines', now, 'x'.repeat(500)],
      ['ZADD', 'tr:engines', now, 'typed'], ['ZADD', 'tr:engines', '1.5e300', 'far'],
      ['HSET', `tr:engine:{${e}}`, 'run', bad, 'model', bad, 'levels', bad,
        'page_bytes', bad, 'pages', '-1', 'host', 'y'.repeat(1e6)],
      ['XADD', `tr:metrics:{${e}}`, `${now}-0`, 'run', bad, 'running', bad,
        'kv_used', '1 2 3 x', bad, bad, 'ttft', '9'.repeat(5000)],
      ['ZADD', `tr:requests:{${e}}`, now, bad, later, 'a'.repeat(32)],
      ['HSET', `tr:req:{${'a'.repeat(32)}}`, 'state', bad, 'model', bad,
        'engine', e, 'error', bad, 'created', later, 'finished', bad,
        'request_id', `</script>${bad}`],
      ['SET', 'tr:engine:{typed}', 'a string'], ['SET', 'tr:metrics:{typed}', '1'],
      ['SET', 'tr:requests:{typed}', '1'],
    ]);
    await redis.command('HSET', `tr:engine:{${e}}`, 'version', Buffer.from([0xff, 0xfe, 0x22]).toString('latin1'));
    const v = watch(url);
    const up = () => v.of('tick').filter((t) => t.redis === 'up');
    await until(() => up().length >= 3, 'ticks');
    v.close();
    // Keys of another type are left out, the rest is as it should be.
    const { engines } = up().at(-1);
    assert.equal(engines.find((x) => x.name === 'typed').heart, null);
    assert.ok(engines.find((x) => x.name === 'gpu-a').heart.run);
    assert.equal(engines.find((x) => x.name === e).heart.model, bad);
    assert.equal(engines.length, 5, 'too long a name, too large a time');
    const browser = await Browser.start();
    try {
      const page = await browser.open(url);
      await live(page);
      await when(page, (name) => [...document.querySelectorAll('.engine-name')]
        .some((el) => el.textContent === name), e);
      await page.click(`a[href="#/requests/${'a'.repeat(32)}"]`);
      await when(page, (text) => document.getElementById('request-page')
        .textContent.includes(text), bad);
      assert.equal(await page.evaluate(() => window.pwned), undefined);
      assert.equal(await page.evaluate(() =>
        document.querySelectorAll('main img').length), 0);
      assert.deepEqual(page.complaints, []);
    } finally {
      await browser.stop();
    }
  }));
