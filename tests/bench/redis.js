'use strict';
//
// What it costs to tell Redis: CPU time of the engine's publisher thread and of
// redis-server at a given rate of tokens over resumable streams, with requests
// coming and going beside them; and what the engine loses in tokens/s when it has
// as many as it can make, with Redis there, away, and not configured.

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const lib = require('./lib.js');
const { Redis } = require('../e2e/lib/redis.js');

const usage = `Usage: node tests/bench/redis.js [options]
  --streams N    resumable streams (default 100)
  --rate N       tokens a second of each (default 100)
  --requests N   short requests a second beside them (default 50)
  --seconds S    of the window (default 10)
  --rounds N     rounds of each case without a limit (default 3)
  --json FILE    write the results there, and a table beside them (.md)
`;
const options = lib.options({ streams: 100, rate: 100, requests: 50,
  seconds: 10, rounds: 3, json: '' }, usage);
const SSE_LOAD = path.join(lib.BUILD, 'bench/sse_load');

async function withEngine(settings, what) {
  const dir = lib.makeDir();
  const engine = await lib.startEngine(dir, { backend: 'null',
    kv_memory: '1g', max_num_seqs: 512, ...settings });
  let nginx;
  try {
    nginx = await lib.startNginx(dir, 'gateway', {
      main: `load_module ${lib.MODULE};`,
      http: `tokenring_engine main unix:${engine.socket}; tokenring_redis off;`,
      location: 'tokenring_pass main; tokenring_resumable on;'
        + ' location = /metrics { tokenring_metrics main; }',
    });
    await lib.waitHealthy(nginx.port);
    return await what(engine, nginx);
  } finally {
    await lib.stop(nginx);
    await lib.stop(engine, 'SIGKILL');
  }
}

async function metric(port, name) {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  const m = new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)$`, 'm').exec(text);
  if (m === null) throw new Error(`no ${name} in\n${text}`);
  return Number(m[1]);
}

// Streams of so many tokens each, read by a program of its own.
function streams(port, n, tokens) {
  const child = spawn(SSE_LOAD, ['--port', port, '--streams', n,
    '--tokens', tokens, '--warmup', 2, '--lazy', 20, '--model', 'pocket'],
  { stdio: ['ignore', 'pipe', 'inherit'] });
  let out = '';
  child.stdout.on('data', (d) => { out += d; });
  const ended = new Promise((resolve) => {
    child.on('exit', (code) => resolve({ code, out }));
  });
  return { child, ended };
}

// Short requests at an even pace; the function ends them.
function requests(port, rate) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });
  const body = JSON.stringify({ model: 'pocket', prompt: 'once',
    max_tokens: 4 });
  const count = { sent: 0, failed: 0 };
  const begun = Date.now();
  let over = false;
  const timer = setInterval(() => {
    while (count.sent < (Date.now() - begun) / 1000 * rate) {
      count.sent++;
      const req = http.request({ port, path: '/v1/completions', agent,
        method: 'POST', headers: { 'content-type': 'application/json',
          'content-length': Buffer.byteLength(body) } }, (res) => {
        if (res.statusCode !== 200) count.failed++;
        res.resume();
      });
      req.on('error', () => { count.failed += !over; });
      req.end(body);
    }
  }, 20);
  return () => {
    over = true; // those under way are nobody's loss
    clearInterval(timer);
    agent.destroy();
    return count;
  };
}

// Share of one core by thread, of the engine and of Redis, in the window.
async function cost(redis) {
  return withEngine({ redis: redis.address, null_rate: options.rate,
    null_stagger: 'yes' }, async (engine, nginx) => {
    const run = streams(nginx.port, options.streams,
      options.rate * (options.seconds + 8));
    await lib.sleep(2000);
    const end = requests(nginx.port, options.requests);
    await lib.sleep(1000);
    const look = async () => ({ at: process.hrtime.bigint(),
      engine: lib.cpuNs(engine.pid), redis: lib.sum(lib.cpuNs(redis.pid)),
      tokens: await metric(nginx.port, 'tokenring_generation_tokens_total'),
      commands: Number(/total_commands_processed:(\d+)/.exec(
        await redis.command('INFO', 'stats'))[1]) });
    const a = await look();
    await lib.sleep(options.seconds * 1000);
    const b = await look();
    const count = end();
    const ns = Number(b.at - a.at);
    const lost = await metric(nginx.port,
      'tokenring_redis_lost_requests_total');
    const entries = await redis.command('KEYS', 'tr:out:*');
    run.child.kill();
    await run.ended;
    if (count.failed !== 0) throw new Error(`${count.failed} requests failed`);
    if (entries.length < options.streams) {
      throw new Error(`${entries.length} streams are in Redis, expected `
        + `${options.streams}: is tokenring_resumable there?`);
    }
    return {
      tokensPerSecond: (b.tokens - a.tokens) / ns * 1e9,
      commandsPerSecond: (b.commands - a.commands) / ns * 1e9,
      publisher: (b.engine['tr-publisher'] - a.engine['tr-publisher']) / ns,
      loop: (b.engine['tr-loop'] - a.engine['tr-loop']) / ns,
      front: (b.engine['tr-frontend'] - a.engine['tr-frontend']) / ns,
      redis: (b.redis - a.redis) / ns,
      lost,
    };
  });
}

// Tokens a second of an engine that is not slowed down.
async function speed(settings) {
  return withEngine({ null_rate: 1000000, ...settings },
    async (engine, nginx) => {
      const run = streams(nginx.port, options.streams, 30000);
      let over = false;
      run.ended.then(() => { over = true; });
      await lib.sleep(1000);
      const a = await metric(nginx.port, 'tokenring_generation_tokens_total');
      const at = process.hrtime.bigint();
      await lib.sleep(options.seconds * 300);
      const b = await metric(nginx.port, 'tokenring_generation_tokens_total');
      const s = Number(process.hrtime.bigint() - at) / 1e9;
      if (over) throw new Error('the streams were over before the window');
      run.child.kill();
      await run.ended;
      return (b - a) / s;
    });
}

async function main() {
  const redis = await Redis.start();
  const away = `127.0.0.1:${await lib.freePort()}`;
  const share = await cost(redis);
  const cases = { none: {}, there: { redis: redis.address },
    away: { redis: away } };
  const rates = { none: [], there: [], away: [] };
  for (let i = 0; i < options.rounds; i++) {
    for (const name of Object.keys(cases)) {
      rates[name].push(await speed(cases[name]));
    }
  }
  await redis.stop();
  const percent = (x) => `${(100 * x).toFixed(2)}%`;
  const of = (name) => lib.median(rates[name]);
  const table = [
    `${options.streams} resumable streams of ${options.rate} tokens/s, `
      + `${options.requests} requests/s beside them, ${options.seconds} s:`,
    `  tokens/s              ${share.tokensPerSecond.toFixed(0)}`,
    `  commands/s in Redis   ${share.commandsPerSecond.toFixed(0)}`,
    `  publisher thread       ${percent(share.publisher)} of a core`,
    `  redis-server          ${percent(share.redis)} of a core`,
    `  step loop             ${percent(share.loop)} of a core`,
    `  frontend thread          ${percent(share.frontend)} of a core`,
    `  lost                  ${share.lost}`,
    '',
    'tokens/s as fast as it goes, median (all rounds):',
    ...Object.keys(rates).map((name) => `  redis ${name.padEnd(8)}`
      + `${of(name).toFixed(0).padStart(9)}  ${percent(of(name) / of('none'))}`
      + `  (${rates[name].map((x) => x.toFixed(0)).join(' ')})`),
  ].join('\n') + '\n';
  process.stdout.write(table);
  if (options.json) {
    lib.save(options.json, 'What telling Redis costs',
      `node tests/bench/redis.js --streams ${options.streams} --rate `
      + `${options.rate} --requests ${options.requests} --seconds `
      + `${options.seconds} --rounds ${options.rounds}`, table,
      { share, rates });
  }
}

main().then(() => process.exit(0), (error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
