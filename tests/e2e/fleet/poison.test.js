'use strict';
//
// Requests that end engines.  An engine that crashes (a signal of its own, here
// sent by the test) while it starts a request charges it; charged ones join
// alone; the second crash refuses the request, and others with its body.  Streams
// beside it go on.  A kill is nobody's fault.

const { describe, test } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until, sleep } = require('../lib/stack');
const { post, stream } = require('../lib/http');

// Ten tokens a second: a request starts for 1.6 s.
const SLOW = { backend: 'null', null_rate: 10, kv_memory: '64m' };
const FLEET = { engine: SLOW, engines: { second: SLOW }, pass: 'fleet',
  http: 'tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;',
  location: 'tokenring_migrate 5 timeout=60s;' };

const body = (prompt, tokens, more) => ({ model: 'pocket', prompt,
  max_tokens: tokens, ignore_eos: true, ...more });

// A sanitizer would take its time to report what is done on purpose here, while
// the engine's other threads go on.
if (process.env.ASAN_OPTIONS) process.env.ASAN_OPTIONS += ':handle_segv=0';

async function running(stack) {
  const m = await stack.metrics();
  return ['0', '1'].map((replica) => m.samples
    .filter((s) => s.name === 'tokenring_num_requests_running'
      && s.labels.replica === replica)
    .reduce((sum, s) => sum + s.value, 0));
}

// The engine that gets one request more, once it has.
async function gets(stack, engines, before) {
  const at = await until(async () => {
    const now = await running(stack);
    const i = now.findIndex((n, k) => n > before[k]);
    return i < 0 ? null : { i };
  }, 'it runs somewhere');
  return engines[at.i];
}

async function crash(engine) {
  engine.signal('SIGSEGV');
  const end = await engine.exited;
  assert.equal(end.signal, 'SIGSEGV');
  engine.child = null;
}

const sum = (list) => list.reduce((a, b) => a + b, 0);

async function fleet(run) {
  const stack = await Stack.start(FLEET);
  stack.complaints = () => [];
  try {
    await stack.connected(2);
    await run(stack, [stack.engine, stack.others[0]],
      `${stack.url}/v1/completions`);
  } finally {
    await stack.stop();
  }
}

describe('poison', { concurrency: 3 }, () => {
  test('the second crash names its cause, and the others finish', () =>
    fleet(async (stack, engines, url) => {
      const others = [0, 1, 2, 3].map((i) => stream(url, body(`story ${i}`, 110,
        { stream: true, stream_options: { include_usage: true } })));
      await Promise.all(others.map((s) => s.when(() => s.events.length > 20)));
      const poison = body('poison', 60);
      const before = await running(stack);
      const asked = post(url, poison);
      const first = await gets(stack, engines, before);
      await crash(first);
      const second = engines.find((e) => e !== first);
      // It waits until those that moved have settled.
      await until(async () => sum(await running(stack)) === 5
        && others.every((s) => !s.done), 'it runs again, with the others');
      await crash(second);
      const r = await asked;
      assert.equal(r.status, 422, r.text);
      assert.equal(r.json().error.code, 'request_refused');
      assert.match(r.json().error.message, /two engines stopped/);
      assert.match(stack.errorLog(), /charges=2 others=0/);
      await Promise.all(engines.map((e) => e.start()));
      for (const s of others) {
        await s.finished;
        assert.ok(s.done, s.raw.slice(-400));
        assert.equal(s.events.at(-1).usage.completion_tokens, 110);
      }
      // The client tries again, and so do others with the same body.
      const again = await post(url, poison);
      assert.equal(again.status, 422, again.text);
      const many = body('poison', 60, { user: 'x'.repeat(100000) });
      assert.equal((await post(url, { ...many, max_tokens: 2 })).status, 200);
      const m = await stack.metrics();
      assert.equal(m.value('tokenring_gateway_refused_total'), 2);
      assert.equal(m.value('tokenring_gateway_unmovable_total'), 0);
      await stack.idle();
    }));

  test('two that started when it crashed: one after the other, both finish', () =>
    fleet(async (stack, engines, url) => {
      await engines[1].kill('SIGKILL');
      await stack.connected(1);
      const both = [0, 1].map((i) => post(url, body(`story ${i}`, 25)));
      await until(async () => sum(await running(stack)) === 2, 'both run');
      await crash(engines[0]);
      await engines[0].start();
      await until(async () => sum(await running(stack)) === 1, 'one runs');
      await sleep(600); // of 1.6 s
      assert.equal(sum(await running(stack)), 1);
      const third = post(url, body('third', 2));
      for (const answer of [...both, third]) {
        const r = await answer;
        assert.equal(r.status, 200, r.text);
      }
      assert.equal((await stack.metrics())
        .value('tokenring_gateway_refused_total'), 0);
      assert.equal([...stack.errorLog().matchAll(/an engine crashed while it/g)]
        .length, 2);
      await stack.idle();
    }));

  test('one that leaves an engine no stack is charged, too', () =>
    fleet(async (stack, engines, url) => {
      // As much as threads get here, and less than so deep a body takes.
      for (const e of engines) {
        await e.kill();
        e.under = ['prlimit', '--stack=163840'];
        await e.start();
      }
      await stack.connected(2);
      const deep = `${'['.repeat(2000)}${']'.repeat(2000)}`;
      const poison = JSON.stringify(body('poison', 4)).replace('}',
        `,"metadata":${deep}}`);
      assert.equal((await post(url, body('story', 4))).status, 200);
      const r = await post(url, poison);
      assert.equal(r.status, 422, r.text);
      assert.equal(r.json().error.code, 'request_refused');
      for (const e of engines) {
        assert.equal((await e.exited).signal, 'SIGSEGV');
        e.child = null;
        await e.start();
      }
      await stack.connected(2);
      assert.equal((await post(url, poison)).status, 422);
      assert.equal((await post(url, body('story', 4))).status, 200);
      await stack.idle();
    }));

  test('a kill charges nobody', () => fleet(async (stack, engines, url) => {
    const asked = post(url, body('story', 40));
    let before = [0, 0];
    for (let k = 0; k < 2; k++) {
      const at = await gets(stack, engines, before);
      before = [0, 0];
      await at.kill('SIGKILL');
      await at.start();
      await stack.connected(2);
    }
    const r = await asked;
    assert.equal(r.status, 200, r.text);
    assert.equal(r.json().usage.completion_tokens, 40);
    assert.equal((await stack.metrics())
      .value('tokenring_gateway_refused_total'), 0);
    assert.doesNotMatch(stack.errorLog(), /an engine crashed/);
  }));
});
