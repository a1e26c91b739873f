'use strict';
//
// Everything at once: forty clients that stream, gather, hang up at any moment
// and send large bodies, through small rings and a page pool that is too small
// for them, while workers are killed and NGINX reloads.  Whatever is answered
// in full must be right, and in the end nothing is left behind.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, sleep, until } = require('../lib/stack');
const { stream } = require('../lib/http');
const { endless } = require('../lib/prompts');

const CLIENTS = 40;
const REQUESTS = 240;
const TOKENS = 120;
const KINDS = 5;

// A row of numbers that is the same in every run.
function dice(seed) {
  let state = seed;
  return (n) => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return (state >> 8) % n;
  };
}

test('a storm leaves nothing wrong and nothing behind', async () => {
  const stack = await Stack.start({
    workers: 2,
    location: 'tokenring_buffer_size 4k;',
    engine: {
      max_num_seqs: 16, max_queue: 64, kv_memory: '20m', channel_ring: '64k',
    },
  });
  try {
    const url = `${stack.url}/v1/chat/completions`;
    const right = [];
    for (let i = 0; i < KINDS; i++) {
      right.push((await stream(url, endless(i, TOKENS)).finished).text());
    }
    const roll = dice(7);
    const count = { whole: 0, hung: 0, cut: 0, refused: 0 };
    let left = REQUESTS;

    const once = async () => {
      const i = roll(KINDS);
      const kind = roll(10);
      const s = stream(url, endless(i, TOKENS, [
        { n: 3 }, { logprobs: true, top_logprobs: 20 }, { stream: false },
        { pad: 'x'.repeat(200000) },
      ][kind] || {}));
      if (kind >= 7) {
        await Promise.race([s.finished, sleep(roll(300))]);
        s.hangUp();
        await s.finished;
        count.hung++;
        return;
      }
      await s.finished;
      if (s.status === 429 || s.status === 503) {
        count.refused++;
      } else if (s.status === 0 || s.cut) {
        count.cut++; // its worker was killed
      } else {
        assert.equal(s.status, 200, s.raw);
        const text = kind === 2
          ? JSON.parse(s.raw).choices[0].message.content : s.text();
        assert.equal(text, right[i]);
        assert.ok(kind === 2 || s.done);
        count.whole++;
      }
    };
    const client = async () => {
      while (left-- > 0) await once();
    };
    const weather = async () => {
      for (let at = REQUESTS - 60; at > 0; at -= 60) {
        await until(() => left <= at, 'requests', 600);
        const workers = stack.workers();
        if (at % 120) process.kill(workers[roll(workers.length)], 'SIGKILL');
        else process.kill(stack.master, 'SIGHUP');
      }
    };
    await Promise.all([...Array.from({ length: CLIENTS }, client), weather()]);

    assert.ok(count.whole > REQUESTS / 4, JSON.stringify(count));
    await stack.healthy();
    await stack.freed();
    const m = await stack.metrics();
    assert.equal(m.value('tokenring_channel_errors_total'), 0);
    assert.deepEqual(stack.complaints()
      .filter((line) => !/exited on signal 9/.test(line)), []);
  } finally {
    await stack.stop();
  }
});
