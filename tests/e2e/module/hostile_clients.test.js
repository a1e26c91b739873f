'use strict';
//
// Clients that try to shut others out, with what the API lets them ask for: many
// choices, bodies that take long to parse, bodies that never end, connections
// that say nothing.  Each time a small request of somebody else is answered.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const net = require('node:net');
const { Stack, withStack, until, sleep, halt } = require('../lib/stack');
const { post, stream, request } = require('../lib/http');
const { chat } = require('../lib/prompts');

const NULL = { backend: 'null', null_rate: 50, kv_memory: '256m' };

const small = async (url) => {
  const r = await post(url, chat('Hello!', { max_tokens: 3 }));
  assert.equal(r.status, 200, r.text);
};

test('two requests with 128 choices leave places', withStack(
  { engine: { ...NULL, max_num_seqs: 64 } }, async (stack, url) => {
    const crowd = chat('x', { n: 128, max_tokens: 4000, ignore_eos: true,
      stream: true });
    const two = [stream(url, crowd), stream(url, crowd)];
    await Promise.all(two.map((s) => s.begun()));
    await until(async () => (await stack.metrics())
      .value('tokenring_num_requests_running') === 2, 'both run');
    for (let i = 0; i < 5; i++) await small(url);
    // As many as there are places: the crowds leave an eighth of 64.
    await Promise.all(Array.from({ length: 8 }, () => small(url)));
    two.forEach((s) => s.hangUp());
    await stack.idle();
  }));

test('readers that read nothing make way for another tenant', withStack(
  { engine: { ...NULL, max_num_seqs: 64, max_queue: 1000 },
    location: 'tokenring_tenant $http_x_tenant;' }, async (stack, url) => {
    const slow = Array.from({ length: 80 }, () => {
      const s = stream(url, chat('x', { max_tokens: 4000, ignore_eos: true,
        stream: true, logprobs: true, top_logprobs: 5 }),
      { headers: { 'X-Tenant': 'slow' } });
      s.start.then(() => s.res && s.res.pause());
      return s;
    });
    await until(async () => (await stack.metrics())
      .value('tokenring_num_requests_running') === 64, 'the house is full');
    for (let i = 0; i < 5; i++) await small(url);
    const m = await stack.metrics();
    assert.ok(m.value('tokenring_preemptions_total') >= 1);
    assert.ok(m.value('tokenring_num_requests_running') >= 50);
    assert.equal(slow.filter((s) => s.over).length, 0);
    slow.forEach((s) => s.hangUp());
    await stack.idle();
  }));

test('bodies that take long to parse', withStack(
  { engine: { ...NULL, tokenizer_threads: 2 } }, async (stack, url) => {
    const keys = Buffer.from(`{${Array.from({ length: 1200000 },
      (_, i) => `"k${i}":1,`).join('')}"prompt":"x","max_tokens":1}`);
    const digits = `{"prompt":"x","seed":${'1'.repeat(4 << 20)}}`;
    const flood = Array.from({ length: 6 }, (_, i) =>
      post(url, i % 2 ? keys : digits));
    await small(url);
    for (const [i, r] of (await Promise.all(flood)).entries()) {
      assert.equal(r.status, i % 2 ? 413 : 400, r.text);
      assert.match(r.json().error.message,
        i % 2 ? /more than 262144 before byte/ : /more than 1024 characters/);
    }
  }));

// A client that sends the head, so many bytes of a body, and no more.
function stalled(stack, bytes) {
  const socket = net.connect(stack.port, '127.0.0.1');
  const held = { text: '', socket };
  held.closed = new Promise((resolve) => { socket.on('close', resolve); });
  socket.on('error', () => {});
  socket.on('data', (data) => { held.text += data; });
  socket.write('POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n'
    + 'Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n'
    + ' '.repeat(bytes));
  return held;
}

test('bodies that stop are given up: tokenring_body_rate', withStack(
  { engine: NULL, location: 'tokenring_body_rate 8k;' },
  async (stack, url) => {
    const begun = Date.now();
    // However much has come before.
    const some = [100, 20000, 990000].map((n) => stalled(stack, n));
    for (const s of some) {
      await s.closed;
      assert.match(s.text, /^HTTP\/1.1 408 /);
      assert.match(s.text, /request_timeout/);
    }
    assert.ok(Date.now() - begun >= 4500, 'not before five seconds');
    assert.equal((await stack.metrics())
      .value('tokenring_gateway_slow_uploads_total'), 3);
    await small(url);
    await stack.idle();
  }));

test('a new body takes the place of the slowest', async () => {
  const stack = await Stack.start({ engine: NULL,
    http: 'tokenring_engine few unix:DIR/main.sock slots=64 ring=64k;',
    pass: 'few', location: 'tokenring_body_rate 1m;' });
  try {
    const url = `${stack.url}/v1/chat/completions`;
    const held = Array.from({ length: 32 }, (_, i) =>
      stalled(stack, 20000 + 1000 * i));
    await stack.active(32);
    await sleep(1200); // bodies younger than a second stay
    const shed = async () => (await stack.metrics())
      .value('tokenring_gateway_slow_uploads_total');
    assert.equal(await shed(), 0);
    const r = await post(url, chat('Hello!', { max_tokens: 3,
      metadata: { pad: 'x'.repeat(200000) } }));
    assert.equal(r.status, 200, r.text);
    assert.equal(await shed(), 1);
    await held[0].closed;
    assert.match(held[0].text, /^HTTP\/1.1 408 /);
    held.forEach((s) => s.socket.destroy());
    await stack.idle();
  } finally {
    await stack.end();
  }
});

test('of two engines only one gives up an upload for a new body', async () => {
  const stack = await Stack.start({ engine: NULL, engines: { second: NULL },
    pass: 'two', location: 'tokenring_body_rate 1m;',
    http: 'tokenring_engine two unix:DIR/main.sock unix:DIR/second.sock '
      + 'slots=64 ring=64k;' });
  const ended = async () => (await stack.metrics())
    .value('tokenring_gateway_slow_uploads_total');
  try {
    await stack.connected(2);
    // All would end after five seconds: whoever is slower than that tries again.
    for (let i = 0, late = true; late; i++) {
      assert.ok(i < 5, 'in time');
      const before = await ended();
      const begun = Date.now();
      const held = Array.from({ length: 64 }, () => stalled(stack, 20000));
      await stack.active(64);
      await sleep(1500);
      const r = await post(`${stack.url}/v1/chat/completions`, chat('Hello!',
        { max_tokens: 3, metadata: { pad: 'x'.repeat(200000) } }));
      const n = await ended() - before;
      late = Date.now() - begun > 4500;
      if (!late) {
        assert.notEqual(r.status, 429);
        assert.equal(n, 1);
      }
      held.forEach((s) => s.socket.destroy());
      await stack.active(0);
    }
    await stack.idle();
  } finally {
    await stack.end();
  }
});

test('an idle engine that is stopped is not healthy, and nobody waits for it',
  async () => {
    const stack = await Stack.start({ engine: NULL,
      engines: { second: NULL }, pass: 'fleet', http:
        'tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;',
      location: 'tokenring_queue_timeout 60s;' });
    const health = async () => {
      const r = await request(`${stack.url}/health`);
      return { http: r.status, ...r.json().engines
        .find((e) => e.name === 'fleet') };
    };
    try {
      const url = `${stack.url}/v1/chat/completions`;
      await until(async () => (await health()).ready === 2, 'both are ready');
      await halt(stack.engine.pid);
      // Whatever engine a request comes to, it is answered.
      await Promise.all(Array.from({ length: 6 }, () => small(url)));
      await until(async () => (await health()).ready === 1, 'one is not');
      await small(url);
      await halt(stack.others[0].pid);
      let last;
      await until(async () => {
        last = await health();
        return last.http === 503 && last.reason === 'not answering';
      }, () => `none is: ${JSON.stringify(last)}`);
      assert.equal((await post(url, chat('Hello!'))).status, 503);
      stack.engine.signal('SIGCONT');
      stack.others[0].signal('SIGCONT');
      await until(async () => (await health()).ready === 2, 'both are back');
      await small(url);
      await stack.idle();
    } finally {
      for (const e of [stack.engine, ...stack.others]) {
        if (e.pid) e.signal('SIGCONT');
      }
      await stack.stop();
    }
  });

test('half-open handshakes keep no worker out', withStack(
  { engine: NULL }, async (stack, url) => {
    const mute = Array.from({ length: 600 }, () => {
      const s = net.connect(stack.engine.socket);
      s.on('error', () => {});
      return s;
    });
    await until(() => mute.some((s) => s.destroyed || s.readableEnded
      || s.closed), 'the first of them are turned away');
    await stack.reload();
    await small(url);
    mute.forEach((s) => s.destroy());
  }));
