'use strict';
//
// Many streams at once whose engines are killed again and again: what clients
// have of them, beside what they have when nobody disturbs them.
//
// Two engines with models/pocket, requests of eight kinds (../e2e/lib/moved.js),
// first in two undisturbed runs, all at once, then with `kill -9` of one engine
// after the other, at any token.  On the CPU (`full`, or a policy that compresses
// with `replay decode`) each answer must be the undisturbed one to the byte.  On a
// GPU sums depend on the batch, so that a near tie may fall otherwise: there the
// share of equal answers is printed, for the two undisturbed runs and for the
// disturbed one.  Wherever it is: no error, all of each answer, and as many tokens
// as it should have.
//
//   TR_BACKEND=cuda TR_CUDA_LIBRARY=FILE   on a GPU

const assert = require('node:assert/strict');
const { isDeepStrictEqual } = require('node:util');
const lib = require('./lib.js');
const { Stack, until } = require('../e2e/lib/stack.js');
const { GPU } = require('../e2e/lib/same.js');
const { run } = require('../e2e/lib/moved.js');

const usage = `Usage: node tests/bench/moves.js [options]
  --streams N    at once (default 200)
  --kills N      of engines (default 10); the requests are asked again until there
                 were as many
  --wait A-B     milliseconds from when an engine has requests to its kill
                 (default 200-1000)
  --tokens N     of an answer (default 160)
  --policy SPEC  KV policy (default full)
  --memory SIZE  of the KV cache (default 512m)
  --seed N       of the moments (default 1)
  --json FILE    write the results there, and a table beside them (.md)
`;
const options = lib.options({ streams: 200, kills: 10, wait: '200-1000',
  tokens: 160, policy: 'full', memory: '512m', seed: 1, json: '' }, usage);
const [LEAST, MOST] = options.wait.split('-').map(Number);

let state = options.seed;
function roll(n) {
  state = (Math.imul(state, 1103515245) + 12345) >>> 0;
  return (state >>> 8) % n;
}

const ENGINE = { kv_policy: options.policy, kv_memory: options.memory,
  kv_reuse: 'no', max_num_seqs: 512, log_level: 'notice',
  replay: options.policy === 'full' ? 'prefill' : 'decode' };

// Every fifth comes whole.
const all = (stack) => Promise.all(Array.from({ length: options.streams },
  (_, i) => run(stack, i, i % 5 !== 4, options.tokens)));

// Kills engines by turns while answers come, each when it has some of them: adds
// to `done` how often it did and how many answers it met.
async function kill(stack, over, done) {
  const engines = [stack.engine, ...stack.others];
  const running = async (i) => {
    try {
      return (await stack.metrics())
        .value('tokenring_num_requests_running', { replica: String(i) });
    } catch {
      return 0;
    }
  };
  while (done.kills < options.kills && !over()) {
    const i = done.kills % 2;
    let n = 0;
    await until(async () => over() || (n = await running(i)) > 0,
      'an engine has some', 300);
    await lib.sleep(LEAST + roll(MOST - LEAST));
    if (over()) break;
    await engines[i].kill('SIGKILL');
    done.met += n;
    done.kills++;
    await engines[i].start();
  }
}

// One round after the other, until engines were killed as often as was asked.
async function disturbed(stack) {
  const rounds = [];
  const done = { kills: 0, met: 0 };
  while (rounds.length === 0
    || (done.kills < options.kills && rounds.length < 10 * options.kills)) {
    let over = false;
    const answers = all(stack).finally(() => { over = true; });
    answers.catch(() => {});
    await kill(stack, () => over, done);
    rounds.push(await answers);
  }
  return { rounds, ...done };
}

const share = (a, b) => a.filter((one, i) =>
  isDeepStrictEqual(one.choices.map((c) => c.text ?? c.message?.content),
    b[i].choices.map((c) => c.text ?? c.message?.content))).length / a.length;

async function measure() {
  const stack = await Stack.start({ engine: ENGINE, engines: { second: ENGINE },
    pass: 'fleet', http: `tokenring_engine fleet unix:DIR/main.sock
      unix:DIR/second.sock slots=1024;`,
    location: 'tokenring_migrate 100 timeout=120s memory=256m; '
      + 'tokenring_queue_timeout 1h; tokenring_idle_timeout 1h; '
      + 'tokenring_first_token_timeout 1h;' });
  stack.complaints = () => []; // engines are killed
  try {
    await stack.connected(2);
    const first = await all(stack);
    const second = await all(stack);
    const met = await disturbed(stack);
    const m = await stack.metrics();
    return { first, second, ...met,
      moves: m.value('tokenring_gateway_migrations_total'),
      unmovable: m.value('tokenring_gateway_unmovable_total') };
  } finally {
    await stack.stop();
  }
}

async function main() {
  const r = await measure();
  assert.equal(r.unmovable, 0);
  assert.ok(r.kills > 0 && r.moves > 0, 'engines were killed');
  for (const round of r.rounds) {
    round.forEach((one, i) => {
      if (!GPU) assert.deepEqual(one, r.first[i], `answer ${i}`);
      assert.equal(one.usage.prompt, r.first[i].usage.prompt, `answer ${i}`);
      assert.equal(one.choices.length, r.first[i].choices.length);
    });
  }
  const equal = [share(r.second, r.first),
    lib.sum(r.rounds.map((got) => share(got, r.first))) / r.rounds.length];
  const table = `${options.streams} requests at once, ${options.policy}, two `
    + `engines, ${r.kills} kills that met ${r.met} requests, ${r.moves} moves, `
    + `no error\nequal answers: ${(100 * equal[0]).toFixed(1)}% of two `
    + `undisturbed runs, ${(100 * equal[1]).toFixed(1)}% of ${
      r.rounds.length} disturbed\n`;
  process.stdout.write(table);
  if (options.json) {
    lib.save(options.json, 'Streams whose engines are killed',
      `node tests/bench/moves.js ${process.argv.slice(2).join(' ')}`.trim(),
      table, { options, equal, kills: r.kills, met: r.met, moves: r.moves });
  }
}

main().then(() => process.exit(0), (error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
