'use strict';
//
// What a viewer of the dashboard costs a worker: CPU time of the worker with
// none, one and many viewers, while a synthetic fleet writes to a real Redis
// once a second; and what opening the page costs, with eleven minutes of samples
// of each engine.

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const lib = require('./lib.js');
const { Redis } = require('../e2e/lib/redis.js');
const { SyntheticFleet, commands } = require('../e2e/lib/synthetic_fleet.js');

const usage = `Usage: node tests/bench/dashboard.js [options]
  --engines N   engines of the fleet (default 4)
  --viewers N   of the last phase (default 20)
  --seconds S   of each phase (default 20)
  --json FILE   write the results there, and a table beside them (.md)
`;
const options = lib.options({ engines: 4, viewers: 20, seconds: 20, json: '' },
  usage);
const HISTORY = 660;

async function write(redis, list) {
  const client = await redis.client();
  await Promise.all(list.map((words) => client.raw(...words)));
}

// A fleet of about eight requests a second, written as its engines would.
async function feed(redis) {
  const now = Date.now();
  const engines = Object.fromEntries(Array.from({ length: options.engines },
    (_, i) => [`gpu-${i}`, { rate: 2 }]));
  const fleet = new SyntheticFleet(7, now - HISTORY * 1000, engines);
  const step = (t, requests) => {
    fleet.step(t);
    return write(redis, fleet.engines
      .flatMap((e) => commands(e, t, { requests })));
  };
  for (let t = now - HISTORY * 1000; t < now; t += 1000) await step(t, false);
  return setInterval(() => step(Date.now(), true), 1000);
}

function view(port) {
  const viewer = { bytes: 0, ticks: 0 };
  viewer.request = http.get(`http://127.0.0.1:${port}/events`, { agent: false },
    (res) => res.on('data', (d) => {
      viewer.bytes += d.length;
      viewer.ticks += d.includes('"type":"tick"') ? 1 : 0;
    }));
  viewer.request.on('error', () => {});
  return viewer;
}

const cpu = (nginx) => lib.sum(lib.cpuNs(nginx.worker)) / 1e6;

// Milliseconds of CPU a second, while what is there stays.
async function phase(nginx) {
  const from = cpu(nginx);
  const begin = process.hrtime.bigint();
  await lib.sleep(options.seconds * 1000);
  return (cpu(nginx) - from)
    / (Number(process.hrtime.bigint() - begin) / 1e9);
}

async function main() {
  const dir = lib.makeDir();
  fs.chmodSync(dir, 0o755);
  const redis = await Redis.start();
  const timer = await feed(redis);
  const nginx = await lib.startNginx(dir, 'nginx', {
    main: process.env.TR_MODULE === 'static' ? '' : `load_module ${lib.MODULE};`,
    http: `  tokenring_redis ${redis.address};`,
    location: `tokenring_dashboard ${path.join(lib.ROOT, 'dashboard')};`,
  });
  // Once for nothing, so that no memory is touched for the first time.
  view(nginx.port).request.destroy(await lib.sleep(3000));
  await lib.sleep(2000);

  const none = await phase(nginx);
  const before = cpu(nginx);
  const first = view(nginx.port);
  await lib.sleep(3000);
  const opened = cpu(nginx) - before - 3 * none;
  const bytes = first.bytes;
  const one = await phase(nginx);
  const rest = Array.from({ length: options.viewers - 1 }, () => view(nginx.port));
  await lib.sleep(4000);
  const many = await phase(nginx);
  for (const v of [first, ...rest]) v.request.destroy();
  clearInterval(timer);
  await lib.stop(nginx, 'SIGQUIT');
  await redis.stop();

  const share = (ms) => `${(ms / 10).toFixed(3)}%`;
  const cost = one - none;
  const more = (many - one) / (options.viewers - 1);
  const text = [
    `${options.engines} engines, 2 requests a second each, ${HISTORY} samples `
      + `of each; ${options.seconds} s a phase; of one core`,
    `nobody looks                      ${share(none)}`,
    `one viewer                        ${share(cost)}  target under 0.5%: `
      + (cost < 5 ? 'held' : 'MISSED'),
    `each further viewer               ${share(more)}  (of ${options.viewers})`,
    `opening the page, and 3 s of it   ${opened.toFixed(1)} ms CPU, `
      + `${(bytes / 1024).toFixed(0)} KiB of events`,
  ].join('\n');
  process.stdout.write(`${text}\n`);
  if (options.json) {
    lib.save(path.resolve(options.json), 'Dashboard: what a viewer costs',
      `node tests/bench/dashboard.js ${process.argv.slice(2).join(' ')}`.trim(),
      `${text}\n`, { options, none, one, many, opened, bytes });
  }
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
