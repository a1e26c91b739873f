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
  const viewer = { bytes: 0, ticks: 0, slices: 0 };
  let left = '';
  viewer.request = http.get(`http://127.0.0.1:${port}/events`, { agent: false },
    (res) => res.setEncoding('latin1').on('data', (d) => {
      viewer.bytes += d.length;
      const events = (left + d).split('\n\n');
      left = events.pop();
      for (const event of events) {
        if (event.startsWith('data: {"type":"tick"')) viewer.ticks++;
        if (event.startsWith('data: {"type":"history"')) viewer.slices++;
      }
    }));
  viewer.request.on('error', () => {});
  return viewer;
}

const cpu = (nginx) => lib.sum(lib.cpuNs(nginx.worker)) / 1e6;

// All that was before has come.
async function caughtUp(viewers) {
  const all = options.engines * Math.ceil(HISTORY / 60);
  while (viewers.some((v) => v.slices < all)) await lib.sleep(50);
  await lib.sleep(1000);
}

// Milliseconds of CPU a second, while what is there stays.
async function phase(nginx, viewers) {
  const ticks = viewers.map((v) => v.ticks);
  const from = cpu(nginx);
  const begin = process.hrtime.bigint();
  await lib.sleep(options.seconds * 1000);
  const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
  const spent = cpu(nginx) - from;
  const least = Math.min(...viewers.map((v, i) => v.ticks - ticks[i]));
  if (least < 0.9 * seconds - 1) {
    throw new Error(`a viewer got ${least} ticks in ${seconds.toFixed(0)} s`);
  }
  return spent / seconds;
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

  const none = await phase(nginx, []);
  const before = cpu(nginx);
  const first = view(nginx.port);
  await caughtUp([first]);
  const opened = cpu(nginx) - before;
  const { bytes } = first;
  const one = await phase(nginx, [first]);
  const rest = Array.from({ length: options.viewers - 1 }, () => view(nginx.port));
  await caughtUp(rest);
  const many = await phase(nginx, [first, ...rest]);
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
    `opening the page                  ${opened.toFixed(1)} ms CPU, `
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
