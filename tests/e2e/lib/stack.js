'use strict';
//
// A stack: one engine behind one NGINX, in a directory of its own, on free
// loopback ports.  Tests start one, speak to it, and stop it; whatever happens
// to a test, nothing of it is left running (an exit handler kills the rest).
//
// When the tests run as root, NGINX's workers run as `nobody` while the engine
// stays root: the two have different users in production, too.
//
//   TR_BUILD   where tokenring-engine and the module are   (build/)
//   TR_NGINX   another nginx binary                        (Debian's)
//   TR_MODULE  another module; "static": it is built in
//   TR_KEEP=1  keeps the directory, to look at logs
//   TR_BACKEND=cuda  engines that would compute on the CPU use a GPU, with the
//              library TR_CUDA_LIBRARY (default: beside the engine); "soft" is
//              the software device of the unit tests
//   TR_DTYPE   of the weights there: f16 has fewer near ties (lib/same.js)

const { spawn, spawnSync } = require('node:child_process');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const http2 = require('node:http2');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const { request } = require('./http');
const { ready } = require('./ready');

const ROOT = path.resolve(__dirname, '../../..');
const BUILD = path.resolve(ROOT, process.env.TR_BUILD || process.env.B || 'build');
// Of what was built from here.
const VERSION = /^#define TR_VERSION "(\d+\.\d+\.\d+)"$/m.exec(fs.readFileSync(
  path.join(ROOT, 'include/tokenring/version.h'), 'utf8'))[1];
const POCKET = path.join(ROOT, 'models/pocket');
const ENGINE = path.join(BUILD, 'bin/tokenring-engine');
const MODULE = process.env.TR_MODULE
  || path.join(BUILD, 'module/ngx_http_tokenring_module.so');
const NGINX = process.env.TR_NGINX
  || ['/usr/sbin/nginx', '/usr/local/sbin/nginx', '/usr/local/nginx/sbin/nginx']
    .find((p) => fs.existsSync(p)) || 'nginx';
// Where engines compute when a test does not say.
const DEVICE = !process.env.TR_BACKEND ? {} : {
  backend: process.env.TR_BACKEND,
  cuda_library: process.env.TR_CUDA_LIBRARY === 'soft'
    ? path.join(BUILD, 'tests/libtokenring_soft.so')
    : process.env.TR_CUDA_LIBRARY,
  dtype: process.env.TR_DTYPE,
};
// A slow machine, or a sanitizer build, may take this much longer.
const PATIENCE = Number(process.env.TR_PATIENCE || 1);

ready([
  [ENGINE, 'make'],
  ...(MODULE === 'static' ? [] : [[MODULE, 'make']]),
  // Benchmarks use this file, too, and no packages.
  ...(/\.test\.js$/.test(process.argv[1] || '')
    ? [[path.join(ROOT, 'tests/e2e/node_modules'), 'make deps']] : []),
]);

// Everything that must not outlive this process.
const living = new Set();
const stacks = new Set();
process.on('exit', () => {
  // A master that is killed would leave its workers behind.
  for (const stack of stacks) {
    for (const pid of stack.workers()) living.add(pid);
    if (!process.env.TR_KEEP) {
      fs.rmSync(stack.dir, { recursive: true, force: true });
    }
  }
  for (const child of living) {
    try { process.kill(child, 'SIGKILL'); } catch { /* gone */ }
  }
});
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.on(signal, () => process.exit(1));
}

function alive(pid) {
  try {
    process.kill(pid, 0);
  } catch {
    return false;
  }
  // A zombie answers signals, too.
  const stat = read(`/proc/${pid}/stat`);
  return stat !== '' && stat.slice(stat.lastIndexOf(')') + 2)[0] !== 'Z';
}

function read(file) {
  try {
    return fs.readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}

// Stops a process; returns when all its threads have stopped: on a busy machine
// one may go on for a while.
function halt(pid) {
  process.kill(pid, 'SIGSTOP');
  return until(() => fs.readdirSync(`/proc/${pid}/task`).every((task) =>
    /\) T /.test(read(`/proc/${pid}/task/${task}/stat`))), 'it stops');
}

// A worker of NGINX that has gone, or waits for its last requests.
function leaves(pid) {
  return !alive(pid) || /shutting down/.test(read(`/proc/${pid}/cmdline`));
}

// Waits until the other side has read all that was written to this socket of
// ours: nothing is in the queues of either end.
function taken(socket) {
  const port = socket.localPort.toString(16).toUpperCase().padStart(4, '0');
  return until(() => socket.writableLength === 0
    && read('/proc/net/tcp').split('\n').map((l) => l.trim().split(/\s+/))
      .filter((f) => [f[1], f[2]].some((a) => a && a.endsWith(`:${port}`)))
      .every((f) => f[4] === '00000000:00000000'),
  'all of it is read');
}

// Waits until what() is truthy, and returns it.  The time is a bound on
// patience, never something that is measured: it is long, for a machine that has
// much else to do.
async function until(what, message, seconds = 60) {
  const end = Date.now() + seconds * 1000 * PATIENCE;
  for (;;) {
    const value = await what();
    if (value) return value;
    if (Date.now() > end) {
      throw new Error(`not within ${seconds * PATIENCE} s: `
        + (typeof message === 'function' ? message() : message));
    }
    await sleep(20);
  }
}

function freePort() {
  return new Promise((resolve, reject) => {
    const server = net.createServer();
    server.on('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

// The uid that NGINX's workers get, when we may choose one.
function workerUser() {
  return process.getuid() === 0 ? 'nobody' : null;
}

class Engine {
  // settings.under: a command that starts it, and its arguments.
  constructor(dir, name, { under = [], ...settings }) {
    this.under = under;
    this.dir = dir;
    this.name = name;
    this.socket = path.join(dir, `${name}.sock`);
    this.log = path.join(dir, `${name}.log`);
    this.settings = {
      model: POCKET,
      socket: this.socket,
      // The workers are another user, and the directory is ours alone.
      socket_mode: '0666',
      threads: 2,
      kv_memory: '96m',
      log_level: 'info',
      ...DEVICE,
      ...settings,
    };
    this.child = null;
  }

  config() {
    return Object.entries(this.settings)
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([key, value]) => `${key} ${value}\n`).join('');
  }

  // Starts it and returns when its socket is there.
  async start(settings = {}) {
    Object.assign(this.settings, settings);
    const file = path.join(this.dir, `${this.name}.conf`);
    fs.writeFileSync(file, this.config());
    const out = fs.openSync(this.log, 'a');
    const [command, ...args] = [...this.under, ENGINE, '-c', file];
    const child = spawn(command, args,
      { stdio: ['ignore', out, out], cwd: this.dir });
    fs.closeSync(out);
    this.child = child;
    living.add(child.pid);
    this.exited = new Promise((resolve) => {
      child.on('error', (error) => resolve({ error }));
      child.on('exit', (code, signal) => {
        living.delete(child.pid);
        resolve({ code, signal });
      });
    });
    let end = null;
    this.exited.then((value) => { end = value; });
    await until(() => {
      if (end) {
        throw new Error(`the engine ended at its start: ${JSON.stringify(end)}`
          + `\n${read(this.log)}`);
      }
      return this.connects();
    }, () => `engine ready\n${read(this.log)}`, 120);
    return this;
  }

  connects() {
    return new Promise((resolve) => {
      const c = net.connect(this.socket);
      c.on('connect', () => { c.destroy(); resolve(true); });
      c.on('error', () => resolve(false));
    });
  }

  get pid() { return this.child ? this.child.pid : 0; }

  signal(name) { process.kill(this.pid, name); }

  async kill(signal = 'SIGKILL') {
    if (!this.child) return null;
    const child = this.child;
    this.child = null;
    if (child.exitCode === null && child.signalCode === null) {
      child.kill(signal);
      child.kill('SIGCONT'); // a test may have stopped it
    }
    const timer = setTimeout(() => child.kill('SIGKILL'), 40000 * PATIENCE);
    const end = await this.exited;
    clearTimeout(timer);
    return end;
  }
}

class Stack {
  // engine: settings of the engine "main", or null for none at the start
  // engines: {name: settings} of more of them
  // workers, http, server, location, pass: text for nginx.conf; DIR in http
  //   stands for the directory
  // sockets: parameters of these in tokenring_engine
  // http2: a second port with TLS and HTTP/2
  static async start(options = {}) {
    const stack = new Stack(options);
    try {
      await stack.begin();
    } catch (error) {
      const logs = stack.logs();
      await stack.stop();
      error.message += `\n${logs}`;
      throw error;
    }
    return stack;
  }

  constructor(options) {
    this.options = options;
    this.dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-e2e-'));
    fs.chmodSync(this.dir, 0o755);
    stacks.add(this);
    this.conf = path.join(this.dir, 'nginx.conf');
    this.engine = new Engine(this.dir, 'main', options.engine || {});
    this.others = Object.entries(options.engines || {})
      .map(([name, settings]) => new Engine(this.dir, name, settings));
  }

  async begin() {
    this.port = await freePort();
    this.url = `http://127.0.0.1:${this.port}`;
    if (this.options.http2) {
      this.tlsPort = await freePort();
      const made = spawnSync('openssl', ['req', '-x509', '-newkey', 'ec',
        '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2',
        '-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1',
        '-keyout', path.join(this.dir, 'key.pem'),
        '-out', path.join(this.dir, 'cert.pem')]);
      if (made.status !== 0) throw new Error(`openssl: ${made.stderr}`);
    }
    await Promise.all([
      this.options.engine === null ? null : this.engine.start(),
      ...this.others.map((e) => e.start()),
    ]);
    this.configure();
    await this.startNginx();
    if (this.options.engine !== null) {
      await this.healthy();
    }
  }

  // A session with the port that the option http2 opens.
  http2() {
    return http2.connect(`https://127.0.0.1:${this.tlsPort}`, {
      ca: fs.readFileSync(path.join(this.dir, 'cert.pem')),
      servername: 'localhost', checkServerIdentity: () => undefined,
    });
  }

  configure(changes = {}) {
    Object.assign(this.options, changes);
    const o = this.options;
    const temp = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
      .map((n) => `    ${n}_temp_path ${this.dir}/temp_${n};`).join('\n');
    const user = workerUser();
    const pass = o.pass || 'main';
    fs.writeFileSync(this.conf, `
${MODULE === 'static' ? '' : `load_module ${MODULE};`}
${user ? `user ${user} ${groupOf(user)};` : ''}
worker_processes ${o.workers || 1};
error_log ${this.dir}/error.log ${process.env.TR_DEBUG ? 'debug' : 'info'};
pid ${this.dir}/nginx.pid;
daemon on;
${o.main || ''}
events { worker_connections 4096; }
http {
    log_format tr escape=json '{"status":$status,"uri":"$uri","pid":$pid,'
        '"sent":$body_bytes_sent,"request_time":$request_time,'
        '"id":"$tokenring_request_id","model":"$tokenring_model",'
        '"prompt_tokens":"$tokenring_prompt_tokens",'
        '"completion_tokens":"$tokenring_completion_tokens",'
        '"ttft":"$tokenring_ttft","tpot":"$tokenring_tpot",'
        '"finish_reason":"$tokenring_finish_reason",'
        '"preemptions":"$tokenring_preemptions",'
        '"kv_bytes":"$tokenring_kv_bytes",'
        '"kv_fp16_bytes":"$tokenring_kv_fp16_bytes",'
        '"kv_ratio":"$tokenring_kv_ratio","kv_high":"$tokenring_kv_high",'
        '"kv_low":"$tokenring_kv_low","kv_pruned":"$tokenring_kv_pruned",'
        '"mark":"$http_x_mark"}';
    access_log ${this.dir}/access.log tr;
${temp}
    client_max_body_size 16m;
    keepalive_timeout 60s;
    # A busy machine takes its time; tests of these limits set their own.
    tokenring_queue_timeout 10m;
    tokenring_first_token_timeout 30m;
    tokenring_idle_timeout 10m;
    tokenring_engine main ${[this.engine, ...this.others]
      .map((e) => `unix:${e.socket}`).join(' ')} ${o.sockets || ''};
    ${(o.http || '').replaceAll('DIR', this.dir)}
    server {
        listen 127.0.0.1:${this.port} reuseport backlog=4096;
        ${o.http2 ? `listen 127.0.0.1:${this.tlsPort} ssl http2;
        ssl_certificate ${this.dir}/cert.pem;
        ssl_certificate_key ${this.dir}/key.pem;` : ''}
        ${o.server || ''}
        location /v1/ {
            ${o.location || ''}
            tokenring_pass ${pass};
        }
        location = /health { tokenring_health ${pass}; }
        location = /metrics { tokenring_metrics ${pass}; }
        location = /plain { return 200 "plain\\n"; }
    }
}
`);
  }

  async startNginx() {
    // One that cannot start leaves its first pool behind, too: see nginx().
    const looked = process.env.ASAN_OPTIONS ? this.nginx('-t') : { status: 0 };
    const out = looked.status === 0 ? this.nginx() : looked;
    if (out.status !== 0) throw new Error(`nginx: ${out.text}`);
    this.master = Number(await until(() => read(`${this.dir}/nginx.pid`).trim(),
      'nginx.pid'));
    living.add(this.master);
  }

  // Runs the nginx binary: -t, -s reload, ... or nothing, which starts it.
  // Those that only look leave their first pool behind when the configuration
  // is bad: nginx's way, and no leak of ours that a sanitizer should report.
  nginx(...args) {
    const asan = `${process.env.ASAN_OPTIONS || ''}:detect_leaks=0`;
    const out = spawnSync(NGINX,
      ['-p', this.dir, '-e', `${this.dir}/error.log`, '-c', this.conf, ...args],
      { encoding: 'utf8', env: args.length === 0 ? process.env
        : { ...process.env, ASAN_OPTIONS: asan } });
    return { status: out.status, text: `${out.stdout}${out.stderr}` };
  }

  workers(master = this.master) {
    return read(`/proc/${master}/task/${master}/children`).trim().split(' ')
      .filter(Boolean).map(Number);
  }

  // Asks the master to reload and waits until new workers serve, and those of
  // before accept no connections any more.
  async reload() {
    const before = new Set(this.workers());
    process.kill(this.master, 'SIGHUP');
    await until(() => this.workers().filter((pid) => !before.has(pid)).length
      >= (this.options.workers || 1), 'new workers after a reload');
    await until(() => [...before].every(leaves), 'old workers leave');
    await this.healthy();
    return [...before];
  }

  async healthy() {
    await until(async () => {
      try {
        // Every worker has its own connection to every engine.
        return (await request(`${this.url}/health`)).status === 200
          && (await this.metrics()).value('tokenring_connected_workers')
            >= (this.options.workers || 1);
      } catch {
        return false;
      }
    }, () => `healthy\n${this.logs()}`);
  }

  // On a connection of its own: a worker that leaves closes those it kept.
  async metrics() {
    return parseMetrics((await request(`${this.url}/metrics`)).text);
  }

  // Waits until NGINX has so many requests that are for an engine.
  async active(n) {
    let now;
    await until(async () => {
      now = (await this.metrics()).value('tokenring_gateway_active_requests');
      return now === n;
    }, () => `${n} requests, not ${now}, in NGINX`);
  }

  // Waits until the engine has nothing to do.  What runs and waits is shown a
  // little late; outstanding tokens are shown before a request is answered.
  async idle() {
    await until(async () => {
      const m = await this.metrics();
      return m.value('tokenring_num_requests_running') === 0
        && m.value('tokenring_num_requests_waiting') === 0
        && m.value('tokenring_outstanding_tokens') === 0;
    }, () => `idle engine\n${this.logs()}`);
  }

  // Waits until it has nothing to do and all pages are free.
  async freed() {
    await this.idle();
    await until(async () => (await this.metrics())
      .value('tokenring_kv_cache_usage_ratio') === 0, 'all pages are free');
  }

  // Lines of the access log that carry this X-Mark header; waits for `count`.
  async logged(mark, count = 1) {
    return until(() => {
      const lines = read(`${this.dir}/access.log`).split('\n').filter(Boolean)
        .map((line) => JSON.parse(line)).filter((line) => line.mark === mark);
      return lines.length >= count ? lines : null;
    }, () => `access log line ${mark}\n${this.logs()}`);
  }

  errorLog() { return read(`${this.dir}/error.log`); }

  logs() {
    const tail = (text) => text.split('\n').slice(-25).join('\n');
    return `--- error.log\n${tail(this.errorLog())}\n`
      + `--- engine log\n${tail(read(this.engine.log))}`;
  }

  // Lines that must not appear whatever a test did.
  complaints() {
    return this.errorLog().split('\n').filter((line) =>
      new RegExp('\\[(emerg|alert|crit)\\]|open socket|exited on signal'
        + '|exited with code [1-9]|Sanitizer|runtime error').test(line));
  }

  // Waits until the workers have so many engines, together.
  connected(n) {
    return until(async () => (await this.metrics())
      .value('tokenring_connected_workers') === n,
    `${n} engines are connected`);
  }

  // Stops, and fails when there was something to complain about.
  async end() {
    const complaints = this.complaints();
    await this.stop();
    assert.deepEqual(complaints, []);
  }

  async stop() {
    if (this.stopped) return;
    this.stopped = true;
    for (const pid of new Set([this.master,
      Number(read(`${this.dir}/nginx.pid`).trim())])) {
      if (!pid || !alive(pid)) continue;
      const children = this.workers(pid);
      for (const child of children) living.add(child);
      process.kill(pid, 'SIGTERM');
      await until(() => !alive(pid), 'nginx stopped', 30).catch(() => {
        process.kill(pid, 'SIGKILL');
      });
      for (const child of [pid, ...children]) {
        if (alive(child)) process.kill(child, 'SIGKILL');
        living.delete(child);
      }
    }
    await Promise.all([this.engine, ...this.others]
      .map((e) => e.kill('SIGTERM')));
    stacks.delete(this);
    if (!process.env.TR_KEEP) {
      fs.rmSync(this.dir, { recursive: true, force: true });
    }
  }
}

function groupOf(user) {
  const out = spawnSync('id', ['-gn', user], { encoding: 'utf8' });
  return out.stdout.trim() || 'nogroup';
}

// Prometheus text to a small table.
function parseMetrics(text) {
  const samples = [];
  for (const line of text.split('\n')) {
    const m = /^([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? (\S+)$/i.exec(line);
    if (!m) continue;
    const labels = {};
    for (const [, k, v] of (m[2] || '').matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/gi)) {
      labels[k] = v;
    }
    samples.push({ name: m[1], labels, value: Number(m[3]) });
  }
  return {
    text,
    samples,
    // The sum over all samples of that name with those labels.
    value(name, want = {}) {
      const hits = samples.filter((s) => s.name === name
        && Object.entries(want).every(([k, v]) => s.labels[k] === v));
      if (hits.length === 0) {
        throw new Error(`no metric ${name} ${JSON.stringify(want)} in\n${text}`);
      }
      return hits.reduce((sum, s) => sum + s.value, 0);
    },
  };
}

// A test with a stack of its own: body(stack, URL of chat completions).  With
// { complaints: true } NGINX may have something to complain about.
function withStack(options, body, { complaints = false } = {}) {
  return async () => {
    const stack = await Stack.start(options);
    try {
      await body(stack, `${stack.url}/v1/chat/completions`);
      if (!complaints) assert.deepEqual(stack.complaints(), []);
    } finally {
      await stack.stop();
    }
  };
}

module.exports = {
  Stack, Engine, withStack, until, sleep, alive, leaves, taken, halt, read, freePort,
  parseMetrics, workerUser,
  ROOT, BUILD, VERSION, POCKET, ENGINE, MODULE, NGINX, PATIENCE,
};
