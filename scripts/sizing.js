#!/usr/bin/env node
'use strict';
//
// How many conversations fit a GPU: the table of docs/sizing.md.
//
//   scripts/sizing.js
//
// tests/e2e/docs/sizing.test.js holds the page to it, and its arithmetic to what was
// measured (docs/benchmarks.md).

const GIB = 2 ** 30;

// What nvidia-smi says is there.
const GPUS = { 'L4, 24 GB': 22.5, 'L40S, 48 GB': 45.0,
  'A100, H100, 80 GB': 79.6, 'H200, 141 GB': 140.4 };

// GPUs that keep weights packed, and their name where others are named, too.
const PACKS = { 'A100, H100, 80 GB': 'H100, 80 GB',
  'H200, 141 GB': 'H200, 141 GB' };

// Head size 128, all of them.  bits: of a weight that is packed, scales included;
// plain: those that stay in 16 bits, which are embedding and head.
const MODELS = {
  'Qwen2.5-7B': { parameters: 7.62e9, layers: 28, kvHeads: 4 },
  'Llama-3.1-8B': { parameters: 8.03e9, layers: 32, kvHeads: 8 },
  'Qwen2.5-14B': { parameters: 14.77e9, layers: 48, kvHeads: 8 },
  'Qwen2.5-32B': { parameters: 32.76e9, layers: 64, kvHeads: 8 },
  'Llama-3.1-8B, FP8': { parameters: 8.03e9, layers: 32, kvHeads: 8, bits: 8,
    plain: 2 * 128256 * 4096 },
  'Qwen2.5-32B, INT4': { parameters: 32.76e9, layers: 64, kvHeads: 8,
    bits: 4.16, plain: 2 * 152064 * 5120 },
  'Qwen3-30B-A3B, FP8': { parameters: 30.53e9, layers: 48, kvHeads: 4, bits: 8,
    plain: 2 * 151936 * 2048 },
  'Llama-3.3-70B, INT4': { parameters: 70.55e9, layers: 80, kvHeads: 8,
    bits: 4.16, plain: 2 * 128256 * 8192 },
  'Llama-3.3-70B, FP8': { parameters: 70.55e9, layers: 80, kvHeads: 8, bits: 8,
    plain: 2 * 128256 * 8192 },
};

// Bytes over 16 bits at head size 128.  The levels are arithmetic: codes and
// metadata of a token; diffkv was measured on texts of 1,500 tokens, of which it
// keeps 85% at 4/2, whole pages counted.
const POLICIES = { full: 1, 'uniform 8/4': 0.406, diffkv: 0.247,
  'uniform 4/2': 0.203 };

const TOKENS = 4096;
const UTILIZATION = 0.9; // gpu_memory_utilization
const WORKSPACES = 4; // GiB, as measured with 8B and 32B on an H200

const tokenBytes = (m) => 2 * m.layers * m.kvHeads * 128 * 2;

function weights(model) {
  const { parameters, plain = parameters, bits = 16 } = model;
  return (2 * plain + (parameters - plain) * bits / 8) / GIB;
}

// GiB of a GPU with so much memory that are left for the KV cache.
function pool(memory, model) {
  return memory * UTILIZATION - weights(model) - WORKSPACES;
}

function conversations(memory, model, ratio, tokens = TOKENS) {
  const each = tokenBytes(model) * ratio * tokens / GIB;
  return Math.max(0, Math.floor(pool(memory, model) / each));
}

function table() {
  const lines = [`| GPU | model | KV cache | ${
    Object.keys(POLICIES).join(' | ')} |`,
  `|---|---|---|${'---|'.repeat(Object.keys(POLICIES).length)}`];
  for (const [gpu, memory] of Object.entries(GPUS)) {
    for (const [name, model] of Object.entries(MODELS)) {
      const left = pool(memory, model);
      if (left < 1 || (model.bits && !PACKS[gpu])) continue;
      lines.push(`| ${model.bits ? PACKS[gpu] : gpu} | ${name} | ${left.toFixed(0)} GiB | ${
        Object.values(POLICIES).map((ratio) =>
          conversations(memory, model, ratio).toLocaleString('en-US'))
          .join(' | ')} |`);
    }
  }
  return lines.join('\n');
}

module.exports = { GPUS, MODELS, POLICIES, conversations, table };

if (require.main === module) console.log(table());
