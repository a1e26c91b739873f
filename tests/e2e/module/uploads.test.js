'use strict';
//
// Clients that send their bodies slowly, or stop in the middle: they take no
// place at the engine and no memory away from others, over HTTP/1.1 and HTTP/2.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const { Stack, until, taken } = require('../lib/stack');
const { post, answer2 } = require('../lib/http');
const { chat } = require('../lib/prompts');

// The fewest that there are.
const SLOTS = 64;
const PLACES = SLOTS / 2;
// What NGINX holds of a body until it is whole, unless told.
const HELD = 16 << 10;

let stack, url;

before(async () => {
  stack = await Stack.start({
    http2: true,
    engine: { backend: 'null', null_rate: 250, kv_memory: '64m' },
    http: `tokenring_engine few unix:DIR/main.sock slots=${SLOTS} ring=64k;
      tokenring_models all { engine few; }`,
    pass: 'few',
    // Whoever is last waits for long.
    location: 'tokenring_body_rate 0; tokenring_tenant $http_x_tenant;',
    server: `location /gathered/v1/ {
        tokenring_body_rate 0;
        tokenring_tenant $http_x_tenant;
        tokenring_body_memory 64m;
        tokenring_pass models=all;
      }
      location /little/v1/ {
        tokenring_body_rate 0;
        tokenring_body_memory 96k;
        tokenring_pass models=all;
      }`,
  });
  url = `${stack.url}/v1/chat/completions`;
});
after(async () => {
  await stack.idle();
  await stack.active(0);
  await stack.end();
});

const small = () => post(url, chat('Hello!', { max_tokens: 3 }));

// A request of which the first `sent` bytes are there; finish() sends the rest.
class Upload {
  constructor(bytes, sent, chunked = false, to = {}) {
    const body = JSON.stringify({ ...chat('Hello!', { max_tokens: 3 }),
      pad: 'x'.repeat(bytes) });
    this.req = http.request(to.url || url, {
      method: 'POST', agent: false,
      headers: { 'Content-Type': 'application/json',
        'X-Tenant': to.tenant || 'one',
        ...(chunked ? {} : { 'Content-Length': body.length }) },
    });
    this.answer = new Promise((resolve, reject) => {
      this.req.on('response', (res) => {
        this.status = res.statusCode;
        let text = '';
        res.on('data', (part) => { text += part; });
        res.on('end', () => resolve({ status: res.statusCode, text }));
        res.on('error', reject);
      });
      this.req.on('error', reject);
    });
    this.answer.catch(() => {});
    this.rest = body.slice(sent);
    this.req.flushHeaders();
    if (sent) this.req.write(body.slice(0, sent));
  }

  finish() {
    this.req.end(this.rest);
    return this.answer;
  }
}

const uploads = (n, ...how) => Array.from({ length: n }, () =>
  new Upload(...how));

for (const [what, bytes, sent, chunked] of [
  ['nothing of their bodies', 100, 0, false],
  ['half of their bodies', 100, 50, false],
  ['half of their bodies in chunks', 100, 50, true],
  ['nothing of large bodies', 1 << 20, 0, false],
]) {
  test(`clients that have sent ${what} take no place`, async () => {
    const slow = uploads(SLOTS + 10, bytes, sent, chunked);
    await stack.active(slow.length);
    const r = await small();
    assert.equal(r.status, 200, r.text);
    // And each is served when it comes to its end.
    for (const s of slow) {
      const { status, text } = await s.finish();
      assert.equal(status, 200, text);
    }
  });
}

test('HTTP/2: streams that have sent half of their bodies take no place',
  async () => {
    const session = stack.http2();
    try {
      const body = JSON.stringify(chat('Hello!', { max_tokens: 3 }));
      const slow = Array.from({ length: SLOTS + 10 }, () => {
        const req = session.request({ ':method': 'POST',
          ':path': '/v1/chat/completions',
          'content-type': 'application/json' });
        req.write(body.slice(0, 20));
        return req;
      });
      await stack.active(slow.length);
      const r = await small();
      assert.equal(r.status, 200, r.text);
      for (const req of slow) {
        const answer = answer2(req);
        req.end(body.slice(20));
        const { status, text } = await answer;
        assert.equal(status, 200, text);
      }
    } finally {
      session.destroy();
    }
  });

test('large bodies on their way take half of the places, and no more',
  async () => {
    const slow = uploads(PLACES, 1 << 20, 2 * HELD);
    await stack.active(slow.length);
    // The others are told, and whoever is small does not notice.
    const more = uploads(10, 1 << 20, 2 * HELD);
    for (const s of more) {
      const { status, text } = await s.answer;
      assert.equal(status, 429, text);
      assert.match(text, /large/);
      s.req.destroy();
    }
    for (const s of uploads(PLACES, 100, 50)) {
      assert.equal((await s.finish()).status, 200);
    }
    assert.ok(slow.every((s) => s.status === undefined));
    for (const s of slow) {
      const { status, text } = await s.finish();
      assert.equal(status, 200, text);
    }
    const last = new Upload(1 << 20, 2 * HELD);
    assert.equal((await last.finish()).status, 200);
  });

// The engine bounds the bodies that are passed on to it, the gateway those that
// it gathers to read their models.
for (const [what, path] of [['passed on', ''], ['gathered', '/gathered']]) {
  test(`bodies of one tenant that stand still end for another's: ${what}`,
    async () => {
      const stay = { url: `${stack.url}${path}/v1/chat/completions`,
        tenant: 'stays' };
      // All that is read at once, but for their last bytes.
      const most = 16 << 20;
      const one = new Upload(0, 0, false, stay);
      const still = () =>
        new Upload(most - one.rest.length, most - 1, false, stay);
      const slow = [still(), still(), still(), still()];
      assert.equal((await one.finish()).status, 200);
      await Promise.all(slow.map((s) => taken(s.req.socket)));
      // Has no room, or takes that of one which has stood still long enough.
      slow.push(still());
      const r = await small();
      assert.equal(r.status, 200, r.text);
      await until(async () => {
        const more = new Upload(1 << 20, 1 << 19, false,
          { ...stay, tenant: 'goes' });
        const { status, text } = await more.finish();
        if (status !== 200) assert.equal(status, 429, text);
        return status === 200;
      }, 'there is room for a body that comes');
      const ends = await Promise.all(slow.map((s) => s.finish()));
      const refused = ends.filter((e) => e.status !== 200);
      for (const { status, text } of refused) assert.equal(status, 429, text);
      assert.ok(refused.some((e) => /this one came the slowest/.test(e.text)));
      assert.ok(refused.length <= 2, 'no more than had to');
    });
}

test('HTTP/2: a stream that stands still ends for another one beside it',
  async () => {
    const session = stack.http2();
    const begin = () => session.request({ ':method': 'POST',
      ':path': '/little/v1/chat/completions',
      'content-type': 'application/json' });
    try {
      const body = JSON.stringify({ ...chat('Hello!', { max_tokens: 3 }),
        pad: 'x'.repeat(40000) });
      const slow = [begin(), begin(), begin(), begin()];
      const ends = slow.map(answer2);
      slow.forEach((req) => req.write(body.slice(0, 30000)));
      await until(async () => {
        const req = begin();
        const answer = answer2(req);
        req.end(body);
        return (await answer).status === 200;
      }, 'there is room for a body that comes');
      const first = await Promise.any(ends.map(async (answer) => {
        const r = await answer;
        assert.match(r.text, /this one came the slowest/);
        return r;
      }));
      assert.equal(first.status, 429);
    } finally {
      session.destroy();
    }
    await stack.active(0);
  });

test('who leaves in the middle of a large body leaves a place', async () => {
  const slow = uploads(PLACES, 1 << 20, 2 * HELD);
  await stack.active(slow.length);
  for (const s of slow) s.req.destroy();
  await stack.active(0);
  await until(async () => {
    const again = new Upload(1 << 20, 2 * HELD);
    return (await again.finish()).status === 200;
  }, 'places are free');
});

for (const [what, bytes, sent] of [
  ['nothing of a body', 100, 0], ['half of a body', 100, 50],
]) {
  test(`an engine that is started anew has missed ${what}`, async () => {
    const slow = new Upload(bytes, sent);
    await stack.active(1);
    await stack.engine.kill('SIGKILL');
    const early = new Upload(bytes, sent);
    assert.equal((await early.answer).status, 503, 'it never came in');
    await stack.engine.start();
    await stack.healthy();
    const { status, text } = await slow.finish();
    assert.equal(status, 200, text);
  });
}

test('a body that is whole while its engine shakes hands', async () => {
  // A machine that is slow may let the wait for an engine end first.
  await until(async () => {
    const slow = new Upload(100, 50);
    await stack.active(1);
    await stack.engine.kill('SIGKILL');
    fs.rmSync(stack.engine.socket, { force: true });
    // Says nothing, so that the worker waits for it.
    const held = [];
    const mute = net.createServer((socket) => {
      socket.on('error', () => {});
      held.push(socket);
    });
    await new Promise((resolve) => {
      mute.listen(stack.engine.socket, resolve);
    });
    fs.chmodSync(stack.engine.socket, 0o666);
    await until(() => held.length >= 2, 'the worker comes, for both names');
    slow.finish().catch(() => {});
    await taken(slow.req.socket);
    const closed = new Promise((resolve) => { mute.close(resolve); });
    await stack.engine.start();
    held.forEach((socket) => socket.destroy());
    await closed;
    const { status } = await slow.answer;
    await stack.healthy();
    return status === 200;
  }, 'the request waits for the engine');
});

test('the time that an engine takes is not the client\'s', async () => {
  const slow = await Stack.start({
    engine: { backend: 'null', null_rate: 250, kv_memory: '64m' },
    http: 'tokenring_engine narrow unix:DIR/main.sock ring=64k;',
    pass: 'narrow',
    location: 'client_body_timeout 3s;',
  });
  url = `${slow.url}/v1/chat/completions`;
  try {
    slow.engine.signal('SIGSTOP');
    // Each is read by itself, and for the last one the ring has no room.
    const piece = 1000;
    const large = new Upload(1 << 20, piece);
    await slow.active(1);
    for (let i = 1; i < 65; i++) {
      await taken(large.req.socket);
      large.req.write(large.rest.slice(0, piece));
      large.rest = large.rest.slice(piece);
    }
    await taken(large.req.socket);
    // Who begins later and is late says that the time is over.
    const late = new Upload(100, 50);
    assert.equal((await late.answer).status, 408);
    slow.engine.signal('SIGCONT');
    const { status, text } = await large.finish();
    assert.equal(status, 200, text);
    assert.deepEqual(slow.complaints(), []);
  } finally {
    slow.engine.signal('SIGCONT');
    await slow.stop();
  }
});
