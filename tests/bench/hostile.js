'use strict';
//
// What plain streams notice of 64 hostile schemas: the gaps between the tokens of
// 16 streams, which backend null emits at a set rate, alone and beside requests
// whose schemas ask much of the compiler, sent by a thread of its own.  Rounds
// alternate.
//
//   node tests/bench/hostile.js [--rounds N] [--rate TOKENS/S] [--tokens N]

const http = require('node:http');
const { Worker, isMainThread, parentPort, workerData } =
  require('node:worker_threads');
const { Stack } = require('../e2e/lib/stack');

const option = (name, value) => {
  const at = process.argv.indexOf(`--${name}`);
  return at < 0 ? value : Number(process.argv[at + 1]);
};
const ROUNDS = option('rounds', 5), RATE = option('rate', 100),
  TOKENS = option('tokens', 300), STREAMS = 16, SCHEMAS = 64;

const many = (n, one) => Array.from({ length: n }, (_, k) => one(k));
const hostile = [
  (i) => ({ type: 'object', properties: Object.fromEntries(
    many(4000, (k) => [`p${i}_${k}`, { type: 'string' }])) }),
  (i) => ({ type: 'string', pattern: `^(a{1,${900 + i}}){1,900}$` }),
  (i) => ({ type: 'string', pattern: `(a|b)*a(a|b){${20 + i}}` }),
  (i) => ({ allOf: many(24, (k) => ({ anyOf: [
    { required: [`a${i}_${k}`] }, { required: [`b${i}_${k}`] }] })) }),
  (i) => ({ enum: many(9000, (k) => `v${i}_${k}`) }),
  (i) => ({ prefixItems: many(2000, (k) => ({ type: 'string', maxLength: 1,
    pattern: `^(a|b)*a(a|b){12}|${i}_${k}` })) }),
];
let number = 0; // no schema comes twice: it would be in a cache

// The gaps of one stream, in ms.
function gaps(url) {
  return new Promise((resolve, reject) => {
    const body = JSON.stringify({ prompt: [5, 6, 7], max_tokens: TOKENS,
      ignore_eos: true, stream: true });
    const times = [];
    const req = http.request(`${url}/v1/completions`, { method: 'POST',
      headers: { 'Content-Type': 'application/json',
        'Content-Length': Buffer.byteLength(body) } }, (res) => {
      res.on('data', () => times.push(performance.now()));
      res.on('end', () => resolve(times.slice(1)
        .map((t, i) => t - times[i]).slice(5)));
      res.on('error', reject);
    });
    req.on('error', reject);
    req.end(body);
  });
}

async function round(stack, hostile) {
  const streams = Promise.all(many(STREAMS, () => gaps(stack.url)));
  const asked = hostile && new Promise((resolve) => {
    hostile.once('message', resolve);
    hostile.postMessage('go');
  });
  const all = (await streams).flat().sort((a, b) => a - b);
  return { p50: all[all.length >> 1], p99: all[Math.floor(all.length * 0.99)],
    largest: all[all.length - 1], statuses: asked ? await asked : {} };
}

// The thread: bodies are made before they are asked for.
function ask(url) {
  const bodies = () => many(SCHEMAS, () => {
    const i = number++;
    return JSON.stringify({ prompt: [5], max_tokens: 5,
      response_format: { type: 'json_schema', json_schema: { name: 'x',
        strict: i % 2 === 0, schema: hostile[i % hostile.length](i) } } });
  });
  let next = bodies();
  parentPort.on('message', async () => {
    const statuses = {};
    await Promise.all(next.map((body) => new Promise((resolve, reject) => {
      const req = http.request(`${url}/v1/completions`, { method: 'POST',
        headers: { 'Content-Type': 'application/json' } }, (res) => {
        statuses[res.statusCode] = (statuses[res.statusCode] || 0) + 1;
        res.resume().on('end', resolve);
      });
      req.on('error', reject);
      req.end(body);
    })));
    next = bodies();
    parentPort.postMessage(statuses);
  });
  parentPort.postMessage('ready');
}

async function main() {
  const stack = await Stack.start({ engine: { backend: 'null', null_rate: RATE,
    max_queue: 512, max_num_seqs: 128 } });
  const rows = { false: [], true: [] };
  const thread = new Worker(__filename, { workerData: stack.url });
  try {
    await new Promise((resolve) => { thread.once('message', resolve); });
    await round(stack, null);
    for (let r = 0; r < ROUNDS; r++) {
      for (const beside of r % 2 ? [true, false] : [false, true]) {
        const got = await round(stack, beside ? thread : null);
        rows[beside].push(got);
        console.log(`${beside ? 'beside' : 'alone '}  p50 ${got.p50.toFixed(2)}`
          + `  p99 ${got.p99.toFixed(2)}  largest ${got.largest.toFixed(2)} ms `
          + JSON.stringify(got.statuses));
      }
    }
  } finally {
    await thread.terminate();
    await stack.stop();
  }
  const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];
  const of = (beside, what) => median(rows[beside].map((row) => row[what]));
  console.log(`p99 gap, medians of ${ROUNDS} rounds: alone `
    + `${of(false, 'p99').toFixed(2)} ms, beside ${of(true, 'p99').toFixed(2)} `
    + `ms, ratio ${(of(true, 'p99') / of(false, 'p99')).toFixed(3)} (target 1.1)`);
}

if (isMainThread) main();
else ask(workerData);
