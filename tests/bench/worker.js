'use strict';
//
// What a worker pays for what can be turned on: CPU time a token of the same
// streams, through NGINXes that differ in one thing each, by turns.
//
//   plain     tokenring_pass alone
//   ids kept  tokenring_migrate: the ids of all tokens come, and are kept
//   tenants   tokenring_tenant and tokenring_limits: all are of one tenant with
//             budgets of requests, prompts and answers, which engines keep
//   many      the same, each stream of a tenant of its own: then engines take
//             them by turns, and a worker is woken for fewer tokens at a time
//
// One engine (`backend null`) serves all; ratios are taken within a round.

const { spawnSync } = require('node:child_process');
const path = require('node:path');
const lib = require('./lib.js');

const usage = `Usage: node tests/bench/worker.js [options]
  --rounds N    (default 9)
  --streams N   streams at once (default 100)
  --rate R      tokens per second of one stream (default 200)
  --seconds S   length of one measurement (default 3)
  --json FILE   write the results there, and a table beside them (.md)
`;
const options = lib.options({ rounds: 9, streams: 100, rate: 200, seconds: 3,
  json: '' }, usage);

const LOAD = path.join(lib.BUILD, 'bench/sse_load');
const PLAN = 'tokenring_tenants zone=bench:8m;\n'
  + 'tokenring_plan rich requests=100m/m in=1000m/m out=1000m/m;';
const SIDES = {
  plain: { location: '' },
  'ids kept': { location: 'tokenring_migrate 3;', bound: 1.03 },
  tenants: { bound: 1.05, http: PLAN,
    location: 'tokenring_tenant bench; tokenring_limits rich;' },
  many: { http: PLAN,
    location: 'tokenring_tenant $connection; tokenring_limits rich;' },
};

async function startSide(dir, engine, name) {
  const { http = '', location } = SIDES[name];
  const nginx = await lib.startNginx(dir, name.replace(' ', '-'), {
    main: process.env.TR_MODULE === 'static' ? ''
      : `load_module ${lib.MODULE};`,
    http: `  tokenring_engine main unix:${engine.socket};\n${http}`,
    location: `${location} tokenring_pass main;`,
  });
  await lib.waitHealthy(nginx.port);
  return nginx;
}

// us of the worker's CPU for each token.
function measure(nginx) {
  const tokens = Math.round(options.rate * options.seconds) + 8;
  const run = spawnSync(LOAD, ['--port', nginx.port, '--streams',
    options.streams, '--tokens', tokens, '--lazy', 5, '--cpu',
    `worker=${nginx.worker}`].map(String), { encoding: 'utf8' });
  if (run.status !== 0) throw new Error(`sse_load: ${run.stderr || run.error}`);
  const result = JSON.parse(run.stdout);
  return result.cpu.worker.ns / result.tokens / 1e3;
}

async function main() {
  const dir = lib.makeDir();
  const engine = await lib.startEngine(dir, { backend: 'null',
    null_rate: options.rate, null_stagger: 'no', kv_memory: '64m' });
  const names = Object.keys(SIDES);
  const side = {}, us = {};
  for (const name of names) {
    side[name] = await startSide(dir, engine, name);
    us[name] = [];
  }
  for (let round = 0; round < options.rounds; round++) {
    for (let i = 0; i < names.length; i++) { // none always follows another
      const name = names[(i + round) % names.length];
      us[name].push(measure(side[name]));
    }
  }
  for (const name of names) await lib.stop(side[name], 'SIGQUIT');
  await lib.stop(engine);
  const results = {};
  const row = (cells) => `| ${cells.join(' | ')} |\n`;
  let table = row(['', 'us/token', 'over plain', 'bound'])
    + row(Array(4).fill('---'));
  for (const name of names) {
    const ratios = us[name].map((v, i) => v / us.plain[i]);
    const ratio = lib.median(ratios);
    const { bound } = SIDES[name];
    results[name] = { us: lib.median(us[name]), ratio, rounds: us[name] };
    table += row([name, lib.median(us[name]).toFixed(2), name !== 'plain'
      ? `${ratio.toFixed(3)} (${Math.min(...ratios).toFixed(3)}-${
        Math.max(...ratios).toFixed(3)})` : '',
    bound ? `${bound}: ${ratio <= bound ? 'held' : 'MISSED'}` : 'none']);
  }
  process.stdout.write(table);
  if (options.json) {
    lib.save(options.json, 'What is turned on, and costs a worker',
      `node tests/bench/worker.js ${process.argv.slice(2).join(' ')}`.trim(),
      table, { options, results });
  }
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
