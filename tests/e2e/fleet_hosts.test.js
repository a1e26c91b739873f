'use strict';
//
// Several hosts (docs/fleet.md): two stacks, each an NGINX with its engine as on
// a host of its own, and in front of them an NGINX with nothing but a stock
// upstream, configured as the documentation says.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const {
  Stack, until, alive, freePort, workerUser, ROOT, BUILD, NGINX, read,
} = require('./lib/stack');
const { post, stream, request } = require('./lib/http');

const NULL = { backend: 'null', null_rate: 25, kv_memory: '64m' };
const prompt = (more = {}) => ({
  model: 'pocket', prompt: 'one two three', max_tokens: 40, ...more,
});
const begun = (s) => s.when(() => s.text().length > 0);

let hosts, front, url;

// The configuration of docs/fleet.md with our ports in it.
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
      .replace('listen 443 ssl http2;', `listen 127.0.0.1:${f.port};`);
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
    if (out.status !== 0) throw new Error(out.stderr);
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
  hosts = await Promise.all([0, 1].map(() => Stack.start({ engine: NULL })));
  front = await Front.start(hosts.map((h) => h.port));
  url = `http://127.0.0.1:${front.port}/v1/completions`;
});

after(async () => {
  if (front) await front.stop();
  await Promise.all((hosts || []).map((h) => h.stop()));
});

const running = async (host) => (await host.metrics())
  .value('tokenring_num_requests_running');

async function idle() {
  for (const host of hosts) await host.idle();
}

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

// The front takes up a host again that has failed: fail_timeout is 5 s.
async function used(host) {
  await until(async () => {
    const s = [stream(url, prompt({ stream: true, max_tokens: 20 })),
      stream(url, prompt({ stream: true, max_tokens: 20 }))];
    await Promise.all(s.map(begun));
    const there = await running(host);
    await Promise.all(s.map((x) => x.finished));
    return there > 0;
  }, 'the front uses it again');
}

test('both hosts serve, streams come as they are made', async () => {
  const all = Array.from({ length: 8 }, () =>
    stream(url, prompt({ stream: true, max_tokens: 100 })));
  // A stream of 4 s has begun and is not over: nothing gathers it.
  await Promise.all(all.map(begun));
  assert.ok(all.every((s) => !s.over));
  await until(async () => await running(hosts[0]) + await running(hosts[1])
    === 8, 'all run');
  assert.equal(await running(hosts[0]), 4);
  const done = await Promise.all(all.map((s) => s.finished));
  assert.ok(done.every((s) => s.done));
  assert.equal(new Set(done.map((s) => s.text())).size, 1);
});

test('a hang-up at the front reaches the engine', async () => {
  await idle();
  const s = stream(url, prompt({ stream: true, max_tokens: 3000 }));
  await begun(s);
  s.hangUp();
  await idle();
});

test('a host dies: what has no answer yet is answered by the other',
  async () => {
    await idle();
    const want = (await post(url, prompt())).json().choices[0].text;
    const streams = Array.from({ length: 4 }, () =>
      stream(url, prompt({ stream: true, max_tokens: 100 })));
    await Promise.all(streams.map(begun));
    const whole = Array.from({ length: 6 }, () => post(url, prompt()));
    await until(async () => await running(hosts[0]) + await running(hosts[1])
      === 10, 'all run');
    assert.ok(await running(hosts[0]) > 2);
    await crash(hosts[0]);
    for (const r of await Promise.all(whole)) {
      assert.equal(r.status, 200, r.text);
      assert.equal(r.json().choices[0].text, want);
    }
    const done = await Promise.all(streams.map((s) => s.finished));
    assert.equal(done.filter((s) => s.done).length, 2);
    // The others are cut, which a client sees.
    assert.ok(done.filter((s) => !s.done).every((s) => s.cut));
    for (let i = 0; i < 10; i++) {
      assert.equal((await post(url, prompt({ max_tokens: 2 }))).status, 200);
    }
    await recover(hosts[0]);
  });

test('an engine dies, its host lives: the front goes to the other', async () => {
  await idle();
  const whole = Array.from({ length: 6 }, () => post(url, prompt()));
  await until(async () => await running(hosts[0]) + await running(hosts[1])
    === 6, 'all run');
  await hosts[0].engine.kill('SIGKILL');
  for (const r of await Promise.all(whole)) {
    assert.equal(r.status, 200, r.text);
  }
  await hosts[0].engine.start();
  await hosts[0].healthy();
  await used(hosts[0]);
});

test('a drained host is passed over', async () => {
  await idle();
  const cli = path.join(BUILD, 'bin/tokenring');
  const drain = (...args) => spawnSync(cli,
    ['drain', ...args, hosts[1].engine.socket], { encoding: 'utf8' });
  assert.equal(drain().status, 0);
  for (let i = 0; i < 6; i++) {
    assert.equal((await post(url, prompt({ max_tokens: 2 }))).status, 200);
  }
  assert.equal((await request(`${hosts[1].url}/health`)).status, 503);
  assert.equal(drain('--undo').status, 0);
  await hosts[1].healthy();
  await used(hosts[1]);
});

test('nothing is left over', () => {
  for (const host of hosts) assert.deepEqual(host.complaints(), []);
});
