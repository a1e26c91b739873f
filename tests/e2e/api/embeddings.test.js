'use strict';
//
// /v1/embeddings: what the final norm of models/pocket gives, whose embeddings
// are tied: so a vector times that matrix must give golden.json's logits; and the
// same over the software device (tests/soft), or on a GPU (TR_CUDA_LIBRARY).

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const OpenAI = require('openai');
const { OpenAIEmbeddings } = require('@langchain/openai');
const { Stack, BUILD, POCKET } = require('../lib/stack');
const { post } = require('../lib/http');

const golden = JSON.parse(fs.readFileSync(path.join(POCKET, 'golden.json')));
const WIDTH = 384;
const LIBRARY = process.env.TR_CUDA_LIBRARY;
const GPU = { backend: 'cuda', dtype: 'f16', kv_memory: '64m',
  cuda_library: LIBRARY && LIBRARY !== 'soft' ? LIBRARY
    : path.join(BUILD, 'tests/libtokenring_soft.so') };
let last, mean, client;

before(async () => {
  [last, mean] = await Promise.all(['last', 'mean'].map((embedding_pooling) =>
    Stack.start({ engine: { embedding_pooling, max_batch_tokens: 16,
      max_num_seqs: 4 } })));
  client = new OpenAI({ baseURL: `${last.url}/v1`, apiKey: 'none' });
});

after(async () => {
  for (const s of [last, mean]) if (s) await s.stop();
});

const embed = async (stack, input, more = {}) => {
  const r = await post(`${stack.url}/v1/embeddings`, { input, ...more });
  assert.equal(r.status, 200, r.text);
  return r.json().data.map((d) => d.embedding);
};

// The matrix of token embeddings, bfloat16 in the files.
function matrix() {
  const name = 'model.embed_tokens.weight';
  const index = JSON.parse(fs.readFileSync(path.join(POCKET,
    'model.safetensors.index.json')));
  const file = fs.readFileSync(path.join(POCKET, index.weight_map[name]));
  const n = Number(file.readBigUInt64LE(0));
  const { shape, dtype, data_offsets: [from, to] } = JSON.parse(
    file.subarray(8, 8 + n).toString())[name];
  assert.deepEqual([dtype, shape], ['BF16', [4096, WIDTH]]);
  const bits = file.subarray(8 + n + from, 8 + n + to);
  const out = new Float32Array(bits.length / 2);
  const words = new Uint32Array(out.buffer);
  for (let i = 0; i < out.length; i++) words[i] = bits.readUInt16LE(2 * i) << 16;
  return out;
}

test('the vector of the last token gives the golden logits', async () => {
  const E = matrix();
  const vectors = await embed(last, golden.prompts.map((p) => p.ids));
  assert.equal(vectors.length, golden.prompts.length);
  golden.prompts.forEach((prompt, i) => {
    assert.equal(vectors[i].length, WIDTH);
    const logits = Array.from({ length: 4096 }, (_, t) => {
      let sum = 0;
      for (let k = 0; k < WIDTH; k++) sum += E[t * WIDTH + k] * vectors[i][k];
      return sum;
    });
    for (const [token, logit] of prompt.top5_last_position) {
      assert.ok(Math.abs(logits[token] - logit) <= 2e-3 * Math.abs(logit),
        `prompt ${i}, token ${token}: ${logits[token]}, golden ${logit}`);
    }
    assert.equal(logits.indexOf(Math.max(...logits)),
      prompt.top5_last_position[0][0]);
  });
});

test('texts, ids, one and many, alone and together: the same bits', async () => {
  const texts = ['Hello', 'A longer text about towns and their people.', 'x'];
  for (const stack of [last, mean]) {
    const together = await embed(stack, texts);
    for (const [i, text] of texts.entries()) {
      assert.deepEqual((await embed(stack, text))[0], together[i]);
      const { tokens } = (await post(`${stack.url}/v1/tokenize`,
        { prompt: text })).json();
      assert.deepEqual((await embed(stack, tokens))[0], together[i]);
    }
    await stack.idle();
  }
});

test('the mean is that of all prefixes', async () => {
  const { ids } = golden.prompts[0];
  const [all] = await embed(mean, ids);
  const each = await embed(last, ids.map((_, i) => ids.slice(0, i + 1)));
  for (let k = 0; k < WIDTH; k++) {
    const want = each.reduce((sum, v) => sum + v[k], 0) / ids.length;
    assert.ok(Math.abs(all[k] - want) < 1e-4, `${k}: ${all[k]}, ${want}`);
  }
});

test('base64, dimensions, usage, and clients', async () => {
  const raw = await post(`${last.url}/v1/embeddings`, { input: 'Hello',
    encoding_format: 'base64', dimensions: 7, model: 'pocket', user: 'u' });
  const { object, model, data, usage } = raw.json();
  assert.deepEqual([object, model, data.length, data[0].object, data[0].index],
    ['list', 'pocket', 1, 'embedding', 0]);
  const [full] = await embed(last, 'Hello');
  const bytes = Buffer.from(data[0].embedding, 'base64');
  assert.deepEqual(Array.from({ length: bytes.length / 4 },
    (_, i) => bytes.readFloatLE(4 * i)), full.slice(0, 7).map(Math.fround));
  assert.equal(usage.prompt_tokens, usage.total_tokens);
  assert.ok(usage.prompt_tokens >= 2);
  // OpenAI's client asks for base64, and decodes it
  const r = await client.embeddings.create({ model: 'pocket', input: 'Hello' });
  assert.deepEqual(r.data[0].embedding, full.map(Math.fround));
  const chain = new OpenAIEmbeddings({ model: 'pocket', apiKey: 'none',
    configuration: { baseURL: `${last.url}/v1` } });
  const docs = await chain.embedDocuments(['Hello', 'x']);
  assert.deepEqual(docs[0].map(Math.fround), full.map(Math.fround));
});

test('on a device', async () => {
  const vectors = golden.prompts.map((p) => p.ids);
  for (const stack of [last, mean]) {
    const want = await embed(stack, vectors);
    const gpu = await Stack.start({ engine: { ...GPU, max_batch_tokens: 64,
      max_num_seqs: 4, embedding_pooling: stack === last ? 'last' : 'mean' } });
    try {
      const chat = post(`${gpu.url}/v1/chat/completions`, { max_tokens: 8,
        messages: [{ role: 'user', content: 'Hello!' }] });
      (await embed(gpu, vectors)).forEach((v, i) => {
        const off = Math.hypot(...v.map((x, k) => x - want[i][k]));
        assert.ok(off < 0.004 * Math.hypot(...want[i]), `prompt ${i}: ${off}`);
      });
      assert.equal((await chat).status, 200);
      await gpu.freed();
      assert.deepEqual(gpu.complaints(), []);
    } finally {
      await gpu.stop();
    }
  }
});

test('beside chats, and more than there are places', async () => {
  const texts = Array.from({ length: 40 }, (_, i) => `Text number ${i}. `
    .repeat(1 + i % 7));
  const chats = Array.from({ length: 4 }, () => post(
    `${last.url}/v1/chat/completions`, { max_tokens: 30,
      messages: [{ role: 'user', content: 'Hello!' }] }));
  const vectors = await embed(last, texts);
  for (const r of await Promise.all(chats)) assert.equal(r.status, 200, r.text);
  assert.deepEqual(vectors[39], (await embed(last, texts[39]))[0]);
  await last.idle();
});

const bad = [
  ['no input', {}, 'input', /string/],
  ['an empty list', { input: [] }, 'input', /empty/],
  ['an empty text', { input: ['x', []] }, 'input[1]', /empty/],
  ['a token that is none', { input: [4096] }, 'input[0]', /vocabulary/],
  ['too many', { input: Array(129).fill('x') }, 'input', /at most 128/],
  ['too long', { input: Array(5000).fill(5) }, 'input', /maximum context/],
  ['dimensions', { input: 'x', dimensions: 385 }, 'dimensions', /<= 384/],
  ['a format', { input: 'x', encoding_format: 'int8' }, 'encoding_format',
    /'int8'/],
  ['a field of others', { input: 'x', truncate_prompt_tokens: 5 },
    'truncate_prompt_tokens', /not cut/],
];
for (const [name, body, param, message] of bad) {
  test(`refused: ${name}`, async () => {
    const r = await post(`${last.url}/v1/embeddings`, body);
    assert.equal(r.status, 400, r.text);
    assert.equal(r.json().error.param, param);
    assert.match(r.json().error.message, message);
  });
}

test('a model says itself how: pooled and normalised', async () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-embed-'));
  let stack;
  try {
    for (const f of fs.readdirSync(POCKET)) {
      fs.symlinkSync(path.join(POCKET, f), path.join(dir, f));
    }
    fs.mkdirSync(path.join(dir, '1_Pooling'));
    fs.writeFileSync(path.join(dir, '1_Pooling/config.json'), JSON.stringify({
      word_embedding_dimension: WIDTH, pooling_mode_cls_token: false,
      pooling_mode_mean_tokens: false, pooling_mode_lasttoken: true }));
    fs.writeFileSync(path.join(dir, 'modules.json'), JSON.stringify(
      ['Transformer', 'Pooling', 'Normalize'].map((m, idx) => ({ idx,
        type: `sentence_transformers.models.${m}` }))));
    stack = await Stack.start({ engine: { model: dir } });
    const [raw] = await embed(last, 'Hello');
    for (const dimensions of [WIDTH, 10]) {
      const [v] = await embed(stack, 'Hello', { dimensions });
      const length = Math.hypot(...raw.slice(0, dimensions));
      assert.ok(Math.abs(Math.hypot(...v) - 1) < 1e-6);
      v.forEach((x, k) => assert.ok(Math.abs(x - raw[k] / length) < 1e-6));
    }
  } finally {
    if (stack) await stack.stop();
    fs.rmSync(dir, { recursive: true });
  }
});

test('refused: a model that makes none', async () => {
  const stack = await Stack.start({ engine: { backend: 'null' } });
  try {
    const r = await post(`${stack.url}/v1/embeddings`, { input: 'x' });
    assert.equal(r.status, 400, r.text);
    assert.match(r.json().error.message, /makes no embeddings/);
  } finally {
    await stack.stop();
  }
});
