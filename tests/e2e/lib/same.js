'use strict';
//
// Is this answer what the same request gets when nothing disturbs it?
//
// On a CPU, and on the software device: byte for byte.  On a GPU the bits of a
// result depend on the batch that it was computed in, so that a near tie of two
// tokens may fall otherwise under load (docs/gpu.md).  There the undisturbed run
// also says what else it thought of, token by token; an answer that parts from it
// must do so where the other token was as good as tied (a sampled one: where it
// was among those thought of), and what comes after that is not compared.  A
// stream that was mixed up with another does not part at a tie.

const assert = require('node:assert/strict');
const path = require('node:path');
const { stream, post } = require('./http');

// Whether results depend on the batch.
const GPU = process.env.TR_BACKEND === 'cuda'
  && !['soft', 'libtokenring_soft.so'].includes(
    path.basename(process.env.TR_CUDA_LIBRARY || ''));

// Of logprobs, in nats: what rounding to 16 bits may move a difference of two by.
// A compressed cache adds what the levels of its tokens do, which fall otherwise,
// too.
const TIE = { full: 0.1, compressed: 0.5 };
const TOP = 20;
// Two tokens may begin alike: so many characters before the texts part.
const BACK = 16;

// A special token has no text.
const shown = (token) => (/^<\|.*\|>$/.test(token) ? '' : token);

// What a request for a stream gets alone: its stream, its text, and on a GPU
// `steps`, tokens with their alternatives.
async function undisturbed(url, body) {
  const s = await stream(url, body).finished;
  assert.equal(s.status, 200, s.raw);
  assert.ok(s.done, s.raw);
  const alone = { stream: s, text: s.text(), sampled: body.temperature !== 0 };
  if (!GPU) return alone;
  const chat = Array.isArray(body.messages);
  const more = chat ? { logprobs: true, top_logprobs: TOP } : { logprobs: 5 };
  const { stream_options: _, ...rest } = body;
  const r = await post(url, { ...rest, stream: false, ...more });
  assert.equal(r.status, 200, r.text);
  const [choice] = r.json().choices;
  assert.equal(chat ? choice.message.content : choice.text, alone.text,
    'the same batch gives the same bits');
  alone.steps = chat
    ? choice.logprobs.content.map((t) => ({ token: t.token,
      logprob: t.logprob,
      others: t.top_logprobs.filter((o) => o.token !== t.token) }))
    : choice.logprobs.tokens.map((token, i) => ({ token,
      logprob: choice.logprobs.token_logprobs[i],
      others: Object.entries(choice.logprobs.top_logprobs[i])
        .map(([t, logprob]) => ({ token: t, logprob }))
        .filter((o) => o.token !== token) }));
  return alone;
}

// Where and by how little `text` parts from the undisturbed one, or null.
function tie(text, alone, least) {
  let begin = 0;
  let best = null;
  let parts = 0;
  while (parts < text.length && text[parts] === alone.text[parts]) parts++;
  for (const step of alone.steps) {
    if (begin > parts) break;
    const rest = text.slice(begin);
    for (const o of begin >= parts - BACK ? step.others : []) {
      const word = shown(o.token);
      if (word === shown(step.token)
        || !(rest.startsWith(word) || word.startsWith(rest))) continue;
      const gap = alone.sampled ? 0 : step.logprob - o.logprob;
      if (gap <= least && (!best || gap < best.gap)) {
        best = { gap, at: begin, instead: step.token, token: o.token };
      }
    }
    begin += shown(step.token).length;
  }
  return best;
}

// compressed: the policy forgets tokens, or keeps them at fewer bits.
// beginning: the stream was cut, and is a beginning of its answer.
function checkSame(text, alone, what, { compressed, beginning } = {}) {
  const want = beginning ? alone.text.slice(0, text.length) : alone.text;
  if (!GPU || text === want) {
    assert.equal(text, want, what);
    return;
  }
  const found = tie(text, alone, compressed ? TIE.compressed : TIE.full);
  if (!found) assert.equal(text, want, `${what}, and not at a near tie`);
  console.log(`${what}: ${JSON.stringify(found)}`);
}

module.exports = { GPU, undisturbed, checkSame };
