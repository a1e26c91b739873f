'use strict';
//
// Answers read again from Redis: time from the request to the first byte of the
// body, from the start, from the middle and from near the end of a long answer;
// and many followers of one live answer: connections to Redis, time from the
// engine's message to the last follower, CPU of the worker.  Redis is real, the
// records are written as an engine would.

const fs = require('node:fs');
const net = require('node:net');
const path = require('node:path');
const lib = require('./lib.js');
const { Redis } = require('../e2e/lib/redis.js');
const R = require('../e2e/lib/records.js');

const usage = `Usage: node tests/bench/resume.js [options]
  --tokens N     of the answer that is taken up (default 2000)
  --rounds N     times that it is, from each place (default 200)
  --followers N  of the live answer (default 1000)
  --entries N    that they get (default 40, of 5 records, 50 ms apart)
  --json FILE    write the results there, and a table beside them (.md)
`;
const options = lib.options({ tokens: 2000, rounds: 200, followers: 1000,
  entries: 40, json: '' }, usage);
const EACH = 5;

const now = () => Number(process.hrtime.bigint()) / 1e6;
const at = (list, share) => [...list].sort((a, b) => a - b)[
  Math.min(list.length - 1, Math.floor(list.length * share))];

async function answer(redis) {
  const w = await new R.Written(redis).state('done');
  const records = [R.accepted()];
  for (let i = 0; i < options.tokens; i++) records.push(R.delta(` word${i}`));
  records.push(R.finish({ completion: options.tokens }));
  for (let i = 0; i < records.length; i += EACH) {
    await w.put(records.slice(i, i + EACH), { publish: false });
  }
  return w;
}

// One request on a connection that is there; ms to the body's first byte, and
// to its end.
function take(socket, id, after) {
  return new Promise((resolve, reject) => {
    let text = '';
    let first = 0;
    const begin = now();
    const data = (d) => {
      text += d.toString('latin1');
      if (!first && text.includes('data: ')) first = now() - begin;
      if (!text.endsWith('\r\n0\r\n\r\n')) return;
      socket.off('data', data);
      if (!text.includes('data: [DONE]')) reject(new Error(text.slice(0, 300)));
      resolve({ first, all: now() - begin, bytes: text.length });
    };
    socket.on('data', data);
    socket.write(`GET /v1/requests/${id}/stream HTTP/1.1\r\nHost: x\r\n`
      + (after ? `Last-Event-ID: ${after}\r\n` : '') + '\r\n');
  });
}

const open = (port) => new Promise((resolve, reject) => {
  const socket = net.connect(port, '127.0.0.1');
  socket.setNoDelay(true);
  socket.on('connect', () => resolve(socket));
  socket.on('error', reject);
});

async function resume(port, redis) {
  const w = await answer(redis);
  const socket = await open(port);
  const places = [['the start', 0], ['the middle', options.tokens >> 1],
    ['near the end', options.tokens - 20]];
  const out = [];
  for (const [name, after] of places) {
    const times = [];
    for (let i = 0; i < options.rounds + 10; i++) {
      const t = await take(socket, w.id, after);
      if (i >= 10) times.push(t);
    }
    out.push({ name, after, bytes: times[0].bytes,
      first_ms: at(times.map((t) => t.first), 0.5),
      first_p99_ms: at(times.map((t) => t.first), 0.99),
      all_ms: at(times.map((t) => t.all), 0.5) });
  }
  socket.destroy();
  return out;
}

// A follower that counts what it got, and when.
async function follower(port, id) {
  const socket = await open(port);
  const f = { socket, events: 0, at: 0, left: '' };
  socket.on('data', (d) => {
    f.left += d.toString('latin1');
    let i;
    while ((i = f.left.indexOf('id: ')) >= 0) {
      const end = f.left.indexOf('\n', i);
      if (end < 0) break;
      f.events = Number(f.left.slice(i + 4, end));
      f.left = f.left.slice(end);
      f.at = now();
    }
  });
  socket.write(`GET /v1/requests/${id}/stream HTTP/1.1\r\nHost: x\r\n\r\n`);
  return f;
}

const all = async (followers, number) => {
  while (followers.some((f) => f.events < number)) await lib.sleep(1);
};

async function follow(port, nginx, redis) {
  const w = await (await new R.Written(redis).heartbeat(600)).state('decode');
  await w.put([R.accepted(), R.delta('a')]);
  const begin = now();
  const followers = [];
  for (let i = 0; i < options.followers; i++) {
    followers.push(await follower(port, w.id));
  }
  await all(followers, 2);
  const joined = now() - begin;
  await lib.sleep(1500);
  const named = async () => (await redis.command('CLIENT', 'LIST')).split('\n')
    .filter((line) => /name=tokenring-/.test(line));
  const connections = await named();
  const spread = [];
  const cpu = lib.sum(lib.cpuNs(nginx.worker));
  for (let i = 0; i < options.entries; i++) {
    const sent = now();
    await w.put(Array.from({ length: EACH }, () => R.delta(` word${i}`)));
    await all(followers, w.number);
    spread.push(Math.max(...followers.map((f) => f.at)) - sent);
    await lib.sleep(Math.max(0, 50 - (now() - sent)));
  }
  const us = (lib.sum(lib.cpuNs(nginx.worker)) - cpu) / 1e3;
  for (const f of followers) f.socket.destroy();
  return { followers: followers.length, joined_ms: joined,
    connections: connections.length,
    subscriptions: connections.filter((c) => / sub=1 /.test(c)).length,
    last_ms: at(spread, 0.5), last_p99_ms: at(spread, 0.99),
    us_per_event: us / options.entries / EACH / followers.length };
}

async function main() {
  const dir = lib.makeDir();
  fs.chmodSync(dir, 0o755);
  const redis = await Redis.start();
  const nginx = await lib.startNginx(dir, 'nginx', {
    main: `load_module ${lib.MODULE};`,
    http: `  tokenring_engine none unix:${path.join(dir, 'none.sock')};
  tokenring_redis ${redis.address};
  tokenring_idle_timeout 300s;`,
    location: 'tokenring_pass none;',
  });
  try {
    const places = await resume(nginx.port, redis);
    const live = await follow(nginx.port, nginx, redis);
    const f = (n) => n.toFixed(2).padStart(8);
    const table = `an answer of ${options.tokens} tokens, ${options.rounds} `
      + 'times from each place, ms\n'
      + '                 bytes   first byte      p99      all\n'
      + places.map((p) => `${p.name.padEnd(14)}${String(p.bytes).padStart(8)}`
        + `     ${f(p.first_ms)} ${f(p.first_p99_ms)} ${f(p.all_ms)}\n`).join('')
      + 'target: first byte within 5 ms\n\n'
      + `${live.followers} followers of one answer in one worker\n`
      + `connections to Redis     ${live.connections} `
      + `(${live.subscriptions} of them for subscriptions; target 1)\n`
      + `all have joined          ${f(live.joined_ms)} ms\n`
      + `message to last follower ${f(live.last_ms)} ms, `
      + `p99 ${live.last_p99_ms.toFixed(2)} ms\n`
      + `worker's CPU             ${f(live.us_per_event)} us an event and `
      + 'follower\n';
    process.stdout.write(table);
    if (options.json) {
      lib.save(options.json, 'Answers read again', 'make bench-resume', table,
        { places, live });
    }
  } finally {
    await lib.stop(nginx);
    await redis.stop();
  }
}

main().then(() => process.exit(0), (error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
