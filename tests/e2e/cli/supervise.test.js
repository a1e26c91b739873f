'use strict';
//
// Engines on demand (docs/fleet.md): tokenring supervise holds the sockets and
// starts engines when NGINX needs them, which it connects to for requests alone.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { spawn, spawnSync } = require('node:child_process');
const { Stack, BUILD, until } = require('../lib/stack');
const { post, request, stream } = require('../lib/http');
const { location, watch } = require('../lib/dashboard');

const CLI = path.join(BUILD, 'bin/tokenring');
const ENGINE = path.join(BUILD, 'bin/tokenring-engine');
const NULL = { backend: 'null', null_rate: 500, kv_memory: '64m' };

// body gets the stack, which has no engine, and what supervises: `log()` and
// `stop()`.  Engines leave after `idle`, workers let go of them after 100 ms.
async function supervised(head, options, body) {
  const stack = new Stack({ engine: NULL, ...options,
    sockets: 'start=ondemand start_timeout=60s idle=100ms '
      + `${options.sockets || ''}` });
  const settings = stack.engine;
  stack.options.engine = null;
  let child;
  try {
    await stack.begin();
    const lines = [settings, ...(options.more ? [options.more(stack)] : [])]
      .map((e) => {
        const conf = path.join(stack.dir, `${e.name}.conf`);
        fs.writeFileSync(conf, e.config());
        return `engine ${e.socket} -c ${conf}\n`;
      });
    const file = path.join(stack.dir, 'supervise.conf');
    fs.writeFileSync(file, `# of a test\nsocket_mode 0666\n${head}\n`
      + `\n${lines.join('')}`);
    child = spawn(CLI, ['supervise', file, '--engine', ENGINE]);
    const out = [];
    child.stdout.on('data', (text) => out.push(text));
    child.stderr.on('data', (text) => out.push(text));
    const log = () => Buffer.concat(out).toString();
    const exited = new Promise((resolve) => {
      child.on('exit', (code, signal) => resolve({ code, signal }));
    });
    await until(() => /wait for somebody to connect/.test(log()), log);
    await body(stack, {
      log,
      // Lines such as "started socket=main.sock", in order.
      events: () => [...log().matchAll(
        /^tokenring supervise: (\w+ socket=\w+)\.sock/gm)].map((m) => m[1]),
      pid: (name) => Number([...log().matchAll(
        new RegExp(`started socket=${name}\\.sock pid=(\\d+)`, 'g'))].at(-1)[1]),
      stop: () => { child.kill('SIGTERM'); return exited; },
    });
  } finally {
    if (child) child.kill('SIGTERM');
    await stack.stop();
  }
}

const ask = (stack, more = {}) => post(`${stack.url}/v1/completions`,
  { prompt: 'one two', max_tokens: 2, ...more });

test('an engine runs while it is needed', async () => {
  await supervised('idle 100ms', { sockets: 'model=pocket', workers: 2,
    engine: { ...NULL, served_model_name: 'pocket' } }, async (stack, s) => {
    const health = await request(`${stack.url}/health`);
    assert.equal(health.status, 200, health.text);
    assert.equal(health.json().engines[0].status, 'stopped');
    assert.deepEqual((await request(`${stack.url}/v1/models`)).json().data
      .map((m) => m.id), ['pocket']);
    assert.deepEqual(s.events(), []);

    // Many at once start it once, and all are answered.
    const all = await Promise.all(Array.from({ length: 20 }, () => ask(stack)));
    for (const r of all) assert.equal(r.status, 200, r.text);
    await until(() => s.events().includes('ended socket=main'), s.log);
    assert.equal((await request(`${stack.url}/health`)).json()
      .engines[0].status, 'stopped');
    assert.ok(fs.existsSync(stack.engine.socket), 'its socket stays');
    assert.equal((await ask(stack)).status, 200);

    // It stays for who is there, however long that takes.
    const held = stream(`${stack.url}/v1/completions`, { prompt: 'x',
      max_tokens: 800, ignore_eos: true, stream: true });
    await held.finished;
    assert.ok(held.done, held.raw.slice(-200));
    await until(() => s.events().filter((e) => /^started/.test(e)).length
      === s.events().filter((e) => /^ended/.test(e)).length, s.log);
    assert.ok(!/crashed/.test(s.log()), s.log());
    assert.deepEqual(await s.stop(), { code: 0, signal: null });
    assert.ok(!fs.existsSync(stack.engine.socket), 'its socket is gone');
  });
});

test('one that crashes is started again when it is needed', async () => {
  await supervised('idle 1h', {}, async (stack, s) => {
    assert.equal((await ask(stack)).status, 200);
    process.kill(s.pid('main'), 'SIGKILL');
    await until(() => /ended socket=main\.sock .* signal=9/.test(s.log()), s.log);
    const r = await ask(stack);
    assert.equal(r.status, 200, r.text);
    process.kill(s.pid('main'), 'SIGKILL');
    await until(() => /again_ms=2000/.test(s.log()), s.log);
    assert.match(s.log(), /again_ms=1000/);
    assert.deepEqual(s.events(), ['started socket=main', 'ended socket=main',
      'crashed socket=main', 'started socket=main', 'ended socket=main',
      'crashed socket=main']);
    // Those that run end with it.
    assert.equal((await ask(stack)).status, 200);
    const pid = s.pid('main');
    assert.deepEqual(await s.stop(), { code: 0, signal: null });
    assert.throws(() => process.kill(pid, 0), { code: 'ESRCH' });
  });
});

// The engine "main" with these settings, at a socket of its own.
function another(stack, settings = {}) {
  const socket = path.join(stack.dir, 'other.sock');
  return { name: 'other', socket, config: stack.engine.config,
    settings: { ...stack.engine.settings, socket, ...settings } };
}

test('one that cannot be started is neither healthy nor stopped until it can', async () => {
  const { Fleet } = await import('../../../dashboard/fleet.js');
  const { engineState } = await import('../../../dashboard/views.js');
  const stack = new Stack({ engine: NULL, server: location(),
    sockets: 'start=ondemand model=pocket' });
  stack.options.engine = null;
  try {
    await stack.begin();
    const health = () => request(`${stack.url}/health`);
    const shown = async () => {
      const page = watch(`${stack.url}/dashboard/`);
      await until(() => page.of('tick').length > 0, 'a tick');
      page.close();
      const fleet = new Fleet();
      fleet.apply(page.of('tick')[0]);
      return fleet.sorted().map((e) => [e.model, engineState(e, fleet)]);
    };
    // Nobody has needed it.
    assert.equal((await health()).json().engines[0].status, 'stopped');
    assert.deepEqual(await shown(), [['pocket', 'stopped']]);

    assert.equal((await ask(stack)).status, 503);
    let r = await health();
    assert.equal(r.status, 503, r.text);
    assert.equal(r.json().engines[0].reason, 'not connected');
    assert.deepEqual(await shown(), [['pocket', 'gone']]);

    // Who has left a sick server to itself learns when it is well again.
    await stack.engine.start();
    await until(async () => {
      r = await health();
      return r.status === 200;
    }, () => r.text);
    assert.equal(r.json().engines[0].status, 'ok');
    assert.equal((await ask(stack)).status, 200);
    assert.deepEqual(await shown(), [['pocket', 'ready']]);
  } finally {
    await stack.stop();
  }
});

test('a model that is asked for starts its engine, and no other', async () => {
  await supervised('idle 1h', { sockets: 'model=llama',
    engine: { ...NULL, served_model_name: 'llama' },
    http: `tokenring_engine other unix:DIR/other.sock start=ondemand
        start_timeout=60s model=qwen;
      tokenring_models all { engine main other; default llama; }`,
    server: 'location /all/v1/ { tokenring_pass models=all; }',
    more: (stack) => another(stack, { served_model_name: 'qwen' }),
  }, async (stack, s) => {
    const url = `${stack.url}/all/v1`;
    assert.deepEqual((await request(`${url}/models`)).json().data
      .map((m) => m.id).sort(), ['llama', 'qwen']);
    const of = (model) => post(`${url}/completions`,
      { model, prompt: 'one', max_tokens: 2 });
    assert.equal((await of('mistral')).status, 404);
    const r = await of('qwen');
    assert.equal(r.status, 200, r.text);
    assert.equal(r.json().model, 'qwen');
    assert.deepEqual(s.events(), ['started socket=other']);
    assert.equal((await of('llama')).json().model, 'llama');
    assert.deepEqual(s.events(), ['started socket=other',
      'started socket=main']);
    assert.equal((await of('mistral')).status, 404);
  });
});

test('no more than max_loaded at once: the next one waits for its turn',
  async () => {
    await supervised('max_loaded 1\nidle 100ms', {
      http: `tokenring_engine other unix:DIR/other.sock start=ondemand idle=100ms
        start_timeout=60s;`,
      server: 'location /other/v1/ { tokenring_pass other; }',
      more: (stack) => another(stack),
    }, async (stack, s) => {
      const held = stream(`${stack.url}/v1/completions`, { prompt: 'x',
        max_tokens: 100, ignore_eos: true, stream: true });
      await held.begun();
      const r = await post(`${stack.url}/other/v1/completions`,
        { prompt: 'one', max_tokens: 2 });
      assert.equal(r.status, 200, r.text);
      await held.finished;
      assert.ok(held.done);
      assert.deepEqual(s.events().slice(0, 3), ['started socket=main',
        'ended socket=main', 'started socket=other']);
    });
  });

test('what is wrong with a file is said, and where', () => {
  const dir = fs.mkdtempSync('/tmp/tokenring-supervise-');
  const file = path.join(dir, 'x.conf');
  try {
    for (const [text, why] of [
      ['', /x\.conf:0: no engine; expected engine \/SOCKET -c CONFIG/],
      ['\nengine main.sock -c x', /x\.conf:2: expected engine \/SOCKET/],
      ['engine /a.sock -c x\nengine /a.sock -c y', /:2: a second engine at \/a/],
      ['max_loaded 0', /expected max_loaded 1 to 64, not 0/],
      ['idle soon', /:1: .*exit_idle.*soon/],
      ['socket_mode 9', /:1: .*socket_mode.*9/],
      ['engines 3', /expected engine, max_loaded, idle or socket_mode/],
      ['idle', /expected a word and its value: idle/],
    ]) {
      fs.writeFileSync(file, text);
      const r = spawnSync(CLI, ['supervise', file, '--engine', ENGINE],
        { encoding: 'utf8' });
      assert.equal(r.status, 1, r.stderr);
      assert.match(r.stderr, why);
    }
    // What may be right, but not with NGINX's defaults.
    const engines = ['a', 'b'].map((name) =>
      `engine ${dir}/none/${name}.sock -c x\n`).join('');
    for (const [text, why] of [
      ['max_loaded 1', / max_loaded is 1 for 2 engines,.* idle for 10m: .* 503 /],
      ['max_loaded 1\nidle 2m', / idle for 2m: /],
      ['max_loaded 1\nidle 0', / idle for ever: /],
      ['max_loaded 1\nidle 30s', null], ['max_loaded 2', null], ['', null],
    ]) {
      fs.writeFileSync(file, `${engines}${text}`);
      const r = spawnSync(CLI, ['supervise', file, '--engine', ENGINE],
        { encoding: 'utf8' });
      assert.equal(r.status, 1, r.stderr); // there is no such directory
      if (why) assert.match(r.stderr, why);
      else assert.ok(!r.stderr.includes('warning'), r.stderr);
    }
  } finally {
    fs.rmSync(dir, { recursive: true });
  }
  const none = spawnSync(CLI, ['supervise'], { encoding: 'utf8' });
  assert.equal(none.status, 2);
  assert.match(none.stderr, /which engines\? give their FILE first/);
  // An engine that is given something else than a socket says so.
  const r = spawnSync('sh', ['-c',
    `LISTEN_PID=$$ LISTEN_FDS=1 exec ${ENGINE} --model x --socket /tmp/x.sock 3</dev/null`],
  { encoding: 'utf8' });
  assert.equal(r.status, 1, r.stderr);
  assert.match(r.stderr, /LISTEN_FDS is 1, or not a Unix socket that listens/);
});
