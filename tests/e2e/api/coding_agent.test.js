'use strict';
//
// A coding agent from npm, pointed at loopback and at nothing else, writes two
// files with its tools: over /v1/responses, /v1/messages and a chat, against a
// model that says what a script has (lib/scripted.js).

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { scripted, call } = require('../lib/scripted');

const PI = path.join(__dirname, '../node_modules/.bin/pi');
const SAYS = [
  `I make two files.\n${call('write', { path: 'a.txt', content: 'one\n' })}`,
  call('bash', { command: 'sed s/one/two/ a.txt > b.txt' }),
  'Both are there.',
];
const apis = ['openai-responses', 'anthropic-messages', 'openai-completions'];
let stack, home;

before(async () => {
  // An agent's prompt is long.
  stack = await scripted(apis.flatMap(() => SAYS), {
    engine: { max_model_len: 32768, kv_memory: '1g' } });
  home = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-agent-'));
});

after(async () => {
  if (stack) await stack.stop();
  if (home) fs.rmSync(home, { recursive: true, force: true });
});

function run(cwd) {
  return new Promise((resolve) => {
    const child = spawn(PI, ['-p', '--provider', 'tokenring', '--model',
      'scripted', '--no-session', 'Make a.txt and b.txt.'], {
      cwd, env: { PATH: process.env.PATH, HOME: home },
      stdio: ['ignore', 'pipe', 'pipe'], timeout: 120000 });
    let text = '';
    for (const s of [child.stdout, child.stderr]) {
      s.on('data', (d) => { text += d; });
    }
    child.on('close', (code) => resolve({ code, text }));
  });
}

for (const api of apis) {
  test(api, async () => {
    const config = path.join(home, '.pi/agent');
    const cwd = path.join(home, api);
    fs.mkdirSync(config, { recursive: true });
    fs.mkdirSync(cwd);
    fs.writeFileSync(path.join(config, 'models.json'), JSON.stringify({
      providers: { tokenring: { api, apiKey: 'none',
        baseUrl: api === 'anthropic-messages' ? stack.url : `${stack.url}/v1`,
        models: [{ id: 'scripted' }] } } }));
    const { code, text } = await run(cwd);
    assert.equal(code, 0, text);
    assert.match(text, /Both are there\./);
    assert.equal(fs.readFileSync(path.join(cwd, 'a.txt'), 'utf8'), 'one\n');
    assert.equal(fs.readFileSync(path.join(cwd, 'b.txt'), 'utf8'), 'two\n');
  });
}
