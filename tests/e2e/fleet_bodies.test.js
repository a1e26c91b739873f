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
const { Stack, until, sleep, BUILD } = require('./lib/stack');

const NULL = { backend: 'null', null_rate: 25, kv_memory: '64m' };
const TOKENRING = path.join(BUILD, 'bin/tokenring');

const connected = (stack, n) => until(async () => (await stack.metrics())
  .value('tokenring_connected_workers') === n, `${n} engines are connected`);

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
    await connected(stack, 2);
    await stack.others[0].kill('SIGKILL');
    await connected(stack, 1);
    stack.engine.signal('SIGSTOP');
    const all = Array.from({ length: n }, () => send(stack, bytes));
    await stack.active(n);
    await sleep(200); // what fits the ring is in it, the rest waits
    await stack.others[0].start();
    await connected(stack, 2);
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

test('an engine drains while many bodies wait for its ring', () =>
  moved(8, 300000, async (stack) => {
    const drain = spawn(TOKENRING, ['drain', stack.engine.socket],
      { stdio: 'ignore' });
    const gone = new Promise((resolve) => drain.on('exit', resolve));
    await sleep(300); // its wish is in the socket before the engine goes on
    stack.engine.signal('SIGCONT');
    assert.equal(await gone, 0);
  }));
