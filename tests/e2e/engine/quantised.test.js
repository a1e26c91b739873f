'use strict';
//
// Quantised checkpoints in service: models/pocket in two formats, made by
// models/pocket/quantise.py, answers through NGINX what its twin answers, whose
// files hold the same weights in 16 bits.  Greedy, sampled, in a batch, and under a
// policy that compresses.  Weights that stay packed answer in a batch as alone.
// Skipped where python3 has no numpy.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { Stack, ROOT, read } = require('../lib/stack');
const { stream } = require('../lib/http');
const { endless } = require('../lib/prompts');

const PYTHON = ['python3', '/usr/bin/python3'].find(
  (p) => spawnSync(p, ['-c', 'import numpy']).status === 0);
const ANSWERS = 6;

function quantise(format, dir, ...more) {
  const out = spawnSync(PYTHON, [path.join(ROOT, 'models/pocket/quantise.py'),
    format, '--out', dir, ...more], { encoding: 'utf8' });
  assert.equal(out.status, 0, out.stderr);
}

const body = (i) => endless(i, 24, {
  ...(i % 2 ? { temperature: 1, seed: i } : { temperature: 0 }),
  ...(i % 3 === 0 ? { kv_policy: 'diffkv' } : {}),
});

// All at once, and the log that the engine wrote.
async function answers(model, settings, alone = false) {
  const stack = await Stack.start({ engine: { model,
    served_model_name: 'pocket', kv_policies: 'diffkv', ...settings } });
  try {
    const all = [];
    for (let i = 0; i < ANSWERS; i++) {
      all.push(stream(`${stack.url}/v1/chat/completions`, body(i)));
      if (alone) await all[i].finished;
    }
    await Promise.all(all.map((s) => s.finished));
    const m = await stack.metrics();
    return { ratio: m.value('tokenring_weights_bytes')
      / m.value('tokenring_weights_file_bytes'), texts: all.map((s) => s.text()), log: read(stack.engine.log) };
  } finally {
    await stack.stop();
  }
}

for (const [format, said] of [
  ['awq', /weights method=awq format="AWQ" tensors=\d+ bits_per_weight=4\.6/],
  ['fp8-block', /weights method=fp8 format="FP8" tensors=\d+ bits_per_weight=8/],
]) {
  test(`${format} answers as its twin in 16 bits`, {
    skip: PYTHON ? false : 'python3 has no numpy',
  }, async () => {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tr-quantised-'));
    try {
      quantise(format, path.join(dir, 'codes'));
      quantise(format, path.join(dir, 'twin'), '--twin');
      const one = await answers(path.join(dir, 'codes'),
        { weights_format: 'expand' });
      const twin = await answers(path.join(dir, 'twin'));
      assert.deepEqual(one.texts, twin.texts);
      assert.equal(new Set(one.texts).size, ANSWERS);
      assert.match(one.log, said);
      assert.doesNotMatch(twin.log, / weights method=/);
    } finally {
      fs.rmSync(dir, { recursive: true, force: true });
    }
  });
}

for (const [what, format, settings, said] of [
  ['awq, packed', 'awq', {},
    /weights kept int8_parts=0 int4_parts=32 mxfp4_parts=0 .* expanded_tensors=0/],
  ['cpu_weights int8', null, { cpu_weights: 'int8' },
    /weights kept int8_parts=33 int4_parts=0 mxfp4_parts=0 /],
]) {
  test(`${what}: a batch answers as each alone`, {
    skip: PYTHON || !format ? false : 'python3 has no numpy',
  }, async () => {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tr-quantised-'));
    try {
      const model = format ? path.join(dir, 'codes')
        : path.join(ROOT, 'models/pocket');
      if (format) quantise(format, model);
      const batch = await answers(model, settings);
      const alone = await answers(model, settings, true);
      assert.deepEqual(batch.texts, alone.texts);
      assert.equal(new Set(batch.texts).size, ANSWERS);
      assert.match(batch.log, said);
      // 8 of 16 bits, and scales
      assert.ok(format || (batch.ratio > 0.5 && batch.ratio < 0.6),
        `${batch.ratio} of the bytes in the files`);
    } finally {
      fs.rmSync(dir, { recursive: true, force: true });
    }
  });
}
