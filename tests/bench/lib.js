'use strict';
//
// What the benchmarks share: starting and stopping engine, upstream and NGINX on
// free loopback ports in a directory of their own, reading CPU time, and
// writing results with command, commit and hardware beside them.

const { spawn, spawnSync, execFileSync } = require('node:child_process');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');

const ROOT = path.resolve(__dirname, '../..');
const BUILD = path.resolve(ROOT, process.env.B || 'build');
const POCKET = path.join(ROOT, 'models/pocket');
const ENGINE = path.join(BUILD, 'bin/tokenring-engine');
const MODULE = process.env.TR_MODULE
  || path.join(BUILD, 'module/ngx_http_tokenring_module.so');
const NGINX = process.env.TR_NGINX
  || ['/usr/sbin/nginx', '/usr/local/sbin/nginx', '/usr/local/nginx/sbin/nginx']
    .find((p) => fs.existsSync(p)) || 'nginx';

const living = new Set();
const dirs = new Set();
process.on('exit', () => {
  for (const child of living) child.kill('SIGKILL');
  for (const dir of dirs) fs.rmSync(dir, { recursive: true, force: true });
});
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.on(signal, () => process.exit(1));
}

function makeDir() {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-bench-'));
  dirs.add(dir);
  return dir;
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

function connects(where) {
  return new Promise((resolve) => {
    const c = net.connect(where);
    c.on('connect', () => { c.destroy(); resolve(true); });
    c.on('error', () => resolve(false));
  });
}

// Starts a program and waits until ready() says so.
async function start(program, args, log, ready) {
  const out = fs.openSync(log, 'a');
  const child = spawn(program, args, { stdio: ['ignore', out, out] });
  fs.closeSync(out);
  living.add(child);
  child.on('error', () => living.delete(child));
  child.on('exit', () => living.delete(child));
  const end = Date.now() + 60000;
  while (!(await ready())) {
    if (!living.has(child) || Date.now() > end) {
      throw new Error(`${path.basename(program)} did not start:\n`
        + fs.readFileSync(log, 'utf8'));
    }
    await sleep(5);
  }
  return child;
}

async function stop(child, signal = 'SIGTERM') {
  if (!child || !living.has(child)) return;
  child.kill(signal);
  const end = Date.now() + 40000;
  while (living.has(child) && Date.now() < end) await sleep(10);
  if (living.has(child)) child.kill('SIGKILL');
}

// settings: keys of the engine's configuration.
async function startEngine(dir, settings) {
  const socket = path.join(dir, 'engine.sock');
  const conf = path.join(dir, 'engine.conf');
  const all = { model: POCKET, socket, socket_mode: '0600', ...settings };
  fs.writeFileSync(conf, Object.entries(all)
    .map(([key, value]) => `${key} ${value}\n`).join(''));
  const begin = process.hrtime.bigint();
  const child = await start(ENGINE, ['-c', conf],
    path.join(dir, 'engine.log'), () => connects(socket));
  child.readyMs = Number(process.hrtime.bigint() - begin) / 1e6;
  child.socket = socket;
  return child;
}

// tokenring drain with these options, of an engine with nothing to finish.
function drain(engine, args) {
  execFileSync(path.join(BUILD, 'bin/tokenring'), ['drain', ...args,
    engine.socket], { stdio: 'pipe' });
}

// One worker, no TLS, no access log; `http` is the text of the http block
// before its server, `location` what the one location does.
async function startNginx(dir, name, { http, location, main = '' }) {
  const port = await freePort();
  const conf = path.join(dir, `${name}.conf`);
  fs.writeFileSync(conf, `${main}
${process.getuid() === 0 ? 'user root;' : ''}
worker_processes 1;
daemon off;
pid ${dir}/${name}.pid;
error_log ${dir}/${name}.log warn;
events { worker_connections 2048; }
http {
  access_log off;
  client_body_temp_path ${dir}/${name}-body;
  proxy_temp_path ${dir}/${name}-proxy;
  fastcgi_temp_path ${dir}/${name}-fastcgi;
  uwsgi_temp_path ${dir}/${name}-uwsgi;
  scgi_temp_path ${dir}/${name}-scgi;
  keepalive_requests 100000;
${http}
  server {
    listen 127.0.0.1:${port};
    location / { ${location} }
  }
}
`);
  const child = await start(NGINX, ['-e', `${dir}/${name}.log`, '-p', dir,
    '-c', conf], path.join(dir, `${name}.log`), () => connects(port));
  child.port = port;
  // The master listens before it has made its worker.
  while (!child.worker && living.has(child)) {
    child.worker = Number(fs.readFileSync(
      `/proc/${child.pid}/task/${child.pid}/children`, 'utf8').split(' ')[0]);
    await sleep(5);
  }
  return child;
}

// Until the worker has its channel: a health check says so.
async function waitHealthy(port) {
  const end = Date.now() + 20000;
  for (;;) {
    const res = await fetch(`http://127.0.0.1:${port}/v1/models`);
    await res.arrayBuffer();
    if (res.status === 200) return;
    if (Date.now() > end) throw new Error(`no engine: HTTP ${res.status}`);
    await sleep(20);
  }
}

// Nanoseconds on a CPU of every thread of a process, by thread name.
function cpuNs(pid) {
  const threads = {};
  for (const tid of fs.readdirSync(`/proc/${pid}/task`)) {
    const base = `/proc/${pid}/task/${tid}`;
    const name = fs.readFileSync(`${base}/comm`, 'utf8').trim();
    const ns = Number(fs.readFileSync(`${base}/schedstat`, 'utf8')
      .split(' ')[0]);
    threads[name] = (threads[name] || 0) + ns;
  }
  return threads;
}

const sum = (object) => Object.values(object).reduce((a, b) => a + b, 0);

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const n = sorted.length;
  return n % 2 ? sorted[(n - 1) / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

function hardware() {
  const cpus = os.cpus();
  return `${cpus.length} cores of ${cpus[0].model.trim()}, `
    + `${Math.round(os.totalmem() / 2 ** 30)} GiB, ${os.type()} `
    + `${os.release().split('.').slice(0, 2).join('.')} ${os.arch()}`;
}

function nginxVersion() {
  const run = spawnSync(NGINX, ['-v'], { encoding: 'utf8' });
  return (run.stderr || '').trim().replace(/^nginx version: /, '');
}

function commit() {
  try {
    const git = (...args) => execFileSync('git', ['-C', ROOT, ...args],
      { encoding: 'utf8' }).trim();
    const changed = git('status', '--porcelain', '--untracked-files=no') !== '';
    return git('rev-parse', '--short=12', 'HEAD') + (changed ? ', changed' : '');
  } catch {
    return 'unknown';
  }
}

// What somebody wrote under "## Notes" beside the last figures.
function notes(file) {
  try {
    const text = fs.readFileSync(file, 'utf8');
    const at = text.indexOf('\n## Notes\n');
    return at < 0 ? '' : text.slice(at);
  } catch {
    return '';
  }
}

// Writes FILE as JSON, and the table beside it as Markdown; notes stay.
function save(file, title, command, table, data) {
  const about = { command, commit: commit(), hardware: hardware(),
    nginx: nginxVersion(), date: new Date().toISOString().slice(0, 10) };
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.writeFileSync(file, `${JSON.stringify({ ...about, ...data }, null, 1)}\n`);
  const page = `${file.replace(/\.json$/, '')}.md`;
  fs.writeFileSync(page, `# ${title}\n\n`
    + Object.entries(about).map(([key, value]) => `- ${key}: ${value}\n`)
      .join('')
    + `\n\`\`\`\n${table.replace(/ +$/gm, '')}\`\`\`\n${notes(page)}`);
}

// Option values of argv by a table of defaults; numbers where those are.
function options(defaults, usage) {
  const given = { ...defaults };
  const args = process.argv.slice(2);
  for (let i = 0; i < args.length; i++) {
    const key = args[i].replace(/^--/, '');
    if (args[i] === '--help') {
      process.stdout.write(usage);
      process.exit(0);
    }
    if (!(key in defaults) || i + 1 === args.length) {
      process.stderr.write(`unknown option ${args[i]}\n${usage}`);
      process.exit(2);
    }
    const value = args[++i];
    given[key] = typeof defaults[key] === 'number' ? Number(value) : value;
    if (Number.isNaN(given[key])) {
      process.stderr.write(`--${key} "${value}": expected a number\n`);
      process.exit(2);
    }
  }
  return given;
}

module.exports = { ROOT, BUILD, ENGINE, MODULE, NGINX, POCKET, makeDir,
  freePort, connects, start, stop, startEngine, drain, startNginx, waitHealthy, cpuNs,
  sum, median, hardware, nginxVersion, save, options, sleep };
