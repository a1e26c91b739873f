'use strict';
//
// What a contributor types: make help, compile_commands.json, one unit test,
// the hook before a commit, a test from a fresh clone.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { ROOT, BUILD, MODULE, read } = require('../lib/stack');

function run(command, args, options = {}) {
  const env = { ...process.env, NO_COLOR: '1', ...options.env };
  for (const name of ['MAKEFLAGS', 'MFLAGS', 'NODE_TEST_CONTEXT', 'CC',
    'CCACHE', ...options.unset || []]) {
    if (!options.env || !(name in options.env)) delete env[name];
  }
  const out = spawnSync(command, args,
    { cwd: ROOT, encoding: 'utf8', timeout: 120000, ...options, env });
  return { status: out.status, text: `${out.stdout}${out.stderr}` };
}

const make = (args, options) => run('make', [`B=${BUILD}`, ...args], options);
// As make names it.
const B = BUILD.replace(`${ROOT}/`, '');
const there = (command) => run('sh', ['-c', `command -v ${command}`]).status === 0;
const tracked = (...patterns) => run('git', ['ls-files', ...patterns])
  .text.split('\n').filter(Boolean);
const checkout = run('git', ['rev-parse', 'HEAD']).status === 0;
const noCheckout = !checkout && 'this is no git checkout';

test('make help names every target that is for people', () => {
  const { text } = make(['-s', 'help']);
  const parts = /^(all|help|deps-build|configured|served|cuda-found|cuda-arch|fake-(clock|engine)|engine|cli|module|unit|bench-.*)$/;
  const files = [path.join(ROOT, 'Makefile'),
    ...fs.readdirSync(path.join(ROOT, 'mk')).map((f) => path.join(ROOT, 'mk', f))];
  const targets = files.flatMap((file) => [...read(file)
    .matchAll(/^\.PHONY: ((?:.*\\\n)*.*)$/gm)]
    .flatMap((m) => m[1].replace(/\\\n/g, ' ').trim().split(/\s+/)));
  assert.ok(targets.length > 20, `${targets}`);
  for (const target of targets.filter((t) => !parts.test(t))) {
    assert.match(text, new RegExp(`\\b${target}(?![\\w-])`), target);
  }
});

test('compile_commands.json knows how every C file is compiled',
  { skip: noCheckout }, () => {
    const out = make(['-s', 'compile_commands.json']);
    assert.equal(out.status, 0, out.text);
    const commands = JSON.parse(read(path.join(ROOT, 'compile_commands.json')));
    const known = new Map(commands.map((c) =>
      [path.relative(ROOT, path.resolve(c.directory, c.file)), c.arguments]));
    const parts = ['engine/*.c', 'kernels/*.c', 'cli/*.c', 'tests/unit/*.c',
      'tests/soft/*.c', 'tests/bench/bench_*.c', 'tests/bench/gpu/*.c', 'tests/fuzz/*.c',
      'tests/e2e/*.c', ...(MODULE === 'static' ? [] : ['ngx_module/*.c'])];
    for (const part of parts) {
      // A part of another C file has no command of its own.
      const files = tracked(part).filter((f) => !known.has(f));
      assert.ok(tracked(part).length > 0, part);
      assert.deepEqual(files, [], `${part} is not complete`);
    }
    const args = known.get('cli/sse.c');
    assert.ok(args.includes('-Iinclude') && args.includes('-iquote.'), `${args}`);
    assert.doesNotMatch(args[0], /ccache/);
  });

test('ccache is used where it is found, unless CC is given', () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-make-'));
  try {
    fs.writeFileSync(path.join(dir, 'ccache'), '#!/bin/sh\nexec "$@"\n',
      { mode: 0o755 });
    const PATH = `${dir}:${process.env.PATH}`;
    const compiler = (...args) => {
      const { text } = make(['-Bn', 'V=1', ...args, `${B}/obj/cli/sse.o`],
        { env: { PATH } });
      return /^(.*?) -std=/m.exec(text)[1];
    };
    assert.equal(compiler(), 'ccache gcc');
    assert.equal(compiler('CCACHE='), 'gcc');
    assert.equal(compiler('CC=clang'), 'clang');
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
});

// What a file was made of is known by its name: with two, make would miss changes.
test('the build directory has one name, whoever gives it', () => {
  for (const [given, name] of [['build', 'build'], [`${ROOT}/build`, 'build'],
    [`${ROOT}/build-x`, 'build-x'], ['/tmp/build', '/tmp/build']]) {
    for (const [args, env] of [[[`B=${given}`], {}], [[], { B: given }]]) {
      const { text } = run('make', ['-s', '--eval=name: ; @echo $B', 'name',
        ...args], { env });
      assert.equal(text.trim(), name, `${given} ${args}`);
    }
  }
});

test('kernels are optimised with CFLAGS of one\'s own, except for a debugger', () => {
  const flags = (...args) => {
    const { text } = make(['-Bn', 'V=1', 'CC=gcc', ...args,
      `${B}/obj/kernels/kv_layout.o`], { unset: ['CFLAGS'] });
    return /^gcc .*$/m.exec(text)[0];
  };
  assert.match(flags(), / -O2 -g1 -O3 -g0 /);
  assert.match(flags('CFLAGS=-O2 -g -I/opt/x'), / -O2 -g -I\/opt\/x -O3 -g0 /);
  assert.doesNotMatch(flags('CFLAGS=-O0 -g'), /-O3|-g0/);
  assert.match(flags('KERNEL_CFLAGS=-O3'), / -O2 -g1 -O3 /);
});

test('make test-unit T= says which tests there are', () => {
  const out = make(['-s', 'test-unit', 'T=rign'],
    { env: { MAKEFLAGS: '-o build/deps/test' } });
  assert.notEqual(out.status, 0);
  assert.match(out.text, /no unit test "rign"; T= is one of:\n/);
  for (const name of ['ring', 'openai', 'soft', 'runtime']) {
    assert.match(out.text, new RegExp(`\\b${name}\\b`), name);
  }
});

const tools = ['clang-format', 'cppcheck', 'shellcheck'].filter((t) => !there(t));

test('the hook refuses what is staged and badly formatted, and only that',
  { skip: noCheckout || (tools.length > 0 && `not installed: ${tools}`) }, () => {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-hook-'));
    const env = {
      GIT_AUTHOR_NAME: 'a', GIT_AUTHOR_EMAIL: 'a@b', GIT_COMMITTER_NAME: 'a',
      GIT_COMMITTER_EMAIL: 'a@b',
    };
    const git = (...args) => run('git', args, { cwd: dir, env });
    try {
      assert.equal(run('git', ['clone', '-q', ROOT, dir]).status, 0);
      for (const name of ['pre-commit.sh', 'lint.sh', 'lib.sh']) {
        fs.copyFileSync(path.join(ROOT, 'scripts', name),
          path.join(dir, 'scripts', name));
      }
      git('add', '-A');
      git('commit', '-qm', 'now', '--allow-empty');
      const install = () => run('scripts/pre-commit.sh', ['--install'],
        { cwd: dir });
      assert.equal(install().status, 0);

      const at = path.join(dir, 'cli/sse.c');
      const good = read(at);
      fs.appendFileSync(at, '\nint  sse(void){return 1;}\n');
      git('add', 'cli/sse.c');
      fs.writeFileSync(at, good); // not what is committed
      const refused = git('commit', '-qm', 'bad');
      assert.equal(refused.status, 1);
      assert.match(refused.text, /==> C style[^]*cli\/sse\.c:\d+:\d+:/);

      fs.writeFileSync(path.join(dir, 'cli/stats.c'), 'int  x;'); // nor this
      fs.writeFileSync(at, good.replace('/*\n', '/*\n * It is fine.\n'));
      git('add', 'cli/sse.c');
      const taken = git('commit', '-qm', 'good');
      assert.equal(taken.status, 0, taken.text);
      assert.match(git('log', '-1', '--format=%s').text, /^good$/m);

      fs.writeFileSync(path.join(dir, '.git/hooks/pre-commit'), 'exit 0\n');
      const own = install();
      assert.equal(own.status, 1);
      assert.match(own.text, /is there already and not ours/);
    } finally {
      fs.rmSync(dir, { recursive: true, force: true });
    }
  });

test('a test without a build says what to run', () => {
  for (const file of ['e2e/module/sse', 'e2e/api/openai',
    'unit/tokenizer/reference/tokenize']) {
    const out = run(process.execPath, [`tests/${file}.test.js`],
      { env: { B: path.join(ROOT, 'build/nowhere') }, unset: ['TR_BUILD'] });
    assert.equal(out.status, 1);
    assert.match(out.text, /^Not there yet: build\/nowhere\/.*\. Run first, .*: make[ \w&]*\n$/);
  }
});
