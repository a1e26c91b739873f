'use strict';
//
// Conversations of many users at once: each asks, reads the answer for a while, and
// asks again behind all that was said.  More conversations than the KV pool holds:
// so what counts is how many of them stay, where the others go, and what comes back
// instead of being computed again.
//
// Prompts are token ids.  In the history an answer stands as other ids of the same
// number, as one whose reasoning is cut: a turn computes these, too.  All answers
// have their full length.  Each policy has an engine of its own, one after the
// other, with the same settings (--set) and so the same memory.
//
//   tokens/s   of answers, from the first question to the last answer's end
//   first      time to the first token, from the question on
//   reused     tokens of prompts that came from a cache, over all of prompts
//   of a turn  tokens of prompts that were computed, over those that are new

const http = require('node:http');
const path = require('node:path');
const lib = require('./lib.js');

const usage = `Usage: node tests/bench/users.js [options]
  --policies LIST  KV policies, separated by blanks (default "full diffkv")
  --users N        (default 80)
  --turns N        of each conversation (default 6)
  --prompt N       new tokens of a turn (default 2000)
  --answer N       tokens of an answer (default 256)
  --think A-B      seconds between an answer and the next question (default 1-10)
  --set "K V;.."   settings of the engines
  --seed N         of prompts and of times (default 1)
  --json FILE      write the results there, and a table beside them (.md)
`;
const options = lib.options({ policies: 'full diffkv', users: 80, turns: 6,
  prompt: 2000, answer: 256, think: '1-10', set: '', seed: 1, json: '' }, usage);
const [LEAST, MOST] = options.think.split('-').map(Number);
const SETTINGS = Object.fromEntries(options.set.split(';')
  .map((s) => s.trim().split(/\s+/)).filter((s) => s.length === 2));

// The same for every policy, whatever the order in which users come to it.
function dice(seed) {
  let state = (Math.imul(seed, 2654435761) + 1) >>> 0;
  return (n) => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) % n;
  };
}

const seconds = (since) => Number(process.hrtime.bigint() - since) / 1e9;

// A streamed completion: {first, usage}, or an error.
function ask(port, prompt) {
  const body = JSON.stringify({ prompt, stream: true, ignore_eos: true,
    max_tokens: options.answer, temperature: 0,
    stream_options: { include_usage: true } });
  const begun = process.hrtime.bigint();
  return new Promise((resolve, reject) => {
    const request = http.request({ host: '127.0.0.1', port, method: 'POST',
      path: '/v1/completions', agent: false,
      headers: { 'content-type': 'application/json' } }, (res) => {
      let first = 0;
      let text = '';
      res.setEncoding('utf8').on('data', (d) => {
        first = first || seconds(begun);
        text = (text + d).slice(-4000);
      });
      res.on('end', () => {
        const told = text.match(/"usage": ?({"prompt_tokens".*})}\n/);
        if (res.statusCode !== 200 || told === null) {
          reject(new Error(`HTTP ${res.statusCode}: ${text.slice(-300)}`));
        } else {
          resolve({ first, usage: JSON.parse(told[1]) });
        }
      });
    });
    request.on('error', reject);
    request.end(body);
  });
}

async function user(port, number, all) {
  const random = dice(options.seed * 1000 + number);
  const ids = (n) => Array.from({ length: n }, () => 300 + random(3000));
  let history = [];
  for (let turn = 0; turn < options.turns; turn++) {
    const think = (LEAST + (MOST - LEAST) * random(1000) / 1000) * 1000;
    await lib.sleep(turn === 0 ? think / 2 : think);
    history = history.concat(ids(options.prompt));
    const a = await ask(port, history);
    all.push({ turn, first: a.first, prompt: a.usage.prompt_tokens,
      answer: a.usage.completion_tokens,
      cached: a.usage.prompt_tokens_details?.cached_tokens ?? 0 });
    history = history.concat(ids(options.answer));
  }
}

async function start(policy) {
  const dir = lib.makeDir();
  const longest = options.turns * (options.prompt + options.answer) + 64;
  const engine = await lib.startEngine(dir, { kv_policy: policy, kv_reuse: 'yes',
    max_model_len: longest, max_num_seqs: Math.max(options.users, 8),
    max_queue: 4 * options.users, log_level: 'notice', ...SETTINGS });
  const nginx = await lib.startNginx(dir, 'nginx', {
    main: `load_module ${lib.MODULE};`,
    http: `tokenring_engine main unix:${engine.socket};
  client_max_body_size 16m;
  tokenring_queue_timeout 2h; tokenring_idle_timeout 2h;
  tokenring_first_token_timeout 2h;`,
    location: 'tokenring_pass main;',
  });
  await lib.waitHealthy(nginx.port);
  return { port: nginx.port, log: path.join(dir, 'engine.log'),
    stop: async () => {
      await lib.stop(nginx, 'SIGQUIT');
      await lib.stop(engine);
    } };
}

const at = (sorted, share) => sorted[Math.min(sorted.length - 1,
  Math.floor(sorted.length * share))];

async function measure(policy) {
  const e = await start(policy);
  const all = [];
  const begun = process.hrtime.bigint();
  try {
    await Promise.all(Array.from({ length: options.users },
      (_, i) => user(e.port, i, all)));
  } finally {
    await e.stop();
  }
  const took = seconds(begun);
  const sum = (key) => lib.sum(all.map((a) => a[key]));
  const first = all.map((a) => a.first).sort((a, b) => a - b);
  const fresh = options.users * options.turns * options.prompt;
  return { policy, seconds: took, rate: sum('answer') / took,
    p50: at(first, 0.5), p99: at(first, 0.99),
    reused: sum('cached') / sum('prompt'),
    computed: (sum('prompt') - sum('cached')) / fresh };
}

(async () => {
  const rows = [];
  for (const policy of options.policies.split(/\s+/)) {
    rows.push(await measure(policy));
    console.error(JSON.stringify(rows.at(-1)));
  }
  const table = ['| policy | seconds | tokens/s | over the first | first token,'
    + ' p50 (s) | p99 | reused | computed of a turn |', '|---|---|---|---|---|---|---|---|']
    .concat(rows.map((r) => `| \`${r.policy}\` | ${r.seconds.toFixed(1)} | ${
      r.rate.toFixed(0)} | ${(r.rate / rows[0].rate).toFixed(2)} | ${
      r.p50.toFixed(2)} | ${r.p99.toFixed(2)} | ${
      (100 * r.reused).toFixed(1)}% | ${r.computed.toFixed(2)} |`)).join('\n');
  console.log(table);
  if (options.json) {
    lib.save(options.json, 'Conversations of many users',
      `node tests/bench/users.js --users ${options.users}`, table,
      { options, rows });
  }
})().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
