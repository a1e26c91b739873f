'use strict';
//
// models/stress/make.py: what a training left, as codes beside models/pocket,
// becomes the model that the formula in its head says, bit by bit, and one that
// the engine opens. The change here is made up: sums of every size, also ones
// that round to even.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { BUILD, POCKET, ROOT } = require('../lib/stack');

const CODED = 'model.layers.0.self_attn.k_proj.weight';
const PRODUCT = 'model.layers.1.self_attn.q_proj.weight';
const PLAIN = 'model.norm.weight';
const RANK = 3;

function read(file) {
  const all = fs.readFileSync(file);
  const length = Number(all.readBigUInt64LE(0));
  const header = JSON.parse(all.subarray(8, 8 + length));
  delete header.__metadata__;
  return Object.fromEntries(Object.entries(header).map(([name, e]) => {
    const [from, to] = e.data_offsets;
    return [name, { dtype: e.dtype, shape: e.shape,
      data: Buffer.from(all.subarray(8 + length + from, 8 + length + to)) }];
  }));
}

function write(file, tensors) {
  const header = {};
  let at = 0;
  for (const [name, t] of Object.entries(tensors)) {
    header[name] = { dtype: t.dtype, shape: t.shape,
      data_offsets: [at, at += t.data.length] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  fs.writeFileSync(file, Buffer.concat([length, text,
    ...Object.values(tensors).map((t) => t.data)]));
}

const word = new DataView(new ArrayBuffer(4));
function number(bits) {
  word.setUint32(0, bits * 65536);
  return word.getFloat32(0);
}

function rounded(x) {
  word.setFloat32(0, x);
  const bits = word.getUint32(0);
  return Math.floor((bits + 0x7fff + (bits >>> 16 & 1)) / 65536);
}

// Numbers that a seed repeats.
let seed = 1;
function below(n) {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  return Math.floor(seed / 2 ** 32 * n);
}

function codes(shape) {
  const data = Buffer.alloc(shape[0] * shape[1]);
  for (let i = 0; i < data.length; i++) data.writeInt8(below(255) - 127, i);
  return { dtype: 'I8', shape, data };
}

function scales(rows) {
  const data = Buffer.alloc(4 * rows);
  for (let i = 0; i < rows; i++) {
    data.writeFloatLE(2 ** -(8 + below(8)) * (1 + below(1000) / 1000), 4 * i);
  }
  return { dtype: 'F32', shape: [rows], data };
}

const pocket = () => Object.assign({}, ...fs.readdirSync(POCKET)
  .filter((name) => name.endsWith('.safetensors'))
  .map((name) => read(path.join(POCKET, name))));

function expected(was, change, name, code) {
  const [rows, columns] = was.shape;
  const out = Buffer.alloc(was.data.length);
  for (let i = 0; i < rows; i++) {
    const scale = change[`${name}:scale`].data.readFloatLE(4 * i);
    const factor = change[`${name}:factor`]
      ? number(change[`${name}:factor`].data.readUInt16LE(2 * i)) : 1;
    for (let j = 0; j < columns; j++) {
      const at = 2 * (i * columns + j);
      const x = factor * number(was.data.readUInt16LE(at));
      out.writeUInt16LE(rounded(x + scale * code(i, j)), at);
    }
  }
  return out;
}

test('a change becomes a model', () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tr-stress-'));
  try {
    const source = path.join(dir, 'kept');
    const folder = path.join(dir, 'model');
    const was = pocket();
    const [rows, columns] = was[PRODUCT].shape;
    const factor = Buffer.alloc(2 * rows);
    for (let i = 0; i < rows; i++) {
      factor.writeUInt16LE(below(2) ? 0x3f80 : 0x3e00, 2 * i); // 1, 1/8
    }
    const change = {
      [`${CODED}:code`]: codes(was[CODED].shape),
      [`${CODED}:scale`]: scales(was[CODED].shape[0]),
      [`${PRODUCT}:factor`]: { dtype: 'BF16', shape: [rows], data: factor },
      [`${PRODUCT}:left`]: codes([rows, RANK]),
      [`${PRODUCT}:right`]: codes([RANK, columns]),
      [`${PRODUCT}:scale`]: scales(rows),
      [PLAIN]: { ...was[PLAIN], data: Buffer.from(was[PLAIN].data).reverse() },
    };
    fs.mkdirSync(source);
    write(path.join(source, 'change.safetensors'), change);
    fs.copyFileSync(path.join(POCKET, 'config.json'),
      path.join(source, 'config.json'));
    execFileSync('python3', ['-c',
      'import sys; sys.path.insert(0, sys.argv[1]); import make; '
      + 'make.make(sys.argv[2], sys.argv[3])',
      path.join(ROOT, 'models/stress'), source, folder]);

    const is = read(path.join(folder, 'model.safetensors'));
    assert.deepEqual(Object.keys(is).sort(), Object.keys(was).sort());
    const left = change[`${PRODUCT}:left`].data;
    const right = change[`${PRODUCT}:right`].data;
    const product = (i, j) => Array.from({ length: RANK }, (_, r) =>
      left.readInt8(i * RANK + r) * right.readInt8(r * columns + j))
      .reduce((a, b) => a + b);
    const wide = was[CODED].shape[1];
    const want = {
      [CODED]: expected(was[CODED], change, CODED, (i, j) =>
        change[`${CODED}:code`].data.readInt8(i * wide + j)),
      [PRODUCT]: expected(was[PRODUCT], change, PRODUCT, product),
      [PLAIN]: change[PLAIN].data,
    };
    for (const [name, t] of Object.entries(is)) {
      assert.ok(t.data.equals(want[name] || was[name].data), name);
    }
    execFileSync(path.join(BUILD, 'bin/tokenring-engine'),
      ['--check', '--model', folder]);
  } finally {
    fs.rmSync(dir, { recursive: true });
  }
});
