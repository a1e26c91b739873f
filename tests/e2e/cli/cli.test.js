'use strict';
//
// The command line: over the ring, over HTTP and with an engine of its own, it
// gives the same answers.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { Stack, BUILD, POCKET, until } = require('../lib/stack');
const { goldens, story } = require('../lib/prompts');

const CLI = path.join(BUILD, 'bin/tokenring');
let stack;

before(async () => { stack = await Stack.start(); });
after(() => stack.end());

function cli(args, input = '') {
  const child = spawn(CLI, args, { stdio: ['pipe', 'pipe', 'pipe'] });
  let out = '';
  let err = '';
  child.stdout.setEncoding('utf8').on('data', (d) => { out += d; });
  child.stderr.setEncoding('utf8').on('data', (d) => { err += d; });
  child.stdin.on('error', () => {});
  child.stdin.end(input);
  const done = new Promise((resolve) => {
    child.on('close', (status, signal) =>
      resolve({ status, signal, out, err }));
  });
  done.child = child;
  done.seen = () => out;
  return done;
}

const targets = () => ({
  ring: ['--engine', stack.engine.socket],
  HTTP: ['--url', stack.url],
  'an engine of its own': ['-m', POCKET],
});

for (const name of ['ring', 'HTTP', 'an engine of its own']) {
  test(`generate: over ${name}`, async () => {
    const golden = goldens[3];
    const r = await cli(['generate', ...targets()[name], '-p',
      golden.messages[0].content, '--temperature', '0']);
    assert.equal(r.status, 0, r.err);
    assert.equal(r.out.trimEnd(), golden.continuation);
    assert.match(r.err, /tok/);
  });
}

test('generate: --top-p 0 leaves the best token alone', async () => {
  const golden = goldens[3];
  const r = await cli(['generate', ...targets().ring, '-p',
    golden.messages[0].content, '--temperature', '1.5', '--top-p', '0']);
  assert.equal(r.status, 0, r.err);
  assert.equal(r.out.trimEnd(), golden.continuation);
});

test('generate: an engine that is not there', async () => {
  const r = await cli(['generate', '--engine', '/nonexistent.sock', '-p', 'x']);
  assert.notEqual(r.status, 0);
  assert.match(r.err, /nonexistent/);
  assert.equal(r.out, '');
});

test('generate: Ctrl-C reaches the engine', async () => {
  await stack.idle();
  const r = cli(['generate', '--engine', stack.engine.socket, '-p', story(0),
    '-n', '3900', '--ignore-eos']);
  await until(() => r.seen().length > 0, 'it streams');
  r.child.kill('SIGINT');
  await r;
  await stack.idle();
});

test('chat: turns from standard input', async () => {
  const r = await cli(['chat', '--engine', stack.engine.socket,
    '--temperature', '0'],
  `Hello!\n/reset\n${goldens[3].messages[0].content}\n/quit\n`);
  assert.equal(r.status, 0, r.err);
  assert.ok(r.out.includes(goldens[0].continuation), r.out);
  assert.ok(r.out.includes(goldens[3].continuation), r.out);
});

test('chat: commands are not sent, and the engine is not asked', async () => {
  const asked = async () => JSON.parse((await cli(['stats', '-e',
    stack.engine.socket, '--once', '--json'])).out).prompt_tokens;
  await stack.idle();
  const before = await asked();
  const r = await cli(['chat', '--engine', stack.engine.socket],
    '/etc/passwd\n \t/help\n/help\n/system Be brief.\n/policy full\n/quit\nHello!\n');
  assert.equal(r.status, 0, r.err);
  assert.equal(r.out, '');
  assert.match(r.err, /unknown command \/etc\/passwd: \/help lists them, \/\/ begins a line that is sent/);
  for (const name of ['/reset', '/system', '/policy', '/quit']) {
    assert.ok(r.err.includes(`  ${name}`), name);
  }
  assert.equal(await asked(), before);
});

test('chat: // sends a slash; /policy and /system are part of what is asked',
  async () => {
    const r = await cli(['chat', '--engine', stack.engine.socket, '-t', '0',
      '-n', '4'], '/policy h2o\nHello!\n/quit\n');
    assert.match(r.err, /This server allows: "full"/);
    const sent = await cli(['chat', '--engine', stack.engine.socket, '-t', '0',
      '-n', '4'], '//x\n');
    assert.equal(sent.status, 0, sent.err);
    assert.notEqual(sent.out, '');
  });

// In a terminal of its own (script, from util-linux): what the keys do, and how
// it looks.
function terminal(columns, keys, args, env = {}) {
  const command = `stty cols ${columns}; exec ${[CLI, ...args]
    .map((a) => `'${a}'`).join(' ')}`;
  const child = spawn('script', ['-qfec', command, '/dev/null'], {
    env: { ...process.env, TERM: 'xterm', TOKENRING_HISTORY: '', ...env },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  let out = '';
  child.stdout.setEncoding('utf8').on('data', (d) => { out += d; });
  const closed = new Promise((resolve) => {
    child.on('close', (status) => resolve(status));
  });
  return (async () => {
    try {
      for (const [text, shows] of keys) {
        const from = out.length;
        child.stdin.write(text);
        await until(() => shows.test(out.slice(from)),
          () => `${shows} in ${out}`);
      }
      child.stdin.end();
      return { status: await closed, out };
    } finally {
      child.kill('SIGKILL');
    }
  })();
}

test('chat: a terminal has line editing, history, whole words and colour',
  async () => {
    const history = path.join(stack.dir, 'history');
    const args = ['chat', '--engine', stack.engine.socket, '-t', '0'];
    const story = goldens[1].messages[0].content;
    const asked = `${story.slice(0, -3)}X\u007f${story.slice(-3)}`;
    const first = await terminal(40, [['', />\x1b\[0m $/], ['/nope\r', /unknown command/],
      ['lost\u0003', /\n/], [`${asked}\r`, /tokens\/s,\s+KV\s+cache\s+[\d.]+\s+MiB\s+\([\d.]+\s+of\s+16\s+bits\),\s+stop\]/],
      ['/quit\r', /quit/]], args, { TOKENRING_HISTORY: history });
    assert.equal(first.status, 0, first.out);
    const shown = first.out.replace(/\x1b\[[\d;]*[A-Za-z]/g, '').split(/\r*\n/);
    // Notices, too: words of the program are not cut at the edge.
    const notice = shown.findIndex((l) => l.startsWith('unknown command'));
    assert.match(shown.slice(notice, notice + 2).join('\n'),
      /^unknown command \/nope: \/help lists them, *\n\/\/ begins a line that is sent$/);
    const summary = shown.findIndex((l) => /^\[\d+ prompt \+ \d+ tokens,/.test(l));
    assert.ok(shown.slice(summary).every((l) => l.length <= 40),
      shown.slice(summary).join('\n'));
    const answer = shown.slice(shown.findIndex((l) => l.startsWith(
      goldens[1].continuation.split(' ')[0])), summary);
    assert.ok(answer.length > 5 && answer.every((l) => l.length <= 40),
      answer.join('\n'));
    const words = (text) => text.replace(/\s+/g, ' ').trim();
    assert.ok(words(answer.join(' ')).startsWith(words(goldens[1].continuation)),
      answer.join('\n'));
    assert.match(first.out, /\x1b\[1m>/);
    assert.equal(fs.statSync(history).mode & 0o777, 0o600);
    assert.doesNotMatch(fs.readFileSync(history, 'utf8'), /lost/);

    // the second session finds what the first one asked
    const second = await terminal(80, [['', /> $/], ['\u001b[A\u001b[A', new RegExp(
      story.slice(0, 12))], ['\r', /stop\]/], ['\u0004', /$/]], args,
    { TOKENRING_HISTORY: history, NO_COLOR: '1' });
    assert.equal(second.status, 0, second.out);
    assert.doesNotMatch(second.out, /\x1b\[\d*m/);
  });

test('generate: the rate is the engine\'s, also when all comes at once',
  async () => {
    const r = await cli(['generate', '--engine', stack.engine.socket, '-p',
      goldens[1].messages[0].content, '-t', '0']);
    const [, tokens, rate] = /\+ (\d+) tokens, .* ([\d.]+) tokens\/s/.exec(r.err);
    assert.ok(tokens > 50 && rate > 1 && rate < 50000, r.err);
  });

test('stats: one look, as JSON and as text', async () => {
  const json = await cli(['stats', '-e', stack.engine.socket, '--once',
    '--json']);
  assert.equal(json.status, 0, json.err);
  const value = JSON.parse(json.out.trim().split('\n').at(-1));
  assert.ok(JSON.stringify(value).includes('pocket'));
  const text = await cli(['stats', '-e', stack.engine.socket, '--once']);
  assert.equal(text.status, 0, text.err);
  assert.match(text.out, /pocket/);
});

test('stats: 50 columns are enough', async () => {
  const wide = await terminal(120, [['', /at 16 bits/]],
    ['stats', '-e', stack.engine.socket, '--once']);
  const narrow = await terminal(50, [['', /swapped/]],
    ['stats', '-e', stack.engine.socket, '--once']);
  const rows = (r) => r.out.split(/\r*\n/);
  assert.ok(rows(wide).some((row) => row.length > 80), wide.out);
  assert.ok(rows(narrow).every((row) => row.length <= 50), narrow.out);
  const words = (r, what) => r.out.match(what) || [];
  assert.equal(words(narrow, /p99|preempted \d|swapped|MiB/g).length,
    words(wide, /p99|preempted \d|swapped|MiB/g).length, narrow.out);
});

test('an engine is found by its name, and where TOKENRING_ENGINE says',
  async () => {
    const at = (engine) => new Promise((resolve) => {
      const child = spawn(CLI, ['generate', '-t', '0', '--quiet', 'Hello!'],
        { env: { ...process.env, TOKENRING_ENGINE: engine },
          stdio: ['ignore', 'pipe', 'pipe'] });
      let out = '', err = '';
      child.stdout.on('data', (d) => { out += d; });
      child.stderr.on('data', (d) => { err += d; });
      child.on('close', (status) => resolve({ status, out, err }));
    });
    const r = await at(stack.engine.socket);
    assert.equal(r.status, 0, r.err);
    assert.equal(r.out.trimEnd(), goldens[0].continuation);
    const none = await at('no-such-engine');
    assert.equal(none.status, 2);
    assert.match(none.err, /no engine at \/run\/tokenring\/no-such-engine\.sock/);
    for (const command of ['stats', 'drain', 'chat']) {
      const named = await cli([command, ...command === 'drain' ? [] : ['-e'],
        'no-such-engine']);
      assert.match(named.err, /\/run\/tokenring\/no-such-engine\.sock/, command);
    }
  });

test('the prompt: arguments or standard input; run: a model without a server',
  async () => {
    const want = goldens[0].continuation;
    const ring = ['--engine', stack.engine.socket, '-t', '0', '-q'];
    for (const [args, input] of [
      [['generate', ...ring, 'Hello!'], ''],
      [['generate', 'Hello!', ...ring], ''],
      [['generate', ...ring, '--', 'Hello!'], ''],
      [['generate', ...ring], 'Hello!\n'],
      [['run', POCKET, '-t', '0', '-q', 'Hello!'], ''],
      [['run', POCKET, '-t', '0', '-q'], 'Hello!\n']]) {
      const r = await cli(args, input);
      assert.equal(r.status, 0, `${args}: ${r.err}`);
      assert.equal(r.out.trimEnd(), want, `${args}`);
    }
    // words are joined, and a dash behind -- is one of them
    const joined = await cli(['generate', ...ring, '--json', '-n', '1', '--',
      'a', '-b', 'c']);
    const single = await cli(['generate', ...ring, '--json', '-n', '1', '-p',
      'a -b c']);
    assert.equal(JSON.parse(joined.out).prompt_tokens,
      JSON.parse(single.out).prompt_tokens);
    for (const args of [['generate', ...ring, '-p', 'x', 'y'], ['run'],
      ['run', '--raw', POCKET]]) {
      const r = await cli(args, 'x');
      assert.equal(r.status, 2, `${args}: ${r.err}`);
    }
    // a command before it in a pipe has failed
    const empty = await cli(['run', POCKET], '\n');
    assert.equal(empty.status, 1);
    assert.equal(empty.err,
      'tokenring run: the prompt is empty: there is nothing on standard input\n');
    const nowhere = await cli(['run', '/nope', 'x']);
    assert.match(nowhere.err, /^tokenring run: \/nope: cannot open/);
  });

test('--json: generate, chat, run and drain', async () => {
  const hello = goldens[0].continuation;
  for (const [args, input] of [
    [['generate', '--engine', stack.engine.socket, '-t', '0', 'Hello!'], ''],
    [['generate', '--url', stack.url, '-t', '0', 'Hello!'], ''],
    [['chat', '--engine', stack.engine.socket, '-t', '0'], 'Hello!\n'],
    [['run', POCKET, '-t', '0', '--set', 'kv_policy=diffkv', 'Hello!'], '']]) {
    const r = await cli([...args, '--json'], input);
    assert.equal(r.status, 0, r.err);
    const value = JSON.parse(r.out);
    assert.equal(value.text, hello, `${args}`);
    assert.equal(value.finish_reason, 'stop');
    assert.ok(value.prompt_tokens > 0 && value.completion_tokens > 5
      && value.kv_cache.fp16_bytes > 0, r.out);
    assert.equal(r.out.trim().split('\n').length, 1);
  }
  for (const [more, state] of [[[], 'drained'], [['--undo'], 'ready']]) {
    const r = await cli(['drain', ...more, '--json', stack.engine.socket]);
    assert.equal(r.status, 0, r.err);
    const lines = r.out.trim().split('\n').map((line) => JSON.parse(line));
    assert.equal(lines.at(-1).state, state);
  }
});

test('tokenize: there and back', async () => {
  const lines = ['Once upon a time', 'é 漢 🙂', '  blanks  '];
  const there = await cli(['tokenize', '-m', POCKET], `${lines.join('\n')}\n`);
  assert.equal(there.status, 0, there.err);
  const back = await cli(['tokenize', '-m', POCKET, '--decode'], there.out);
  assert.equal(back.status, 0, back.err);
  assert.equal(back.out, `${lines.join('\n')}\n`);
  const [first] = there.out.split('\n');
  const text = await cli(['tokenize', 'Once', '-m', POCKET, 'upon a time']);
  assert.deepEqual([text.status, text.out], [0, `${first}\n`], text.err);
  const json = await cli(['tokenize', '-m', POCKET, '--json', lines[0]]);
  assert.deepEqual(JSON.parse(json.out), first.split(' ').map(Number));
  const ids = await cli(['tokenize', '-m', POCKET, '-d', ...first.split(' ')]);
  assert.equal(ids.out, `${lines[0]}\n`, ids.err);
  const bad = await cli(['tokenize', '-m', POCKET, '-d'], '5\nx\n');
  assert.equal(bad.status, 1);
  assert.match(bad.err, /^tokenring tokenize: line 2: "x": expected token ids/);
});

for (const name of ['ring', 'HTTP']) {
  test(`bench: over ${name}, figures as JSON`, async () => {
    const file = path.join(stack.dir, `bench-${name}.json`);
    const r = await cli(['bench', ...targets()[name], '-c', '4', '-N', '12',
      '-P', '16', '-O', '8', '--json', file]);
    assert.equal(r.status, 0, r.err);
    const value = JSON.parse(fs.readFileSync(file, 'utf8'));
    assert.equal(value.loop, 'closed');
    assert.deepEqual([value.good, value.bad], [12, 0]);
    assert.deepEqual([value.prompt_tokens, value.output_tokens],
      [12 * 16, 12 * 8]);
    assert.equal(value.kv_cache.requests, 12);
    // the last token of an answer is in no cache; 16 bits, in whole pages
    assert.equal(value.kv_cache.fp16_bytes, 12 * (16 + 8 - 1) * 4096);
    assert.ok(value.kv_cache.ratio >= 1, JSON.stringify(value.kv_cache));
    assert.match(r.out, /KV cache of an answer +[\d.]+ MiB at its end, [\d.]+ of 16 bits/);
    checkFigures(value);
  });

  test(`bench: over ${name}, at a rate, with lengths that differ`, async () => {
    const r = await cli(['bench', ...targets()[name], '--rate', '200',
      '--arrivals', 'poisson', '-N', '20', '-P', '8:24', '-O', 'normal:12:3',
      '--json', '-']);
    assert.equal(r.status, 0, r.err);
    const value = JSON.parse(r.out.slice(r.out.indexOf('{')));
    assert.deepEqual([value.loop, value.rate], ['poisson', 200]);
    assert.deepEqual([value.good, value.bad], [20, 0]);
    for (const [what, least, most] of [[value.prompt_tokens, 8, 24],
      [value.output_tokens, 1, 30]]) {
      assert.ok(what > 20 * least && what < 20 * most, r.out);
    }
    checkFigures(value);
  });
}

// Times and rates are there, and percentiles in their order.
function checkFigures(value) {
  assert.equal(value.ttft_ms.n, value.good);
  assert.equal(value.e2e_ms.n, value.good);
  for (const key of ['ttft_ms', 'tpot_ms', 'inter_token_ms', 'e2e_ms']) {
    const { mean, p50, p90, p95, p99, max } = value[key];
    assert.ok(mean > 0 && p50 >= 0 && p50 <= p90 && p90 <= p95 && p95 <= p99
      && p99 <= max, `${key}: ${JSON.stringify(value[key])}`);
  }
  assert.ok(value.ttft_ms.max <= value.e2e_ms.max);
  for (const key of ['requests', 'output_tokens', 'prompt_tokens']) {
    const count = key === 'requests' ? value.good : value[key];
    const rate = value[`${key}_per_s`] * value.seconds;
    assert.ok(Math.abs(rate / count - 1) < 0.01, `${key}: ${rate}, ${count}`);
  }
}

test('bench: a closed loop in its steady state', async () => {
  const file = path.join(stack.dir, 'bench-steady.json');
  const r = await cli(['bench', ...targets().ring, '-c', '4', '-P', '16',
    '-O', '64', '--stagger', '--steady', '0.5', '--json', file]);
  assert.equal(r.status, 0, r.err);
  const value = JSON.parse(fs.readFileSync(file, 'utf8'));
  const { reached, streams, output_tokens_per_s: rate, after_s: after } = value.steady;
  assert.equal(value.bad, 0);
  assert.equal(reached, true);
  // How many of the four have begun by then is up to the machine.
  assert.ok(streams >= 1 && streams <= 4 && rate >= 0 && after >= 5, r.out);
  assert.match(r.out,
    new RegExp(`steady +${rate.toFixed(1)} output tokens/s, ${streams} streams`));
});

test('usage errors: status 2, and what would be right', async () => {
  for (const args of [[], ['frobnicate'], ['generate'], ['stats'],
    ['tokenize'], ['generate', '--colour'], ['bench', '-c', 'many'],
    ['bench', ...targets().ring, '--rate', '5', '--steady', '1']]) {
    const r = await cli(args);
    assert.equal(r.status, 2, `${args}: ${r.err}`);
    assert.ok(r.err.length > 0);
  }
});
