'use strict';
//
// The gateway comparison: NGINX with our module in front of tokenring-engine,
// against the same NGINX binary with proxy_pass (buffering off, keepalive,
// HTTP/1.1) in front of a lean C upstream that emits the same events in the
// same batches.  One worker each, no TLS, no access log.  Rounds alternate
// between the two, so that whatever else the machine does meets both.
//
//   worker   CPU time of the NGINX worker per streamed token
//   total    worker + the whole engine process, against worker + upstream
//   latency  from the moment a token exists to its arrival at the client
//
// The engine runs `backend null`: it emits tokens at a set rate and computes
// nothing, so all of its CPU time is scheduling and transport.

const { spawnSync } = require('node:child_process');
const path = require('node:path');
const lib = require('./lib.js');

const usage = `Usage: node tests/bench/gateway.js [options]
  --rounds N    rounds of every comparison (default 5)
  --streams N   streams at once (default 100)
  --rate R      tokens per second of one stream (default 50)
  --seconds S   length of one measurement (default 4)
  --side a|b|ab only one side (default ab)
  --json FILE   write the results there, and a table beside them (.md)
`;
const options = lib.options({ rounds: 5, streams: 100, rate: 50, seconds: 4,
  side: 'ab', json: '' }, usage);

const LOAD = path.join(lib.BUILD, 'bench/sse_load');
const UPSTREAM = path.join(lib.BUILD, 'bench/upstream');

async function startA(dir, stagger) {
  const trace = path.join(dir, 'a.trace');
  const engine = await lib.startEngine(dir, { backend: 'null',
    null_rate: options.rate, null_stagger: stagger ? 'yes' : 'no',
    null_trace: trace, kv_memory: '64m' });
  const nginx = await lib.startNginx(dir, 'a', {
    main: process.env.TR_MODULE === 'static' ? ''
      : `load_module ${lib.MODULE};`,
    http: `  tokenring_engine main unix:${engine.socket};`,
    location: 'tokenring_pass main;',
  });
  await lib.waitHealthy(nginx.port);
  return { name: 'tokenring', nginx, backend: engine, trace };
}

async function startB(dir, stagger) {
  const trace = path.join(dir, 'b.trace');
  const port = await lib.freePort();
  const args = ['--port', port, '--rate', options.rate, '--trace', trace];
  if (stagger) args.push('--stagger');
  const upstream = await lib.start(UPSTREAM, args.map(String),
    path.join(dir, 'upstream.log'), () => lib.connects(port));
  const nginx = await lib.startNginx(dir, 'b', {
    http: `  upstream u { server 127.0.0.1:${port}; keepalive 256; }`,
    location: 'proxy_pass http://u; proxy_http_version 1.1; '
      + 'proxy_set_header Connection ""; proxy_buffering off;',
  });
  return { name: 'proxy_pass', nginx, backend: upstream, trace };
}

// One measurement of one side.
function measure(side, streams) {
  const tokens = Math.max(20, Math.round(options.rate * options.seconds) + 8);
  const run = spawnSync(LOAD, ['--port', side.nginx.port, '--streams', streams,
    '--tokens', tokens, '--trace', side.trace,
    '--cpu', `worker=${side.nginx.worker}`,
    '--cpu', `backend=${side.backend.pid}`].map(String), { encoding: 'utf8' });
  if (run.status !== 0) {
    throw new Error(`${side.name}: ${run.stderr || run.error}`);
  }
  const result = JSON.parse(run.stdout);
  const threads = {};
  for (const { name, ns } of result.cpu.backend.threads) {
    threads[name] = (threads[name] || 0) + ns;
  }
  return {
    tokens: result.tokens,
    bytesPerToken: result.bytes / result.tokens,
    eventsPerToken: result.events / result.tokens,
    workerUs: result.cpu.worker.ns / result.tokens / 1e3,
    backendUs: result.cpu.backend.ns / result.tokens / 1e3,
    threadsUs: Object.fromEntries(Object.entries(threads)
      .map(([name, ns]) => [name, ns / result.tokens / 1e3])),
    latency: result.latency_us,
    batchLast: result.batch_last_us,
  };
}

async function compare(stagger, cases) {
  const dir = lib.makeDir();
  const sides = {};
  const out = {};
  if (options.side.includes('a')) sides.a = await startA(dir, stagger);
  if (options.side.includes('b')) sides.b = await startB(dir, stagger);
  for (const [label, streams] of cases) {
    out[label] = { a: [], b: [] };
    for (let round = 0; round < options.rounds; round++) {
      // A first, then B first: neither always follows the other
      const order = Object.keys(sides);
      if (round % 2) order.reverse();
      for (const key of order) {
        out[label][key].push(measure(sides[key], streams));
      }
      if (process.stderr.isTTY) {
        process.stderr.write(`\r\x1b[K${label}: round ${round + 1} of `
          + `${options.rounds}`);
      }
    }
  }
  if (process.stderr.isTTY) process.stderr.write('\r\x1b[K');
  for (const side of Object.values(sides)) {
    await lib.stop(side.nginx, 'SIGQUIT');
    await lib.stop(side.backend);
  }
  return out;
}

const of = (rounds, get) => rounds.length
  ? lib.median(rounds.map(get)) : NaN;

// The medians of one case, and the ratios round by round.
function summarise({ a, b }) {
  const pick = (rounds) => ({
    workerUs: of(rounds, (r) => r.workerUs),
    backendUs: of(rounds, (r) => r.backendUs),
    totalUs: of(rounds, (r) => r.workerUs + r.backendUs),
    threadsUs: rounds.length ? Object.fromEntries(
      Object.keys(rounds[0].threadsUs).map((name) => [name,
        of(rounds, (r) => r.threadsUs[name] || 0)])) : {},
    bytesPerToken: of(rounds, (r) => r.bytesPerToken),
    eventsPerToken: of(rounds, (r) => r.eventsPerToken),
    latencyP50: of(rounds, (r) => r.latency.p50),
    latencyP99: of(rounds, (r) => r.latency.p99),
    batchLastP50: of(rounds, (r) => r.batchLast?.p50 ?? NaN),
    batchLastP90: of(rounds, (r) => r.batchLast?.p90 ?? NaN),
  });
  const ratio = (get) => lib.median(a.map((r, i) => b[i]
    ? get(r) / get(b[i]) : NaN));
  return { a: pick(a), b: pick(b),
    workerRatio: ratio((r) => r.workerUs),
    totalRatio: ratio((r) => r.workerUs + r.backendUs) };
}

function table(results) {
  const lines = [];
  const number = (value) => Number.isFinite(value) ? value.toFixed(2) : '-';
  const row = (name, a, b, ratio, note = '') => lines.push(
    `${name.padEnd(34)} ${a.padStart(10)} ${b.padStart(10)} `
    + `${ratio.padStart(7)}  ${note}`.trimEnd());
  for (const [label, r] of Object.entries(results)) {
    const staggered = label.includes('staggered');
    const target = label === 'batch';
    row(`${label} (${r.streams} stream${r.streams > 1 ? 's' : ''})`,
      'tokenring', 'proxy_pass', 'ratio');
    row('  worker CPU, us/token', number(r.a.workerUs), number(r.b.workerUs),
      number(r.workerRatio), target ? verdict(r.workerRatio, 0.6) : '');
    row('  engine / upstream CPU, us/token', number(r.a.backendUs),
      number(r.b.backendUs), '');
    for (const [name, us] of Object.entries(r.a.threadsUs)) {
      if (us > 0.005) row(`    thread ${name}`, number(us), '', '');
    }
    row('  total CPU, us/token', number(r.a.totalUs), number(r.b.totalUs),
      number(r.totalRatio), target ? verdict(r.totalRatio, 0.4) : '');
    row('  latency p50, us', number(r.a.latencyP50), number(r.b.latencyP50),
      '', staggered ? verdict(r.a.latencyP50, 100) : '');
    row('  latency p99, us', number(r.a.latencyP99), number(r.b.latencyP99),
      '');
    if (Number.isFinite(r.a.batchLastP50) && !staggered) {
      row('  last of a batch p50, us', number(r.a.batchLastP50),
        number(r.b.batchLastP50), '',
        verdict(r.a.batchLastP50, 10 * r.streams));
      row('  last of a batch p90, us', number(r.a.batchLastP90),
        number(r.b.batchLastP90), '');
    }
    row('  bytes/token at the client', number(r.a.bytesPerToken),
      number(r.b.bytesPerToken), '');
    row('  events/token at the client', number(r.a.eventsPerToken),
      number(r.b.eventsPerToken), '');
  }
  return `${lines.join('\n')}\n`;
}

function verdict(value, limit) {
  if (!Number.isFinite(value)) return '';
  return value <= limit ? `target ${limit}: held` : `target ${limit}: MISSED`;
}

async function main() {
  const raw = {
    ...await compare(false, [['batch', options.streams], ['single', 1]]),
    ...await compare(true, [['staggered', options.streams]]),
  };
  const results = {};
  for (const [label, rounds] of Object.entries(raw)) {
    results[label] = { streams: label === 'single' ? 1 : options.streams,
      ...summarise(rounds) };
  }
  const text = table(results);
  process.stdout.write(text);
  if (options.json) {
    lib.save(path.resolve(options.json), 'Gateway: module against proxy_pass',
      `node tests/bench/gateway.js ${process.argv.slice(2).join(' ')}`.trim(),
      text, { options, results, rounds: raw });
  }
}

main().catch((error) => {
  process.stderr.write(`${error.message}\n`);
  process.exit(1);
});
