'use strict';
//
// Clients that go away, and clients that are slow.  A hang-up reaches the
// engine whatever the request was doing: waiting in the queue, in a long
// prefill, streaming, or gathering an answer that is not streamed; over
// HTTP/1.1 and HTTP/2.  What must be running when its client goes is an answer
// of backend null that takes minutes.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const http2 = require('node:http2');
const net = require('node:net');
const { Stack, until, sleep, freePort, taken } = require('../lib/stack');
const { stream } = require('../lib/http');
const { chat, endless } = require('../lib/prompts');

const LONG = 20000;

let stack;
let url;

before(async () => {
  stack = await Stack.start({
    http2: true,
    engine: {
      backend: 'null', null_rate: 250, max_num_seqs: 4, kv_memory: '64m',
    },
  });
  url = `${stack.url}/v1/chat/completions`;
});
after(() => stack.end());

const running = async () => (await stack.metrics())
  .value('tokenring_num_requests_running');
const waiting = async () => (await stack.metrics())
  .value('tokenring_num_requests_waiting');
const aborted = async () => (await stack.metrics())
  .value('tokenring_request_success_total', { finished_reason: 'abort' });

async function counts(what) {
  // An answer comes after what the worker told the engine before it: aborts of
  // halves of bodies, which are nothing to wait for, are counted.
  await stream(url, endless(0, 1)).finished;
  await stack.idle();
  const before = await aborted();
  await what();
  await stack.idle();
  return await aborted() - before;
}

const mark = (name) => ({ headers: { 'X-Mark': name } });

test('in decode', async () => {
  const n = await counts(async () => {
    const s = stream(url, endless(0, LONG), mark('h-decode'));
    await s.when(() => s.text().length > 20);
    s.hangUp();
  });
  assert.equal(n, 1);
  const [line] = await stack.logged('h-decode');
  assert.equal(line.status, 499);
  assert.equal(line.finish_reason, 'aborted');
});

test('in the queue', async () => {
  const n = await counts(async () => {
    const busy = Array.from({ length: 4 }, (_, i) =>
      stream(url, endless(i, LONG)));
    await Promise.all(busy.map((s) => s.begun()));
    const queued = Array.from({ length: 3 }, (_, i) =>
      stream(url, endless(i, 50), mark('h-queue')));
    await until(async () => await waiting() === 3, 'three wait');
    queued.forEach((s) => s.hangUp());
    await until(async () => await waiting() === 0, 'none waits');
    assert.equal(await running(), 4, 'the others go on');
    busy.forEach((s) => s.hangUp());
  });
  assert.equal(n, 7);
  for (const line of await stack.logged('h-queue', 3)) {
    assert.equal(line.status, 499);
    assert.equal(Number(line.completion_tokens), 0);
  }
});

test('in a long prefill', async () => {
  // 4 tokens a step: some 900 steps before the first token.
  const slow = await Stack.start({
    engine: { max_num_seqs: 4, max_batch_tokens: 4, kv_memory: '64m' },
  });
  try {
    let tries = 0;
    await until(async () => {
      const mark = `h-prefill-${++tries}`;
      const s = stream(`${slow.url}/v1/chat/completions`,
        chat('word '.repeat(3600), { stream: true }),
        { headers: { 'X-Mark': mark } });
      await until(async () => s.over || (await slow.metrics())
        .value('tokenring_num_requests_running') === 1, 'it runs');
      s.hangUp();
      await s.finished;
      await slow.idle();
      const [line] = await slow.logged(mark);
      // A busy machine may have let it come to its first token.
      if (Number(line.completion_tokens) > 0) return false;
      assert.equal(line.status, 499);
      assert.equal(s.text(), '', 'it was in prefill');
      return true;
    }, 'a hang-up in prefill');
    assert.equal((await slow.metrics()).value('tokenring_request_success_total',
      { finished_reason: 'abort' }), tries);
    await slow.freed();
    assert.deepEqual(slow.complaints(), []);
  } finally {
    await slow.stop();
  }
});

test('without streaming', async () => {
  const n = await counts(async () => {
    const s = stream(url, { ...endless(1, LONG), stream: false },
      mark('h-whole'));
    const made = async () => (await stack.metrics())
      .value('tokenring_generation_tokens_total');
    const first = await made();
    await until(async () => await made() > first, 'tokens');
    s.hangUp();
  });
  assert.equal(n, 1);
  const [line] = await stack.logged('h-whole');
  assert.equal(line.status, 499);
  assert.ok(Number(line.completion_tokens) > 0);
});

test('in the middle of the body', async () => {
  const n = await counts(async () => {
    const body = JSON.stringify(endless(2, 50));
    const socket = net.connect(stack.port, '127.0.0.1');
    socket.write('POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n'
      + 'Content-Type: application/json\r\n'
      + `Content-Length: ${body.length}\r\n\r\n${body.slice(0, 40)}`);
    await stack.active(1);
    await taken(socket);
    socket.destroy();
    await stack.active(0);
  });
  // The engine may have seen its beginning.
  assert.ok(n <= 1, `${n}`);
});

test('with a reset instead of a close', async () => {
  const n = await counts(async () => {
    const body = JSON.stringify(endless(2, LONG));
    const socket = net.connect(stack.port, '127.0.0.1');
    socket.write('POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n'
      + 'Content-Type: application/json\r\n'
      + `Content-Length: ${body.length}\r\n\r\n${body}`);
    await new Promise((resolve) => { socket.once('data', resolve); });
    socket.resetAndDestroy();
  });
  assert.equal(n, 1);
});

function h2(session, body, headers = {}) {
  const req = session.request({
    ':method': 'POST', ':path': '/v1/chat/completions',
    'content-type': 'application/json', ...headers,
  });
  req.setEncoding('utf8');
  req.end(JSON.stringify(body));
  return req;
}

test('HTTP/2: one stream is reset, its neighbour goes on', async () => {
  const session = stack.http2();
  try {
    const n = await counts(async () => {
      const doomed = h2(session, endless(3, LONG), { 'x-mark': 'h2-reset' });
      const healthy = h2(session, endless(4, 60));
      doomed.on('error', () => {});
      await new Promise((resolve) => { doomed.once('data', resolve); });
      doomed.close(http2.constants.NGHTTP2_CANCEL);
      let text = '';
      for await (const part of healthy) text += part;
      assert.ok(text.endsWith('data: [DONE]\n\n'));
    });
    assert.equal(n, 1);
    const [line] = await stack.logged('h2-reset');
    assert.equal(line.finish_reason, 'aborted');
  } finally {
    session.destroy();
  }
});

test('HTTP/2: the connection goes, with all its streams', async () => {
  const n = await counts(async () => {
    const session = stack.http2();
    session.on('error', () => {});
    const streams = Array.from({ length: 3 }, (_, i) =>
      h2(session, endless(i, LONG)));
    await Promise.all(streams.map((s) => new Promise((resolve) => {
      s.on('error', () => {});
      s.once('data', resolve);
    })));
    session.destroy();
  });
  assert.equal(n, 3);
});

test('HTTP/2: a stream that nobody reads does not hold its neighbours', async () => {
  const session = stack.http2();
  try {
    // Far more than the window of a stream, 64 KiB, lets through.
    const still = h2(session, endless(0, 600, {
      logprobs: true, top_logprobs: 20,
    }));
    await new Promise((resolve) => { still.once('readable', resolve); });
    for (let i = 0; i < 3; i++) {
      let text = '';
      for await (const part of h2(session, endless(i, 30))) text += part;
      assert.ok(text.endsWith('data: [DONE]\n\n'));
    }
    let rest = '';
    for await (const part of still) rest += part;
    assert.ok(rest.endsWith('data: [DONE]\n\n'));
    await stack.idle();
  } finally {
    session.destroy();
  }
});

test('a slow client is paused, and the others do not notice', async () => {
  // Little room in the kernel: what nobody reads is soon too much.
  const port = await freePort();
  const slow = await Stack.start({
    engine: { max_num_seqs: 8, kv_memory: '64m', channel_ring: '64k' },
    location: 'tokenring_buffer_size 4k; send_timeout 10m;',
    server: `listen 127.0.0.1:${port} sndbuf=16k;`,
  });
  try {
    const body = JSON.stringify({
      ...endless(0, 1000), logprobs: true, top_logprobs: 20,
    });
    const socket = net.connect({
      port, host: '127.0.0.1', highWaterMark: 1024,
    });
    socket.write('POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n'
      + 'Content-Type: application/json\r\nX-Mark: slow\r\n'
      + `Content-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`);
    await new Promise((resolve) => { socket.once('data', resolve); });
    socket.pause();
    const made = async () => (await slow.metrics())
      .value('tokenring_generation_tokens_total');
    // It is paused when no token is made any more though it is not done.
    let last = -1;
    await until(async () => {
      const now = await made();
      const still = now === last;
      last = now;
      await sleep(400);
      return still;
    }, 'the slow stream stands');
    assert.ok(last < 1000, `paused before its end: ${last}`);
    // Others run meanwhile.
    for (let i = 0; i < 3; i++) {
      const s = await stream(`${slow.url}/v1/chat/completions`,
        endless(i, 40)).finished;
      assert.ok(s.done);
    }
    // And it resumes to its very end.
    let text = '';
    socket.setEncoding('utf8');
    socket.on('data', (part) => { text += part; });
    socket.resume();
    await new Promise((resolve) => { socket.once('close', resolve); });
    assert.ok(text.includes('data: [DONE]'));
    const [line] = await slow.logged('slow');
    assert.equal(line.status, 200);
    assert.equal(Number(line.completion_tokens), 1000);
  } finally {
    await slow.stop();
  }
});
