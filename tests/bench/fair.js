'use strict';
//
// What others wait while one client floods an engine: the time to the first token
// of an ordinary request beside each flood, over the same alone (p95 of both).
// And what fairness costs: tokens a second of a full house with `scheduling fair`
// over `fifo`, by turns.  The flood's clients are a thread of their own, so that
// who asks does not wait for them; they take processors, too, and so do others on
// a machine that is shared.  So there is a second figure: how long the engine's
// loop computed meanwhile, by its own CPU time; with `--engine threads=1` that is
// all that is computed.
//
//   choices   two requests with n 128, of a tenant of their own, and of the same
//   slow      257 readers with logprobs that read nothing
//   prompts   24 prompts of 1,800 tokens at any time
//   answers   300 endless answers, more than there are places
//   bodies    six clients with bodies of 15 MiB around a tiny request
//   uploads   1,000 clients that send 70 KiB of a body and stop
//   stalled   six clients that send 15 MiB of a body but for one byte, and stop
//   handshakes  600 connections to the engine that say nothing
//   stopped   of two engines one is stopped (SIGSTOP) while it is idle

const http = require('node:http');
const net = require('node:net');
const { Worker, isMainThread, workerData } = require('node:worker_threads');
const lib = require('./lib.js');

const usage = `Usage: node tests/bench/fair.js [options]
  --floods LIST    of these, separated by blanks (default: all)
  --policy SPEC    KV policy (default "full")
  --memory SIZE    of the KV cache (default 512m)
  --asked N        ordinary requests beside each flood (default 20)
  --prompt N       tokens of their prompts (default 200)
  --rounds N       of the throughput, each way (default 3); 0: none
  --scheduling S   of the floods (default fair)
  --engine LIST    more settings of the engine, as "threads=4 max_batch_tokens=2048"
  --json FILE      write the results there, and a table beside them (.md)
`;
const options = lib.options({ floods: 'choices same slow prompts answers bodies uploads '
  + 'stalled handshakes stopped',
  policy: 'full', memory: '512m', asked: 20,
  prompt: 200, rounds: 3, scheduling: 'fair', engine: '',
  json: '' }, usage);
const MORE = Object.fromEntries(options.engine.split(' ').filter(Boolean)
  .map((one) => one.split('=')));

let state = 1;
function rnd(n) {
  state = (Math.imul(state, 1103515245) + 12345) >>> 0;
  return (state >>> 8) % n;
}

const ids = (n) => Array.from({ length: n }, () => 300 + rnd(3000));

async function stack(settings, two = false) {
  const dir = lib.makeDir();
  const start = (at) => lib.startEngine(at, { kv_policy: options.policy,
    kv_memory: options.memory, log_level: 'notice', kv_reuse: 'no',
    ...MORE, ...settings });
  const engine = await start(dir);
  const other = two ? await start(lib.makeDir()) : null;
  const nginx = await lib.startNginx(dir, 'nginx', {
    main: `load_module ${lib.MODULE};`,
    http: `tokenring_engine main unix:${engine.socket} slots=1024;
  ${other ? `tokenring_engine main unix:${other.socket} slots=1024;` : ''}
  client_max_body_size 16m;
  tokenring_queue_timeout 2h; tokenring_idle_timeout 2h;
  tokenring_first_token_timeout 2h;`,
    location: `tokenring_tenant $http_x_tenant; tokenring_body_rate 4k;
    tokenring_pass main; }
    location /metrics { tokenring_metrics;`,
  });
  await lib.waitHealthy(nginx.port);
  return { port: nginx.port, socket: engine.socket, other: other?.pid,
    loop: () => lib.cpuNs(engine.pid)['tr-loop'] / 1e6,
    value: async (name) => Number((await (await fetch(
      `http://127.0.0.1:${nginx.port}/metrics`)).text())
      .match(new RegExp(`^${name}{[^}]*} ([0-9.e+]+)$`, 'm'))[1]),
    stop: async () => {
      await lib.stop(nginx, 'SIGKILL');
      await lib.stop(engine, 'SIGKILL');
      if (other) await lib.stop(other, 'SIGKILL');
    } };
}

// A stream; first: ms until its first event.  It reads on, unless it is slow.
function open(s, tenant, body, slow = false) {
  const text = typeof body === 'string' ? body
    : JSON.stringify({ stream: true, ...body });
  const begin = process.hrtime.bigint();
  const out = { tokens: 0 };
  out.first = new Promise((resolve, reject) => {
    out.over = new Promise((over) => {
      out.request = http.request({ host: '127.0.0.1', port: s.port, agent: false,
        method: 'POST', path: '/v1/completions',
        headers: { 'content-type': 'application/json', 'x-tenant': tenant } },
      (res) => {
        if (res.statusCode !== 200) { // of a body, that is its answer
          reject(new Error(`HTTP ${res.statusCode}`));
        }
        if (slow) {
          res.once('readable', () => resolve(0));
          return;
        }
        res.on('data', () => resolve(Number(process.hrtime.bigint() - begin)
          / 1e6));
        res.on('end', over);
        res.on('error', over);
      });
      out.request.on('error', (e) => { reject(e); over(); });
      out.request.end(text);
    });
  });
  out.first.catch(() => {});
  return out;
}

const p95 = (values) => values.sort((a, b) => a - b)[
  Math.ceil(values.length * 0.95) - 1];

// p95 of ms, and of the loop's CPU time, until the first token.
async function firsts(s, tenant) {
  const ms = [];
  const loop = [];
  for (let i = 0; i < options.asked; i++) {
    const begun = s.loop();
    const one = open(s, tenant, { prompt: ids(options.prompt),
      max_tokens: 4 });
    ms.push(await one.first);
    loop.push(s.loop() - begun);
    await one.over;
    await lib.sleep(50);
  }
  return { ms: p95(ms), loop: p95(loop) };
}

// Does one thing after the other.
async function again(what) {
  for (;;) await what();
}

const fat = () => `{"prompt":"x","max_tokens":1,${Array.from({ length: 1100000 },
  (_, i) => `"k${i}":1`).join(',')}}`;

// A body of which so many bytes come, and no more.
function upload(s, sent, length) {
  const request = http.request({ host: '127.0.0.1', port: s.port, agent: false,
    method: 'POST', path: '/v1/completions', headers: { 'x-tenant': 'crowd',
      'content-type': 'application/json', 'content-length': length } });
  request.on('error', () => {});
  request.on('response', (res) => res.resume());
  request.write(`{"prompt":"${'x'.repeat(sent - 11)}`);
}

const long = { max_tokens: 1900, ignore_eos: true };
// Each goes on until its thread ends.
const FLOODS = {
  choices: (s) => [0, 1].map(() => open(s, 'crowd', { prompt: ids(4), n: 128,
    ...long })),
  same: (s) => [0, 1].map(() => open(s, 'me', { prompt: ids(4), n: 128,
    ...long })),
  slow: (s) => Array.from({ length: 257 }, () => open(s, 'slow', {
    prompt: ids(4), logprobs: 5, ...long }, true)),
  answers: (s) => Array.from({ length: 300 }, () => open(s, 'crowd', {
    prompt: ids(4), ...long })),
  prompts: (s) => Array.from({ length: 24 }, () => again(() =>
    open(s, 'crowd', { prompt: ids(1800), max_tokens: 8 }).over)),
  bodies: (s) => {
    const body = fat();
    return Array.from({ length: 6 }, () => again(() => open(s, 'crowd',
      body).over));
  },
  uploads: (s) => Array.from({ length: 1000 }, () => upload(s, 70000, 100000)),
  stalled: (s) => Array.from({ length: 6 }, () => upload(s, 15 << 20,
    (15 << 20) + 12)),
  handshakes: (s) => Array.from({ length: 600 }, () =>
    net.connect(s.socket).on('error', () => {})),
  stopped: (s) => process.kill(s.other, 'SIGSTOP'),
};

async function flood(name) {
  const s = await stack({ scheduling: options.scheduling },
    name === 'stopped');
  const alone = await firsts(s, 'me');
  const crowd = new Worker(__filename, { argv: process.argv.slice(2),
    workerData: { name, at: { port: s.port, socket: s.socket,
      other: s.other } } });
  await lib.sleep(2000);
  const beside = await firsts(s, 'me');
  const running = await s.value('tokenring_num_requests_running');
  await crowd.terminate();
  await s.stop();
  return { flood: name, alone, beside, ratio: beside.ms / alone.ms,
    computed: beside.loop / alone.loop, running };
}

// Tokens a second, and a second of the loop's CPU time.
async function rate(s) {
  const loop = s.loop();
  const before = await s.value('tokenring_generation_tokens_total');
  const all = Array.from({ length: 96 }, (_, i) => open(s, `t${i % 3}`, {
    prompt: ids(40), max_tokens: 64, ignore_eos: true }));
  const begin = process.hrtime.bigint();
  await Promise.all(all.map((one) => one.over));
  const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
  const tokens = await s.value('tokenring_generation_tokens_total') - before;
  return { wall: tokens / seconds, loop: tokens / (s.loop() - loop) * 1000 };
}

async function throughput() {
  const rates = { fair: [], fifo: [] };
  const engines = {};
  for (const scheduling of ['fair', 'fifo']) {
    engines[scheduling] = await stack({ scheduling, max_num_seqs: 32 });
    await rate(engines[scheduling]);
  }
  for (let i = 0; i < options.rounds; i++) {
    for (const k of i % 2 ? ['fair', 'fifo'] : ['fifo', 'fair']) {
      rates[k].push(await rate(engines[k]));
    }
  }
  await engines.fair.stop();
  await engines.fifo.stop();
  const of = (scheduling, key) =>
    lib.median(rates[scheduling].map((one) => one[key]));
  return { wall: [of('fair', 'wall'), of('fifo', 'wall')],
    loop: [of('fair', 'loop'), of('fifo', 'loop')], rates };
}

async function main() {
  const rows = [];
  for (const name of options.floods.split(' ').filter(Boolean)) {
    rows.push(await flood(name));
    console.error(rows.at(-1));
  }
  const row = (cells) => `| ${cells.join(' | ')} |\n`;
  let table = row(['flood', 'alone (ms)', 'beside it', 'ratio',
    'computed alone (ms)', 'beside it', 'ratio']) + row(Array(7).fill('---'))
    + rows.map((r) => row([r.flood, r.alone.ms.toFixed(1),
      r.beside.ms.toFixed(1), r.ratio.toFixed(2), r.alone.loop.toFixed(1),
      r.beside.loop.toFixed(1), r.computed.toFixed(2)])).join('');
  const rates = options.rounds ? await throughput() : null;
  if (rates) {
    for (const [key, what] of [['wall', 'a second'],
      ['loop', 'a second of the loop']]) {
      const [fair, fifo] = rates[key];
      table += `\ntokens ${what}: fair ${fair.toFixed(0)}, fifo ${
        fifo.toFixed(0)}: ${(fair / fifo).toFixed(3)}\n`;
    }
  }
  process.stdout.write(table);
  if (options.json) {
    lib.save(options.json, 'Fairness', `node tests/bench/fair.js ${
      process.argv.slice(2).join(' ')}`, table, { options, rows, rates });
  }
  process.exitCode = rows.every((r) => r.ratio <= 3) ? 0 : 1;
  process.exit();
}

if (isMainThread) main();
else FLOODS[workerData.name](workerData.at);
