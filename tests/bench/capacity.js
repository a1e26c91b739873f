'use strict';
//
// How many conversations of 3,000 tokens run at once in a KV pool in which
// `full` holds eight of them, and what comes out of it: each policy gets the
// same prompts all at once, and all must finish.  Texts are models/pocket's
// own (recall, difficulty 4), cut to the same length.

const { execFileSync } = require('node:child_process');
const http = require('node:http');
const path = require('node:path');
const lib = require('./lib.js');

const usage = `Usage: node tests/bench/capacity.js [options]
  --policies LIST      KV policies, separated by blanks (default "full diffkv")
  --conversations N    requests at once (default 36)
  --prompt N           tokens of a prompt (default 2700)
  --output N           tokens of an answer (default 300)
  --hold N             conversations that full holds (default 8)
  --json FILE          write the results there, and a table beside them (.md)

Fails when the second policy does not run three times as many at once as the
first, or makes fewer tokens a second.
`;
const options = lib.options({ policies: 'full diffkv', conversations: 36,
  prompt: 2700, output: 300, hold: 8, json: '' }, usage);

const HEADS = 16; // layers * KV heads of models/pocket
const PAGE = { bytes: 6144, tokens: 24 }; // of `full` at head size 64

// Ids of n different texts of `tokens` tokens each.
function prompts(n, tokens) {
  const cases = execFileSync('python3', [path.join(lib.POCKET, 'world.py'),
    '--split', 'dev', '--family', 'recall', '--n', String(2 * n), '--seed',
    '11'], { encoding: 'utf8', maxBuffer: 1 << 28 }).trim().split('\n')
    .map((line) => JSON.parse(line)).filter((c) => c.difficulty === 4)
    .map((c) => c.messages.map((m) => m.content).join(' ')
      .replace(/\s+/g, ' '));
  const lines = Array.from({ length: n }, (_, i) => `${cases[2 * i]} `
    + cases[2 * i + 1]);
  return execFileSync(path.join(lib.BUILD, 'bin/tokenring'),
    ['tokenize', '-m', lib.POCKET], { input: `${lines.join('\n')}\n`,
      encoding: 'utf8', maxBuffer: 1 << 28 }).trim().split('\n')
    .map((line) => {
      const ids = (line.match(/\d+/g) || []).map(Number);
      if (ids.length < tokens) {
        throw new Error(`a text of ${ids.length} tokens is too short`);
      }
      return ids.slice(0, tokens);
    });
}

function post(port, body) {
  return new Promise((resolve, reject) => {
    const request = http.request({ host: '127.0.0.1', port, method: 'POST',
      path: '/v1/completions', agent: false,
      headers: { 'content-type': 'application/json' } }, (res) => {
      let text = '';
      res.setEncoding('utf8').on('data', (d) => { text += d; });
      res.on('end', () => (res.statusCode === 200 ? resolve(JSON.parse(text))
        : reject(new Error(`HTTP ${res.statusCode}: ${text}`))));
    });
    request.on('error', reject);
    request.end(JSON.stringify(body));
  });
}

const metric = (text, name) => Number(
  (text.match(new RegExp(`^${name}{[^}]*} ([0-9.]+)$`, 'm')) || [])[1]);

async function measure(policy, ids) {
  const dir = lib.makeDir();
  const whole = options.prompt + options.output;
  const pages = options.hold * HEADS * Math.ceil(whole / PAGE.tokens);
  const engine = await lib.startEngine(dir, { kv_policy: policy,
    kv_memory: `${Math.ceil(pages * PAGE.bytes / 1024)}k`,
    max_num_seqs: 128, log_level: 'notice' });
  const nginx = await lib.startNginx(dir, 'nginx', {
    main: `load_module ${lib.MODULE};`,
    http: `tokenring_engine main unix:${engine.socket};
  client_max_body_size 16m;
  tokenring_queue_timeout 2h; tokenring_idle_timeout 2h;
  tokenring_first_token_timeout 2h;`,
    location: 'tokenring_pass main; } location /metrics { tokenring_metrics;',
  });
  await lib.waitHealthy(nginx.port);
  const look = async () => (await (await fetch(
    `http://127.0.0.1:${nginx.port}/metrics`)).text());
  let most = 0;
  let done = false;
  const watch = (async () => {
    while (!done) {
      most = Math.max(most, metric(await look(),
        'tokenring_num_requests_running'));
      await lib.sleep(50);
    }
  })();
  const begin = process.hrtime.bigint();
  const answers = await Promise.all(ids.map((prompt) => post(nginx.port, {
    model: 'pocket', prompt, max_tokens: options.output, temperature: 0,
    ignore_eos: true })));
  const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
  done = true;
  await watch;
  const text = await look();
  const tokens = answers.reduce((n, a) => n + a.usage.total_tokens, 0);
  const generated = answers.reduce((n, a) => n + a.usage.completion_tokens, 0);
  const ratio = lib.median(answers.map((a) => a.usage.kv_cache.ratio));
  await lib.stop(nginx, 'SIGQUIT');
  await lib.stop(engine);
  return { policy, finished: answers.length, most_at_once: most, seconds,
    tokens_per_s: tokens / seconds, generated_per_s: generated / seconds,
    kv_ratio: ratio,
    preemptions: metric(text, 'tokenring_preemptions_total'),
    swaps: metric(text, 'tokenring_kv_swaps_total'),
    recomputations: metric(text, 'tokenring_kv_recomputations_total') };
}

async function main() {
  const ids = prompts(options.conversations, options.prompt);
  const rows = [];
  for (const policy of options.policies.split(' ').filter(Boolean)) {
    rows.push(await measure(policy, ids));
  }
  const row = (cells) => `${cells[0].padEnd(36)}`
    + `${cells.slice(1).map((c) => String(c).padStart(13)).join('')}\n`;
  const table = `${options.conversations} conversations of ${options.prompt} + `
    + `${options.output} tokens, a pool for ${options.hold} at 16 bits\n`
    + row(['policy', 'at once', 'finished', 'tokens/s', 'generated/s',
      'KV ratio', 'preempted', 'swapped'])
    + rows.map((r) => row([r.policy, r.most_at_once, r.finished,
      r.tokens_per_s.toFixed(0), r.generated_per_s.toFixed(0),
      r.kv_ratio.toFixed(3), r.preemptions, r.swaps])).join('');
  process.stdout.write(table);
  if (options.json) {
    lib.save(options.json, 'Capacity', `node tests/bench/capacity.js ${
      process.argv.slice(2).join(' ')}`, table, { options, rows });
  }
  if (rows.length > 1) {
    const [a, b] = rows;
    const more = b.most_at_once / a.most_at_once;
    const faster = b.tokens_per_s / a.tokens_per_s;
    process.stdout.write(`${b.policy}: ${more.toFixed(2)} times as many at `
      + `once, ${faster.toFixed(2)} times the tokens/s\n`);
    process.exitCode = more >= 3 && faster >= 1 ? 0 : 1;
  }
}

main();
