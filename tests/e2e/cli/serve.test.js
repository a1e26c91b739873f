'use strict';
//
// `tokenring serve`: an engine and an NGINX by one command, both gone when it
// ends, however it ends.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawn, spawnSync } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { BUILD, MODULE, NGINX, POCKET, alive, freePort, until } =
  require('../lib/stack');
const { post, request } = require('../lib/http');
const { chat, endless, goldens } = require('../lib/prompts');

const CLI = path.join(BUILD, 'bin/tokenring');
const skip = MODULE === 'static' && 'the module is built into this nginx';

// Its descendants, by the process table.
function children(pid) {
  const out = spawnSync('ps', ['-o', 'pid=', '--ppid', String(pid)],
    { encoding: 'utf8' });
  return out.stdout.trim().split(/\s+/).filter(Boolean).map(Number)
    .flatMap((child) => [child, ...children(child)]);
}

async function serve(args, body) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-e2e-'));
  const child = spawn(CLI, ['serve', POCKET, '--nginx', NGINX, '--module',
    MODULE, '--set', 'kv_memory=32m', ...args],
  { env: { ...process.env, TMPDIR: dir }, stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = once(child, 'exit');
  const s = { child, out: '', err: '', dir };
  child.stdout.setEncoding('utf8').on('data', (d) => { s.out += d; });
  child.stderr.setEncoding('utf8').on('data', (d) => { s.err += d; });
  try {
    await until(() => /\n/.test(s.out) || child.exitCode !== null,
      () => s.out + s.err);
    [s.url] = /http:\/\/[\w.:]+/.exec(s.out) || [];
    s.all = children(child.pid);
    await body(s);
    const [status] = await ended;
    await until(() => s.all.every((pid) => !alive(pid)), 'all have ended');
    assert.deepEqual(fs.readdirSync(dir), []);
    return { status, out: s.out, err: s.err };
  } finally {
    child.kill('SIGKILL');
    fs.rmSync(dir, { recursive: true, force: true });
  }
}

test('serve: answers, and Ctrl-C lets a stream come to its end', { skip },
  async () => {
    let stream;
    const r = await serve(['--port', String(await freePort())], async (s) => {
      assert.ok(s.all.length >= 3, `${s.all}`); // engine, master, workers
      const answer = await post(`${s.url}/v1/chat/completions`, chat('Hello!'));
      assert.equal(answer.status, 200, answer.text);
      const { choices, usage } = answer.json();
      assert.ok(goldens[0].continuation.startsWith(choices[0].message.content));
      assert.ok(usage.kv_cache.ratio < 1, 'diffkv');
      for (const kv_policy of ['full', 'uniform']) {
        assert.equal((await post(`${s.url}/v1/chat/completions`,
          chat('Hello!', { kv_policy }))).status, 200);
      }
      for (const [at, type] of [['/health', /./], ['/metrics', /text\/plain/],
        ['/', /text\/html/]]) {
        const page = await request(`${s.url}${at}`);
        assert.equal(page.status, 200, at);
        assert.match(page.headers['content-type'] || 'none', type, at);
      }
      stream = post(`${s.url}/v1/chat/completions`, endless(1, 300));
      await until(async () => /running\S* 1$/m.test((await request(
        `${s.url}/metrics`)).text), 'it runs');
      s.child.kill('SIGINT');
    });
    assert.equal(r.status, 0, r.err);
    const last = await stream;
    assert.equal(last.status, 200, last.text);
    assert.match(last.text, /"finish_reason":"length"[^]*data: \[DONE\]/);
  });

for (const [who, pattern] of [['the engine', /tokenring-engine/],
  ['NGINX', /nginx: master/]]) {
  test(`serve: when ${who} ends, so does the rest`, { skip }, async () => {
    const r = await serve(['--port', String(await freePort()), '--json'], async (s) => {
      assert.equal(JSON.parse(s.out).url, s.url);
      const pid = s.all.find((p) => pattern.test(
        fs.readFileSync(`/proc/${p}/cmdline`, 'utf8')));
      process.kill(pid, 'SIGKILL');
    });
    assert.equal(r.status, 1);
    assert.match(r.err, new RegExp(`tokenring serve: ${who} ended`));
  });
}

test('serve: what cannot be served is said', { skip }, async () => {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const taken = String(server.address().port);
  const run = (...args) => spawnSync(CLI, ['serve', ...args],
    { encoding: 'utf8', timeout: 60000 });
  try {
    for (const [args, status, message] of [
      [[POCKET, '--nginx', NGINX, '--module', MODULE, '--port', taken], 1,
        /port \d+ is taken on 127\.0\.0\.1/],
      [[], 2, /which model/],
      [[POCKET, '--host', 'localhost'], 2, /expected an IPv4 address/],
      [[POCKET, '--nginx', '/no/nginx'], 1, /there is no \/no\/nginx/],
      [[POCKET, '--nginx', NGINX, '--module', '/no.so'], 1, /there is no \/no\.so/],
      [['/no/model', '--nginx', NGINX, '--module', MODULE], 1,
        /no\/model[^]*the engine ended while it was starting/],
    ]) {
      const out = run(...args);
      assert.equal(out.status, status, out.stderr);
      assert.match(out.stderr, message);
    }
  } finally {
    server.close();
  }
});
