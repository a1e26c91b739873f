'use strict';
//
// Prefixes in files (cache_dir): conversations that go on after a restart, a
// kill and a crowd that took their room, at 16 bits and compressed, here and on a
// device; files that were damaged; a directory that cannot be had.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { Stack, until, BUILD, POCKET } = require('../lib/stack');
const { request } = require('../lib/http');
const { story } = require('../lib/prompts');
const { long, ask, told } = require('../lib/turns');

const skip = Boolean(process.env.TR_BACKEND);

// The device that the tests are told of, or none and one of software.
const DEVICES = skip ? [['', {}]] : [['cpu ', {}], ['cuda ', {
  backend: 'cuda', cuda_library: path.join(BUILD, 'tests/libtokenring_soft.so'),
  max_num_seqs: 16, max_batch_tokens: 256 }]];

const metric = async (to, name) => Number(
  (await request(`${to.url}/metrics`)).text.match(
    new RegExp(`^${name}(?:{[^}]*})? (\\d+)`, 'm'))[1]);

const written = (to, n) => until(async () =>
  await metric(to, 'tokenring_prefix_files_written_total') >= n);

// NGINX has it again.
const restart = async (stack, signal = 'SIGKILL', settings = {}) => {
  await stack.engine.kill(signal);
  await stack.engine.start(settings);
  await until(async () =>
    (await request(`${stack.url}/health`)).status === 200);
};

const files = (dir) => fs.readdirSync(dir)
  .filter((name) => name.length === 32).map((name) => path.join(dir, name));

function directory() {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-files-'));
  process.on('exit', () => fs.rmSync(dir, { recursive: true, force: true }));
  return path.join(dir, 'cache');
}

const engine = (dir, more = {}) => ({ kv_memory: '64m', max_model_len: 2000,
  cache_dir: dir, cache_disk: '200m', ...more });

// The other engine is never stopped: what comes from a file is what it has in
// memory, to the token, and so are the answers.
for (const [on, device, kv_policy] of DEVICES.flatMap((d) =>
  ['full', 'diffkv', 'uniform'].map((p) => [...d, p]))) {
  test(`${on}${kv_policy}: a conversation goes on after a kill and a restart`,
    async () => {
      const dir = directory();
      const [stack, steady] = await Promise.all([
        Stack.start({ engine: engine(dir, { kv_policy, ...device }) }),
        Stack.start({ engine: { kv_memory: '64m', max_model_len: 2000,
          kv_policy, ...device } })]);
      try {
        const messages = [{ role: 'system', content: long(1, 8) }];
        for (let turn = 0; turn < 3; turn++) {
          messages.push({ role: 'user', content: story(100 + turn) });
          const a = await ask(stack, messages);
          assert.deepEqual(told(a), told(await ask(steady, messages)));
          if (turn !== 0) {
            assert.ok(a.cached > 0.6 * a.prompt && a.cached < a.prompt,
              `turn ${turn}: ${a.cached} of ${a.prompt}`);
            assert.equal(
              await metric(stack, 'tokenring_prefix_files_read_total'), 1);
          }
          messages.push({ role: 'assistant', content: a.text });
          await written(stack, 1);
          if (turn !== 2) await restart(stack, turn ? 'SIGTERM' : 'SIGKILL');
        }
        assert.equal(fs.statSync(dir).mode & 0o777, 0o700);
        for (const file of files(dir)) {
          assert.equal(fs.statSync(file).mode & 0o777, 0o600);
        }
        // Keys that are not centred are no part of centred ones.
        await restart(stack, 'SIGKILL', { kv_centre: 'off' });
        const other = await ask(stack, messages.slice(0, -1));
        assert.equal(other.cached > 0, kv_policy === 'full');
      } finally {
        await stack.stop();
        await steady.stop();
      }
    });
}

for (const [on, device] of DEVICES) {
  test(`${on}a file that was damaged is removed, and its prompt computed`, async () => {
    const dir = directory();
    const stack = await Stack.start({ engine: engine(dir, device) });
    try {
      const messages = [{ role: 'user', content: long(3, 8) }];
      const whole = await ask(stack, messages);
      await written(stack, 1);
      // tests/unit/store has every other damage.
      for (const damage of [
        (file) => fs.truncateSync(file, fs.statSync(file).size - 1),
        (file) => {
          const bytes = fs.readFileSync(file);
          bytes[bytes.length - 5000] ^= 1;
          fs.writeFileSync(file, bytes);
        }]) {
        await stack.engine.kill();
        // Names of one file are links.
        const seen = new Set();
        for (const file of files(dir)) {
          const { ino } = fs.statSync(file);
          if (!seen.has(ino)) damage(file);
          seen.add(ino);
        }
        await restart(stack);
        const again = await ask(stack, messages);
        assert.deepEqual(told(again), told({ ...whole, cached: 0 }));
        assert.ok(await metric(stack, 'tokenring_prefix_files_failed_total')
          >= 1);
        await written(stack, 1);
        // What was written in its place is good.
        await restart(stack);
        const good = await ask(stack, messages);
        assert.deepEqual(told(good),
          told({ ...whole, cached: whole.prompt - 1 }));
      }
      // Another model's, or version's: not found.
      await restart(stack, 'SIGKILL', { kv_rotate: 'k' });
      assert.equal((await ask(stack, messages)).cached, 0);
    } finally {
      await stack.stop();
    }
  });
}

test('killed while it writes, at any time: whole files or none', { skip },
  async () => {
    const dir = directory();
    const [, [, device]] = DEVICES;
    const stack = await Stack.start({ engine: engine(dir, device) });
    try {
      for (let i = 0; i < 5; i++) {
        const messages = [{ role: 'user', content: long(20 + i, 8) }];
        const one = await ask(stack, messages);
        await new Promise((done) => { setTimeout(done, 4 * i); });
        await restart(stack);
        const two = await ask(stack, messages);
        assert.equal(two.text, one.text);
        assert.ok([0, one.prompt - 1].includes(two.cached), `${two.cached}`);
        assert.equal(
          await metric(stack, 'tokenring_prefix_files_failed_total'), 0);
      }
    } finally {
      await stack.stop();
    }
  });

test('as many sequences as there can be: none is added for files',
  { skip }, async () => {
    const dir = directory();
    const most = { max_num_seqs: 4096, max_batch_tokens: 4096 };
    const stack = await Stack.start({ engine: engine(dir, most) });
    try {
      const messages = [{ role: 'user', content: long(9, 8) }];
      const one = await ask(stack, messages);
      await written(stack, 1);
      await restart(stack, 'SIGTERM', { swap_memory: '16m' });
      const two = await ask(stack, messages);
      assert.deepEqual(two, { ...one, cached: one.prompt - 1 });
    } finally {
      await stack.stop();
    }
  });

// A byte that the model's identity does not read (model_id.h), in place.
function change(file) {
  const fd = fs.openSync(file, 'r+');
  const { size } = fs.fstatSync(fd);
  const from = 1 << 20;
  const at = from + 3 * Math.floor((size - from) / 256) + 8000;
  const byte = Buffer.alloc(1);
  fs.readSync(fd, byte, 0, 1, at);
  byte[0] ^= 1;
  fs.writeSync(fd, byte, 0, 1, at);
  fs.closeSync(fd);
}

test('files are of these weights: shared by who has them, no other\'s',
  { skip }, async () => {
    const dir = directory();
    const model = path.join(path.dirname(dir), 'pocket');
    fs.cpSync(POCKET, model, { recursive: true });
    const settings = engine(dir, { model });
    const [stack, other] = await Promise.all([
      Stack.start({ engine: settings }), Stack.start({ engine: settings })]);
    try {
      const messages = [{ role: 'user', content: long(11, 8) }];
      const one = await ask(stack, messages);
      await written(stack, 1);
      assert.deepEqual(await ask(other, messages),
        { ...one, cached: one.prompt - 1 });
      change(path.join(model, 'model-00002-of-00002.safetensors'));
      await restart(other);
      assert.equal((await ask(other, messages)).cached, 0);
      assert.equal(await metric(other, 'tokenring_prefix_files_read_total'), 0);
    } finally {
      await stack.stop();
      await other.stop();
    }
  });

test('cache_ttl is of files, too', { skip }, async () => {
  const dir = directory();
  const stack = await Stack.start({ engine: engine(dir, { cache_ttl: '1s' }) });
  try {
    const messages = [{ role: 'user', content: long(10, 8) }];
    await ask(stack, messages);
    await written(stack, 1);
    await until(async () => files(dir).length === 0
      && await metric(stack, 'tokenring_prefix_blocks') === 0);
    assert.equal((await ask(stack, messages)).cached, 0);
  } finally {
    await stack.stop();
  }
});

test('a disk that is gone costs nobody an answer', { skip }, async () => {
  const dir = directory();
  const stack = await Stack.start({ engine: engine(dir) });
  try {
    fs.rmSync(dir, { recursive: true });
    const messages = [{ role: 'user', content: long(5, 8) }];
    const one = await ask(stack, messages);
    await until(async () =>
      await metric(stack, 'tokenring_prefix_files_failed_total') >= 1);
    const two = await ask(stack, messages);
    assert.equal(two.text, one.text);
    assert.equal(two.cached, two.prompt - 1);
    assert.match(fs.readFileSync(stack.engine.log, 'utf8'),
      /warn a prefix of \d+ tokens could not be stored/);
  } finally {
    await stack.stop();
  }
});
