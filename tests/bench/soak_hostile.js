'use strict';
//
// Hostile clients of soak.js: each does for a few seconds what has shut others out
// before.  Their own answers are not looked at; those of all others go on being
// right, and in time, while these are there.

const http = require('node:http');
const net = require('node:net');
const { sleep } = require('../e2e/lib/stack.js');
const { stream } = require('../e2e/lib/http.js');

const LASTS = 5000;

// Requests that are left after a while, whatever became of them.
async function leave(streams) {
  await sleep(LASTS);
  for (const s of streams) s.hangUp();
  await Promise.all(streams.map((s) => s.finished.catch(() => {})));
}

const many = (n, make) => Array.from({ length: n }, (_, i) => make(i));

// Two requests for as many choices as they get.
const choices = (stack) => leave(many(2, () => stream(
  `${stack.url}/plain/v1/completions`, { model: 'pocket', prompt: 'x', n: 128,
    max_tokens: 400, ignore_eos: true, stream: true })));

// Long answers with log probabilities, which nobody reads.
function readers(stack) {
  const streams = many(40, () => stream(`${stack.url}/plain/v1/chat/completions`,
    { model: 'pocket', messages: [{ role: 'user', content: 'x' }],
      max_tokens: 400, ignore_eos: true, stream: true, logprobs: true,
      top_logprobs: 20 }));
  for (const s of streams) s.start.then(() => s.res && s.res.pause());
  return leave(streams);
}

// Bodies of very many members around a valid request.
function bodies(stack) {
  const body = `{"prompt":"x","max_tokens":1,${Array.from({ length: 400000 },
    (_, i) => `"k${i}":1`).join(',')}}`;
  return leave(many(3, () => stream(`${stack.url}/plain/v1/completions`, body)));
}

// Uploads that stop in the middle.
async function uploads(stack) {
  const all = many(200, () => {
    const req = http.request(`${stack.url}/plain/v1/completions`, { method: 'POST',
      headers: { 'Content-Type': 'application/json', 'Content-Length': 100000 } });
    req.on('error', () => {});
    req.on('response', (res) => res.resume());
    req.write(`{"prompt":"${'x'.repeat(70000)}`);
    return req;
  });
  await sleep(LASTS);
  for (const req of all) req.destroy();
}

// Connections to the engines that never say hello.
async function handshakes(stack) {
  const all = [stack.engine, ...stack.others].flatMap((e) => many(300, () => {
    const c = net.connect(e.socket);
    c.on('error', () => {});
    return c;
  }));
  await sleep(LASTS);
  for (const c of all) c.destroy();
}

module.exports = { hostile: { choices, readers, bodies, uploads, handshakes } };
