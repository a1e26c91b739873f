'use strict';
//
// A soak: the whole stack for an hour, or a night, under a load of every kind
// and in bad weather, and everything that must hold is held up to it all the time.
//
// Two engines with models/pocket and pools that are too small for what they get,
// two workers, a Redis with the output of resumable requests.  soak_requests.js
// asks and compares every answer with what the same request got alone;
// soak_weather.js reloads, kills, stops and starts, lets hostile clients in
// (soak_hostile.js), and keeps the calendar by which failures are excused; soak_watch.js samples, and every few minutes the load
// pauses and all has to come back: requests, pages, connections, descriptors, what
// Redis holds of requests.  The memory of those moments gives the slopes.
//
// Anything that is not as it must be is printed at once and again at the end, and
// makes the exit status 1.

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const lib = require('./lib.js');
const { Stack, read, freePort } = require('../e2e/lib/stack.js');
const { Redis } = require('../e2e/lib/redis.js');
const { Load } = require('./soak_requests.js');
const { Calendar, Weather, season, dice } = require('./soak_weather.js');
const { Watch } = require('./soak_watch.js');

const usage = `Usage: node tests/bench/soak.js [options]
  --minutes N    how long (default 60); 1 is a short look, without slopes
  --clients N    that ask all the time (default 8)
  --seed N       of what is asked and of the weather (default 1)
  --policy SPEC  KV policy of the engines (default diffkv)
  --quiet S      seconds of load between two quiet moments (default 120; a fifth
                 of the time where that is less)
  --pause S      seconds between two kinds of weather, on average (default 8)
  --sample S     seconds between two samples (default 5)
  --slope N      KiB an hour by which what a process has from malloc may grow,
                 where its slope is known from 5 quiet moments in 10 minutes or
                 more (default 1024)
  --json FILE    write the results there, and a table beside them (.md)
`;
const options = lib.options({ minutes: 60, clients: 8, seed: 1, policy: 'diffkv',
  quiet: 120, pause: 8, sample: 5, slope: 1024, json: '' }, usage);
const TOTAL = options.minutes * 60000;
const QUIET = Math.min(options.quiet * 1000, TOTAL / 5);
const WARM = Math.min(300000, TOTAL / 8);

// Small enough that requests queue, make way for each other, and are refused.
// Requests leave Redis soon, so that a quiet moment can see them gone; its other
// keys are bounded by a few minutes, so that they are full early.
const DRAIN = 20;
const ENGINE = { kv_policy: options.policy,
  kv_policies: options.policy === 'full' ? 'diffkv' : 'full', kv_memory: '3m',
  swap_memory: '64m', max_model_len: 600, max_num_seqs: 16, max_queue: 12,
  threads: 1, channel_ring: '64k', drain_timeout: `${DRAIN}s`, log_level: 'notice',
  redis_request_ttl: '15s', redis_output_ttl: '10s', redis_samples: 60,
  redis_recent: 50 };

const begun = Date.now();
const problems = [];
const clock = () => {
  const s = Math.floor((Date.now() - begun) / 1000);
  return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, '0')}`;
};
const say = (text) => process.stdout.write(`${clock()}  ${text}\n`);
const broken = (text) => {
  problems.push(`${clock()}  ${text}`);
  say(`BROKEN: ${text}`);
};

// Has all processes that start from now on count what they have from malloc.
function countHeaps() {
  const library = path.join(lib.BUILD, 'bench/libheap_count.so');
  if (!fs.existsSync(library)) {
    say(`note: heaps are not counted, there is no ${library}`);
    return;
  }
  process.env.HEAP_COUNT = lib.makeDir();
  fs.chmodSync(process.env.HEAP_COUNT, 0o755);
  process.env.LD_PRELOAD = library;
}

async function startStack() {
  const redis = await Redis.start();
  const slowPort = await freePort();
  const engine = (name) => ({ ...ENGINE, name, redis: redis.address });
  const stack = await Stack.start({
    workers: 2, engine: engine('first'), engines: { second: engine('second') },
    http: `tokenring_redis ${redis.address} timeout=2s;`,
    // clients that read slowly are noticed where little fits in between
    server: `listen 127.0.0.1:${slowPort} sndbuf=8k;
      location /plain/v1/ { tokenring_pass main; }
      location /moving/v1/ { tokenring_pass main; tokenring_resumable on;
        tokenring_migrate 100 timeout=60s; tokenring_prefix_affinity on; }`,
    location: 'tokenring_resumable on; tokenring_buffer_size 8k;',
  });
  return { stack, redis, slowPort };
}

// The soak itself: load and weather, with pauses in which all must come back.
async function run({ load, weather, watch }) {
  const roll = dice(options.seed + 1000);
  const end = Date.now() + TOTAL;
  const rolls = Array.from({ length: options.clients },
    (_, i) => dice(options.seed * 100 + i));
  // Weather that does not clear up leaves a stack of which nothing can be said.
  let lost = false;
  while (Date.now() < end && !lost) {
    const until = Math.min(end, Date.now() + QUIET);
    const going = () => Date.now() < until && !lost;
    const storm = async () => {
      while (going()) {
        await lib.sleep(500 * options.pause + roll(1000 * options.pause));
        if (!going()) return;
        const names = season((Date.now() - begun) / TOTAL);
        await weather.next(names).catch((e) => {
          broken(`the weather does not clear up: ${e.stack}`);
          lost = true;
        });
      }
    };
    await Promise.all([storm(), ...rolls.map((r) => load.client(r, going))]);
    await watch.quiet();
    const all = Object.values(load.counts)
      .reduce((n, c) => n + lib.sum(c), 0);
    say(`quiet: ${all} requests, ${problems.length} broken, `
      + `${watch.total('preemptions')} preemptions; `
      + watch.processes().map((p) => `${p.what} ${
        watch.lives.get(p.pid)?.quiet.at(-1)?.anon} KiB`).join(', '));
  }
}

// What must hold of the run as a whole.
async function judge({ stack, weather, watch }) {
  const m = await stack.metrics();
  watch.remember(m);
  for (const name of ['channel_errors', 'protocol_errors',
    'kv_recomputations']) {
    if (watch.total(name) !== 0) broken(`${watch.total(name)} ${name}`);
  }
  if (watch.total('preemptions') === 0) {
    say('note: nothing was preempted; the pools are too large for this load');
  }
  const killed = stack.complaints().filter((l) => /exited on signal 9/.test(l));
  if (killed.length !== weather.killedWorkers) {
    broken(`${killed.length} workers died by signal 9, `
      + `${weather.killedWorkers} were killed`);
  }
  for (const line of stack.complaints()) {
    if (!/exited on signal 9/.test(line)) broken(`error.log: ${line}`);
  }
  for (const e of [stack.engine, ...stack.others]) {
    for (const line of read(e.log).split('\n')) {
      if (/^\S+Z error |Sanitizer|runtime error/.test(line)) {
        broken(`${e.name}.log: ${line}`);
      }
    }
  }
  for (const p of watch.summary(WARM)) {
    // A connection to Redis, and one for those who follow, come and go.
    if (p.fds.at(-1) > p.fds[0] + 2) {
      broken(`${p.what} ${p.pid} has ${p.fds.join(' ')} descriptors`);
    }
    if (p.points >= 5 && p.span >= 10 && p.what !== 'redis-server'
      && p.heapSlope > options.slope) {
      broken(`${p.what} ${p.pid} grows by ${Math.round(p.heapSlope)} KiB/h: `
        + p.heap.map(Math.round).join(' '));
    }
  }
}

// ---- the table --------------------------------------------------------------

function requestTable(counts) {
  const rows = [];
  for (const [kind, of] of Object.entries(counts)) {
    const rest = Object.entries(of).filter(([what]) => what !== 'right')
      .map(([what, n]) => `${n} ${what}`).join(', ');
    rows.push(`${kind.padEnd(16)}${String(lib.sum(of)).padStart(8)}`
      + `${String(of.right || 0).padStart(8)}   ${rest}`);
  }
  return [`${'requests'.padEnd(16)}${'sent'.padStart(8)}${'right'.padStart(8)}`
    + '   otherwise', ...rows];
}

// Of workers and engines the longest lives.
function processTable(lives) {
  const cell = (v, n = 9) => String(v).padStart(n);
  const rate = (v) => (v === null ? '-' : Math.round(v));
  const mib = (v) => (v === null ? '-' : (v / 1024).toFixed(2));
  const rows = [`${'process'.padEnd(16)}${['minutes', 'CPU %', 'at rest',
    'MiB', 'to', 'malloc', 'to', 'KiB/h', 'fds', 'to', 'at most'].map((t) => cell(t)).join('')}`];
  const shown = ['worker', 'engine first', 'engine second', 'redis-server']
    .flatMap((what) => lives.filter((p) => p.what === what)
      .sort((a, b) => b.minutes - a.minutes).slice(0, 3));
  for (const p of shown) {
    rows.push(p.what.padEnd(16) + cell(p.minutes.toFixed(1))
      + cell(p.cpu.toFixed(1)) + cell(p.quiet)
      + cell((p.anon[0] / 1024).toFixed(2))
      + cell((p.anon.at(-1) / 1024).toFixed(2))
      + cell(mib(p.heap[0])) + cell(mib(p.heap.at(-1))) + cell(rate(p.heapSlope))
      + cell(p.fds[0]) + cell(p.fds.at(-1)) + cell(p.fdsMost));
  }
  rows.push('the three longest lives of each; MiB, of these from malloc, and '
    + 'descriptors at the first and the last', 'quiet moment, descriptors at most '
    + 'also under load; KiB/h: of malloc, over five minutes or more, without',
  `the first ${(WARM / 60000).toFixed(1)} minutes of a life`);
  return rows;
}

function tabulate({ load, weather, watch }, loads) {
  const q = watch.quiets;
  const redis = q.map((r) => (r.redisBytes / 1024).toFixed(0));
  return `${[
    `${((Date.now() - begun) / 60000).toFixed(1)} minutes, seed ${options.seed}, `
      + `${options.clients} clients, two engines (${options.policy}, `
      + `${ENGINE.kv_memory} of pages each), two workers;`,
    `load of the machine before and after: ${loads.map((x) => x.toFixed(2))
      .join(', ')}`, '',
    ...requestTable(load.counts), '',
    `weather: ${Object.entries(weather.counts).map(([w, n]) => `${n} ${w}`)
      .join(', ')}`,
    `at most: ${watch.peak.running} running, ${watch.peak.waiting} waiting, `
      + `${watch.peak.pages} of ${watch.free} pages, ${watch.peak.swapped} `
      + 'swapped',
    `engines: ${watch.total('prompt_tokens')} and `
      + `${watch.total('generation_tokens')} tokens, `
      + `${watch.total('preemptions')} preemptions, ${watch.total('kv_swaps')} `
      + `swaps, ${watch.total('kv_recomputations')} recomputations`,
    `gateway: ${watch.total('requests')} requests, ${watch.total('retries')} `
      + `retries, ${watch.total('pauses')} pauses, `
      + `${watch.total('engine_losses')} lost with their engine`,
    `quiet moments: ${q.length}; Redis had ${redis[0]} KiB in use at the first, `
      + `${redis.at(-1)} at the last, ${Math.max(...redis)} at most`, '',
    ...processTable(watch.summary(WARM)), '',
    problems.length ? `BROKEN: ${problems.length}` : 'nothing broken',
    ...problems.slice(0, 20),
  ].join('\n')}\n`;
}

async function main() {
  const before = os.loadavg()[0];
  countHeaps();
  const { stack, redis, slowPort } = await startStack();
  const calendar = new Calendar({ drain: DRAIN * 1000 });
  const fixture = { stack, redis, slowPort, calendar, broken, log: say,
    seed: options.seed, clients: options.clients, ports: [stack.port, slowPort] };
  const load = new Load(fixture);
  const roll = dice(options.seed + 2000);
  const weather = new Weather({ ...fixture, burst: () => load.burst(roll, 60) });
  const watch = new Watch(fixture);
  try {
    await weather.allSettled();
    await load.learn();
    await watch.quiet();
    say('every case was asked alone; the soak begins');
    const timer = setInterval(() => watch.sample().catch(() => {}),
      options.sample * 1000);
    await run({ load, weather, watch });
    clearInterval(timer);
    await judge({ stack, weather, watch });
    const loads = [before, os.loadavg()[0]];
    const table = tabulate({ load, weather, watch }, loads);
    process.stdout.write(`\n${table}`);
    if (options.json) {
      const flat = watch.summary(WARM).map((p) => ({ ...p,
        anon: p.anon.join(' '), heap: p.heap.map(Math.round).join(' '), rss: p.rss.join(' '), fds: p.fds.join(' ') }));
      lib.save(options.json, 'A soak', 'node tests/bench/soak.js --minutes '
        + `${options.minutes} --clients ${options.clients} --seed ${options.seed}`
        + (options.policy === 'diffkv' ? '' : ` --policy ${options.policy}`),
      table, { loads, requests: load.counts,
        weather: weather.counts, peak: watch.peak, totals: Object.fromEntries(
          Object.keys(watch.totals).map((k) => [k, watch.total(k)])),
        processes: flat, problems, samples: watch.lines(150) });
    }
  } finally {
    await stack.stop();
    await redis.stop();
  }
  return problems.length ? 1 : 0;
}

main().then((code) => process.exit(code), (error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
