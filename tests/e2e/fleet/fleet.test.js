'use strict';
//
// Several engines behind one name (docs/fleet.md): the load is shared by
// tokens; what has not begun to stream goes to another engine when its own
// dies, once; what has begun ends with an error event; engines that are full or
// drained are passed over; and `tokenring drain` loses no request.
//
// Backend null gives the same text wherever it runs, and tokens at a set pace:
// what a test must find running is a LONG answer, which takes ten minutes, or is
// on an engine that is slow or stopped.  A STILL engine gives first tokens at once
// and the next ones after a minute or two: what its requests hold stays as it is,
// so that who gets the next one can be said exactly, one after the other.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const path = require('node:path');
const { spawn, spawnSync } = require('node:child_process');
const { Stack, until, alive, sleep, taken, BUILD } = require('../lib/stack');
const { post, upload, stream, request } = require('../lib/http');

const TOKENRING = path.join(BUILD, 'bin/tokenring');
const NULL = { backend: 'null', null_rate: 25, kv_memory: '64m' };
const STILL = { null_rate: 0.01 };
const LONG = { stream: true, max_tokens: 20000 };

function withFleet(options, body) {
  return async () => {
    const stack = await Stack.start({
      engine: { ...NULL, ...options.each },
      ...options,
      engines: Object.fromEntries((options.others || ['second'])
        .map((name) => [name, { ...NULL, ...options.each }])),
    });
    try {
      await stack.connected((1 + stack.others.length)
        * (options.workers || 1));
      await body(stack, `${stack.url}/v1/completions`);
      assert.deepEqual(stack.complaints(), []);
    } finally {
      await stack.stop();
    }
  };
}

// What one engine, by the number of its socket, says of itself.
const gauge = async (stack, name, replica) => (await stack.metrics())
  .value(`tokenring_${name}`, { replica: String(replica) });
const running = (stack, replica) => gauge(stack, 'num_requests_running',
  replica);
// Waits until the engines run so many, together: how it is shared out.
const shared = async (stack, n) => {
  let counts;
  await until(async () => {
    const m = await stack.metrics();
    counts = [stack.engine, ...stack.others].map((_, i) =>
      m.value('tokenring_num_requests_running', { replica: String(i) }));
    return counts.reduce((a, b) => a + b) === n;
  }, () => `${n} requests run: ${counts}`);
  return counts;
};
const retries = async (stack) => (await stack.metrics())
  .value('tokenring_gateway_retries_total');

const prompt = (words, more = {}) => ({
  model: 'pocket', prompt: 'one '.repeat(words), max_tokens: 50, ...more,
});

function checkError(value, code = 'engine_unavailable') {
  assert.equal(value.error?.code, code, JSON.stringify(value));
  assert.equal(value.error.type, 'server_error');
}

test('a long prompt on one engine sends short ones to the other', withFleet(
  { each: STILL }, async (stack, url) => {
    const long = stream(url, prompt(3000, LONG));
    await long.begun();
    const busy = (await shared(stack, 1))[0] === 1 ? 0 : 1;
    const tokens = await gauge(stack, 'outstanding_tokens', busy);
    assert.ok(tokens > 3000 && tokens < 7000, `${tokens} tokens`);
    // One after the other: each sees what the ones before it cost.
    const short = [];
    for (let i = 0; i < 8; i++) {
      short.push(stream(url, prompt(5, LONG)));
      await short[i].begun();
    }
    assert.equal((await shared(stack, 9))[busy], 1);
    // And all at once: a worker counts what it has just sent, too.
    const more = Array.from({ length: 4 }, () =>
      stream(url, prompt(5, LONG)));
    await Promise.all(more.map((s) => s.begun()));
    assert.equal((await shared(stack, 13))[busy], 1);
    [long, ...short, ...more].forEach((s) => s.hangUp());
    await until(async () => await gauge(stack, 'outstanding_tokens', 0) === 0
      && await gauge(stack, 'outstanding_tokens', 1) === 0, 'nothing is left');
  }));

test('two workers share the load as one does', withFleet(
  { workers: 2, each: STILL }, async (stack, url) => {
    const all = [];
    for (let i = 0; i < 12; i++) {
      all.push(stream(url, prompt(20, LONG)));
      await all[i].begun();
    }
    assert.deepEqual(await shared(stack, 12), [6, 6]);
    all.forEach((s) => s.hangUp());
  }));

test('weights: three times the tokens for weight 3', async () => {
  const stack = await Stack.start({
    engine: { ...NULL, ...STILL }, engines: { second: { ...NULL, ...STILL } },
    pass: 'fleet',
    http: 'tokenring_engine fleet unix:DIR/main.sock weight=3;'
      + 'tokenring_engine fleet unix:DIR/second.sock;',
  });
  try {
    await stack.connected(2);
    const url = `${stack.url}/v1/completions`;
    const all = [];
    for (let i = 0; i < 12; i++) {
      all.push(stream(url, prompt(20, LONG)));
      await all[i].begun();
    }
    assert.deepEqual(await shared(stack, 12), [9, 3]);
    all.forEach((s) => s.hangUp());
  } finally {
    await stack.stop();
  }
});

test('an engine is killed: what does not stream yet is answered by the other',
  withFleet({ each: { max_num_seqs: 8 } }, async (stack, url) => {
    const [first, second] = [stack.engine, stack.others[0]];
    const body = prompt(10, { max_tokens: 20 });
    const want = (await post(url, body)).json().choices[0].text;
    // Everything is at the first one, alone: three stream, five run unseen, and
    // no more have room; ten wait.
    await second.kill('SIGKILL');
    await first.kill('SIGTERM');
    await stack.connected(0);
    await first.start(STILL);
    await stack.connected(1);
    const broken = Array.from({ length: 3 }, () =>
      stream(url, { ...body, ...LONG }));
    await Promise.all(broken.map((s) => s.begun()));
    const whole = Array.from({ length: 5 }, () => post(url, body));
    await until(async () => await running(stack, 0) === 8, 'eight run');
    whole.push(...Array.from({ length: 5 }, () => post(url, body)));
    const queued = Array.from({ length: 5 }, () =>
      stream(url, { ...body, stream: true }));
    await until(async () => await gauge(stack, 'num_requests_waiting', 0) === 10,
      'ten wait');
    // The second one has nothing, so that it gets what comes now.
    await second.start();
    await stack.connected(2);
    const others = [];
    for (let i = 0; i < 3; i++) {
      others.push(stream(url, { ...body, ...LONG }));
      await others[i].begun();
    }
    assert.equal(await retries(stack), 0);
    await first.kill('SIGKILL');
    for (const s of await Promise.all(broken.map((x) => x.finished))) {
      assert.equal(s.done, false);
      checkError(s.events.at(-1));
      assert.ok(s.events.slice(0, -1).every((e) => !e.error));
    }
    for (const r of await Promise.all(whole)) {
      assert.equal(r.status, 200, r.text);
      assert.equal(r.json().choices[0].text, want);
      assert.equal(r.json().usage.completion_tokens, 20);
    }
    for (const s of await Promise.all(queued.map((x) => x.finished))) {
      assert.ok(s.done, s.raw.slice(-300));
      assert.equal(s.text(), want);
      assert.equal(new Set(s.events.map((e) => e.id)).size, 1);
    }
    assert.equal(await retries(stack), 15, 'all that had shown nothing moved');
    assert.ok(others.every((s) => !s.cut && s.events.every((e) => !e.error)));
    others.forEach((s) => s.hangUp());
    await stack.idle();
    // The dead one comes back and takes its share.
    await first.start({ null_rate: NULL.null_rate });
    await stack.connected(2);
    const again = Array.from({ length: 4 }, () =>
      stream(url, { ...body, ...LONG }));
    await Promise.all(again.map((s) => s.begun()));
    assert.ok((await shared(stack, 4)).every((n) => n > 0));
    again.forEach((s) => s.hangUp());
  }));

// Engines by what they run: the one with `n` requests.
const engineWith = (stack, n) => until(async () => {
  const engines = [stack.engine, ...stack.others];
  for (let i = 0; i < engines.length; i++) {
    if (engines[i].pid && await running(stack, i) === n) return engines[i];
  }
  return null;
}, `an engine runs ${n}`);

test('a request is sent again once, not for ever', withFleet(
  { others: ['second', 'third'] }, async (stack, url) => {
    const answer = post(url, prompt(10, { max_tokens: 20000 }));
    await (await engineWith(stack, 1)).kill('SIGKILL');
    await (await engineWith(stack, 1)).kill('SIGKILL');
    const r = await answer;
    assert.equal(r.status, 503, r.text);
    assert.ok(Number(r.headers['retry-after']) >= 1);
    checkError(r.json());
    assert.equal(await retries(stack), 1);
    // The third was left alone.
    assert.equal((await post(url, prompt(10, { max_tokens: 3 }))).status, 200);
  }));

test('a chat that waits behind keep-alive comments can still move', withFleet({
  each: { max_num_seqs: 1 }, location: 'tokenring_keepalive_comment 100ms;',
}, async (stack, url) => {
  const first = [0, 1].map(() => stream(url, prompt(10, LONG)));
  await Promise.all(first.map((s) => s.begun()));
  await until(async () => await running(stack, 0) === 1
    && await running(stack, 1) === 1, 'both have one');
  const chat = stream(`${stack.url}/v1/chat/completions`, {
    model: 'pocket', stream: true, max_tokens: 20,
    messages: [{ role: 'user', content: 'Hello!' }],
  });
  await chat.when(() => chat.comments.length > 2);
  let at;
  await until(async () => {
    at = [];
    for (const i of [0, 1]) {
      if (await gauge(stack, 'num_requests_waiting', i) === 1) at.push(i);
    }
    return at.length === 1;
  }, () => `it waits at one engine: ${at}`);
  await [stack.engine, ...stack.others][at].kill('SIGKILL');
  await until(async () => await retries(stack) === 1, 'it has moved');
  first.forEach((x) => x.hangUp());
  const s = await chat.finished;
  assert.ok(s.done, s.raw.slice(-300));
  assert.equal(s.events[0].choices[0].delta.role, 'assistant');
  assert.equal(s.events.filter((e) => e.choices[0].delta.role).length, 1);
  assert.equal(await retries(stack), 1);
}));

for (const [name, chunked, size, limit, status] of [
  ['with a length', false, 700 << 10, '1m', 200],
  ['chunked', true, 700 << 10, '1m', 200],
  ['larger than tokenring_retry_buffer', false, 200 << 10, '64k', 503],
  ['and nothing is kept', false, 64 << 10, '0', 503],
]) {
  test(`an engine is killed in the middle of a body, ${name}`, withFleet({
    location: `tokenring_retry_buffer ${limit};`,
  }, async (stack, url) => {
    // Whoever takes it is the one that there is.
    await stack.others[0].kill('SIGKILL');
    await stack.connected(1);
    const body = JSON.stringify({
      ...prompt(10, { max_tokens: 7 }), pad: 'x'.repeat(size),
    });
    const { req, answer } = upload(url,
      chunked ? {} : { 'Content-Length': body.length });
    const third = Math.floor(body.length / 3);
    req.write(body.slice(0, third));
    await stack.active(1);
    await taken(req.socket);
    await stack.others[0].start();
    await stack.connected(2);
    await stack.engine.kill('SIGKILL');
    await sleep(100);
    // A request that has got its answer already takes no more.
    req.on('error', () => {});
    req.write(body.slice(third, 2 * third));
    await sleep(100);
    req.end(body.slice(2 * third));
    const r = await answer;
    assert.equal(r.status, status, r.text);
    if (status === 200) {
      assert.equal(JSON.parse(r.text).usage.completion_tokens, 7);
    } else {
      checkError(JSON.parse(r.text));
    }
    assert.equal(await retries(stack), status === 200 ? 1 : 0);
  }));
}

test('full engines are passed over; 429 only when all are full', async () => {
  // All would go to the heavy one; what it has no room for goes on.
  const small = { ...NULL, max_num_seqs: 1, max_queue: 2 };
  const stack = await Stack.start({
    engine: small, engines: { second: small }, pass: 'fleet',
    http: 'tokenring_engine fleet unix:DIR/main.sock weight=1000;'
      + 'tokenring_engine fleet unix:DIR/second.sock;',
  });
  try {
    await stack.connected(2);
    const url = `${stack.url}/v1/completions`;
    const body = prompt(10, { max_tokens: 3 });
    // One runs and two wait, first at the heavy one, then at the other.
    const all = [];
    for (let i = 0; i < 6; i++) {
      all.push(stream(url, i % 3 ? { ...body, stream: true }
        : prompt(10, LONG)));
      const at = i < 3 ? 0 : 1;
      await until(async () => await running(stack, at)
        + await gauge(stack, 'num_requests_waiting', at) === 1 + i % 3
        && await running(stack, at) === 1, `${i} is taken`);
    }
    const r = await post(url, body);
    assert.equal(r.status, 429, r.text);
    assert.ok(Number(r.headers['retry-after']) >= 1);
    assert.equal(r.json().error.code, 'queue_full');
    [0, 3].forEach((i) => all[i].hangUp());
    await Promise.all(all.map((x) => x.finished));
    for (const s of all.filter((_, i) => i % 3)) {
      assert.ok(s.done, s.raw.slice(-300));
    }
    // A burst: whatever the pages said a moment ago, four have room (one that
    // is not scheduled yet counts as waiting).
    for (let round = 0; round < 5; round++) {
      await stack.idle();
      const burst = await Promise.all(Array.from({ length: 4 }, () =>
        post(url, prompt(10, { max_tokens: 2 }))));
      assert.deepEqual(burst.map((x) => x.status), [200, 200, 200, 200]);
    }
    assert.deepEqual(stack.complaints(), []);
  } finally {
    await stack.stop();
  }
});

// ---- drain ------------------------------------------------------------------

function drain(...args) {
  const child = spawn(TOKENRING, ['drain', ...args]);
  const out = { text: '', child };
  for (const pipe of [child.stdout, child.stderr]) {
    pipe.setEncoding('utf8').on('data', (d) => { out.text += d; });
  }
  out.finished = new Promise((resolve) => {
    child.on('close', (code) => resolve(code));
  });
  return out;
}

test('drain under load: no request fails, streams finish, --undo, --exit',
  withFleet({ workers: 2, each: { max_num_seqs: 4 } }, async (stack, url) => {
    const body = prompt(10, { max_tokens: 20 });
    const want = (await post(url, body)).json().choices[0].text;
    let over = false;
    const check = (text) => assert.equal(text, want);
    const clients = Array.from({ length: 12 }, async (_, i) => {
      let n = 0;
      for (; !over; n++) {
        if (i % 2) {
          const r = await post(url, body);
          assert.equal(r.status, 200, r.text);
          check(r.json().choices[0].text);
        } else {
          const s = await stream(url, { ...body, stream: true }).finished;
          assert.ok(s.done, s.raw.slice(-300));
          check(s.text());
        }
      }
      return n;
    });
    // Some run and some wait there when it begins.
    await until(async () => await gauge(stack, 'num_requests_waiting', 0) > 0,
      'requests wait');
    const first = drain(stack.engine.socket);
    assert.equal(await first.finished, 0, first.text);
    assert.match(first.text, /\d+ requests left \(\d+ running, \d+ waiting\)/);
    assert.match(first.text, /drained\n$/);
    await sleep(300);
    assert.equal(await running(stack, 0), 0, 'nothing new came');
    await until(async () => await running(stack, 1) > 0, 'the other works');
    const undo = drain('--undo', stack.engine.socket);
    assert.equal(await undo.finished, 0, undo.text);
    await until(async () => await running(stack, 0) > 0, 'it works again');
    const exit = drain(stack.engine.socket, '--exit');
    assert.equal(await exit.finished, 0, exit.text);
    assert.match(exit.text, /the engine has exited\n$/);
    assert.deepEqual(await stack.engine.exited, { code: 0, signal: null });
    await sleep(300);
    over = true;
    const done = await Promise.all(clients);
    assert.ok(done.every((n) => n > 0), done.join(' '));
  }));

test('drain of the only engine: 503, and health says so', async () => {
  const stack = await Stack.start({ engine: NULL });
  try {
    const url = `${stack.url}/v1/completions`;
    const running1 = stream(url, prompt(10, { stream: true, max_tokens: 40 }));
    const running2 = stream(url, prompt(10, LONG));
    await Promise.all([running1, running2].map((s) => s.begun()));
    const out = drain(stack.engine.socket, '--timeout', '0.3');
    assert.equal(await out.finished, 1, out.text);
    assert.match(out.text, /timed out; the engine stays drained/);
    const r = await post(url, prompt(10));
    assert.equal(r.status, 503, r.text);
    checkError(r.json(), 'engine_draining');
    const health = await request(`${stack.url}/health`);
    assert.equal(health.status, 503);
    assert.match(health.text, /draining/);
    assert.ok((await running1.finished).done, 'what ran has finished');
    assert.ok(!running2.over, 'or goes on');
    running2.hangUp();
    assert.equal(await drain(stack.engine.socket).finished, 0);
    assert.ok(alive(stack.engine.pid), 'it stays, without --exit');
    assert.equal(await drain(stack.engine.socket, '--undo').finished, 0);
    assert.equal((await post(url, prompt(10, { max_tokens: 3 }))).status, 200);
  } finally {
    await stack.stop();
  }
});

test('only the engine\'s user and root may drain',
  { skip: process.getuid() !== 0 && 'needs root to be somebody else' },
  async () => {
    const stack = await Stack.start({ engine: NULL });
    try {
      const out = spawnSync('setpriv', ['--reuid=nobody', '--clear-groups',
        TOKENRING, 'drain', stack.engine.socket], { encoding: 'utf8' });
      assert.equal(out.status, 1, out.stderr);
      assert.match(out.stderr, /user \d+ may not drain this engine/);
      assert.equal((await post(`${stack.url}/v1/completions`,
        prompt(10, { max_tokens: 3 }))).status, 200);
    } finally {
      await stack.stop();
    }
  });

test('drain: wrong usage and no engine', () => {
  const run = (...args) => spawnSync(TOKENRING, ['drain', ...args],
    { encoding: 'utf8' });
  assert.equal(run().status, 2);
  assert.match(run().stderr, /which engine/);
  assert.equal(run('a', 'b').status, 2);
  assert.equal(run('--undo', '--exit', 'a').status, 2);
  const out = run('/nonexistent/x.sock');
  assert.equal(out.status, 1);
  assert.match(out.stderr, /no engine answers at \/nonexistent\/x\.sock/);
  assert.match(run('no-such-engine').stderr,
    /\/run\/tokenring\/no-such-engine\.sock/);
  assert.equal(run('--help').status, 0);
});
