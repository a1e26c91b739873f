'use strict';
//
// What a newcomer types: up, demo, down, install.  In a state directory of its
// own, so that a running `make up` is not disturbed.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const {
  ROOT, BUILD, MODULE, NGINX, freePort, alive, read, until, workerUser,
} = require('../lib/stack');
const { Redis } = require('../lib/redis');
const { Browser, PHONE, when } = require('../lib/browser');
const { request, post } = require('../lib/http');
const { goldens, chat } = require('../lib/prompts');
const OpenAI = require('openai');

function place(body) {
  return async (t) => {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-e2e-'));
    fs.chmodSync(dir, 0o755);
    const env = {
      ...process.env, TR_RUN: path.join(dir, 'run'), B: BUILD,
      PORT: String(await freePort()), NO_COLOR: '1',
    };
    const run = (name, more = {}) => {
      const out = spawnSync(path.join(ROOT, 'scripts', name),
        { env: { ...env, ...more }, encoding: 'utf8', timeout: 120000 });
      return { status: out.status, text: `${out.stdout}${out.stderr}` };
    };
    const pid = (name) => Number(read(path.join(dir, 'run', name)).trim());
    try {
      await body({ dir, env, run, pid, t });
    } finally {
      run('down.sh');
      fs.rmSync(dir, { recursive: true, force: true });
    }
  };
}

// The scripts use the module for the stock NGINX.
const stock = MODULE !== 'static';

test('up, up again, demo, down, down again', { skip: !stock }, place(
  async ({ env, run, pid }) => {
    const url = `http://127.0.0.1:${env.PORT}`;
    const first = run('up.sh');
    assert.equal(first.status, 0, first.text);
    assert.match(first.text, new RegExp(url));
    const state = () => ['engine.pid', 'nginx.pid', 'redis.pid'].map(pid);
    const pids = state();
    assert.ok(pids.every(alive), `${pids}`);
    assert.equal((await request(`${url}/health`)).status, 200);
    const page = await request(`${url}/dashboard/`);
    assert.equal(page.status, 200);
    assert.match(page.text, /<title>Tokenring<\/title>/);
    const front = await request(`${url}/`);
    assert.equal(front.status, 200);
    for (const [, file] of front.text.matchAll(/(?:href|src)="([\w.]+)"/g)) {
      assert.equal((await request(`${url}/${file}`)).status, 200, file);
    }

    const again = run('up.sh');
    assert.equal(again.status, 0, again.text);
    assert.deepEqual(state(), pids);

    // What needs Redis is there, and nobody else gets at it.
    const answer = await post(`${url}/v1/chat/completions`, chat('Hello!'));
    const id = answer.headers['x-tokenring-id'];
    assert.match(id, /^[0-9a-f]{32}$/);
    const kept = await until(async () => {
      const r = await request(`${url}/v1/requests/${id}/stream`);
      return r.status === 200 && r;
    }, 'the answer again');
    assert.deepEqual(kept.json().choices, answer.json().choices);
    assert.equal(fs.statSync(path.join(env.TR_RUN, 'redis')).mode & 0o7, 0);

    const demo = run('demo.sh');
    assert.equal(demo.status, 0, demo.text);
    assert.ok(demo.text.includes(goldens[1].continuation), demo.text);
    assert.ok(demo.text.includes('find_price({"item": "brass lamp", "town": '
      + '"Ashford"})'), demo.text);
    assert.match(demo.text, /The brass lamp costs 42 crowns in Ashford\./);
    assert.match(demo.text, /The clay clock from Ashstow costs 425 crowns\./);
    // As the documentation shows it, but for what another CPU rounds otherwise.
    const said = (text) => /^ +(\d+) tokens: [\d.]+ MiB of KV cache instead of [\d.]+ MiB at 16 bits \(ratio ([\d.]+), diffkv\)$/m
      .exec(text);
    const [, tokens, ratio] = said(demo.text);
    const shown = said(read(path.join(ROOT, 'docs/getting-started.md')));
    assert.ok(tokens > 1000 && ratio < 0.5, `${tokens} tokens: ${ratio}`);
    assert.equal(shown[1], tokens);
    assert.ok(Math.abs(shown[2] - ratio) < 0.01, `${shown[0]}: ${ratio}`);
    for (const word of ['curl', `make down PREFIX=${env.TR_RUN}\n`,
      `page      ${url}/ `, `${url}/dashboard/\n`, `${url}/metrics`]) {
      assert.ok(demo.text.includes(word), word);
    }

    const down = run('down.sh');
    assert.equal(down.status, 0, down.text);
    assert.ok(pids.every((p) => !alive(p)), 'all are gone');
    const idle = run('down.sh');
    assert.equal(idle.status, 0);
    assert.match(idle.text, /Nothing was running/);
  }));

test('up: a batch meets no limit, and all files are in one place',
  { skip: !stock }, place(async ({ dir, env, run, pid }) => {
    const out = run('up.sh');
    assert.equal(out.status, 0, out.text);
    const client = new OpenAI({ baseURL: `http://127.0.0.1:${env.PORT}/v1`,
      apiKey: 'x', maxRetries: 0 });
    const all = await Promise.allSettled(Array.from({ length: 150 }, () =>
      client.chat.completions.create({ ...chat('Hello!'), max_tokens: 4 })));
    assert.deepEqual(all.filter((r) => r.status === 'rejected')
      .map((r) => String(r.reason)), []);

    assert.match(read(path.join(dir, 'run/nginx-tokenring.log')), /finish=/);
    const open = `/proc/${pid('nginx.pid')}/fd`;
    const files = fs.readdirSync(open).map((fd) =>
      fs.readlinkSync(path.join(open, fd))).filter((name) =>
      name.startsWith('/') && !name.startsWith('/dev/'));
    assert.ok(files.length >= 2, files.join(' '));
    for (const file of files) assert.ok(file.startsWith(dir), file);

    // Whoever starts them, nobody else gets at the socket, and the engine has no
    // rights that it does not need.
    const socket = fs.statSync(path.join(dir, 'run/engine.sock'));
    assert.equal(socket.mode & 0o7, 0, socket.mode.toString(8));
    const uid = Number(/^Uid:\s+(\d+)/m
      .exec(read(`/proc/${pid('engine.pid')}/status`))[1]);
    if (process.getuid() === 0) assert.notEqual(uid, 0);
    assert.equal(socket.uid, uid);
  }));

test('up: what only root can reach runs elsewhere, and not as root',
  { skip: !stock || process.getuid() !== 0 }, place(async ({ dir, run, env }) => {
    const build = path.join(dir, 'closed/build');
    for (const file of ['bin/tokenring-engine', 'bin/tokenring',
      path.relative(BUILD, MODULE)]) {
      fs.mkdirSync(path.dirname(path.join(build, file)), { recursive: true });
      fs.copyFileSync(path.join(BUILD, file), path.join(build, file));
    }
    fs.chmodSync(path.join(dir, 'closed'), 0o700);
    const refused = run('up.sh', { B: build });
    assert.equal(refused.status, 1);
    assert.match(refused.text, /only root can reach .* ALLOW_ROOT=1/);

    const own = { B: build, TR_RUN: '' };
    try {
      const out = run('up.sh', own);
      assert.equal(out.status, 0, out.text);
      assert.match(out.text, /Only root can reach .*: what runs is in \/run\//);
      const pid = () => Number(read(path.join(build, 'run/engine.pid')));
      const uid = Number(/^Uid:\s+(\d+)/m
        .exec(read(`/proc/${pid()}/status`))[1]);
      assert.notEqual(uid, 0);
      const url = `http://127.0.0.1:${env.PORT}`;
      assert.equal((await post(`${url}/v1/chat/completions`,
        chat('Hello!'))).status, 200);
      const before = pid();
      const moved = fs.realpathSync(path.join(build, 'run'));
      assert.equal(run('up.sh', own).status, 0);
      assert.equal(pid(), before);

      // As soon as others can reach it, it runs where it is.
      fs.chmodSync(path.join(dir, 'closed'), 0o755);
      assert.equal(run('up.sh', own).status, 0);
      assert.ok(fs.lstatSync(path.join(build, 'run')).isDirectory());
      assert.ok(!alive(before) && alive(pid()) && !fs.existsSync(moved));
    } finally {
      const at = fs.realpathSync(path.join(build, 'run'));
      run('down.sh', own);
      if (at.startsWith('/run/tokenring-')) fs.rmSync(at, { recursive: true });
    }
  }));

test('up: a model that the engine\'s user cannot read is said',
  { skip: !stock || process.getuid() !== 0 }, place(async ({ dir, run }) => {
    const model = path.join(dir, 'model');
    fs.mkdirSync(model);
    fs.writeFileSync(path.join(model, 'config.json'), '{}', { mode: 0o600 });
    const out = run('up.sh', { MODEL: model, ENGINE_USER: 'nobody' });
    assert.equal(out.status, 1);
    assert.match(out.text, /user nobody cannot read MODEL=.*model/);
  }));

test('up: the cache is compressed as POLICY= says, and requests may choose',
  { skip: !stock }, place(async ({ dir, env, run }) => {
    const ask = (kv_policy) => request(
      `http://127.0.0.1:${env.PORT}/v1/chat/completions`, { method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ ...chat('Hello!'), max_tokens: 4, kv_policy }) });
    const log = () => read(path.join(dir, 'run/engine.log'));
    assert.equal(run('up.sh').status, 0);
    assert.match(log(), /kv policy diffkv:.*alpha_high=20,alpha_low=0,.* \(default\) from=kv_policy\.json/);
    for (const policy of ['full', 'diffkv', 'uniform', undefined]) {
      const answer = await ask(policy);
      assert.equal(answer.status, 200, answer.text);
    }
    assert.match((await ask('h2o')).text, /allows: .*diffkv.*full.*uniform/);
    assert.equal(run('up.sh', { POLICY: 'uniform:levels=8/8' }).status, 0);
    assert.match(log(), /kv policy uniform:levels=8\/8,.* \(default\) from=settings/);
    assert.equal((await ask('diffkv')).status, 200);
    const none = run('up.sh', { POLICY: 'a b' });
    assert.equal(none.status, 1);
    assert.match(none.text, /POLICY=a b is not a KV policy/);
  }));

test('up ENGINES=2: the page stops an engine, and its stream goes on at the other',
  { skip: !stock }, place(async ({ dir, env, run, pid }) => {
    const url = `http://127.0.0.1:${env.PORT}`;
    const out = run('up.sh', { ENGINES: '2', AWAY: '1' });
    assert.equal(out.status, 0, out.text);
    const ready = async (n) => until(async () => (await request(`${url}/health`))
      .text.includes(`"sockets":2,"ready":${n}}`), `${n} engines`);
    await ready(2);

    // Only what the page itself sends: no other origin, nor a name that somebody
    // else has pointed here.
    const stop = (headers, method = 'POST') =>
      request(`${url}/engines/1/stop`, { method, headers });
    const here = `127.0.0.1:${env.PORT}`;
    const first = pid('engine.pid');
    for (const [headers, method] of [
      [{}], [{ Origin: url }, 'GET'], [{ Origin: 'null' }],
      [{ Origin: 'http://evil.example' }], [{ Origin: 'http://127.0.0.1:1' }],
      [{ Host: 'evil.example', Origin: 'http://evil.example' }],
      [{ Host: here, Origin: `http://${here}.evil.example` }],
      [{ Host: here, Origin: `https://${here}` }],
    ]) {
      const refused = await stop(headers, method);
      assert.equal(refused.status, 403, JSON.stringify(headers));
    }
    assert.equal(read(path.join(dir, 'run/engines-stop.log')), '');

    const browser = await Browser.start();
    try {
      const page = await browser.open(`${url}/`, { viewport: PHONE });
      await when(page, () => document.getElementById('model').value === 'pocket'
        && document.querySelectorAll('.engine[data-state=idle]').length === 2);
      // Others keep both engines busy: alone the story may be told between two
      // looks of the page at them.
      const others = new AbortController();
      const load = Array.from({ length: 12 }, () => fetch(`${url}/v1/completions`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ model: 'pocket', prompt: 'Once', max_tokens: 1500,
          ignore_eos: true }),
        signal: others.signal,
      }).catch(() => null));
      await page.locator('#prompt').fill('Tell me a story about a fox named Tobin.');
      await page.keyboard.press('Enter');
      await page.locator('.engine[data-state=busy] button').first().click();
      others.abort();
      await Promise.all(load);
      await when(page, () => document.querySelector('.engine[data-state=stopped]'));
      await when(page, () => document.querySelector('.foot [data-again]'));
      assert.equal(await page.locator('#log .alert').count(), 0);
      assert.match(await page.locator('.answer').textContent(), /Tobin[^]{40}/);
      await when(page, () =>
        document.querySelectorAll('.engine[data-state=idle]').length === 2);
      assert.deepEqual(page.complaints, []);
      assert.deepEqual(page.foreign, []);
    } finally {
      await browser.stop();
    }
    assert.match(read(path.join(dir, 'run/engines-stop.log')),
      /^\/engines\/[12]\/stop\n$/);

    // Nothing stops the first one but a request.
    const again = pid('engine.pid');
    assert.equal((await stop({ Origin: url })).status, 204);
    await until(() => !alive(again), 'its end');
    await until(() => pid('engine.pid') !== again, 'the next one');
    assert.notEqual(first, pid('engine.pid'));
    await ready(2);

    // One engine, as shipped: no button, and nothing that it could ask.
    const second = pid('engine2.pid');
    const watch = pid('watch.pid');
    assert.equal(run('up.sh').status, 0);
    assert.ok(!alive(second) && !alive(watch));
    assert.doesNotMatch((await request(`${url}/`)).text, /engines/);
    assert.equal((await request(`${url}/engines.js`)).status, 404);
    // a worker of before the reload may still answer for a moment
    await until(async () => [404, 405].includes((await stop({ Origin: url })).status),
      'no place that stops engines');
    assert.match(run('up.sh', { ENGINES: '9' }).text, /ENGINES=9 is not 1 to 8/);
  }));

test('up with a Redis: the dashboard shows the engine', { skip: !stock }, place(
  async ({ env, run, pid }) => {
    const redis = await Redis.start();
    try {
      const out = run('up.sh', { REDIS: redis.address });
      assert.equal(out.status, 0, out.text);
      const text = await until(() => new Promise((resolve, reject) => {
        const req = http.get(`http://127.0.0.1:${env.PORT}/dashboard/events`,
          { agent: false }, (res) => {
            let all = '';
            res.setEncoding('utf8').on('data', (d) => {
              all += d;
              if (!/"type":"tick".*\n/.test(all)) return;
              req.destroy();
              resolve(/"name":"main"/.test(all) && all);
            });
          });
        req.on('error', reject);
      }), 'the engine in the stream');
      assert.match(text, /"redis":"up"/);
      assert.match(text, /"model":"pocket"/);
      assert.equal(pid('redis.pid'), 0, 'no Redis of its own beside it');
      const url = `http://127.0.0.1:${env.PORT}`;
      const kept = await post(`${url}/v1/chat/completions`, chat('Hello!'));
      assert.match(kept.headers['x-tokenring-id'], /^[0-9a-f]{32}$/);

      // From a Redis of its own to none.
      const own = run('up.sh');
      assert.equal(own.status, 0, own.text);
      const first = pid('redis.pid');
      assert.ok(alive(first));
      const none = run('up.sh', { REDIS: 'none' });
      assert.equal(none.status, 0, none.text);
      assert.ok(!alive(first));
      await until(async () => !(await post(`${url}/v1/chat/completions`,
        chat('Hello!'))).headers['x-tokenring-id'], 'nothing is kept');
    } finally {
      run('down.sh');
      await redis.stop();
    }
  }));

test('up: a port that is taken', { skip: !stock }, place(
  async ({ env, run }) => {
    const server = net.createServer().listen(Number(env.PORT), '127.0.0.1');
    await once(server, 'listening');
    try {
      const out = run('up.sh');
      assert.notEqual(out.status, 0);
      assert.match(out.text, /port \d+ is taken/);
    } finally {
      server.close();
    }
  }));

test('up: an engine that cannot start says why', { skip: !stock }, place(
  async ({ dir, run }) => {
    const model = path.join(dir, 'model');
    fs.mkdirSync(model);
    fs.writeFileSync(path.join(model, 'config.json'), '{}');
    const out = run('up.sh', { MODEL: model });
    assert.notEqual(out.status, 0);
    assert.match(out.text, /the engine stopped while it was starting/);
    assert.match(out.text, /(config|tokenizer)\.json/);
  }));

const skip = MODULE === 'static' && 'the module is built into this nginx';

test('install: everything in its place, and NGINX accepts it', { skip }, place(
  async ({ dir, run }) => {
    const root = path.join(dir, 'root');
    const install = () => run('install.sh', { DESTDIR: root, PREFIX: '/usr' });
    const out = install();
    assert.equal(out.status, 0, out.text);
    for (const file of ['usr/bin/tokenring-engine', 'usr/bin/tokenring',
      'etc/tokenring/engine.conf', 'etc/tokenring/tokenring.conf',
      'etc/tokenring/nginx.conf', 'usr/lib/sysusers.d/tokenring.conf',
      'lib/systemd/system/tokenring-engine.service',
      'lib/systemd/system/tokenring-engine@.service',
      'lib/systemd/system/tokenring-engine@.socket',
      'usr/share/tokenring/models/pocket/config.json',
      'usr/share/tokenring/page/index.html',
      'usr/share/tokenring/page/base.css',
      'usr/share/tokenring/dashboard/index.html',
      'usr/share/tokenring/dashboard/vendor/uPlot.esm.js',
      'usr/share/tokenring/dashboard/vendor/uPlot.LICENSE',
      'usr/share/doc/tokenring/prometheus/tokenring.rules.yml',
      'usr/share/doc/tokenring/grafana/dashboards/tokenring.json',
      'usr/share/man/man1/tokenring.1', 'usr/share/man/man1/tokenring-run.1',
      'usr/share/man/man8/tokenring-engine.8',
      'usr/share/bash-completion/completions/tokenring',
      'usr/share/zsh/vendor-completions/_tokenring',
      'usr/share/fish/vendor_completions.d/tokenring.fish',
      'usr/share/doc/tokenring/README.md',
      'usr/share/doc/tokenring/docs/operations.md',
      'usr/share/nginx/modules-available/mod-http-tokenring.conf',
      'usr/lib/nginx/modules/ngx_http_tokenring_module.so']) {
      if (!stock && file.endsWith('.so')) continue;
      assert.ok(fs.existsSync(path.join(root, file)), file);
    }
    const unit = read(path.join(root,
      'lib/systemd/system/tokenring-engine.service'));
    assert.match(unit, /^ExecStart=\/usr\/bin\/tokenring-engine/m);
    assert.doesNotMatch(unit, /@\w+dir@/);
    // What engine.conf proposes as cache_dir can be made there.
    const proposed = /^# cache_dir (.*)$/m.exec(
      read(path.join(root, 'etc/tokenring/engine.conf')))[1];
    for (const name of ['tokenring-engine', 'tokenring-engine@']) {
      const text = read(path.join(root, `lib/systemd/system/${name}.service`));
      assert.equal(path.join('/var/cache',
        /^CacheDirectory=(.*)$/m.exec(text)[1]), path.dirname(proposed));
      assert.match(text, /^CacheDirectoryMode=0700$/m);
    }

    // What the administrator changed stays.
    const conf = path.join(root, 'etc/tokenring/engine.conf');
    fs.appendFileSync(conf, 'max_queue 7\n');
    const second = install();
    assert.equal(second.status, 0, second.text);
    assert.match(second.text, /engine\.conf was kept/);
    assert.match(read(conf), /max_queue 7/);
    assert.ok(fs.existsSync(`${conf}.new`));
    assert.ok(!fs.existsSync(path.join(root, 'etc/tokenring/nginx.conf.new')));

    // The shipped configuration, with its paths moved into the temp root.
    const user = workerUser();
    fs.mkdirSync(path.join(dir, 'temp'), { recursive: true });
    for (const name of ['nginx.conf', 'tokenring.conf']) {
      const file = path.join(root, 'etc/tokenring', name);
      fs.writeFileSync(file, read(file)
        .replace(/^load_module .*$/m, stock ? `load_module ${MODULE};` : '')
        .replace(/^user .*$/m, user ? `user ${user} nogroup;` : '')
        .replaceAll('/etc/tokenring/', path.join(root, 'etc/tokenring/'))
        .replaceAll('/var/log/nginx/', `${dir}/`)
        .replaceAll('/usr/share/tokenring/',
          path.join(root, 'usr/share/tokenring/'))
        .replaceAll('/run/nginx.pid', `${dir}/nginx.pid`)
        .replaceAll('/var/lib/nginx/', `${dir}/temp/`));
    }
    const check = spawnSync(NGINX, ['-t', '-p', dir, '-e', `${dir}/e.log`,
      '-c', path.join(root, 'etc/tokenring/nginx.conf')], { encoding: 'utf8' });
    assert.equal(check.status, 0, check.stderr);
    assert.doesNotMatch(check.stderr, /\[warn\]/);
  }));

test('uninstall: all of it goes but the configuration', { skip }, place(
  async ({ dir, run }) => {
    const env = { DESTDIR: path.join(dir, 'root'), PREFIX: '/opt/tr' };
    const files = () => fs.readdirSync(env.DESTDIR, { recursive: true })
      .filter((name) => !fs.statSync(path.join(env.DESTDIR, name)).isDirectory());
    const theirs = path.join(env.DESTDIR, 'opt/tr/share/tokenring/models/own');
    const none = run('uninstall.sh', env);
    assert.equal(none.status, 1);
    assert.match(none.text, /was it installed with another PREFIX=/);

    assert.equal(run('install.sh', env).status, 0);
    assert.ok(files().length > 50, files().join('\n'));
    fs.mkdirSync(theirs);
    fs.writeFileSync(path.join(theirs, 'config.json'), '{}');
    const out = run('uninstall.sh', env);
    assert.equal(out.status, 0, out.text);
    assert.deepEqual(files().sort(), ['etc/tokenring/engine.conf',
      'etc/tokenring/nginx.conf', 'etc/tokenring/tokenring.conf',
      'opt/tr/share/tokenring/models/own/config.json']);
    assert.ok(!fs.existsSync(path.join(env.DESTDIR, 'opt/tr/lib/tokenring')));
  }));

// Each planted file, and what make lint must say of it (undefined: nothing).
const INCLUDES = {
  'engine/scheduler/down.c': ['"engine/kv/kv_cache.h"'],
  'engine/scheduler/own.c': ['"own.h"'],
  'ngx_module/redis/own.c': ['"ngx_http_tokenring_x.h"'],
  'ngx_module/redis/contract.c': ['<tokenring/wire.h>'],
  'engine/kv/up.c': ['"engine/scheduler/loop.h"',
    'engine/kv is below engine/scheduler'],
  'engine/model/cpu/beside.c': ['"engine/model/cuda/model_cuda.h"',
    'engine/model/cpu and engine/model/cuda are on one floor'],
  'kernels/up.c': ['"engine/config/log.h"', 'kernels is below engine/config'],
  'ngx_module/core/engine.c': ['"engine/config/log.h"',
    'ngx_module may use only include/tokenring'],
  'engine/attic/new.c': ['<tokenring/wire.h>', undefined],
  'cli/test.c': ['"tests/unit/fixtures/x.h"',
    'tests/unit/fixtures has no floor'],
};

test('includes that run up are found', (t) => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-e2e-'));
  t.after(() => fs.rmSync(dir, { recursive: true, force: true }));
  const plant = (name, text) => {
    fs.mkdirSync(path.dirname(path.join(dir, name)), { recursive: true });
    fs.writeFileSync(path.join(dir, name), text);
  };
  plant('engine/scheduler/own.h', '');
  plant('ngx_module/core/ngx_http_tokenring_x.h', '');
  for (const [name, [include]] of Object.entries(INCLUDES)) {
    plant(name, `\n#include ${include}\n`);
  }
  const out = spawnSync('node', [
    path.join(ROOT, 'scripts', 'check-includes.js'), dir],
  { encoding: 'utf8' });
  const expected = Object.entries(INCLUDES).filter(([, [, why]]) => why)
    .map(([name, [include, why]]) => `${name}:2: includes ${
      include.slice(1, -1)}: ${why}`);
  assert.equal(out.stderr, '');
  assert.deepEqual(out.stdout.trim().split('\n').sort(), expected.sort());
  assert.equal(out.status, 1);
});
