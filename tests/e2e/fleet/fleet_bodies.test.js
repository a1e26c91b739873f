'use strict';
//
// Bodies larger than the ring, of which an engine has taken only a part when it
// dies or drains: they begin again at another engine, whole.  The first engine
// is stopped while they arrive, so that each waits for space in its ring.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const http = require('node:http');
const path = require('node:path');
const { spawn } = require('node:child_process');
const { Stack, until, sleep, BUILD } = require('../lib/stack');
const { answer2 } = require('../lib/http');

const NULL = { backend: 'null', null_rate: 25, kv_memory: '64m' };
const TOKENRING = path.join(BUILD, 'bin/tokenring');

function send(stack, bytes) {
  const body = JSON.stringify({ model: 'pocket', prompt: 'one '.repeat(10),
    max_tokens: 3, pad: 'x'.repeat(bytes) });
  return new Promise((resolve, reject) => {
    const req = http.request(`${stack.url}/v1/completions`, {
      method: 'POST', agent: false,
      headers: { 'Content-Type': 'application/json',
        'Content-Length': body.length },
    });
    req.on('response', (res) => {
      res.resume();
      res.on('end', () => resolve(res.statusCode));
    });
    req.on('error', reject);
    req.end(body);
  });
}

// Sends `n` bodies to a stopped engine, starts the other one, then calls move
// to get them there.
async function moved(n, bytes, move) {
  const stack = await Stack.start({ engine: NULL, engines: { second: NULL },
    pass: 'fleet',
    http: ['main', 'second'].map((name) =>
      `tokenring_engine fleet unix:DIR/${name}.sock ring=64k;`).join('\n'),
    location: 'tokenring_retry_buffer 1m;' });
  try {
    await stack.connected(2);
    await stack.others[0].kill('SIGKILL');
    await stack.connected(1);
    stack.engine.signal('SIGSTOP');
    const all = Array.from({ length: n }, () => send(stack, bytes));
    await stack.active(n);
    await sleep(200); // what fits the ring is in it, the rest waits
    await stack.others[0].start();
    await stack.connected(2);
    await move(stack);
    assert.deepEqual(await Promise.all(all), Array(n).fill(200));
    assert.deepEqual(stack.complaints(), []);
  } finally {
    stack.engine.signal('SIGCONT');
    await stack.stop();
  }
}

for (const bytes of [300000, 900000]) {
  test(`an engine dies that has taken a part of ${bytes} bytes`, () =>
    moved(1, bytes, (stack) => stack.engine.kill('SIGKILL')));
}

test('HTTP/2: a body that NGINX has written to a file', async () => {
  // While auth_request waits, the body comes to its end; NGINX buffers it then.
  const asked = [];
  const gate = http.createServer((req, res) => { asked.push(res); });
  await new Promise((resolve) => { gate.listen(0, '127.0.0.1', resolve); });
  const stack = await Stack.start({ engine: NULL, engines: { second: NULL },
    http2: true,
    server: `location = /gate {
      internal;
      proxy_pass http://127.0.0.1:${gate.address().port}/;
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
    }`,
    location: 'auth_request /gate; client_body_in_file_only clean;' });
  const session = stack.http2();
  try {
    await stack.connected(2);
    await stack.others[0].kill('SIGKILL');
    await stack.connected(1);
    stack.engine.signal('SIGSTOP');
    const req = session.request({ ':method': 'POST',
      ':path': '/v1/completions', 'content-type': 'application/json' });
    const answer = answer2(req);
    req.end(JSON.stringify({ model: 'pocket', prompt: 'one two three',
      max_tokens: 3 }));
    await until(() => asked.length === 1, 'auth_request');
    await sleep(100); // the body is there, in a frame after the head
    asked.pop().end();
    await sleep(300); // the stopped engine has it
    await stack.others[0].start();
    await stack.connected(2);
    await stack.engine.kill('SIGKILL');
    const { status, text } = await answer;
    assert.equal(status, 200, text);
    assert.equal((await stack.metrics())
      .value('tokenring_gateway_retries_total'), 1);
    assert.deepEqual(stack.complaints(), []);
  } finally {
    session.destroy();
    gate.close();
    await stack.stop();
  }
});

test('an engine drains while many bodies wait for its ring', () =>
  moved(8, 300000, async (stack) => {
    const drain = spawn(TOKENRING, ['drain', stack.engine.socket],
      { stdio: 'ignore' });
    const gone = new Promise((resolve) => drain.on('exit', resolve));
    await sleep(300); // its request is in the socket before the engine goes on
    stack.engine.signal('SIGCONT');
    assert.equal(await gone, 0);
  }));
