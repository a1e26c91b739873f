'use strict';
//
// The pause of the last of many streams whose engine is killed: what it is over
// the time in which the other engine computes the tokens that all of them bring.
//
// Streams run at one engine, another one is idle, and before that has computed
// prompts of the same kind, all at once: its prefill rate.  Then `kill -9`.  A
// stream's pause is from there to its next event; that of the last one is held
// up to (tokens of prompts and answers replayed / rate) + 50 ms.

const http = require('node:http');
const lib = require('./lib.js');

const usage = `Usage: node tests/bench/pause.js [options]
  --streams N   that move (default 40)
  --prompt N    tokens of each prompt (default 250)
  --told N      tokens of each answer before the kill, at least (default 30)
  --rounds N    (default 5)
  --cases LIST  of those below, separated by semicolons (default: all)
  --json FILE   write the results there, and a table beside them (.md)
`;
const options = lib.options({ streams: 40, prompt: 250, told: 30, rounds: 5,
  cases: '', json: '' }, usage);
const asked = (c) => !options.cases
  || options.cases.split(';').map((name) => name.trim()).includes(c.name);

// Those with a bound compute what they replay as a prompt.
const CASES = [
  { name: 'full', policy: 'full', n: 1, bound: 1.5 },
  { name: 'diffkv', policy: 'diffkv', n: 1, bound: 1.5 },
  { name: 'diffkv, replay decode', policy: 'diffkv', n: 1, replay: 'decode' },
  { name: 'full, n = 4', policy: 'full', n: 4 },
  { name: 'diffkv, n = 4', policy: 'diffkv', n: 4 },
];

let state = 7;
function rnd(n) {
  state = (Math.imul(state, 1103515245) + 12345) >>> 0;
  return (state >>> 8) % n;
}
const ids = (n) => Array.from({ length: n }, () => 300 + rnd(3000));
const ms = () => Number(process.hrtime.bigint()) / 1e6;

// A stream; times: when its events came.
function open(port, path, body) {
  const s = { times: [] };
  s.over = new Promise((resolve, reject) => {
    s.request = http.request({ host: '127.0.0.1', port, agent: false,
      method: 'POST', path, headers: { 'content-type': 'application/json' } },
    (res) => {
      if (res.statusCode !== 200) reject(new Error(`HTTP ${res.statusCode}`));
      res.setEncoding('utf8');
      res.on('data', (text) => {
        const now = ms();
        if (text.includes('"error"')) reject(new Error(text));
        for (const line of text.split('\n')) {
          if (line.startsWith('data: {')) s.times.push(now);
        }
      });
      res.on('end', resolve);
      res.on('error', resolve);
    });
    s.request.on('error', resolve);
    s.request.end(JSON.stringify({ model: 'pocket', stream: true,
      ignore_eos: true, ...body }));
  });
  s.over.catch((e) => { s.error = e; });
  return s;
}

async function until(test, what) {
  for (const end = Date.now() + 120000; !(await test());) {
    if (Date.now() > end) throw new Error(`waited in vain: ${what}`);
    await lib.sleep(5);
  }
}

// Tokens a second of so many prompts at once, none of which was there before.
async function prefillRate(port, n) {
  const begin = ms();
  const all = Array.from({ length: n }, () => open(port, '/b/v1/completions',
    { prompt: ids(options.prompt), max_tokens: 1 }));
  await until(() => all.every((s) => s.error || s.times.length),
    'prompts are computed');
  const end = Math.max(...all.map((s) => s.times[0]));
  await Promise.all(all.map((s) => s.over));
  return n * options.prompt / (end - begin) * 1000;
}

async function metric(port, name) {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  return lib.sum([...text.matchAll(
    new RegExp(`^${name}(?:{[^}]*})? ([0-9.e+]+)$`, 'gm'))]
    .map((m) => Number(m[1])));
}

async function round(c) {
  const dirs = [lib.makeDir(), lib.makeDir()];
  const engines = [];
  for (const dir of dirs) {
    engines.push(await lib.startEngine(dir, { kv_policy: c.policy,
      kv_memory: '512m', kv_reuse: 'no', max_num_seqs: 256,
      log_level: 'notice', ...(c.replay ? { replay: c.replay } : {}) }));
  }
  const [a, b] = engines;
  const nginx = await lib.startNginx(dirs[0], 'nginx', {
    main: `load_module ${lib.MODULE};`,
    // a busy machine is waited for
    http: `tokenring_queue_timeout 1h; tokenring_first_token_timeout 1h;
      tokenring_idle_timeout 1h;
      tokenring_engine a unix:${a.socket};
      tokenring_engine b unix:${b.socket};
      tokenring_engine both unix:${a.socket} unix:${b.socket};`,
    location: `tokenring_migrate 3 timeout=60s; tokenring_pass both; }
      location /b/v1/ { tokenring_pass b; }
      location /metrics { tokenring_metrics;`,
  });
  try {
    await lib.waitHealthy(nginx.port);
    await prefillRate(nginx.port, 8);
    const streams = options.streams / c.n;
    const rate = await prefillRate(nginx.port, options.streams);
    // b refuses meanwhile, so that all of them are at a
    lib.drain(b, []);
    const all = Array.from({ length: streams }, () => open(nginx.port,
      '/v1/completions', { prompt: ids(options.prompt), max_tokens: 1500,
        n: c.n, temperature: 1 }));
    await until(() => all.every((s) => s.error
      || s.times.length >= options.told * c.n), 'answers are under way');
    lib.drain(b, ['--undo']);
    await lib.sleep(100);
    const t0 = ms();
    a.kill('SIGKILL');
    await until(() => all.every((s) => s.error || s.times.at(-1) > t0 + 20),
      'all go on');
    const failed = all.find((s) => s.error);
    if (failed) throw failed.error;
    const pauses = all.map((s) => s.times.find((t) => t > t0 + 20) - t0);
    const replayed = streams * options.prompt
      + await metric(nginx.port, 'tokenring_replayed_tokens_total');
    all.forEach((s) => s.request.destroy());
    const last = Math.max(...pauses);
    return { rate, replayed, last, first: Math.min(...pauses),
      ratio: last / (replayed / rate * 1000 + 50) };
  } finally {
    await lib.stop(nginx, 'SIGKILL');
    for (const e of engines) await lib.stop(e, 'SIGKILL');
  }
}

async function main() {
  const row = (cells) => `| ${cells.join(' | ')} |\n`;
  let table = row(['', 'prefill (tokens/s)', 'replayed (tokens)',
    'first goes on (ms)', 'last', 'over replayed / rate + 50 ms', 'bound'])
    + row(Array(7).fill('---'));
  const results = {};
  for (const c of CASES.filter(asked)) {
    const rounds = [];
    for (let i = 0; i < options.rounds; i++) {
      rounds.push(await round(c));
      process.stderr.write(`${c.name}: ${JSON.stringify(rounds.at(-1))}\n`);
    }
    const of = (key) => lib.median(rounds.map((r) => r[key]));
    const ratios = rounds.map((r) => r.ratio);
    results[c.name] = rounds;
    table += row([c.name, of('rate').toFixed(0), of('replayed').toFixed(0),
      of('first').toFixed(0), of('last').toFixed(0),
      `${of('ratio').toFixed(2)} (${Math.min(...ratios).toFixed(2)}-${
        Math.max(...ratios).toFixed(2)})`,
      c.bound ? `${c.bound}: ${of('ratio') <= c.bound ? 'held' : 'MISSED'}`
        : 'none']);
  }
  process.stdout.write(table);
  if (options.json) {
    lib.save(options.json, 'The pause of the last stream that moves',
      `node tests/bench/pause.js ${process.argv.slice(2).join(' ')}`.trim(),
      table, { options, results });
  }
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
