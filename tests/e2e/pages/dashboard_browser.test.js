'use strict';
//
// The dashboard in a real browser: it loads, moves, shows an engine that has
// gone and a Redis that is away, comes back after a reload, and keeps to its
// policy.  The fleet is a synthetic one (lib/dashboard.js); the last test has a
// real engine under load.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { Stack, POCKET, until, alive } = require('../lib/stack');
const { Redis } = require('../lib/redis');
const { Browser, PHONE, when, live } = require('../lib/browser');
const { request, post, stream } = require('../lib/http');
const { chat, endless } = require('../lib/prompts');
const { location, all, with_fleet, watch } = require('../lib/dashboard');

// ---- the page ---------------------------------------------------------------

test('the page in a browser', with_fleet({ workers: 2 },
  async ({ redis, feed, stack, url }) => {
    const browser = await Browser.start();
    const seen = (page, id) => page.locator(`#${id}`).textContent();
    const figure = (page, name) => page.locator('.figure',
      { hasText: name }).locator('b').textContent();
    try {
      const page = await browser.open(url);
      await live(page);

      // It shows the fleet, and the saving.
      await when(page, () => document.querySelectorAll('.engine').length === 3);
      await when(page, () => /^\d+(\.\d)?×$/.test(
        document.getElementById('saving').textContent));
      await when(page, () => document.querySelectorAll('#levels tr').length === 4);
      assert.match(await seen(page, 'kv-time'), /of the pool's [\d.]+ GiB/);
      assert.match(await page.locator('.engine-load').first().textContent(),
        / · GPU \d+%, [\d,]+ W$/);
      assert.match(await page.locator('.engine-kv').first().textContent(),
        /^[\d.]+% of [\d.]+ GiB · 2(\.0+)? GiB of prefixes in host memory · 3(\.0+)? GiB of prefixes in files$/);
      assert.deepEqual(await page.locator('.engine-weights').allTextContents(), [
        'Weights 5.35 GiB (16 bits: 15.0 GiB) · AWQ 4.16 bits',
        'Weights 5.35 GiB (16 bits: 15.0 GiB) · AWQ 4.16 bits',
        'Weights 7.49 GiB · BF16']);
      assert.equal(await page.locator('.uplot canvas').count(), 6);
      await when(page, () =>
        document.querySelectorAll('#requests tr').length === 12);

      // It moves: pictures and figures change by themselves.
      for (const id of ['chart-kv', 'chart-tokens', 'chart-ttft']) {
        const before = await page.evaluate((i) =>
          document.querySelector(`#${i} canvas`).toDataURL(), id);
        assert.ok(before.length > 2000, `${id} is drawn`);
        await when(page, ([i, old]) =>
          document.querySelector(`#${i} canvas`).toDataURL() !== old, [id, before]);
      }
      const busy = await figure(page, 'Tokens out');
      assert.notEqual(busy, '–');
      await when(page, (old) => ![...document.querySelectorAll('.figure b')]
        .some((b) => b.textContent === old), busy);

      // One engine alone, by keyboard, and all again.
      await page.locator('.engine').first().focus();
      await page.keyboard.press('Enter');
      await when(page, () => document.getElementById('kv-scope')
        .textContent === 'of gpu-a');
      await page.keyboard.press('Enter');
      await when(page, () => document.getElementById('kv-scope').textContent === '');

      // Dark and light.
      const ground = () => page.evaluate(() =>
        getComputedStyle(document.body).backgroundColor);
      const light = await ground();
      await page.locator('#theme').press('Enter');
      assert.notEqual(await ground(), light);
      await page.reload();
      await live(page);
      assert.notEqual(await ground(), light, 'the choice is kept');

      // The pointer reads the past.
      const plot = page.locator('#chart-kv .u-over');
      const { width } = await plot.boundingBox();
      await plot.hover({ position: { x: width - 40, y: 90 } });
      await when(page, () => / at \d\d:\d\d:\d\d$/.test(
        document.getElementById('kv-time').textContent));
      await page.mouse.move(5, 5);

      // A request's page, and the way back.
      await page.locator('#requests-more').click();
      await page.locator('#requests tr[data-final="true"] a').first().click();
      await when(page, () => document.querySelectorAll('.timeline .phase').length > 0
        && /Model/.test(document.getElementById('request-page').textContent));
      await page.locator('.back').click();
      await when(page, () => !document.getElementById('fleet-page').hidden);

      // An engine that ends is shown as gone; the others go on.
      feed.fleet.engines[1].alive = false;
      await when(page, () => document.querySelector(
        '.engine[data-state="gone"] .engine-name')?.textContent === 'gpu-b');
      await when(page, () => /Engine gpu-b has gone/.test(
        document.getElementById('alerts').textContent));
      await when(page, () => document.querySelectorAll(
        '.engine[data-state="ready"]').length === 2);
      feed.fleet.engines[1].now = Date.now();
      feed.fleet.engines[1].start();
      await when(page, () => !document.querySelector('.engine[data-state="gone"]'));
      await when(page, () => document.getElementById('alerts').textContent === '');

      // Redis away: it says so, keeps what it knew, and recovers.
      await redis.kill();
      await when(page, () => document.getElementById('live')
        .textContent.includes('Redis away'));
      await when(page, () => /Redis is away/.test(
        document.getElementById('alerts').textContent));
      assert.equal(await page.locator('.engine').count(), 3);
      assert.match(await seen(page, 'saving'), /×$/);
      await redis.run();
      await live(page);
      await when(page, () => document.querySelectorAll(
        '.engine[data-state="ready"]').length === 3);

      // Its policy holds against its own page.
      assert.deepEqual(await page.evaluate(() => window.violations), []);
      assert.deepEqual(page.complaints, []);
      const refused = await page.evaluate(async () => {
        const script = document.createElement('script');
        let thrown = 0;
        try { script.textContent = 'window.inline = 1'; } catch { thrown++; }
        document.head.append(script);
        try { document.body.innerHTML = '<p>'; } catch { thrown++; }
        await fetch('http://127.0.0.2/').catch(() => { thrown++; });
        return { inline: window.inline, thrown };
      });
      assert.equal(refused.inline, undefined);
      assert.equal(refused.thrown, 3);
      await when(page, () => window.violations.length >= 3);
      assert.deepEqual(page.foreign.filter((f) => f !== 'http://127.0.0.2/'), []);
    } finally {
      await browser.stop();
    }
  }));

test('on a phone nothing is cut off, and everything is in reach', with_fleet({},
  async ({ url }) => {
    const browser = await Browser.start();
    try {
      const page = await browser.open(url,
        { viewport: PHONE, scheme: 'dark', hasTouch: true });
      await live(page);
      await when(page, () => document.querySelectorAll('#requests tr').length > 0);
      const width = () => page.evaluate(() => document.documentElement.scrollWidth);
      assert.equal(await width(), PHONE.width);
      const small = await page.evaluate(() => [...document.querySelectorAll(
        'button, .segments label')].filter((el) => el.offsetParent)
        .filter((el) => el.getBoundingClientRect().height < 28).length);
      assert.equal(small, 0, 'what is tapped is large enough');
      await page.locator('#requests a').first().tap();
      await when(page, () => document.querySelectorAll('.facts dt').length > 3);
      assert.equal(await width(), PHONE.width);
      assert.deepEqual(page.complaints, []);
      assert.deepEqual(page.foreign, []);
    } finally {
      await browser.stop();
    }
  }));

test('without a Redis it shows the engines of this NGINX', async () => {
  const stack = await Stack.start({ server: location(),
    http: 'tokenring_tenants zone=tenants:1m shown;',
    location: 'tokenring_tenant $http_x_team;',
    engine: { kv_policy: 'diffkv:alpha_high=12,alpha_low=0' } });
  const browser = await Browser.start();
  const url = `${stack.url}/v1/chat/completions`;
  const figure = (page, name, test) => when(page, ([n, more]) => {
    const b = [...document.querySelectorAll('.figure')]
      .find((el) => el.firstElementChild.textContent === n).children[1];
    return parseFloat(b.textContent.replace(/,/g, '')) >= more;
  }, [name, test]);
  try {
    const page = await browser.open(`${stack.url}/dashboard/`);
    await live(page);
    await when(page, () => /since this page was opened.*tokenring_redis/.test(
      document.getElementById('alerts').textContent));
    assert.match(await page.locator('.engine-model').textContent(),
      /^pocket · cpu · diffkv/);
    assert.match(await page.locator('.engine-weights').textContent(),
      /^Weights [\d.]+ MiB · BF16$/);
    assert.ok(!await page.locator('#requests-card').isVisible());
    const load = [0, 1, 2].map((i) => stream(url, endless(i, 3000),
      { headers: { 'X-Team': '<team>' } }).finished);
    await figure(page, 'Running', 1);
    await figure(page, 'Tokens out', 1);
    await when(page, () => document.querySelectorAll('#levels tr').length >= 2);
    await Promise.all(load);
    // What has ended counts, whatever runs now.
    await when(page, () => /Over 3 requests since start/.test(
      document.getElementById('saving-since').textContent));
    assert.ok(parseFloat(await page.locator('#saving').textContent()) > 1);
    await when(page, () => document.querySelectorAll('#tenants tr').length === 1
      && /^<team>30[\d,]+9,000$/.test(document.getElementById('tenants')
        .textContent));
    // As the status page has it.
    const m = await stack.metrics();
    const ratio = m.value('tokenring_kv_request_fp16_bytes_total')
      / m.value('tokenring_kv_request_bytes_total');
    assert.equal(await page.locator('#saving').textContent(),
      `${ratio.toFixed(ratio < 9.95 ? 1 : 0)}×`);

    const inFiles = fs.readdirSync(POCKET).filter((name) => /\.safetensors$/.test(name))
      .map((name) => fs.readFileSync(path.join(POCKET, name)))
      .reduce((sum, file) => sum + file.length - 8 - Number(file.readBigUInt64LE()), 0);
    assert.equal(m.value('tokenring_weights_file_bytes'), inFiles);
    assert.ok(m.value('tokenring_weights_bytes') >= inFiles);

    // One that is gone keeps its name and model, also for who comes later.
    await stack.engine.kill();
    await when(page, () => document.querySelector('.engine[data-state="gone"]'));
    const later = await browser.open(`${stack.url}/dashboard/`);
    for (const p of [page, later]) {
      await when(p, () => /^pocket/.test(document.querySelector(
        '.engine[data-state="gone"] .engine-model')?.textContent));
    }
    // And what is asked for meanwhile is an error of this NGINX.
    await post(url, chat('Hello!'));
    await figure(page, 'Errors (5xx)', 1);
    await stack.engine.start();
    await when(page, () => document.querySelector('.engine[data-state="ready"]'));

    // No tenant, and all others, are told apart from tenants of such names.
    const teams = ['', 'none', 'others', 'other', 'constructor', 'x'.repeat(65)];
    for (const team of teams) {
      const r = await post(url, { ...chat('Hello!'), max_tokens: 1 },
        team ? { 'X-Team': team } : {});
      assert.equal(r.status, 200, r.text);
    }
    await when(page, () => document.querySelectorAll('#tenants tr').length === 7);
    assert.deepEqual(await page.evaluate(() =>
      [...document.querySelectorAll('#tenants th')].map((th) =>
        (th.querySelector('em') ? 'em ' : '') + th.textContent).sort()),
    ['0x6f74686572', '<team>', 'constructor', 'em none', 'em others', 'none',
      'others']);
    assert.deepEqual(page.complaints, []);
  } finally {
    await browser.stop();
    await stack.stop();
  }
});

test('rows of one key are drawn, and do not stay', async () => {
  const stack = await Stack.start({ server: location() });
  const browser = await Browser.start();
  try {
    const page = await browser.open(`${stack.url}/dashboard/`);
    const drawn = await page.evaluate(async () => {
      const { make, rows } = await import('/dashboard/dom.js');
      const parent = make('div');
      return [['a', 'b', 'a', 'c'], ['a', 'a', 'b'], ['a', 'b', 'a'], ['b', 'a'],
        ['b', 'a'], []].map((items) => {
        const old = new Set(parent.children);
        rows(parent, items, (k) => k, () => make('p'), (row, k) => {
          row.textContent = k;
        });
        const all = [...parent.children];
        return `${all.map((row) => row.textContent).join('')} ${
          all.filter((row) => old.has(row)).length}`;
      });
    });
    // How many were kept from the draw before: one of each key.
    assert.deepEqual(drawn, ['abac 0', 'aab 2', 'aba 2', 'ba 2', 'ba 2', ' 0']);
  } finally {
    await browser.stop();
    await stack.stop();
  }
});

test('an hour of the past, and what has gone in it', with_fleet(
  { feed: { past: 3000 } }, async ({ redis, feed, url }) => {
    // Gone before anybody looked.
    feed.fleet.engines[1].alive = false;
    await until(async () => await redis.hash('tr:engine:{gpu-b}') === null,
      'its heartbeat expires');
    const of = (v, name) => v.of('history').filter((h) => h.engine === name)
      .flatMap((h) => h.samples.map((s) => parseInt(s.id, 10)));
    const short = watch(url);
    const long = watch(url, 'events?hour');
    await until(() => of(short, 'gpu-c').length >= 660, 'the last minutes');
    await until(() => Math.min(...of(long, 'gpu-c'))
      < feed.since - 2900 * 1000, 'the hour');
    // Of its beginning every tenth; what is new comes when this machine is ready.
    const times = of(long, 'gpu-c').filter((t) => t <= feed.since)
      .sort((a, b) => a - b);
    assert.ok(times.length > 290 && times.length < 1000, `${times.length} samples`);
    const gaps = times.slice(1).map((t, i) => t - times[i]);
    assert.ok(Math.max(...gaps) <= 11000, `${Math.max(...gaps)} ms apart`);
    short.close();
    long.close();

    const browser = await Browser.start();
    try {
      const page = await browser.open(url);
      await live(page);
      await when(page, () => /^llama-3-8b-instruct · cuda/.test(document.querySelector(
        '.engine[data-state="gone"] .engine-model')?.textContent));
      await page.locator('#span input[value="3600"]').check({ force: true });
      await when(page, () => document.querySelectorAll('#levels tr').length === 4);
      // By model: the engines, their figures, their requests.
      await page.locator('#model').selectOption('qwen3-4b');
      await when(page, () => document.querySelectorAll('.engine').length === 1);
      assert.equal(await page.locator('#kv-scope').textContent(), 'of qwen3-4b');
      assert.deepEqual(await page.evaluate(() =>
        [...new Set([...document.querySelectorAll('#requests tr')]
          .map((tr) => tr.children[2].textContent))]), ['gpu-c']);
      await page.locator('#model').selectOption('');
      await when(page, () => document.querySelectorAll('.engine').length === 3);
      // The figures of now are those of this second, not of the last ten.
      const pool = () => page.evaluate(() => parseFloat(/pool's (.*)/.exec(
        document.getElementById('kv-time').textContent)[1]));
      const both = await pool();
      feed.fleet.engines[2].alive = false;
      await when(page, () =>
        document.querySelectorAll('.engine[data-state="gone"]').length === 2);
      assert.ok(await pool() < both, `${await pool()} of ${both} GiB`);
      assert.deepEqual(page.complaints, []);
    } finally {
      await browser.stop();
    }
  }));

test('a reload ends the streams, the page comes back, no socket is left',
  with_fleet({ engine: {}, workers: 2 }, async ({ stack, url }) => {
    const browser = await Browser.start();
    const viewers = Array.from({ length: 8 }, () => watch(url));
    try {
      const page = await browser.open(url);
      await live(page);
      await until(() => viewers.every((v) => v.of('tick').length), 'ticks');
      for (let i = 0; i < 3; i++) {
        const old = await stack.reload();
        await until(() => old.every((pid) => !alive(pid)), 'old workers gone');
        await Promise.all(viewers.map((v) => v.ended));
        const at = await page.evaluate(() => performance.now());
        await when(page, (t) => performance.now() > t + 1500
          && document.documentElement.dataset.live === 'true', at);
      }
    } finally {
      await browser.stop();
    }
    // Viewers that come and go leave nothing behind in the workers.
    const descriptors = () => stack.workers().map((pid) =>
      fs.readdirSync(`/proc/${pid}/fd`).length);
    const idle = descriptors();
    for (let i = 0; i < 4; i++) {
      const some = Array.from({ length: 20 }, () => watch(url));
      await until(() => some.every((v) => v.of('tick').length), 'ticks');
      assert.ok(descriptors().reduce((a, n) => a + n)
        >= idle.reduce((a, n) => a + n) + 10, 'viewers take descriptors');
      some.forEach((v) => v.close());
    }
    // the connection to Redis stays
    await until(() => descriptors().every((n, i) => n <= idle[i] + 3),
      () => `${descriptors()} descriptors, ${idle} before`);
  }));

test('a real engine under load, and then killed', async () => {
  const redis = await Redis.start();
  const stack = await Stack.start({ server: location(),
    http: `tokenring_redis ${redis.address};`, engine: { redis: redis.address,
      kv_policy: 'diffkv:alpha_high=12,alpha_low=0' } });
  const browser = await Browser.start();
  const url = `${stack.url}/v1/chat/completions`;
  let over = false;
  try {
    const page = await browser.open(`${stack.url}/dashboard/`);
    await live(page);
    const short = await post(url, chat('Hello!'));
    const { id } = short.json();
    const hex = id.replace('chatcmpl-', '');
    // The request that is over, with what its cache took.
    const r = await until(async () => {
      const one = await request(`${stack.url}/dashboard/requests/${hex}`);
      return one.status === 200 && one.json().state === 'done' && one.json();
    }, 'the end in Redis');
    assert.equal(Number(r.completion_tokens), short.json().usage.completion_tokens);
    assert.equal(Number(r.kv_bytes), short.json().usage.kv_cache.bytes);
    await page.locator(`a[href="#/requests/${hex}"]`).click();
    await when(page, () => document.querySelectorAll('.timeline .phase').length === 3);
    await page.locator('.back').click();

    // There are always six, however long the browser takes.
    let broken = 0;
    const load = Array.from({ length: 6 }, async (_, i) => {
      while (!over) {
        const s = await stream(url, endless(i, 1500)).finished;
        if (!s.done && s.events.length) broken++;
      }
    });

    // Figures of the engine's own: what runs, tokens, levels, the saving.
    const number = (name) => when(page, (n) => {
      const b = [...document.querySelectorAll('.figure')]
        .find((el) => el.firstElementChild.textContent === n).children[1];
      return parseFloat(b.textContent.replace(/,/g, '')) > 0;
    }, name);
    for (const name of ['Running', 'Tokens out', 'First token']) await number(name);
    await when(page, () => document.querySelectorAll('#levels tr').length >= 2);
    await when(page, () => parseFloat(
      document.getElementById('saving').textContent) > 1);
    assert.match(await page.locator('.engine-model').textContent(), /^pocket · cpu · diffkv/);

    // One that runs, with what it holds now.
    await page.locator('#requests tr[data-final="false"] a').first().click();
    await when(page, () => /KV cache now/.test(
      document.getElementById('request-page').textContent)
      && document.querySelectorAll('.share i:not([hidden])').length > 0);
    const now = await page.locator('#request-page').textContent();
    assert.match(now, /[\d.]+ [KM]iB instead of [\d.]+ [KM]iB/);
    assert.match(now, /at the best level/);
    await page.locator('.back').click();

    // Killed in the middle: gone, and what it had reads as failed.
    await when(page, () => [...document.querySelectorAll('#requests .badge')]
      .some((b) => b.textContent.includes('decode')));
    over = true;
    await stack.engine.kill();
    await Promise.all(load);
    assert.ok(broken > 0);
    await when(page, () => document.querySelector('.engine[data-state="gone"]'));
    // Those of whom it had not told Redis yet are known to nobody.
    await when(page, () => {
      const states = [...document.querySelectorAll('#requests .badge')]
        .map((b) => b.textContent);
      return states.some((s) => s.includes('failed'))
        && !states.some((s) => s.includes('decode'));
    });
    assert.deepEqual(page.complaints, []);
    assert.deepEqual(stack.complaints(), []);
  } finally {
    over = true; // a load that nobody stops would never end
    await browser.stop();
    await stack.stop();
    await redis.stop();
  }
});
