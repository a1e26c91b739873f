'use strict';
//
// What the tests of resumable answers stand on: a Redis, an engine that is a
// script (fake_engine.c), two gateways before it, and records that the test
// writes itself (records.js), so that every order of events can be made.

const assert = require('node:assert/strict');
const { spawn, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { ROOT, BUILD, Stack, until } = require('./stack');
const { stream } = require('./http');
const { Redis } = require('./redis');
const R = require('./records');

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-resume-'));
const socket = path.join(dir, 'fake.sock');
const fixture = { redis: null, stack: null, other: null, fake: null };

async function startFake() {
  fixture.fake = spawn(path.join(BUILD, 'tests/fake_engine'), [socket],
    { stdio: 'inherit' });
  await until(() => fs.existsSync(socket), 'the socket of the fake engine');
}

async function gateway(more = {}) {
  const s = await Stack.start({
    engine: null,
    http: `tokenring_engine fake unix:${socket};
      tokenring_redis ${fixture.redis.address} timeout=10s;`,
    pass: 'fake',
    server: `
      location /plain/v1/ { tokenring_pass fake; }
      location /none/v1/ { tokenring_redis off; tokenring_pass fake; }
      location /owned/v1/ { tokenring_resumable on;
        tokenring_request_key $http_authorization; tokenring_pass fake; }`,
    location: `tokenring_resumable on;
      tokenring_buffer_size 64k;`,
    ...more,
  });
  await s.healthy();
  return s;
}

// A Redis, the fake engine, and two gateways before it.
async function start() {
  const made = spawnSync('make', ['-s', 'fake-engine', `B=${BUILD}`],
    { cwd: ROOT, encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  fs.chmodSync(dir, 0o755);
  fixture.redis = await Redis.start();
  await startFake();
  [fixture.stack, fixture.other] = await Promise.all([gateway(), gateway()]);
  return fixture;
}

async function stop() {
  if (fixture.stack) await fixture.stack.stop();
  if (fixture.other) await fixture.other.stop();
  if (fixture.fake) fixture.fake.kill();
  if (fixture.redis) await fixture.redis.stop();
  fs.rmSync(dir, { recursive: true, force: true });
}

const url = (id, s = fixture.stack, place = '') => `${s.url}${place}/v1/requests/${id}`;
const follow = (id, { s = fixture.stack, after: last, place = '', ...more } = {}) =>
  stream(`${url(id, s, place)}/stream`, undefined, {
    ...more,
    headers: { ...(last === undefined ? {} : { 'Last-Event-ID': String(last) }),
      ...more.headers },
  });

// The records that the fake engine makes of {fake: 'tokens', count, choices}.
function tokens({ count, choices = 1, ...more }) {
  const all = [R.accepted({ choices, ...more })];
  for (let i = 0; i < count; i++) {
    for (let c = 0; c < choices; c++) {
      if (more.kv) {
        all.push(R.kv({ choice: c, bytes: 300 + i * choices,
          tokens: [1, 2, 3, 4 + i * choices] }));
      }
      all.push(R.delta(`t${i} `, { choice: c }));
    }
  }
  for (let c = 0; c < choices; c++) {
    all.push(R.finish({ choice: c, last: c + 1 === choices,
      completion: count * choices, choiceTokens: count }));
  }
  return all;
}

// Entries of some records each, as a flush every now and then makes them.
async function spread(w, records, each = 3) {
  for (let i = 0; i < records.length; i += each) {
    await w.put(records.slice(i, i + each), { publish: false });
  }
  return w;
}

// New workers serve, and those of before have left: they may still have
// accepted a connection while the new ones came.
async function reload(s) {
  await s.reload();
  await until(() => s.workers().length === 1, 'old workers have left');
}

// What a stream has after the event with this id.
function rest(raw, id) {
  const at = raw.indexOf(`id: ${id}\n`);
  assert.ok(at >= 0, `id ${id} in ${raw}`);
  return raw.slice(raw.indexOf('\n\n', at) + 2);
}

const written = (options) => new R.Written(fixture.redis, options);

module.exports = { dir, socket, start, stop, gateway, url, follow, tokens,
  spread, reload, rest, written };
