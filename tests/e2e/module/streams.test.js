'use strict';
//
// Two hundred streams at once, on one worker and on two: the text of each
// must be equal, byte for byte, to what the same request gets when nothing
// disturbs it, and so must its logprobs.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { Stack } = require('../lib/stack');
const { stream } = require('../lib/http');
const { endless } = require('../lib/prompts');
const { GPU, undisturbed, checkSame } = require('../lib/same');

const STREAMS = 200;
const KINDS = 20;
const TOKENS = 40;

// Even ones greedy, odd ones sampled with a seed; different lengths.
const body = (i) => endless(i, TOKENS + (i % KINDS), i % 2
  ? { temperature: 1, seed: i % KINDS, logprobs: i % 5 === 0 } : {});

// Chunk borders depend on timing (tokens that came in one batch may share a
// chunk), so equal means: the same text, the same logprobs, the same end.
function essence(s) {
  const choice = { text: s.text(), logprobs: [], finish: [] };
  for (const event of s.events) {
    for (const c of event.choices) {
      if (c.logprobs) choice.logprobs.push(...c.logprobs.content);
      if (c.finish_reason) choice.finish.push(c.finish_reason);
    }
  }
  return choice;
}

for (const workers of [1, 2]) {
  test(`${STREAMS} streams on ${workers} worker(s)`, async () => {
    const stack = await Stack.start({
      workers, engine: { max_num_seqs: 64, kv_memory: '128m' },
    });
    try {
      const url = `${stack.url}/v1/chat/completions`;
      const alone = [];
      for (let i = 0; i < KINDS; i++) {
        alone.push(await undisturbed(url, body(i)));
      }
      const all = await Promise.all(Array.from({ length: STREAMS }, (_, i) =>
        stream(url, body(i % KINDS), { headers: { 'X-Mark': 'many' } })
          .finished));
      all.forEach((s, i) => {
        assert.equal(s.status, 200, s.raw);
        assert.ok(s.done && !s.cut, `stream ${i} ended`);
        const want = alone[i % KINDS];
        checkSame(s.text(), want, `stream ${i}`);
        if (!GPU) {
          assert.deepEqual(essence(s), essence(want.stream), `stream ${i}`);
        }
      });
      assert.equal(new Set(all.map((s) => s.events[0].id)).size, STREAMS);
      const lines = await stack.logged('many', STREAMS);
      assert.ok(lines.every((l) => l.status === 200));
      assert.equal(new Set(lines.map((l) => l.pid)).size, workers);
      await stack.idle();
      assert.deepEqual(stack.complaints(), []);
    } finally {
      await stack.stop();
    }
  });
}
