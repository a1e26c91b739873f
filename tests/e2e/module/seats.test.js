'use strict';
//
// Seats of a plan (docs/directives.md, tokenring_plan): how many requests of a
// tenant are served at once, how many wait and in which order, over all workers,
// and how many choices one may have.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { once } = require('node:events');
const { Stack, until } = require('../lib/stack');
const { stream, post } = require('../lib/http');
const { withPlans } = require('../lib/plans');

// One that holds its seat until it hangs up.
const hold = (stack, key) => stream(`${stack.url}/v1/completions`,
  { prompt: 'x', max_tokens: 4000, ignore_eos: true, stream: true },
  { headers: { 'X-Key': key } });

async function leave(s) {
  s.hangUp();
  await s.finished.catch(() => {});
}

function checkRefused(r) {
  assert.equal(r.status, 429, r.text);
  const e = r.json().error;
  assert.equal(e.type, 'requests');
  assert.equal(e.code, 'rate_limit_exceeded');
  assert.match(e.message, /^Rate limit reached: \d+ requests at once, and /);
  assert.equal(r.headers['retry-after'], '1');
  assert.equal(r.headers['retry-after-ms'], '1000');
}

// The old worker charges while its stream lasts: by the plan that it has, whose
// seats are no more.
test('a reload to fewer seats: a stream of before makes none free', withPlans(
  'tokenring_plan few seats=2 queue=1 out=1g/d;', async (stack, ask) => {
    const old = hold(stack, 'few-a');
    await old.begun();
    stack.configure({ http: stack.options.http.replace('seats=2', 'seats=1') });
    await stack.reload();
    let answered = false;
    const waits = ask('few-a').finally(() => { answered = true; });
    const n = old.events.length;
    await until(() => old.events.length > n + 600, 'it was charged again');
    assert.ok(!answered && !old.done);
    await leave(old);
    assert.equal((await waits).status, 200);
  }));

test('as many at once as there are seats, for each tenant', withPlans(
  `tokenring_plan few seats=2; tokenring_plan one seats=1;
    tokenring_plan paid seats=1 requests=9/d;`,
  async (stack, ask) => {
    const held = [hold(stack, 'few-a'), hold(stack, 'few-a')];
    await Promise.all(held.map((s) => s.begun()));
    const r = await ask('few-a');
    checkRefused(r);
    assert.equal(r.headers['x-ratelimit-limit-requests'], undefined);
    assert.equal((await ask('few-b')).status, 200);
    assert.equal((await ask(null)).status, 200);
    await leave(held[0]);
    await stack.active(1);
    assert.equal((await ask('few-a')).status, 200);
    held[0] = hold(stack, 'few-a');
    await held[0].begun();
    checkRefused(await ask('few-a'));
    await Promise.all(held.map(leave));

    // One after the other, on connections to any worker.
    for (let i = 0; i < 40; i++) {
      assert.equal((await ask('one-a')).status, 200);
    }

    // Who is refused for want of a seat has used no request.
    const paid = hold(stack, 'paid-a');
    await paid.begun();
    for (let i = 0; i < 3; i++) {
      const refused = await ask('paid-a');
      checkRefused(refused);
      assert.equal(refused.headers['x-ratelimit-remaining-requests'], '8');
    }
    await leave(paid);
    await stack.active(0);
    assert.equal((await ask('paid-a'))
      .headers['x-ratelimit-remaining-requests'], '7');
    assert.equal((await stack.metrics())
      .value('tokenring_gateway_limited_total'), 5);
  }, { workers: 2 }));

test('who waits is served in order, by whichever worker', withPlans(
  'tokenring_plan few seats=1 queue=6;', async (stack, ask) => {
    const held = hold(stack, 'few-a');
    await held.begun();
    const order = [], waiting = [];
    for (let i = 0; i < 6; i++) {
      waiting.push(ask('few-a', { max_tokens: 40, ignore_eos: true })
        .then((r) => { order.push(i); return r; }));
      await stack.active(2 + i);
    }
    checkRefused(await ask('few-a'));
    assert.deepEqual(order, []);
    await leave(held);
    for (const r of await Promise.all(waiting)) {
      assert.equal(r.status, 200, r.text);
      assert.equal(r.json().usage.completion_tokens, 40);
    }
    assert.deepEqual(order, [0, 1, 2, 3, 4, 5]);
  }, { workers: 3 }));

test('who waits over HTTP/2 keeps nobody up on its connection', withPlans(
  'tokenring_plan few seats=1 queue=9;', async (stack) => {
    const session = stack.http2();
    try {
      const send = (key, more) => {
        const req = session.request({ ':method': 'POST',
          ':path': '/v1/completions', 'content-type': 'application/json',
          'x-key': key });
        req.end(JSON.stringify({ prompt: 'one two '.repeat(2000), max_tokens: 2,
          ...more }));
        return req;
      };
      const status = async (req) => {
        req.resume();
        const [headers] = await once(req, 'response');
        await once(req, 'end');
        return headers[':status'];
      };
      const held = hold(stack, 'few-a');
      await held.begun();
      const waiting = Array.from({ length: 9 }, () => status(send('few-a')));
      await stack.active(10);
      assert.equal(await status(send('few-a')), 429);
      assert.equal(await status(send('few-b')), 200);
      const gone = send('few-b'); // one that leaves while it runs
      gone.close();
      await leave(held);
      for (const one of waiting) assert.equal(await one, 200);
    } finally {
      session.destroy();
    }
  }, { http2: true, workers: 2 }));

test('who waits and leaves, or has waited long enough, is out of the line',
  withPlans(`tokenring_plan few seats=1 queue=1;
    tokenring_plan brief seats=1 queue=5 wait=50ms;`, async (stack, ask) => {
    const held = hold(stack, 'few-a');
    await held.begun();
    const gone = hold(stack, 'few-a');
    await stack.active(2);
    checkRefused(await ask('few-a'));
    await leave(gone);
    await stack.active(1);
    const next = ask('few-a');
    await stack.active(2);
    checkRefused(await ask('few-a'));
    await leave(held);
    assert.equal((await next).status, 200);

    const other = hold(stack, 'brief-a');
    await other.begun();
    checkRefused(await ask('brief-a'));
    await leave(other);
    await stack.active(0);
    assert.equal((await ask('brief-a')).status, 200);
  }, { workers: 2 }));

test('who waits takes nothing from the tokens in hand of who is served', withPlans(
  'tokenring_plan out seats=1 queue=8 out=1000/d;', async (stack, ask) => {
    const first = hold(stack, 'out-a');
    await first.begun();
    const waiting = [hold(stack, 'out-a')];
    while (waiting.length < 8) {
      await stack.active(1 + waiting.length);
      waiting.push(hold(stack, 'out-a'));
    }
    await stack.active(9);
    await leave(first);
    await waiting[0].begun();
    await stack.active(8);
    waiting.push(hold(stack, 'out-a'));
    await stack.active(9);
    const refused = await ask('out-a');
    checkRefused(refused);
    // It has 256 of them, as it would alone.
    const left = Number(refused.headers['x-ratelimit-remaining-tokens']);
    assert.ok(left <= 744, `${left} are left`);
    await Promise.all(waiting.map(leave));
  }, { engine: { backend: 'null', null_rate: 20, kv_memory: '64m' } }));

test('who waits in vain has used no request', withPlans(
  `tokenring_plan brief seats=1 queue=2 wait=50ms requests=9/d;
    tokenring_plan patient seats=1 queue=2 requests=9/d;
    tokenring_plan out seats=1 queue=1 requests=9/d out=60/d;`,
  async (stack, ask) => {
    const left = (r) => r.headers['x-ratelimit-remaining-requests'];
    // For too long.
    const held = [hold(stack, 'brief-a'), hold(stack, 'patient-a')];
    await Promise.all(held.map((s) => s.begun()));
    for (let i = 0; i < 3; i++) {
      const refused = await ask('brief-a');
      checkRefused(refused);
      assert.equal(left(refused), '8');
    }
    // Until it hangs up; meanwhile each counts, also for who comes then.
    for (let i = 0; i < 3; i++) {
      const gone = [hold(stack, 'patient-a'), hold(stack, 'patient-a')];
      await stack.active(4);
      const refused = await ask('patient-a');
      checkRefused(refused);
      assert.equal(left(refused), '6');
      await Promise.all(gone.map(leave));
      await stack.active(2);
    }
    await Promise.all(held.map(leave));
    await stack.active(0);
    for (const key of ['brief-a', 'patient-a']) {
      assert.equal(left(await ask(key)), '7', key);
    }
    // And who is let in pays, once.
    const first = hold(stack, 'patient-b');
    await first.begun();
    const second = ask('patient-b');
    await stack.active(2);
    await leave(first);
    assert.equal(left(await second), '7');
    assert.equal(left(await ask('patient-b')), '6');
    // Until a budget of tokens is empty.
    const all = ask('out-a', { max_tokens: 4000, ignore_eos: true });
    await stack.active(1);
    const refused = await ask('out-a');
    assert.equal(refused.json().error.code, 'insufficient_quota');
    assert.equal(left(refused), '8');
    assert.equal((await all).status, 200);
  }, { workers: 2 }));

test('who waited finds a budget empty', withPlans(
  'tokenring_plan out seats=1 queue=1 out=60/d;', async (stack, ask) => {
    const first = ask('out-a', { max_tokens: 4000, ignore_eos: true });
    await stack.active(1);
    const second = await ask('out-a');
    assert.equal((await first).json().usage.completion_tokens, 60);
    assert.equal(second.status, 429, second.text);
    assert.equal(second.json().error.code, 'insufficient_quota');
  }));

test('a worker that dies gives its seats back, and its places in the line',
  withPlans('tokenring_plan few seats=1 queue=1;', async (stack, ask) => {
    const complaints = () => Stack.prototype.complaints.call(stack);
    stack.complaints = () => complaints()
      .filter((line) => !/exited on signal 9/.test(line));
    const held = [hold(stack, 'few-a')];
    await held[0].begun();
    held.push(hold(stack, 'few-a'));
    await stack.active(2);
    checkRefused(await ask('few-a'));
    process.kill(stack.workers()[0], 'SIGKILL');
    await Promise.all(held.map((s) => s.finished.catch(() => {})));
    await until(async () => {
      const r = await ask('few-a').catch(() => null);
      return r && r.status === 200;
    }, 'a seat');
  }, { workers: 1 }));

test('so does one that dies when a reload has replaced it', withPlans(
  'tokenring_plan one seats=1;',
  async (stack, ask) => {
    const complaints = () => Stack.prototype.complaints.call(stack);
    stack.complaints = () => complaints()
      .filter((line) => !/exited on signal 9/.test(line));
    const held = hold(stack, 'one-a');
    await held.begun();
    const [old] = await stack.reload();
    checkRefused(await ask('one-a'));
    process.kill(old, 'SIGKILL');
    await held.finished.catch(() => {});
    await until(async () => (await ask('one-a')).status === 200,
      'its seat is free');
  }, { workers: 1 }));

test('a reload with more seats lets in who waits', withPlans(
  'tokenring_plan few seats=1 queue=1;', async (stack, ask) => {
    const held = hold(stack, 'few-a');
    await held.begun();
    const waits = ask('few-a');
    await stack.active(2);
    stack.configure({ http: stack.options.http.replace('seats=1', 'seats=3') });
    await stack.reload();
    // The first request of the new plan tells the account.
    assert.equal((await ask('few-a')).status, 200);
    assert.equal((await waits).status, 200);
    await leave(held);
  }, { workers: 1 }));

test('choices: no more than the plan has', withPlans(
  'tokenring_plan some choices=3;', async (stack, ask) => {
    const r = await ask('some-a', { n: 3 });
    assert.equal(r.status, 200, r.text);
    assert.equal(r.json().choices.length, 3);
    const many = await ask('some-a', { n: 4 });
    assert.equal(many.status, 400, many.text);
    assert.equal(many.json().error.param, 'n');
    assert.match(many.json().error.message, /<= 3, but got 4/);
    const chat = await post(`${stack.url}/v1/chat/completions`,
      { messages: [{ role: 'user', content: 'hi' }], n: 4 },
      { 'X-Key': 'some-a' });
    assert.equal(chat.json().error.param, 'n');
    const prompts = await ask('some-a', { n: 2, prompt: ['a', 'b'] });
    assert.equal(prompts.status, 400, prompts.text);
    assert.match(prompts.json().error.message, /make 4 choices; .* at most 3/);
    assert.equal((await ask(null, { n: 4 })).status, 200);
  }));
