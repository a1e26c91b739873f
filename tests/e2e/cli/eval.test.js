'use strict';
//
// `tokenring eval` and `tokenring calibrate` as users run them: the table, the
// JSON and the plot say the same, a run that was killed goes on where it was,
// and what calibrate writes is what it found.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { execFileSync, spawn } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { BUILD, ENGINE, POCKET, ROOT, read, until } = require('../lib/stack');

const POLICIES = ['full', 'diffkv:alpha_high=12,alpha_low=0',
  'streamingllm:recent=0.3'];
let dir;
let cases;
let n; // of them

before(() => {
  dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tr-eval-'));
  const all = path.join(dir, 'all.jsonl');
  execFileSync(path.join(ROOT, 'tests/eval/cases.sh'),
    ['dev', '4', '5', all, 'recall', 'arith', 'multi']);
  cases = path.join(dir, 'cases.jsonl');
  fs.writeFileSync(cases, read(all).split('\n')
    .filter((line) => line && JSON.parse(line).difficulty === 1)
    .map((line) => `${line}\n`).join(''));
  n = read(cases).trim().split('\n').length;
});
after(() => fs.rmSync(dir, { recursive: true }));

function start(command, args) {
  const child = spawn(path.join(BUILD, 'bin/tokenring'),
    [command, '-m', POCKET, '-c', cases, '--kv-memory', '128m', ...args]);
  const r = { out: '', err: '', child };
  child.stdout.setEncoding('utf8').on('data', (d) => { r.out += d; });
  child.stderr.setEncoding('utf8').on('data', (d) => { r.err += d; });
  r.done = new Promise((resolve) => {
    child.on('close', (status) => resolve(Object.assign(r, { status })));
  });
  return r;
}

const policies = POLICIES.flatMap((p) => ['-p', p]);
const file = (name) => path.join(dir, name);
const json = (name) => JSON.parse(read(file(name)));

async function evaluate(name, ...args) {
  const r = await start('eval', [...policies, '--json', file(name), ...args])
    .done;
  assert.equal(r.status, 0, r.err);
  return r;
}

test('eval: table, JSON and plot', async () => {
  const r = await evaluate('whole.json', '--svg', file('whole.svg'));
  const whole = json('whole.json');
  assert.deepEqual(whole.policies.map((p) => p.policy), POLICIES);
  for (const p of whole.policies) {
    assert.deepEqual(Object.keys(p.families).sort(),
      ['arith', 'multi', 'recall']);
    assert.ok(p.kv_ratio > 0 && p.accuracy <= 1, JSON.stringify(p));
    const { high, low, pruned } = p.shares;
    assert.ok(Math.abs(high + low + pruned - 1) < 1e-4);
    // as the table has it, and the plot
    const right = (100 * p.accuracy).toFixed(2);
    const ratio = p.kv_ratio.toFixed(3);
    assert.ok(r.out.split('\n').some((line) => line.includes(p.policy)
      && line.includes(` ${right} `) && line.includes(` ${ratio} `)), r.out);
    assert.ok(read(file('whole.svg'))
      .includes(`<title>${p.policy}: ${right}% right at ${ratio}</title>`));
  }
  const [full, diffkv, streaming] = whole.policies;
  assert.ok(full.kv_ratio >= 1 && full.shares.high === 1);
  assert.ok(diffkv.kv_ratio < full.kv_ratio && diffkv.shares.pruned === 0);
  assert.ok(streaming.shares.pruned > 0.3);
  assert.ok(streaming.accuracy < full.accuracy);
});

// What users bring: questions with a rule of their own, a prompt as it is.
test('eval: a question set of the user', async () => {
  const from = read(cases).trim().split('\n').map((line) => JSON.parse(line));
  const [recall, sum] = ['recall', 'arith'].map((family) =>
    from.find((c) => c.family === family));
  const { messages } = recall;
  const words = recall.answer.split(' ');
  const number = Number(/(-?\d+)\D*$/.exec(sum.reply)[1]);
  const lines = [
    { messages, answer: recall.answer },
    { messages, match: 'contains', answer: `${words[0]}|${words.at(-1)}` },
    { messages, match: 'regex', answer: `(?i)^${words[0].toUpperCase()}\\b` },
    { messages, match: 'regex', answer: '^$' }, // wrong
    { messages: sum.messages, match: 'number', answer: number, max_tokens: 400 },
    { messages: sum.messages, match: 'number', answer: number + 1, max_tokens: 400 },
    // With its stop text left out the answer would have it.
    { prompt: 'The fox and the key.', match: 'regex', answer: '^[^e]+$',
      stop: ['e'], max_tokens: 64 },
    { prompt: 'The fox and the key.', match: 'regex', answer: '^[^e]+$',
      max_tokens: 64 },
  ];
  const set = file('set.jsonl');
  fs.writeFileSync(set, lines.map((line, i) =>
    `${JSON.stringify({ family: `q${i}`, ...line })}\n`).join(''));
  const child = spawn(path.join(BUILD, 'bin/tokenring'), ['eval', '-m', POCKET,
    '-c', set, '--kv-memory', '128m', '--json', file('set.json')]);
  let out = '';
  child.stdout.on('data', (d) => { out += d; });
  child.stderr.on('data', (d) => { out += d; });
  const status = await new Promise((resolve) => { child.on('close', resolve); });
  assert.equal(status, 0, out);
  const { policies } = json('set.json');
  assert.deepEqual(policies.map((p) => p.policy),
    ['full', 'diffkv', 'uniform:levels=8/4', 'uniform:levels=4/2']);
  const right = lines.map((_, i) => policies[0].families[`q${i}`].accuracy);
  assert.deepEqual(right, [1, 1, 1, 0, 1, 0, 1, 0]);
  assert.ok(policies[0].families.q6.tokens < policies[0].families.q7.tokens);
  for (const p of policies) {
    assert.ok(p.accuracy_low <= p.accuracy && p.accuracy <= p.accuracy_high,
      JSON.stringify(p));
  }
  assert.match(out, / \[\d+\.\d+, \d+\.\d+\] /);
});

// As the published files are, a line each.
test('import.py: GSM8K, MATH, LongBench and RULER become cases', () => {
  const convert = (set, line, ...args) => {
    fs.writeFileSync(file('in.jsonl'), `${JSON.stringify(line)}\n`);
    return execFileSync(path.join(ROOT, 'tests/eval/import.py'),
      [set, file('in.jsonl'), ...args], { encoding: 'utf8', stdio: 'pipe' });
  };
  const set = (...args) => JSON.parse(convert(...args));
  assert.deepEqual(set('gsm8k', { question: 'How many?',
    answer: 'She has 1,002 + 1 = <<1002+1=1003>>1,003.\n#### 1,003' },
  '--raw', '--prompt', 'Q: {question}\nA:', '--stop', 'Q:'), {
    family: 'gsm8k', answer: '1,003', match: 'number',
    prompt: 'Q: How many?\nA:', stop: ['Q:'], max_tokens: 1024 });

  const half = set('math', { problem: 'What is $\\frac12$?', level: 'Level 3',
    solution: 'First \\boxed{1}, then $\\boxed{\\frac{1} {2}}$.' });
  assert.equal(half.difficulty, 3);
  assert.match(half.messages[0].content, /^What is .*\\boxed\{\}\.$/s);
  for (const [reply, right] of [['$\\boxed{\\dfrac{1}{2}}$', true],
    ['\\boxed{ \\frac{1} {2} }', true], ['\\boxed{\\frac{1}{3}}', false]]) {
    assert.equal(new RegExp(half.answer).test(reply), right, reply);
  }

  const long = set('longbench', { input: 'Who?', context: 'Ann (and) Bob.',
    answers: ['Ann (and)', 'Bob'], dataset: 'hotpotqa', length: 3 });
  assert.equal(long.family, 'hotpotqa');
  assert.match(long.messages[0].content, /^Ann \(and\) Bob\.[^]*Who\?\nAnswer:$/);
  const finds = (answer, text) => new RegExp(answer.replace('(?is)', ''), 'is')
    .test(text);
  assert.ok(finds(long.answer, 'it was ann (AND)') && !finds(long.answer, 'ann'));

  const needles = { index: 0, input: 'Find them.', outputs: ['123', '456'] };
  assert.ok(finds(set('ruler', needles).answer, '456 and\n123'));
  assert.ok(!finds(set('ruler', needles).answer, '456'));
  assert.ok(finds(set('ruler', needles, '--any').answer, '456'));

  assert.throws(() => convert('gsm8k', { question: 'How many?' }),
    /in\.jsonl:1: no 'answer'/);
  assert.throws(() => convert('math', { problem: 'x', solution: '7' }),
    /in\.jsonl:1: the solution has no \\boxed/);
});

test('eval: killed in between, it goes on and ends alike', async () => {
  const results = file('results.jsonl');
  const args = ['--resume', results, '--batch', '2'];
  const whole = json('whole.json');
  const all = whole.answers * POLICIES.length;
  const there = () => read(results).split('\n').length - 1;
  for (let tries = 0; ; tries++) { // who is too quick to be killed runs again
    assert.ok(tries < 20, 'never killed in between');
    fs.rmSync(results, { force: true });
    const first = start('eval', [...policies, ...args]);
    await until(() => fs.existsSync(results) && there() > 1, 'some answers');
    first.child.kill('SIGKILL');
    await first.done;
    if (there() < all) break;
  }
  const kept = there();
  await evaluate('resumed.json', ...args);
  const resumed = json('resumed.json');
  assert.ok(kept > 1 && resumed.resumed === kept,
    `${resumed.resumed} of ${kept}`);
  assert.deepEqual(resumed.policies, whole.policies);
  await evaluate('again.json', ...args);
  assert.equal(json('again.json').resumed, all);
  assert.equal(json('again.json').answer_tokens, 0);
});

// models/pocket as a model whose layers see the last 128 positions: all policies
// answer what fits into that, and `full` alone goes on beyond.
function sliding() {
  const model = file('sliding');
  fs.mkdirSync(model);
  for (const name of fs.readdirSync(POCKET)) {
    fs.symlinkSync(path.join(POCKET, name), path.join(model, name));
  }
  fs.unlinkSync(path.join(model, 'config.json'));
  const config = JSON.parse(read(path.join(POCKET, 'config.json')));
  fs.writeFileSync(path.join(model, 'config.json'), JSON.stringify({
    ...config,
    model_type: 'mistral', architectures: ['MistralForCausalLM'],
    sliding_window: 128,
    layer_types: Array.from({ length: config.num_hidden_layers }, (_, l) =>
      (l % 2 ? 'full_attention' : 'sliding_attention')),
  }));
  return model;
}

test('eval: a text longer than a sliding window, and than the cache', async () => {
  const model = sliding();
  const text = path.join(ROOT, 'scripts/demo.txt');
  const measure = async (...args) => {
    const out = file('text.json');
    const child = spawn(path.join(BUILD, 'bin/tokenring'), ['eval',
      '--perplexity', text, '--windows', '1', '--json', out, ...args],
    { stdio: ['ignore', 'pipe', 'pipe'] });
    let said = '';
    for (const s of [child.stdout, child.stderr]) s.on('data', (d) => { said += d; });
    const [status] = await once(child, 'close');
    assert.equal(status, 0, said);
    return [said, ...json('text.json').policies.map((p) => p.text)];
  };
  const small = ['--kv-memory', '64m'];
  const [table, full, four] = await measure('-m', model, ...small, '--kl', '-p',
    'full', '-p', 'uniform:levels=4/4');
  assert.deepEqual([full.windows, full.skipped], [1, 0]);
  assert.ok(full.perplexity > 1.01, `${full.perplexity}`);
  assert.ok(Math.abs(four.ratio - 1) < 0.1, `${four.ratio}`);
  assert.ok(four.kl > 0 && four.kl < 0.01, `${four.kl}`);
  // half of the layers keep an eighth of the text, the others a quarter of the bits
  assert.ok(four.kv_ratio < 0.4, `${four.kv_ratio}`);
  assert.deepEqual(four.parts.map((p) => [p.from, p.to]),
    [[512, 640], [640, 768], [768, 896], [896, 1023]]);
  assert.match(table, / KL to 1 .* 512-639 .* ppl 896-1022\n.*full .*\n.*4\/4 /);
  assert.ok(table.includes(` ${four.parts[3].kl.toFixed(6)} `), table);
  const [, alone] = await measure('-m', model, ...small, '-p', 'full');
  assert.ok(Math.abs(alone.perplexity - full.perplexity) < 1e-3,
    `${alone.perplexity}`);

  const [said, none] = await measure('-m', POCKET, '--kv-memory', '1m', '-p',
    'full', '-p', 'uniform:levels=8/8');
  assert.deepEqual([none.windows, none.skipped, none.perplexity], [0, 1, null]);
  assert.match(said, /1 windows are longer than the model's context or its cache/);
  assert.doesNotMatch(said, /nan/i);
});

test('eval: --kl compares predictions of a text', async () => {
  for (const args of [['--kl'], ['--kl', '--perplexity', cases, '--batch', '201']]) {
    const r = await start('eval', args).done;
    assert.equal(r.status, 2, r.err);
    assert.match(r.err, /--kl goes with --perplexity TEXT, .* at most 200/);
  }
});

const SOFT = path.join(BUILD, 'tests/libtokenring_soft.so');

test('eval: thresholds by head on a device, more than one file of them',
  { skip: !fs.existsSync(SOFT) && 'no software device was built' }, async () => {
    const text = file('heads.txt');
    fs.writeFileSync(text, 'Words that are read one by one. '.repeat(40));
    const specs = ['full', ...['0 0 2 0', '0 1 2 0'].map((line, i) => {
      fs.writeFileSync(file(`${i}.alpha`), `${line}\n`);
      return `diffkv:alpha_high=8,alpha_low=0,alpha_file=${file(`${i}.alpha`)}`;
    })];
    execFileSync(path.join(BUILD, 'bin/tokenring'), ['eval', '-m', POCKET,
      '--perplexity', text, '--kl', '--window', '160', '--prefix', '128',
      '--windows', '1', '--batch', '2', '--kv-memory', '128m', '--set',
      'backend=cuda', '--set', `cuda_library=${SOFT}`, '--json',
      file('heads.json'), ...specs.flatMap((p) => ['-p', p])]);
    const [full, one, other] = json('heads.json').policies.map((p) => p.text);
    assert.equal(full.kl, 0);
    assert.ok(one.kl > 0 && other.kl > 0 && one.kl !== other.kl);
  });

test('calibrate: alpha_high first, then alpha_low', async () => {
  const conf = file('diffkv.conf');
  const search = async (tolerance, ...more) => {
    const r = await start('calibrate', ['-s', 'alpha_high=1,30',
      '-s', 'alpha_low=0,20', '--tolerance', tolerance, '--out', conf, '--json', file('tried.json'),
      '--resume', file('search.jsonl'), ...more]).done;
    assert.equal(r.status, 0, r.err);
    return r;
  };
  // Whatever is lost: the least memory.  Both have it with the larger value.
  let r = await search('100');
  assert.equal(read(conf), 'kv_policy diffkv:alpha_high=30,alpha_low=20\n');
  assert.match(r.out, /chosen: alpha_high=30\n[^]*chosen: alpha_low=20\n/);
  const searched = read(file('search.jsonl')).trim().split('\n')
    .map((line) => JSON.parse(line).policy.match(/alpha_high=[^]*?low=\d+/))
    .filter((m) => m).map(([m]) => m);
  assert.deepEqual([...new Set(searched)].sort(), [
    'alpha_high=1,alpha_low=0', 'alpha_high=30,alpha_low=0',
    'alpha_high=30,alpha_low=20']);
  assert.match(r.out, /With --write it goes into .*models\/pocket\/kv_policy\.json\./);
  const tried = json('tried.json');
  assert.equal(tried.kv_policy, 'diffkv:alpha_high=30,alpha_low=20');
  assert.equal(tried.within_tolerance, true);
  assert.deepEqual(tried.tried.map((t) => `${t.setting}=${t.value}`),
    ['alpha_high=1', 'alpha_high=30', 'alpha_low=0', 'alpha_low=20']);
  // The curve: all of it and the plain levels, in the order of memory.
  const { curve } = tried;
  assert.deepEqual(curve.map((c) => c.policy).sort(), [
    'diffkv:alpha_high=1,alpha_low=0', 'diffkv:alpha_high=30,alpha_low=0',
    'diffkv:alpha_high=30,alpha_low=20', 'uniform:levels=4/2',
    'uniform:levels=8/4']);
  assert.deepEqual(curve.map((c) => c.comparison), curve.map((c) =>
    c.policy.startsWith('uniform')));
  for (const [i, c] of curve.entries()) {
    assert.ok(i === 0 || c.kv_ratio >= curve[i - 1].kv_ratio);
    assert.ok(c.diff_low <= c.diff && c.diff <= c.diff_high
      && (c.most_lost_points < c.most_lost_high
        || c.most_lost_points === 100), JSON.stringify(c)); // all of them
    assert.ok(r.out.split('\n').some((line) => line.includes(c.policy)
      && line.startsWith(`${c.kv_ratio.toFixed(3)} `.padStart(9))), r.out);
  }
  assert.match(r.out, /\nOf \d+ cases: .* not below -\d/);
  // A memory that only dropping tokens goes below: what loses least in it.
  const [low] = curve.filter((c) => c.policy.endsWith('low=20'));
  r = await search('100', '--memory', `${low.kv_ratio + 1e-3}`);
  assert.equal(read(conf), 'kv_policy diffkv:alpha_high=30,alpha_low=20\n');
  assert.match(r.out, /chosen: alpha_high=30, although it takes more than the memory\n/);
  assert.equal(json('tried.json').fits, true);
  r = await start('calibrate', ['-s', 'alpha_high=1,30', '-s', 'alpha_low=0,20',
    '--tolerance', '100', '--memory', '0.05', '--resume', file('search.jsonl'),
    '--write']).done;
  assert.equal(r.status, 1);
  assert.match(r.out, /not written beside the model, since it takes more than the memory/);
  // Little may be lost: of what was found, the other.  It goes beside the model,
  // and the engine takes it from there.
  const model = file('model');
  fs.mkdirSync(model);
  for (const name of fs.readdirSync(POCKET)) {
    if (name !== 'kv_policy.json') {
      fs.symlinkSync(path.join(POCKET, name), path.join(model, name));
    }
  }
  r = await search('50', '-m', model, '--write');
  const [, spec] = read(conf)
    .match(/^kv_policy (diffkv:alpha_high=\d+,alpha_low=0)\n$/);
  assert.match(r.out, /\n20 .* in (arith|multi|recall) *\n/);
  const written = JSON.parse(read(path.join(model, 'kv_policy.json')));
  assert.deepEqual({ ...written, calibrated: null }, { kv_policy: spec,
    layers: 8, kv_heads: 2, head_dim: 64, calibrated: null });
  assert.equal(written.calibrated.cases, n);
  assert.ok(written.calibrated.kv_ratio > 0);
  const check = execFileSync(ENGINE, ['--check', '--model', model,
    '--kv_policy', 'diffkv'], { encoding: 'utf8' });
  assert.match(check, new RegExp(`${spec.slice(7)},.*, from kv_policy.json\n`));
});

// Likelihoods tell apart what answers alike.
test('calibrate: in a memory, by the divergence of a text', async () => {
  const text = file('long.txt');
  const demo = read(path.join(ROOT, 'scripts/demo.txt'));
  fs.writeFileSync(text, demo);
  const args = ['-p', 'diffkv:window=16', '-s', 'alpha_high=1,30', '-s', 'alpha_low=0', '--tolerance',
    '100', '--memory', '2', '--text', text, '--window', '64', '--beside',
    'uniform:levels=8/8', '--json', file('kl.json')];
  let r = await start('calibrate', args).done;
  assert.equal(r.status, 0, r.err);
  const { kv_policy: chosen, curve } = json('kl.json');
  assert.equal(chosen, 'diffkv:window=16,alpha_high=1,alpha_low=0');
  const kl = (name) => curve.find((c) => c.policy.includes(name)).kl;
  assert.ok(kl('8/8') < kl('high=1,') && kl('high=1,') < kl('high=30,'),
    JSON.stringify(curve));
  assert.match(r.out, /KL to full, nats/);
  fs.writeFileSync(text, demo.slice(0, 400));
  r = await start('calibrate', args).done;
  assert.equal(r.status, 1);
  assert.match(r.err, /long\.txt has \d+ tokens, expected at least the \d+ of 16 windows/);
});

test('calibrate: too few cases to say anything', async () => {
  for (const [args, message] of [
    [[], /the family \w+ has \d cases: .* no more than 1 points are lost takes at least 381/],
    [['--tolerance', '0.05'], /takes at least 7680/],
    [['-c', '-'], /give a file/],
  ]) {
    const r = await start('calibrate', args).done;
    assert.notEqual(r.status, 0);
    assert.match(r.err, message);
    assert.equal(r.out, '');
  }
});
