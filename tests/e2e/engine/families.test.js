'use strict';
//
// Each family of models in service: the tiny ones of tests/models, which the goldens
// hold to the reference, get a tokenizer of 256 words and answer through NGINX,
// greedily and sampled, under `full` and under a policy that forgets tokens (their
// heads are too small for levels below 16 bits).  Whoever asks beside others, of an
// engine that reads a prompt whole or of one that reads it a few tokens at a time,
// gets what he gets alone.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { Stack, ROOT } = require('../lib/stack');
const { stream } = require('../lib/http');

const MODELS = path.join(ROOT, 'tests/models');
const FILES = ['config.json', 'model.safetensors'];
const FAMILIES = fs.readdirSync(MODELS).sort()
  .filter((name) => fs.existsSync(path.join(MODELS, name, FILES[1])));
const VOCABULARY = 256;
const LENGTHS = [5, 40, 70]; // of prompts; windows are 8, original contexts 16
const REQUESTS = 12;
const POLICY = 'diffkv:levels=16/16,window=4,alpha_low=0.7';

// Every token is a word of its own, so that a text shows which they were.
function tokenizer(dir) {
  const special = (id, content) => ({ id, content, special: true,
    single_word: false, lstrip: false, rstrip: false, normalized: false });
  const vocab = { '<pad>': 0, '<bos>': 1, '<eos>': 2 };
  for (let id = 3; id < VOCABULARY; id++) vocab[`\u0120${id}`] = id;
  fs.writeFileSync(path.join(dir, 'tokenizer.json'), JSON.stringify({
    version: '1.0',
    added_tokens: [special(0, '<pad>'), special(1, '<bos>'), special(2, '<eos>')],
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, use_regex: true },
    decoder: { type: 'ByteLevel' },
    model: { type: 'BPE', vocab, merges: [] },
  }));
  fs.writeFileSync(path.join(dir, 'tokenizer_config.json'), JSON.stringify({
    bos_token: '<bos>', eos_token: '<eos>' }));
}

// Prompts of token ids, which nothing can cut otherwise.
const body = (i, model) => ({
  model,
  prompt: Array.from({ length: LENGTHS[i % 3] },
    (_, k) => 3 + (i * 61 + k * k * 7 + k * 13) % (VOCABULARY - 3)),
  max_tokens: 24, ignore_eos: true, stream: true, logprobs: 1,
  ...(i % 2 ? { temperature: 1, seed: i } : { temperature: 0 }),
  ...(i % 4 >= 2 ? { kv_policy: POLICY } : {}),
});

async function answer(url, i, model) {
  const s = await stream(`${url}/all/v1/completions`, body(i, model)).finished;
  assert.equal(s.status, 200, s.raw);
  assert.ok(s.done, s.raw);
  const said = s.events.flatMap((e) => e.choices).map((c) => c.logprobs)
    .filter(Boolean);
  return { text: s.text(),
    logprobs: said.flatMap((l) => l.token_logprobs) };
}

for (const family of FAMILIES) {
  test(`${family} answers beside others as alone`, async () => {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tr-family-'));
    let stack;
    try {
      for (const file of FILES) {
        fs.copyFileSync(path.join(MODELS, family, file), path.join(dir, file));
      }
      tokenizer(dir);
      const settings = { model: dir, threads: 1, kv_memory: '16m',
        kv_policies: POLICY, kv_reuse: 'no' };
      stack = await Stack.start({
        engine: { ...settings, served_model_name: 'whole' },
        engines: { chunks: { ...settings, served_model_name: 'chunks',
          max_num_seqs: 7, max_batch_tokens: 7 } },
        http: 'tokenring_models all { engine main; }',
        server: 'location /all/v1/ { tokenring_pass models=all; }',
      });
      await stack.connected(2);
      const alone = [];
      for (let i = 0; i < REQUESTS; i++) {
        alone.push(await answer(stack.url, i, 'whole'));
        assert.equal(alone[i].logprobs.length, 24, `request ${i}`);
      }
      assert.equal(new Set(alone.map((a) => a.text)).size, REQUESTS);
      await Promise.all(['whole', 'chunks'].flatMap((model) =>
        alone.map(async (want, i) => assert.deepEqual(
          await answer(stack.url, i, model), want, `${model}, request ${i}`))));
    } finally {
      if (stack) await stack.end();
      fs.rmSync(dir, { recursive: true, force: true });
    }
  });
}
