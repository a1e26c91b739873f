'use strict';
//
// Several hosts (docs/fleet.md): two stacks, each an NGINX with its engine as on
// a host of its own, and in front of them an NGINX with nothing but a stock
// upstream, configured as the documentation says, and behind them one Redis.

const { test, before, beforeEach, after } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const {
  Stack, until, alive, freePort, workerUser, ROOT, BUILD, NGINX, read,
} = require('../lib/stack');
const { post, stream, request } = require('../lib/http');
const { Redis } = require('../lib/redis');

// What a test must find running runs on the slow host, where nothing ends by
// itself before minutes have passed; the quick one answers it after all.
const NULL = { backend: 'null', kv_memory: '64m' };
const RATES = [0.5, 50];
const prompt = (more = {}) => ({
  model: 'pocket', prompt: 'one two three', max_tokens: 60, ...more,
});
const long = () => stream(url, prompt({ stream: true, max_tokens: 20000 }));

let redis, hosts, front, url;

// The configuration of docs/fleet.md with our ports in it, a shorter time for
// which a host is left alone, and a header that tells who was asked.
function documented() {
  const text = fs.readFileSync(path.join(ROOT, 'docs/fleet.md'), 'utf8');
  const block = /```nginx\n(upstream[\s\S]*?)```/.exec(text);
  assert.ok(block, 'docs/fleet.md shows a configuration');
  return block[1];
}

class Front {
  static async start(ports) {
    const f = new Front();
    f.dir = fs.mkdtempSync('/tmp/tokenring-front-');
    fs.chmodSync(f.dir, 0o755);
    f.port = await freePort();
    const conf = documented()
      .replace('10.0.0.11:8080', `127.0.0.1:${ports[0]}`)
      .replace('10.0.0.12:8080', `127.0.0.1:${ports[1]}`)
      .replaceAll('fail_timeout=5s', 'fail_timeout=1s')
      .replace('listen 443 ssl http2;', `listen 127.0.0.1:${f.port};
        add_header X-Upstream "$upstream_addr" always;`);
    assert.equal(conf.match(/fail_timeout=1s/g).length, 2);
    const temp = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
      .map((n) => `${n}_temp_path ${f.dir}/temp_${n};`).join('\n');
    fs.writeFileSync(`${f.dir}/nginx.conf`, `
${workerUser() ? `user ${workerUser()} nogroup;` : ''}
error_log ${f.dir}/error.log info;
pid ${f.dir}/nginx.pid;
events { worker_connections 1024; }
http { access_log off; ${temp}\n${conf} }
`);
    const out = spawnSync(NGINX, ['-p', f.dir, '-e', `${f.dir}/error.log`,
      '-c', `${f.dir}/nginx.conf`], { encoding: 'utf8' });
    assert.equal(out.status, 0, out.stderr);
    f.pid = Number(await until(() => read(`${f.dir}/nginx.pid`).trim(), 'pid'));
    return f;
  }

  async stop() {
    process.kill(this.pid, 'SIGTERM');
    await until(() => !alive(this.pid), 'the front has stopped');
    fs.rmSync(this.dir, { recursive: true, force: true });
  }
}

before(async () => {
  redis = await Redis.start();
  hosts = await Promise.all(RATES.map((null_rate, i) => Stack.start({
    engine: { ...NULL, null_rate, name: `host${i}`, redis: redis.address },
    http: `tokenring_redis ${redis.address};`,
    location: 'tokenring_resumable on;',
  })));
  front = await Front.start(hosts.map((h) => h.port));
  url = `http://127.0.0.1:${front.port}/v1/completions`;
});

// Whatever the test before has left behind.
beforeEach(async () => {
  for (const host of hosts) {
    if (!alive(host.engine.pid)) await host.engine.start();
    if (!alive(host.master)) await host.startNginx();
    drain(host, '--undo');
    await host.healthy();
    await used(host);
  }
  await idle();
});

after(async () => {
  if (front) await front.stop();
  await Promise.all((hosts || []).map((h) => h.stop()));
  if (redis) await redis.stop();
});

const running = async (host) => (await host.metrics())
  .value('tokenring_num_requests_running');

async function idle() {
  for (const host of hosts) await host.idle();
}

function drain(host, ...args) {
  const out = spawnSync(path.join(BUILD, 'bin/tokenring'),
    ['drain', ...args, host.engine.socket], { encoding: 'utf8' });
  assert.equal(out.status, 0, out.stderr);
}

// The hosts that the front has asked for an answer, the last one gave it.
const asked = ({ headers }) => headers['x-upstream'].split(', ')
  .map((address) => hosts.findIndex((h) => address.endsWith(`:${h.port}`)));

// NGINX and engine of a host, at once.
async function crash(host) {
  const pids = [host.master, ...host.workers()];
  pids.forEach((pid) => process.kill(pid, 'SIGKILL'));
  await host.engine.kill('SIGKILL');
  await until(() => pids.every((pid) => !alive(pid)), 'the host is dead');
  fs.rmSync(`${host.dir}/nginx.pid`, { force: true });
}

async function recover(host) {
  await host.engine.start();
  await host.startNginx();
  await host.healthy();
  await used(host);
}

// The front takes up a host again that has failed, after fail_timeout.
function used(host) {
  return until(async () => {
    const r = await post(url, prompt({ max_tokens: 1 }));
    assert.equal(r.status, 200, r.text);
    return asked(r).at(-1) === hosts.indexOf(host);
  }, 'the front uses it again');
}

// What every whole answer says, from the quick host.
async function reference() {
  const r = await post(`${hosts[1].url}/v1/completions`, prompt());
  assert.equal(r.status, 200, r.text);
  return r.json().choices[0].text;
}

// Requests for whole answers, as many as it takes until the slow host has `n`.
async function wholeOnSlow(n) {
  const all = [];
  const before = await running(hosts[0]);
  await until(async () => {
    if (all.length < 10 * n) all.push(post(url, prompt()));
    return await running(hosts[0]) >= before + n;
  }, 'the slow host has some');
  return all;
}

// All are answered, with this text, and `n` had been on the slow host.
async function answered(all, want, n) {
  const done = await Promise.all(all);
  for (const r of done) {
    assert.equal(r.status, 200, r.text);
    assert.equal(r.json().choices[0].text, want);
    assert.equal(asked(r).at(-1), 1);
  }
  const moved = done.filter((r) => asked(r).length === 2);
  assert.ok(moved.length >= n, `${moved.length} were asked for again`);
}

test('both hosts serve, streams come as they are made', async () => {
  const all = Array.from({ length: 8 }, long);
  // They have begun and are far from their ends: nothing gathers them.
  await Promise.all(all.map((s) => s.begun()));
  assert.ok(all.every((s) => !s.over));
  assert.deepEqual(all.map((s) => asked(s)[0]).sort(),
    [0, 0, 0, 0, 1, 1, 1, 1]);
  all.forEach((s) => s.hangUp());
  await idle();
  const short = Array.from({ length: 2 }, () =>
    stream(url, prompt({ stream: true, max_tokens: 2 })));
  const done = await Promise.all(short.map((s) => s.finished));
  assert.ok(done.every((s) => s.done));
  assert.equal(new Set(done.map((s) => s.text())).size, 1);
});

test('a hang-up at the front reaches the engine', async () => {
  const s = long();
  await s.begun();
  const host = hosts[asked(s)[0]];
  await until(async () => await running(host) === 1, 'it runs');
  s.hangUp();
  await idle();
});

test('a host dies: what has no answer yet is answered by the other',
  async () => {
    const text = await reference();
    const streams = Array.from({ length: 4 }, () =>
      stream(url, prompt({ stream: true, max_tokens: 100 })));
    await Promise.all(streams.map((s) => s.begun()));
    const there = streams.filter((s) => asked(s)[0] === 0);
    assert.ok(there.length >= 1, 'the slow host streams, too');
    await until(async () => await running(hosts[0]) === there.length,
      'they run');
    const whole = await wholeOnSlow(3);
    await crash(hosts[0]);
    await answered(whole, text, 3);
    await Promise.all(streams.map((s) => s.finished));
    // Its streams are cut, which a client sees; the others are whole.
    for (const s of streams) {
      assert.equal(s.done, !there.includes(s));
      assert.equal(s.cut, there.includes(s));
    }
    for (let i = 0; i < 10; i++) {
      assert.equal((await post(url, prompt({ max_tokens: 2 }))).status, 200);
    }
    await recover(hosts[0]);
  });

// Streams until one is the quick host's, to its end.
async function streamed() {
  return until(async () => {
    const s = stream(url, prompt({ stream: true, max_tokens: 40 }));
    await s.begun();
    if (asked(s)[0] !== 1) {
      s.hangUp();
      return null;
    }
    await s.finished;
    assert.ok(s.done, s.raw.slice(-300));
    return s;
  }, 'the quick host streams one');
}

test('a host dies: what it streamed is read on at the other, from Redis',
  async () => {
    const s = await streamed();
    const id = s.headers['x-tokenring-id'];
    const at = `http://127.0.0.1:${front.port}/v1/requests/${id}`;
    await until(async () => (await request(at)).json().state === 'done',
      'Redis has it to its end');
    await crash(hosts[1]);
    const copy = await stream(`${at}/stream`, undefined, {}).finished;
    assert.equal(copy.raw, s.raw, 'byte for byte');
    const half = s.ids[s.ids.length >> 1];
    const rest = await stream(`${at}/stream`, undefined,
      { headers: { 'Last-Event-ID': String(half) } }).finished;
    assert.ok(rest.done);
    const cut = s.raw.indexOf('\n\n', s.raw.indexOf(`id: ${half}\n`)) + 2;
    assert.equal(rest.raw, s.raw.slice(cut));
    const state = (await request(at)).json();
    assert.equal(state.engine, 'host1');
    await recover(hosts[1]);
  });

test('an engine dies, its host lives: the front goes to the other', async () => {
  const text = await reference();
  const whole = await wholeOnSlow(3);
  await hosts[0].engine.kill('SIGKILL');
  await answered(whole, text, 3);
  await hosts[0].engine.start();
  await hosts[0].healthy();
  await used(hosts[0]);
});

test('a drained host is passed over', async () => {
  drain(hosts[0]);
  let passed = 0;
  for (let i = 0; i < 6; i++) {
    const r = await post(url, prompt({ max_tokens: 2 }));
    assert.equal(r.status, 200, r.text);
    assert.equal(asked(r).at(-1), 1);
    passed += asked(r).length - 1;
  }
  assert.ok(passed > 0, 'it was asked');
  assert.equal((await request(`${hosts[0].url}/health`)).status, 503);
  drain(hosts[0], '--undo');
  await hosts[0].healthy();
  await used(hosts[0]);
});

test('nothing is left over', () => {
  for (const host of hosts) assert.deepEqual(host.complaints(), []);
});
