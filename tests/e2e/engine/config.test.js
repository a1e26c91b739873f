'use strict';
//
// conf/engine.conf tells of every setting, with the default and the sentence
// that `tokenring-engine --help` has, and nothing that is not a setting; and
// the engine starts with it. What --check prints.

const test = require('node:test');
const assert = require('node:assert/strict');
const { spawn, spawnSync } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { ROOT, ENGINE, POCKET, until, workerUser } = require('../lib/stack');

// Where the file says something else than the default.
const SHIPPED = { kv_policy: 'diffkv', kv_policies: '"full uniform"' };

function settingsOfHelp() {
  const out = spawnSync(ENGINE, ['--help'], { encoding: 'utf8' });
  assert.equal(out.status, 0, out.stderr);
  const settings = new Map();
  for (const m of out.stdout.matchAll(
    /^ +--(\w+) +\(default: (.*)\)\n((?: {6}.+\n)+) {6}.+$/gm)) {
    const sentence = m[3].trim().split(/\n +/).join(' ');
    settings.set(m[1], { value: m[2], sentence });
  }
  return settings;
}

function settingsOfFile() {
  const text = fs.readFileSync(path.join(ROOT, 'conf/engine.conf'), 'utf8');
  const settings = new Map();
  let sentence = '';
  for (const line of text.split('\n')) {
    const m = /^(# )?([a-z_]+) (\S+|"[^"]+")$/.exec(line);
    if (m && sentence !== '') {
      settings.set(m[2], { commented: Boolean(m[1]), value: m[3], sentence });
      sentence = '';
    } else {
      sentence = line.startsWith('# ') ? line.slice(2) : '';
    }
  }
  return settings;
}

test('conf/engine.conf and --help tell of the same settings', () => {
  const help = settingsOfHelp();
  const file = settingsOfFile();
  assert.ok(help.size >= 25, `--help lists settings: ${help.size}`);
  assert.deepEqual([...file.keys()].sort(), [...help.keys()].sort());
});

for (const [key, said] of settingsOfFile()) {
  test(`conf/engine.conf: ${key} as in --help`, () => {
    const real = settingsOfHelp().get(key);
    assert.ok(real, `${key} is a setting`);
    assert.equal(said.sentence, real.sentence);
    if (key === 'model') return; // required: the file must name one
    if (key in SHIPPED) {
      assert.ok(!said.commented && said.value === SHIPPED[key]);
      return;
    }
    if (real.value === 'empty') {
      assert.ok(said.commented, `${key} is empty by default`);
    } else {
      assert.ok(!said.commented, `${key} has a default`);
      assert.equal(said.value, real.value);
    }
  });
}

test('--check says what the model is', () => {
  const out = spawnSync(ENGINE,
    ['--check', '--model', path.join(ROOT, 'models/pocket'),
      '--socket', '/tmp/x.sock'], { encoding: 'utf8' });
  assert.equal(out.status, 0, out.stderr);
  const lines = out.stdout.trimEnd().split('\n');
  assert.match(lines[0], /^model: 8 layers, hidden 384, mlp 1024, 6 query heads/);
  assert.match(lines[1], /^layers 0 to 7: .*; act silu; rope 0$/);
  assert.equal(lines[2], 'rope 0: default, theta 10000');
  assert.equal(lines[3], 'kv policy: full, from settings');
  assert.equal(lines[4], 'kv cache: 256 MiB, requests of up to 4096 tokens');
  assert.match(lines[5], /^configuration and model .* are fine$/);
});

test('--check says at which level prompts are computed, and who refuses it', () => {
  const check = (...policy) => spawnSync(ENGINE, ['--check', '--model', POCKET, '--prefill_level', '8/4', ...policy],
    { encoding: 'utf8' });
  const good = check('--kv_policy', 'diffkv', '--kv_policies', 'full uniform:levels=8/4');
  assert.equal(good.status, 0, good.stderr);
  assert.match(good.stdout, /^kv of prompts that are computed: 8\/4, but for the last 512 tokens or less$/m);
  for (const [policy, why] of [
    [['--kv_policy', 'full'], /KV policy full leaves all prompts at 16 bits; expected 16\/16/],
    [['--kv_policy', 'diffkv', '--kv_policies', 'snapkv'], /KV policy snapkv decides by what a whole prompt has at 16 bits/],
    [['--kv_policy', 'uniform:levels=4/2'], /the best level of KV policy uniform is 4\/2; expected that, or 16\/16/],
  ]) {
    const bad = check(...policy);
    assert.notEqual(bad.status, 0);
    assert.match(bad.stderr, /prefill_level 8\/4: /);
    assert.match(bad.stderr, why);
  }
});

// A model that its policy file has left, or that never had one.
test('--check and the log say where a policy has its settings from', () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-e2e-'));
  const file = path.join(dir, 'kv_policy.json');
  const check = () => spawnSync(ENGINE, ['--check', '--model', dir,
    '--kv_policy', 'diffkv', '--kv_policies', 'diffkv:window=32'],
  { encoding: 'utf8' });
  try {
    for (const name of fs.readdirSync(POCKET)) {
      fs.symlinkSync(path.join(POCKET, name), path.join(dir, name));
    }
    const shipped = check().stdout;
    assert.match(shipped, /^kv policy: diffkv:.*alpha_high=20,alpha_low=0,.*, from kv_policy\.json$/m);
    assert.match(shipped, /^kv policy: diffkv:.*window=32,.*alpha_high=9,alpha_low=0,.*, from settings$/m);
    fs.unlinkSync(file);
    assert.match(check().stdout, /^kv policy: .*alpha_high=9,alpha_low=0,.*, from defaults \(tokenring calibrate finds the model's own\)$/m);
    fs.writeFileSync(file, '{\n "kv_policy": "diffkv:alpha_high=20",\n "layers": 9}');
    const other = check();
    assert.equal(other.status, 1);
    assert.match(other.stderr, /kv_policy\.json: "layers" is 9, expected 8 as the model has/);
    fs.writeFileSync(file, '{\n "kv_policy" = 1}');
    assert.match(check().stderr, /kv_policy\.json:2:14: /);
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
});

// The kernel gives files in /proc/PID of a process that leaves no core to root, and
// keeps other processes of its user out of its memory.
test('core_dumps: an engine leaves no core unless it is told to', async () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-e2e-'));
  const user = workerUser() ? 65534 : process.getuid();
  fs.chownSync(dir, user, -1);
  const owner = async (...settings) => {
    const args = [ENGINE, '--model', POCKET, '--backend', 'null',
      '--socket', path.join(dir, 'engine.sock'), ...settings];
    if (workerUser()) args.unshift('setpriv', `--reuid=${user}`);
    const child = spawn(args[0], args.slice(1), { stdio: ['ignore', 'ignore',
      'pipe'] });
    const ended = once(child, 'exit');
    let said = '';
    child.stderr.on('data', (d) => { said += d; });
    try {
      await until(() => said.includes('engine ready'), () => said);
      return fs.statSync(`/proc/${child.pid}/environ`).uid;
    } finally {
      child.kill('SIGTERM');
      await ended;
    }
  };
  try {
    assert.equal(await owner('--core_dumps', 'yes'), user);
    assert.equal(await owner(), 0);
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
});
