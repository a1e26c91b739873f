'use strict';
//
// What the reuse of prefixes saves, and what it costs where nothing is shared.
//
//   chat     eight turns of a conversation: tokens of prompts that were computed
//            over tokens that are new (messages, and what the template writes
//            around them)
//   again    the time of a prompt that was answered before over that of the first
//   random   prompts that share nothing, with reuse and without by turns: tokens
//            of prompts and answers a second
//
// Of each policy; `full` with kv_reuse auto, others with yes, against no.  On a GPU
// only `full` is reused (--backend cuda --library build/lib/libtokenring_cuda.so;
// tests/gpu/reuse.sh does this without NGINX).

const http = require('node:http');
const lib = require('./lib.js');

const usage = `Usage: node tests/bench/reuse.js [options]
  --policies LIST  KV policies, separated by blanks (default "full diffkv uniform",
                   with --backend cuda "full")
  --backend NAME   cpu (default) or cuda
  --library PATH   of the CUDA backend
  --turns N        of the conversation (default 8)
  --prompt N       tokens of the prompt that is asked again (default 3000)
  --random N       prompts without a prefix in a round (default 24)
  --rounds N       of these, each way (default 5)
  --json FILE      write the results there, and a table beside them (.md)
`;
const options = lib.options({ policies: '', backend: 'cpu', library: '',
  turns: 8, prompt: 3000, random: 24, rounds: 5, json: '' }, usage);
options.policies = options.policies
  || (options.backend === 'cuda' ? 'full' : 'full diffkv uniform');

let state = 1;
function rnd(n) {
  state = (Math.imul(state, 1103515245) + 12345) >>> 0;
  return (state >>> 8) % n;
}

const ids = (n) => Array.from({ length: n }, () => 300 + rnd(3000));

const WORDS = ('river stone lamp seven garden winter paper north basket clock'
  + ' silver window road apple letter bridge').split(' ');
const words = (n) => Array.from({ length: n }, () => WORDS[rnd(16)]).join(' ');

function post(port, path, body) {
  const text = JSON.stringify(body);
  return new Promise((resolve, reject) => {
    const request = http.request({ host: '127.0.0.1', port, method: 'POST',
      path, agent: false, headers: { 'content-type': 'application/json' } },
    (res) => {
      let out = '';
      res.setEncoding('utf8').on('data', (d) => { out += d; });
      res.on('end', () => (res.statusCode === 200 ? resolve(JSON.parse(out))
        : reject(new Error(`HTTP ${res.statusCode}: ${out}`))));
    });
    request.on('error', reject);
    request.end(text);
  });
}

async function engine(policy, reuse) {
  const dir = lib.makeDir();
  const one = await lib.startEngine(dir, { kv_policy: policy, kv_reuse: reuse,
    kv_memory: '256m', log_level: 'notice', backend: options.backend,
    ...(options.library && { cuda_library: options.library }) });
  const nginx = await lib.startNginx(dir, 'nginx', {
    main: `load_module ${lib.MODULE};`,
    http: `tokenring_engine main unix:${one.socket};
  client_max_body_size 16m;
  tokenring_queue_timeout 2h; tokenring_idle_timeout 2h;
  tokenring_first_token_timeout 2h;`,
    location: 'tokenring_pass main; } location /metrics { tokenring_metrics;',
  });
  await lib.waitHealthy(nginx.port);
  return { port: nginx.port,
    computed: async () => Number((await (await fetch(
      `http://127.0.0.1:${nginx.port}/metrics`)).text())
      .match(/^tokenring_prefill_tokens_total{[^}]*} ([0-9.]+)$/m)[1]),
    stop: async () => {
      await lib.stop(nginx, 'SIGQUIT');
      await lib.stop(one);
    } };
}

async function chat(e) {
  const messages = [{ role: 'system', content: words(300) }];
  const before = await e.computed();
  let known = 0;
  let fresh = 0;
  for (let turn = 0; turn < options.turns; turn++) {
    messages.push({ role: 'user', content: words(60) });
    const a = await post(e.port, '/v1/chat/completions', { messages,
      max_tokens: 100, temperature: 0 });
    fresh += a.usage.prompt_tokens - known;
    known = a.usage.total_tokens;
    messages.push({ role: 'assistant',
      content: a.choices[0].message.content });
  }
  return { computed: await e.computed() - before, fresh };
}

async function timed(e, body) {
  const begin = process.hrtime.bigint();
  const a = await post(e.port, '/v1/completions', body);
  return { ms: Number(process.hrtime.bigint() - begin) / 1e6, a };
}

// A prompt, the same again, and one that ends otherwise.
async function again(e) {
  const times = { first: [], same: [], end: [] };
  for (let i = 0; i < options.rounds; i++) {
    const prompt = ids(options.prompt);
    const body = { prompt, max_tokens: 1, temperature: 0 };
    times.first.push((await timed(e, body)).ms);
    times.same.push((await timed(e, body)).ms);
    body.prompt = prompt.slice(0, -100).concat(ids(100));
    times.end.push((await timed(e, body)).ms);
  }
  return Object.fromEntries(Object.entries(times)
    .map(([k, v]) => [k, lib.median(v)]));
}

async function round(e) {
  const prompts = Array.from({ length: options.random }, () => ids(400));
  const begin = process.hrtime.bigint();
  const all = await Promise.all(prompts.map((prompt) => post(e.port,
    '/v1/completions', { prompt, max_tokens: 40, ignore_eos: true })));
  const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
  return all.reduce((n, a) => n + a.usage.total_tokens, 0) / seconds;
}

async function measure(policy) {
  const on = await engine(policy, policy === 'full' ? 'auto' : 'yes');
  const off = await engine(policy, 'no');
  const rates = { on: [], off: [] };
  const with_ = await chat(on);
  const without = await chat(off);
  const times = await again(on);
  await round(on);
  await round(off);
  for (let i = 0; i < options.rounds; i++) {
    for (const [k, e] of i % 2 ? [['on', on], ['off', off]]
      : [['off', off], ['on', on]]) {
      rates[k].push(await round(e));
    }
  }
  await on.stop();
  await off.stop();
  return { policy, chat: with_.computed / with_.fresh,
    chat_without: without.computed / without.fresh, fresh: with_.fresh,
    ...times, on: lib.median(rates.on), off: lib.median(rates.off), rates };
}

async function main() {
  const rows = [];
  for (const policy of options.policies.split(' ').filter(Boolean)) {
    rows.push(await measure(policy));
  }
  const row = (cells) => `| ${cells.join(' | ')} |\n`;
  const table = row(['policy', 'chat: computed/new', 'without',
    `${options.prompt} tokens: first (ms)`, 'the same', 'other end',
    'random: tokens/s on', 'off', 'on/off'])
    + row(Array(9).fill('---'))
    + rows.map((r) => row([r.policy, r.chat.toFixed(3),
      r.chat_without.toFixed(2), r.first.toFixed(0), r.same.toFixed(0),
      r.end.toFixed(0), r.on.toFixed(0), r.off.toFixed(0),
      (r.on / r.off).toFixed(3)])).join('');
  process.stdout.write(table);
  if (options.json) {
    lib.save(options.json, 'Reuse', `node tests/bench/reuse.js ${
      process.argv.slice(2).join(' ')}`, table, { options, rows });
  }
  process.exitCode = rows.every((r) => r.chat <= 1.05) ? 0 : 1;
}

main();
