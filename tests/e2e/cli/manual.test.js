'use strict';
//
// Manual pages and shell completion say what --help says, for every command and
// every setting, and are what man and bash can read.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const path = require('node:path');
const { BUILD, ENGINE } = require('../lib/stack');

const CLI = path.join(BUILD, 'bin/tokenring');
const run = (command, args, input) => {
  const out = spawnSync(command, args, { encoding: 'utf8', input });
  assert.equal(out.error, undefined);
  return out;
};
const say = (...args) => {
  const out = run(CLI, args);
  assert.equal(out.status, 0, out.stderr);
  return out.stdout;
};
const commands = [...say('--help').matchAll(/^ {2}([a-z]+) +\S/gm)]
  .map((m) => m[1]);
const options = (command) => [...say(command, '--help')
  .matchAll(/^ {2}(?:-(\w), | {4})--([\w-]+)/gm)]
  .filter((m) => m[2] !== 'help').map((m) => ({ letter: m[1], name: m[2] }));

const groff = run('sh', ['-c', 'command -v groff']).status === 0;
// As it is read; what groff warns of.
function read(page) {
  if (!groff) return { text: page, warnings: '' };
  const out = run('groff', ['-man', '-Tascii', '-ww', '-P-cbou', '-rLL=200n'],
    page);
  return { text: out.stdout, warnings: out.stderr };
}

test('there is a page for each command, with all of its options', () => {
  assert.ok(commands.length >= 11, commands.join(' '));
  const overview = read(say('man'));
  assert.equal(overview.warnings, '');
  for (const command of commands) {
    assert.match(overview.text, new RegExp(`^ +${command}\\b`, 'm'));
    const page = read(say('man', command));
    assert.equal(page.warnings, '', command);
    for (const { letter, name } of options(command)) {
      assert.ok(page.text.replaceAll('\\-', '-')
        .includes(letter ? `-${letter}, --${name}` : `--${name}`),
      `${command} --${name}`);
    }
  }
  assert.ok(options('generate').length > 15);
  const none = run(CLI, ['man', 'frobnicate']);
  assert.equal(none.status, 2);
  assert.match(none.stderr, /unknown command "frobnicate"/);
});

test('tokenring-engine(8) has every setting', () => {
  const help = run(ENGINE, ['--help']).stdout;
  const page = read(run(ENGINE, ['--man']).stdout);
  assert.equal(page.warnings, '');
  const settings = [...help.matchAll(/^ +--(\w+) +\(default/gm)].map((m) => m[1]);
  assert.ok(settings.length > 25);
  for (const setting of settings) {
    assert.match(page.text, new RegExp(`^ +${setting}\\b`, 'm'), setting);
  }
});

test('bash completes commands, options and files', () => {
  const complete = (...words) => run('bash', ['-c',
    'source <("$0" completion bash); COMP_WORDS=("$@"); '
    + 'COMP_CWORD=$(($# - 1)); _tokenring; printf "%s\\n" "${COMPREPLY[@]}"',
    CLI, 'tokenring', ...words]).stdout.split('\n').filter(Boolean).sort();
  assert.deepEqual(complete(''), ['--help', '--version', ...commands].sort());
  assert.deepEqual(complete('ca'), ['calibrate']);
  for (const command of commands) {
    assert.deepEqual(complete(command, '--'),
      ['--help', ...options(command).map((o) => `--${o.name}`)].sort(), command);
  }
  const dir = path.join(BUILD, 'bi');
  assert.deepEqual(complete('generate', '-m', dir), [`${BUILD}/bin`]);
  assert.deepEqual(complete('generate', '-f', path.join(BUILD, 'bin/tokenring-')),
    [path.join(BUILD, 'bin/tokenring-engine')]);
  assert.deepEqual(complete('generate', '--temperature', ''), []);
});

test('zsh and fish get every command and option; other shells a message', () => {
  const zsh = say('completion', 'zsh');
  const fish = say('completion', 'fish');
  assert.match(zsh, /^#compdef tokenring\n/);
  for (const command of commands) {
    assert.ok(zsh.includes(`        '${command}:`), command);
    assert.ok(fish.includes(`-a ${command} `), command);
    for (const { name } of options(command)) {
      assert.match(zsh, new RegExp(`'\\*?--${name}\\[`), name);
      assert.ok(fish.includes(`from ${command}' -l ${name} `), name);
    }
  }
  const none = run(CLI, ['completion', 'csh']);
  assert.equal(none.status, 2);
  assert.match(none.stderr, /bash, zsh or fish/);
});
