'use strict';
//
// A stream on its way to another engine that has no place for it: the scripted
// engine (fake_engine.c) gives the stream up, and refuses to continue it a few
// times, or for ever.  A second socket of the fleet is dead, so that connecting
// to it fails while the request waits.  Other fleets have an engine that all
// like best (weight), and that continues nothing.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { spawn, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { ROOT, BUILD, Stack, until } = require('../lib/stack');
const { post, stream } = require('../lib/http');

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-refused-'));
const socket = path.join(dir, 'fake.sock');
const at = (name) => path.join(dir, `${name}.sock`);
const tokens = (n) => Array.from({ length: n }, (_, i) => `t${i} `).join('');
const engines = {};
let stack;

async function startEngine(name, ...args) {
  engines[name] = spawn(path.join(BUILD, 'tests/fake_engine'),
    [at(name), ...args], { stdio: 'inherit' });
  await until(() => fs.existsSync(at(name)), `the socket of ${name}`);
}

async function stopEngine(name) {
  const engine = engines[name];
  if (engine.exitCode !== null || engine.signalCode !== null) return;
  const gone = new Promise((resolve) => { engine.once('exit', resolve); });
  engine.kill('SIGTERM');
  await gone;
  fs.rmSync(at(name), { force: true });
}

before(async () => {
  const made = spawnSync('make', ['-s', 'fake-engine', `B=${BUILD}`],
    { cwd: ROOT, encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  fs.chmodSync(dir, 0o755);
  await Promise.all([startEngine('fake'), startEngine('picky', '--picky'),
    startEngine('other', '--other'), startEngine('alone', '--picky')]);
  stack = await Stack.start({
    engine: null,
    http: `tokenring_engine fleet unix:${socket} unix:${dir}/dead.sock;
      tokenring_engine picky unix:${socket};
      tokenring_engine picky unix:${at('picky')} weight=1000;
      tokenring_engine other unix:${socket};
      tokenring_engine other unix:${at('other')} weight=1000;
      tokenring_engine alone unix:${at('alone')};`,
    pass: 'fleet',
    location: 'tokenring_migrate 1 timeout=60s;',
    server: `
      location /picky/v1/ {
        tokenring_migrate 1 timeout=60s;
        tokenring_pass picky;
      }
      location /other/v1/ {
        tokenring_migrate 1 timeout=60s;
        tokenring_pass other;
      }
      location /alone/v1/ {
        tokenring_migrate 1 timeout=60s;
        tokenring_pass alone;
      }
      location /short/v1/ {
        tokenring_migrate 1 timeout=700ms;
        tokenring_pass fleet;
      }
      location /file/v1/ {
        client_body_in_file_only clean;
        mirror /nobody;
        tokenring_migrate 1 timeout=60s;
        tokenring_pass fleet;
      }
      location = /nobody { internal; return 204; }
      location /never/v1/ { tokenring_pass fleet; }`,
  });
  await stack.healthy();
});

after(async () => {
  if (stack) {
    const complaints = stack.complaints().filter((line) =>
      !line.includes('the file of a request body ended early'));
    await stack.stop();
    assert.deepEqual(complaints, []);
  }
  await Promise.all(Object.keys(engines).map(stopEngine));
  fs.rmSync(dir, { recursive: true, force: true });
});

const ask = (where, more) => stream(
  `${stack.url}${where}/v1/chat/completions`,
  { fake: 'moves', count: 6, first: 3, ms: 5, stream: true,
    include_usage: true,
    ...more }).finished;
const moves = async () => (await stack.metrics())
  .value('tokenring_gateway_migrations_total');

for (const [status, code] of [['QUEUE_FULL', 7], ['DRAINING', 10]]) {
  test(`refused with ${status}, then accepted: one stream, no haste`,
    async () => {
      const before = await moves();
      const began = performance.now();
      const s = await ask('', { refuse: 4, status: code });
      assert.ok(s.done, s.raw.slice(-400));
      assert.equal(s.text(), tokens(6));
      assert.equal(s.events.at(-1).usage.completion_tokens, 6);
      assert.ok(s.events.every((e) => !e.error));
      // A refusal is no move, and is slept over: 100 ms at least.
      assert.equal(await moves(), before + 1);
      const took = performance.now() - began;
      assert.ok(took >= 380, `${took} ms for four refusals`);
    });
}

// What one engine finds wrong with the stream, another need not: it is asked once,
// however often those that have no place are.
const refusals = (name) => stack.errorLog().split('\n').filter((line) =>
  line.includes('does not go on at this engine')
    && line.includes(`socket=unix:${at(name)} `));

for (const [status, code] of [['INVALID', 2], ['CONTEXT_LENGTH', 3],
  ['TOO_LARGE', 6], ['NOMEM', 21], ['UNSUPPORTED', 26], ['REPLAY', 27]]) {
  test(`refused with ${status} by one engine: another goes on`, async () => {
    const before = [await moves(), refusals('picky').length];
    const s = await ask('/picky', { picky: code, refuse: 3 });
    assert.ok(s.done, s.raw.slice(-400));
    assert.equal(s.text(), tokens(6));
    assert.ok(s.events.every((e) => !e.error), s.raw);
    assert.equal(await moves(), before[0] + 1);
    const lines = refusals('picky').slice(before[1]);
    assert.equal(lines.length, 1, lines.join('\n'));
    assert.ok(lines[0].endsWith(`status=TR_ERR_${status}`)
      || lines[0].includes(`status=TR_ERR_${status},`), lines[0]);
  });
}

test('refused by all for a reason of theirs: until one starts anew', async () => {
  const s = ask('/alone', { picky: 3 });
  await until(() => refusals('alone').length === 1, 'it is refused');
  await stopEngine('alone');
  await startEngine('alone');
  const ended = await s;
  assert.ok(ended.done, ended.raw.slice(-400));
  assert.equal(ended.text(), tokens(6));
  assert.equal(refusals('alone').length, 1);
});

test('an engine without its KV policy is not asked', async () => {
  const s = await ask('/other', {});
  assert.ok(s.done, s.raw.slice(-400));
  assert.equal(s.text(), tokens(6));
  assert.equal(engines.other.exitCode, null);
});

test('its engine lost the device: as if the engine were lost', async () => {
  const before = await moves();
  const s = await ask('', { leave: 28 });
  assert.ok(s.done, s.raw.slice(-400));
  assert.equal(s.text(), tokens(6));
  assert.equal(await moves(), before + 1);
  const stays = await ask('/never', { leave: 28 });
  assert.ok(!stays.done);
  assert.equal(stays.text(), tokens(3));
  assert.equal(stays.events.at(-1).error.code, 'engine_unavailable');
  // Nothing has been told: sent again once, without being asked for.
  const again = await ask('/short', { leave: 28, first: 0, refuse: 1000 });
  assert.ok(!again.done);
  assert.equal(again.status, 503);
});

// tokenring_migrate allows one loss.  An engine that gives the request up for
// others is none, as long as it gets on; one that was lost is.
test('given up by its engine again and again: no loss is counted', async () => {
  const before = await moves();
  const s = await ask('', { leave: 29, count: 10, first: 2, again: 3, step: 2 });
  assert.ok(s.done, s.raw.slice(-400));
  assert.equal(s.text(), tokens(10));
  assert.equal(s.events.at(-1).usage.completion_tokens, 10);
  assert.equal(await moves(), before + 4);
  const lost = await ask('', { leave: 28, count: 10, first: 2, again: 3, step: 2 });
  assert.ok(!lost.done);
  assert.equal(lost.text(), tokens(4));
  assert.equal(lost.events.at(-1).error.code, 'engine_unavailable');
});

test('given up by engines that do nothing for it: that ends', async () => {
  const before = await moves();
  const s = await ask('', { leave: 29, count: 10, first: 2, again: 1000, step: 0 });
  assert.ok(!s.done);
  assert.equal(s.text(), tokens(2));
  assert.equal(s.events.at(-1).error.code, 'engine_draining');
  assert.equal(await moves(), before + 2);
});

// The engine stops while the request is in its queue: that is no loss either, but
// for an engine that accepts it and stops again and again.
test('given back from a queue: no loss is counted, once', async () => {
  const before = await moves();
  const s = await ask('', { leave: 10, count: 10, first: 2, again: 1, step: 0 });
  assert.ok(s.done, s.raw.slice(-400));
  assert.equal(s.text(), tokens(10));
  assert.equal(await moves(), before + 2);
  const ends = await ask('', { leave: 10, count: 10, first: 2, again: 1000, step: 0 });
  assert.ok(!ends.done);
  assert.equal(ends.text(), tokens(2));
  assert.equal(ends.events.at(-1).error.code, 'engine_draining');
  assert.equal(await moves(), before + 4);
});

test('refused, then accepted: a whole answer', async () => {
  const r = await post(`${stack.url}/v1/chat/completions`,
    { fake: 'moves', count: 6, first: 3, refuse: 2 });
  assert.equal(r.status, 200, r.text);
  assert.equal(r.json().choices[0].message.content, tokens(6));
});

test('accepted by nobody in time: one error, after what was told', async () => {
  const began = performance.now();
  const s = await ask('/short', { refuse: 1000000 });
  const took = performance.now() - began;
  assert.ok(!s.done && !s.cut, s.raw.slice(-400));
  assert.equal(s.text(), tokens(3));
  assert.deepEqual(s.events.filter((e) => e.error).map((e) => e.error.code),
    ['engine_unavailable']);
  assert.ok(took >= 690, `${took} ms`);
  // The engine is well, and has forgotten the request.
  await stack.active(0);
  const again = await ask('', { refuse: 1 });
  assert.equal(again.text(), tokens(6));
});

test('many at a time, and some whose clients leave', async () => {
  const all = Array.from({ length: 40 }, (_, i) => {
    const s = stream(`${stack.url}/v1/chat/completions`,
      { fake: 'moves', count: 6, first: 3, refuse: 2, ms: 5, stream: true });
    if (i % 4 === 0) s.begun().then(() => s.hangUp(), () => {});
    return s;
  });
  const ended = await Promise.all(all.map((s) => s.finished));
  ended.forEach((s, i) => {
    if (i % 4 === 0) return;
    assert.ok(s.done, `${i}: ${s.raw.slice(-400)}`);
    assert.equal(s.text(), tokens(6), `${i}`);
  });
  await stack.active(0);
});

// A body that another module had NGINX put into a file is read from there again;
// here it cannot be.
for (const [when, more] of [
  ['as its engine is lost', { ms: 100 }],
  ['while it waits for another', { refuse: 1000000 }],
]) {
  test(`its body cannot be read again, ${when}: an error event`, async () => {
    const s = stream(`${stack.url}/file/v1/chat/completions`,
      { fake: 'moves', count: 6, first: 3, stream: true, ...more });
    await s.begun();
    const temp = path.join(stack.dir, 'temp_client_body');
    for (const name of fs.readdirSync(temp, { recursive: true })) {
      const file = path.join(temp, name);
      if (fs.statSync(file).isFile()) fs.truncateSync(file, 0);
    }
    const ended = await s.finished;
    assert.equal(ended.text(), tokens(3));
    assert.equal(ended.events.at(-1).error.code, 'internal_error');
    assert.ok(!ended.done && !ended.cut, ended.raw.slice(-400));
    await stack.active(0);
    assert.equal((await ask('', { refuse: 1 })).text(), tokens(6));
  });
}

test('without tokenring_migrate the stream ends', async () => {
  const s = await ask('/never', {});
  assert.equal(s.events.at(-1).error.code, 'engine_draining');
  assert.ok(!s.done);
});
