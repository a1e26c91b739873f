'use strict';
//
// docs/sizing.md has the table that scripts/sizing.js computes, and that is near
// what was measured: sequences of 4,096 tokens that fitted an H200
// (docs/benchmarks.md, "Largest batch, GPU").

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { ROOT } = require('../lib/docs');
const { GPUS, MODELS, POLICIES, conversations, table }
  = require('../../../scripts/sizing');

const read = (name) => fs.readFileSync(path.join(ROOT, 'docs', name), 'utf8');

test('docs/sizing.md has the table of scripts/sizing.js', () => {
  assert.ok(read('sizing.md').includes(`\n${table()}\n`),
    `it should have:\n${table()}`);
});

test('docs/sizing.md has the ratios of scripts/sizing.js', () => {
  for (const [name, ratio] of Object.entries(POLICIES)) {
    const spec = name.replace(' ', ':levels=');
    assert.ok(read('sizing.md').includes(`| \`${spec}\` | ${ratio} |`), name);
  }
});

test('the arithmetic is near what was measured', () => {
  const rows = [...read('benchmarks.md').matchAll(
    /^\| (Llama-3-8B|Qwen2\.5-32B) \| (full|static) \| (\d[\d,]*) \| [\d.]+ \| (0\.\d+|1\.\d+) \|/gm)];
  assert.equal(rows.length, 4, 'two models, two policies');
  const named = { 'Llama-3-8B': 'Llama-3.1-8B', 'Qwen2.5-32B': 'Qwen2.5-32B' };
  for (const [line, name, , count, ratio] of rows) {
    const measured = Number(count.replace(',', ''));
    const computed = conversations(GPUS['H200, 141 GB'], MODELS[named[name]],
      Number(ratio));
    assert.ok(Math.abs(computed / measured - 1) < 0.05,
      `${line} measured ${measured}, computed ${computed}`);
  }
});
