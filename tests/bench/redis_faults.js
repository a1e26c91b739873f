'use strict';
//
// What clients notice of a Redis in trouble: nothing is what is promised.  One
// engine (backend null), one NGINX, streams at an even pace, and questions for
// states beside them, while Redis is well, away, killed and restarted, paused,
// and behind a network that stalls and cuts.  Phases alternate with ones in which
// all is well; every figure of trouble is set beside those just before and after
// it, so that whatever else the machine does meets both.

const { fork } = require('node:child_process');
const os = require('node:os');
const path = require('node:path');
const lib = require('./lib.js');
const { Redis } = require('../e2e/lib/redis.js');
const { Proxy } = require('../e2e/lib/redis_proxy.js');

const usage = `Usage: node tests/bench/redis_faults.js [options]
  --pace N       streaming requests a second (default 50)
  --tokens N     of each (default 40)
  --rate N       tokens a second of each (default 100)
  --seconds S    of each phase (default 6)
  --rounds N     rounds of all phases (default 3)
  --json FILE    write the results there, and a table beside them (.md)
`;
const options = lib.options({ pace: 50, tokens: 40, rate: 100, seconds: 6,
  rounds: 3, json: '' }, usage);

// Each keeps its trouble up until the time is over, and leaves all well.
const troubles = {
  'killed, stays away': async (redis, proxy, until) => {
    await redis.kill();
    await lib.sleep(until - Date.now());
    await redis.run();
  },
  'killed and restarted': async (redis, proxy, until) => {
    while (Date.now() < until) {
      await redis.restart();
      await lib.sleep(400);
    }
  },
  // ours is well: what starting a server so often costs whoever shares the cores
  'another is restarted': async (redis, proxy, until) => {
    const another = await Redis.start();
    while (Date.now() < until) {
      await another.restart();
      await lib.sleep(400);
    }
    await another.stop();
  },
  'CLIENT PAUSE': async (redis, proxy, until) => {
    while (Date.now() < until) {
      // longer than the engine's patience, and the worker's
      await redis.command('CLIENT', 'PAUSE', 1200, 'ALL');
      await lib.sleep(1500);
    }
  },
  'a network that stalls': async (redis, proxy, until) => {
    for (let i = 0; Date.now() < until; i++) {
      proxy.mode = ['stall', 'stall-up', 'stall-down'][i % 3];
      await lib.sleep(900);
      proxy.mode = 'pass';
      proxy.cut();
      await lib.sleep(300);
    }
  },
  'a network that cuts': async (redis, proxy, until) => {
    for (let i = 0; Date.now() < until; i++) {
      proxy.mode = ['half', 'refuse', 'pass'][i % 3];
      proxy.cut();
      await lib.sleep(200);
    }
    proxy.mode = 'pass';
    proxy.cut();
  },
};

function percentile(values, p) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * p))];
}

const NUMBERS = [['ttft', 0.5], ['ttft', 0.99], ['gap', 0.5], ['gap', 0.99]];

async function metric(port, name) {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  return Number(new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)$`, 'm')
    .exec(text)[1]);
}

// All phases, one after the other; the times of each.
async function measure(redis, proxy, port) {
  const probe = fork(path.join(__dirname, 'redis_probe.js'),
    [JSON.stringify({ port, pace: options.pace, tokens: options.tokens })]);
  const answer = new Promise((resolve, reject) => {
    probe.on('message', resolve);
    probe.on('exit', (code) => reject(new Error(`the probe ended: ${code}`)));
  });
  const order = [];
  const phase = async (name, what) => {
    probe.send(name);
    order.push(name);
    const until = Date.now() + options.seconds * 1000;
    await what(until);
    await lib.sleep(until - Date.now());
  };
  const settle = async () => {
    const end = Date.now() + 20000;
    while (await metric(port, 'tokenring_redis_up') !== 1) {
      if (Date.now() > end) throw new Error('Redis is not reached again');
      await lib.sleep(50);
    }
    await lib.sleep(500);
  };
  probe.send('warm');
  await lib.sleep(3000);
  await phase('well 0', () => settle());
  for (let round = 0; round < options.rounds; round++) {
    for (const [name, trouble] of Object.entries(troubles)) {
      await phase(`${name} ${round}`, (until) => trouble(redis, proxy, until));
      probe.send('recovery'); // belongs to neither
      await settle();
      await phase(`well ${order.length}`, async () => {});
    }
  }
  const outages = await metric(port, 'tokenring_redis_outages_total');
  const lost = await metric(port, 'tokenring_redis_lost_requests_total');
  probe.send('end');
  return { phases: await answer, order, outages, lost };
}

// Of each trouble: its figures, and their ratio to the neighbours', by round.
function summarise({ phases, order }) {
  const of = (name, [what, p]) => percentile(phases[name][what], p);
  const out = {};
  for (const name of Object.keys(troubles)) {
    const rounds = order.map((phase, i) => [phase, i])
      .filter(([phase]) => phase.startsWith(name)
        && /^ \d+$/.test(phase.slice(name.length)));
    out[name] = { figures: {}, state: {}, stateMax: 0 };
    for (const number of NUMBERS) {
      const key = `${number[0]} p${100 * number[1]}`;
      const values = rounds.map(([phase]) => of(phase, number));
      const ratios = rounds.map(([phase, i]) => of(phase, number)
        / ((of(order[i - 1], number) + of(order[i + 1], number)) / 2));
      out[name].figures[key] = { ms: lib.median(values),
        ratio: lib.median(ratios), ratios };
    }
    for (const [phase] of rounds) {
      for (const [code, n] of Object.entries(phases[phase].state)) {
        out[name].state[code] = (out[name].state[code] || 0) + n;
      }
      out[name].stateMax = Math.max(out[name].stateMax,
        ...phases[phase].stateMs);
    }
  }
  const well = order.filter((phase) => phase.startsWith('well'));
  out.well = { figures: Object.fromEntries(NUMBERS.map((number) =>
    [`${number[0]} p${100 * number[1]}`,
      { ms: lib.median(well.map((phase) => of(phase, number))),
        spread: [Math.min(...well.map((phase) => of(phase, number))),
          Math.max(...well.map((phase) => of(phase, number)))] }])) };
  return out;
}

function tabulate(summary, counts) {
  const keys = NUMBERS.map(([what, p]) => `${what} p${100 * p}`);
  const cell = (text) => String(text).padStart(15);
  const rows = [`${''.padEnd(23)}${keys.map(cell).join('')}   GET state`];
  rows.push(`${'Redis is well'.padEnd(23)}${keys.map((k) => cell(
    `${summary.well.figures[k].ms.toFixed(2)} ms`)).join('')}`);
  rows.push(`${'  least to most'.padEnd(23)}${keys.map((k) => cell(
    summary.well.figures[k].spread.map((x) => x.toFixed(2)).join(' to ')))
    .join('')}`);
  for (const name of Object.keys(troubles)) {
    const { figures, state, stateMax } = summary[name];
    rows.push(`${name.padEnd(23)}${keys.map((k) => cell(
      `${figures[k].ms.toFixed(2)} ms`)).join('')}   ${Object.entries(state)
      .map(([code, n]) => `${n} x ${code}`).join(', ')}; at most `
      + `${stateMax.toFixed(0)} ms`);
    rows.push(`${'  times as long as well'.padEnd(23)}${keys.map((k) => cell(
      figures[k].ratio.toFixed(2))).join('')}`);
  }
  rows.push('', `${counts.whole} streams, ${counts.failed} failed; `
    + `${counts.outages} outages, ${counts.lost} requests of which something `
    + 'was lost to Redis');
  return `${rows.join('\n')}\n`;
}

async function main() {
  const before = os.loadavg()[0];
  const redis = await Redis.start();
  const proxy = await Proxy.start(redis);
  const dir = lib.makeDir();
  const engine = await lib.startEngine(dir, { backend: 'null',
    null_rate: options.rate, null_stagger: 'yes', kv_memory: '256m',
    redis: proxy.address, redis_timeout: '500ms' });
  const nginx = await lib.startNginx(dir, 'gateway', {
    main: `load_module ${lib.MODULE};`,
    http: `tokenring_engine main unix:${engine.socket};
      tokenring_redis ${proxy.address} timeout=500ms;`,
    location: 'tokenring_pass main; tokenring_resumable on;'
      + ' location = /metrics { tokenring_metrics main; }',
  });
  await lib.waitHealthy(nginx.port);
  const got = await measure(redis, proxy, nginx.port);
  const all = Object.values(got.phases);
  const failed = all.flatMap((p) => p.failed);
  const counts = { whole: all.reduce((n, p) => n + p.whole, 0),
    failed: failed.length, outages: got.outages, lost: got.lost };
  const summary = summarise(got);
  const load = [before, os.loadavg()[0]];
  const table = `${options.pace} streams of ${options.tokens} tokens begin each `
    + `second, ${options.rate} tokens/s each, resumable;\n${options.rounds} `
    + `rounds of ${options.seconds} s a phase; load of the machine before and `
    + `after: ${load.map((x) => x.toFixed(2)).join(', ')}\n\n`
    + tabulate(summary, counts);
  process.stdout.write(table);
  await lib.stop(nginx);
  await lib.stop(engine, 'SIGKILL');
  proxy.stop();
  await redis.stop();
  if (failed.length) throw new Error(failed.slice(0, 5).join('\n'));
  if (counts.outages < options.rounds * Object.keys(troubles).length) {
    throw new Error('the engine noticed less trouble than there was');
  }
  if (options.json) {
    lib.save(options.json, 'What clients notice of a Redis in trouble',
      `node tests/bench/redis_faults.js --seconds ${options.seconds} --rounds `
      + options.rounds, table, { load, counts, summary });
  }
}

main().then(() => process.exit(0), (error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
