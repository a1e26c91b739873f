'use strict';
//
// Reload, upgrade, restarts and kills under load, with exactly what can be
// promised (docs/operations.md):
//   - a reload and a binary upgrade lose no stream;
//   - a killed worker loses its own clients' connections, nobody else's, and
//     the engine frees their pages;
//   - without an engine, requests get 503 with Retry-After and the OpenAI body;
//     streams that had begun get an error event; NGINX keeps listening, and
//     picks the engine up when it is back.
// And never a mixed-up stream: each surviving one equals its undisturbed run.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const {
  withStack, until, alive, leaves, taken, read, sleep,
} = require('../lib/stack');
const { post, upload, stream, request } = require('../lib/http');
const { chat, endless } = require('../lib/prompts');
const { undisturbed, checkSame } = require('../lib/same');

// What must be running when something dies: tokens at a set pace, for minutes.
const PACED = { backend: 'null', null_rate: 25 };
const LONG = 20000;
const KINDS = 6;
const TOKENS = 160;

// The undisturbed texts.
async function alone(url, tokens = TOKENS) {
  const texts = [];
  for (let i = 0; i < KINDS; i++) {
    texts.push(await undisturbed(url, endless(i, tokens)));
  }
  return texts;
}


function checkWhole(s, texts, i) {
  assert.equal(s.status, 200, s.raw);
  assert.ok(s.done && !s.cut, `stream ${i} is whole: ${s.raw.slice(-200)}`);
  checkSame(s.text(), texts[i % KINDS], `stream ${i}`);
}

const load = (url, n, tokens = TOKENS) => Array.from({ length: n }, (_, i) =>
  stream(url, endless(i % KINDS, tokens)));

async function check503(url) {
  const r = await post(url, chat('Hello!'));
  assert.equal(r.status, 503, r.text);
  assert.ok(Number(r.headers['retry-after']) >= 1);
  const { error } = r.json();
  assert.equal(error.code, 'engine_unavailable');
  assert.equal(error.type, 'server_error');
  assert.equal(typeof error.message, 'string');
}

test('reload under load loses no stream', withStack({ workers: 2 },
  async (stack, url) => {
    const texts = await alone(url);
    const first = load(url, 24);
    await Promise.all(first.map((s) => s.begun()));
    const old = await stack.reload();
    const second = load(url, 12);
    await Promise.all(second.map((s) => s.begun()));
    await stack.reload();
    (await Promise.all(first.map((s) => s.finished)))
      .forEach((s, i) => checkWhole(s, texts, i));
    (await Promise.all(second.map((s) => s.finished)))
      .forEach((s, i) => checkWhole(s, texts, i));
    await until(() => old.every((pid) => !alive(pid)), 'old workers gone');
    await stack.idle();
  }));

test('many reloads in a row leave no channel behind', withStack({},
  async (stack, url) => {
    for (let i = 0; i < 6; i++) await stack.reload();
    const open = async () => (await stack.metrics()).value(
      'tokenring_connected_workers');
    await until(async () => await open() === 1, 'one worker is connected');
    const sockets = () => fs.readdirSync(`/proc/${stack.engine.pid}/fd`)
      .map((fd) => {
        try {
          return fs.readlinkSync(`/proc/${stack.engine.pid}/fd/${fd}`);
        } catch {
          return '';
        }
      }).filter((to) => to.startsWith('/memfd:')).length;
    await until(() => sockets() <= 2, 'channels are given back');
    const r = await post(url, chat('Hello!'));
    assert.equal(r.status, 200);
  }));

test('binary upgrade loses no stream', withStack({ workers: 2 },
  async (stack, url) => {
    const texts = await alone(url);
    const first = load(url, 16);
    await Promise.all(first.map((s) => s.begun()));
    const old = stack.master;
    const workers = stack.workers();
    process.kill(old, 'SIGUSR2');
    const fresh = Number(await until(() => {
      const pid = read(`${stack.dir}/nginx.pid`).trim();
      return pid && Number(pid) !== old && alive(Number(pid)) ? pid : null;
    }, 'new master'));
    await until(() => stack.workers(fresh).length >= 2, 'new workers');
    process.kill(old, 'SIGWINCH');
    await until(() => workers.every(leaves), 'old workers leave');
    const second = load(url, 12);
    (await Promise.all(first.map((s) => s.finished)))
      .forEach((s, i) => checkWhole(s, texts, i));
    process.kill(old, 'SIGQUIT');
    (await Promise.all(second.map((s) => s.finished)))
      .forEach((s, i) => checkWhole(s, texts, i));
    await until(() => !alive(old), 'old master gone');
    stack.master = fresh;
    await stack.healthy();
  }));

test('a graceful stop lets running streams finish', withStack({},
  async (stack, url) => {
    const texts = await alone(url);
    const streams = load(url, 8);
    await Promise.all(streams.map((s) => s.begun()));
    process.kill(stack.master, 'SIGQUIT');
    (await Promise.all(streams.map((s) => s.finished)))
      .forEach((s, i) => checkWhole(s, texts, i));
    await until(() => !alive(stack.master), 'nginx gone');
  }));

test('no engine at the start: 503, and picked up when it comes', withStack(
  { engine: null }, async (stack, url) => {
    await check503(url);
    const health = await request(`${stack.url}/health`);
    assert.equal(health.status, 503);
    assert.equal((await request(`${stack.url}/plain`)).status, 200);
    assert.equal((await request(`${stack.url}/metrics`)).status, 200);
    await stack.engine.start();
    await stack.healthy();
    assert.equal((await post(url, chat('Hello!'))).status, 200);
  }));

test('engine killed: error events, 503, recovery', withStack(
  { workers: 2, engine: PACED }, async (stack, url) => {
    const workers = stack.workers();
    const streams = load(url, 10, LONG);
    await Promise.all(streams.map((s) => s.begun()));
    // Not streaming: headers not sent, so these get 503.
    const whole = Array.from({ length: 3 }, (_, i) =>
      post(url, { ...endless(i, LONG), stream: false }));
    await until(async () => (await stack.metrics())
      .value('tokenring_num_requests_running') === 13, 'all run');
    await stack.engine.kill('SIGKILL');
    for (const r of await Promise.all(whole)) {
      assert.equal(r.status, 503, r.text);
      assert.equal(r.json().error.code, 'engine_unavailable');
    }
    for (const s of await Promise.all(streams.map((x) => x.finished))) {
      assert.equal(s.status, 200);
      assert.ok(!s.done, 'a broken stream has no [DONE]');
      const last = s.events.at(-1);
      assert.equal(last.error?.code, 'engine_unavailable', s.raw.slice(-300));
      assert.ok(s.events.slice(0, -1).every((e) => !e.error));
    }
    await check503(url);
    await stack.engine.start();
    await stack.healthy();
    const texts = await alone(url, 20);
    (await Promise.all(load(url, 12, 20).map((s) => s.finished)))
      .forEach((s, i) => checkWhole(s, texts, i));
    assert.deepEqual(stack.workers(), workers, 'no worker died');
  }));

test('engine killed in the middle of a body: 503, no hanging', withStack({},
  async (stack, url) => {
    const body = JSON.stringify({ ...chat('Hello!'), pad: 'x'.repeat(4 << 20) });
    const { req, answer } = upload(url, { 'Content-Length': body.length });
    req.write(body.slice(0, 1 << 20));
    await stack.active(1);
    await taken(req.socket);
    await stack.engine.kill('SIGKILL');
    req.write(body.slice(1 << 20, 2 << 20));
    await sleep(100);
    req.end(body.slice(2 << 20));
    const r = await answer;
    assert.equal(r.status, 503, r.text);
    assert.equal(JSON.parse(r.text).error.code, 'engine_unavailable');
    await check503(url);
    await stack.engine.start();
    await stack.healthy();
    assert.equal((await post(url, chat('Hello!'))).status, 200);
  }));

test('reload in the middle of a body: it is served', withStack({},
  async (stack, url) => {
    const body = JSON.stringify({ ...chat('Hello!'), pad: 'x'.repeat(4 << 20) });
    const { req, answer } = upload(url, { 'Content-Length': body.length });
    req.write(body.slice(0, 1 << 20));
    await stack.active(1);
    await taken(req.socket);
    await stack.reload();
    req.end(body.slice(1 << 20));
    const r = await answer;
    assert.equal(r.status, 200, r.text);
    assert.equal(JSON.parse(r.text).choices[0].finish_reason, 'stop');
  }));

test('engine stopped by SIGTERM: running requests finish first', withStack(
  { engine: { drain_timeout: '10m' } }, async (stack, url) => {
    const texts = await alone(url);
    const streams = load(url, 8);
    await Promise.all(streams.map((s) => s.begun()));
    const end = stack.engine.kill('SIGTERM');
    (await Promise.all(streams.map((s) => s.finished)))
      .forEach((s, i) => checkWhole(s, texts, i));
    assert.deepEqual(await end, { code: 0, signal: null });
    await check503(url);
    await stack.engine.start();
    await stack.healthy();
    assert.equal((await post(url, chat('Hello!'))).status, 200);
  }));

test('engine drained past its limit: the rest ends with an error', withStack(
  { engine: { ...PACED, drain_timeout: '300ms' } }, async (stack, url) => {
    const streams = load(url, 4, LONG);
    await Promise.all(streams.map((s) => s.begun()));
    const end = await stack.engine.kill('SIGTERM');
    assert.deepEqual(end, { code: 0, signal: null });
    for (const s of await Promise.all(streams.map((x) => x.finished))) {
      assert.ok(!s.done && s.events.at(-1).error, s.raw.slice(-300));
    }
  }));

test('a worker killed under load takes only its own clients', withStack(
  { workers: 2 }, async (stack, url) => {
    const texts = await alone(url, 400);
    // On a busy machine they may be over before their worker dies: once more.
    await until(async () => {
      const streams = load(url, 16, 400);
      await Promise.all(streams.map((s) => s.begun()));
      const [victim, other] = stack.workers();
      process.kill(victim, 'SIGKILL');
      const done = await Promise.all(streams.map((s) => s.finished));
      const cut = done.filter((s) => !s.done);
      assert.ok(cut.every((s) => s.cut), 'the victims\' connections are cut');
      done.forEach((s, i) => {
        if (s.done) checkWhole(s, texts, i);
        else {
          checkSame(s.text(), texts[i % KINDS], `the beginning of ${i}`,
            { beginning: true });
        }
      });
      await stack.freed();
      assert.ok(stack.workers().includes(other));
      await until(() => stack.workers().length === 2, 'the worker is respawned');
      return cut.length > 0 && cut.length < done.length;
    }, 'both workers had streams');
    (await Promise.all(load(url, 12, 20).map((s) => s.finished)))
      .forEach((s) => assert.ok(s.done));
  }, { complaints: true }));

test('workers killed again and again: the engine stays', withStack({},
  async (stack, url) => {
    const texts = await alone(url, 40);
    const engine = stack.engine.pid;
    for (let round = 0; round < 4; round++) {
      const streams = load(url, 6, 1000);
      await Promise.all(streams.map((s) => s.begun()));
      const [victim] = stack.workers();
      process.kill(victim, 'SIGKILL');
      await Promise.all(streams.map((s) => s.finished));
      await until(() => stack.workers().some((pid) => pid !== victim),
        'respawned');
      await stack.healthy();
    }
    (await Promise.all(load(url, 6, 40).map((s) => s.finished)))
      .forEach((s, i) => checkWhole(s, texts, i));
    assert.equal(stack.engine.pid, engine);
    assert.ok(alive(engine));
    await stack.idle();
  }, { complaints: true }));

test('two engines: the load is shared, and one may go', withStack(
  { engines: { second: {} } }, async (stack, url) => {
    const texts = await alone(url);
    const streams = load(url, 12);
    await Promise.all(streams.map((s) => s.begun()));
    (await Promise.all(streams.map((s) => s.finished)))
      .forEach((s, i) => checkWhole(s, texts, i));
    await stack.others[0].kill('SIGKILL');
    for (let i = 0; i < 4; i++) {
      assert.equal((await post(url, chat('Hello!'))).status, 200);
    }
    await stack.engine.kill('SIGKILL');
    await until(async () => (await post(url, chat('Hello!'))).status === 503,
      'no engine is left');
    await stack.others[0].start();
    await stack.healthy();
    assert.equal((await post(url, chat('Hello!'))).status, 200);
  }));
