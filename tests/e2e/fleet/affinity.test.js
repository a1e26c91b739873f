'use strict';
//
// Requests of one value stay at one engine (tokenring_affinity): while others come
// and go, but not beyond what one engine is to have more than others.  One of three
// times the weight has three times as many.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until } = require('../lib/stack');
const { post, stream } = require('../lib/http');

const NULL = { backend: 'null', null_rate: 500, kv_memory: '64m',
  max_num_seqs: 16 };
let stack;

before(async () => {
  stack = await Stack.start({ engine: NULL,
    engines: { second: NULL, third: NULL }, pass: 'fleet',
    http: `tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock
        unix:DIR/third.sock;
      tokenring_engine even unix:DIR/main.sock unix:DIR/second.sock;
      tokenring_engine heavy unix:DIR/main.sock weight=3;
      tokenring_engine heavy unix:DIR/second.sock;`,
    server: `location /even/v1/ { tokenring_pass even;
        tokenring_affinity $http_x_session; }
      location /heavy/v1/ { tokenring_pass heavy;
        tokenring_affinity $http_x_session; }`,
    location: 'tokenring_affinity $http_x_session;' });
  stack.complaints = () => []; // an engine is killed
  await stack.connected(3);
});

after(async () => { if (stack) await stack.stop(); });

async function counts() {
  const all = [0, 0, 0];
  for (const s of (await stack.metrics()).samples) {
    if (s.name === 'tokenring_prompt_tokens_total') {
      all[s.labels.replica] += s.value;
    }
  }
  return all;
}

const body = { model: 'pocket', prompt: 'Once upon a time', max_tokens: 2 };

// The engine that got this one, by what its page counts.
async function where(session, place = '') {
  const was = await counts();
  const r = await post(`${stack.url}${place}/v1/completions`, body,
    session === undefined ? {} : { 'X-Session': session });
  assert.equal(r.status, 200, r.text);
  let at = -1;
  await until(async () => {
    at = (await counts()).findIndex((n, i) => n > was[i]);
    return at >= 0;
  }, 'it is counted');
  return at;
}

const SESSIONS = Array.from({ length: 18 }, (_, i) => `session ${i}`);
const places = async () => {
  const all = {};
  for (const s of SESSIONS) all[s] = await where(s);
  return all;
};

test('each session has its engine, and none all of them', async () => {
  const first = await places();
  assert.deepEqual(await places(), first);
  assert.ok(new Set(Object.values(first)).size > 1, JSON.stringify(first));
});

test('an engine goes: its sessions move, no other does; it comes back', async () => {
  const was = await places();
  const gone = Object.values(was).find((at) => at !== 0);
  const engine = stack.others[gone - 1];
  await engine.kill();
  await stack.connected(2);
  const meanwhile = await places();
  for (const s of SESSIONS) {
    if (was[s] === gone) assert.notEqual(meanwhile[s], gone);
    else assert.equal(meanwhile[s], was[s], s);
  }
  await engine.start();
  await stack.connected(3);
  assert.deepEqual(await places(), was);
});

test('without a value the load alone decides', async () => {
  const at = new Set();
  for (let i = 0; i < 6; i++) at.add(await where());
  assert.equal(at.size, 3);
});

test('an engine with much more to do is passed over', async () => {
  const [session] = SESSIONS;
  const home = await where(session);
  const held = Array.from({ length: 6 }, (_, i) => stream(
    `${stack.url}/v1/completions`, { model: 'pocket', stream: true,
      prompt: Array(1500).fill(300 + i), max_tokens: 400, ignore_eos: true },
    { headers: { 'X-Session': session } }));
  await until(async () => (await stack.metrics()).samples.filter((s) =>
    s.name === 'tokenring_num_requests_running' && s.value > 0).length > 1,
  'some of them are at other engines');
  const busy = new Set();
  for (const s of (await stack.metrics()).samples) {
    if (s.name === 'tokenring_num_requests_running' && s.value > 0) {
      busy.add(Number(s.labels.replica));
    }
  }
  assert.ok(busy.has(home));
  for (const s of held) s.hangUp();
  await Promise.all(held.map((s) => s.finished));
  await stack.idle();
  assert.equal(await where(session), home);
});

test('shares are those of weights, and a larger one takes from the other', async () => {
  const n = 120;
  const at = { even: [], heavy: [] };
  for (let i = 0; i < n; i++) {
    for (const place of ['even', 'heavy']) {
      at[place].push(await where(`weighed ${i}`, `/${place}`));
    }
  }
  const first = (place) => at[place].filter((one) => one === 0).length;
  // a half and three quarters of them, within five standard deviations
  assert.ok(Math.abs(first('even') - n / 2) <= 28, `${first('even')} of ${n}`);
  assert.ok(Math.abs(first('heavy') - 3 * n / 4) <= 24,
    `${first('heavy')} of ${n}`);
  at.even.forEach((one, i) => {
    if (one === 0) assert.equal(at.heavy[i], 0, 'none goes to the lighter one');
  });
});
