'use strict';
//
// Ids and decoded texts equal those of the reference for every model, over
// some thousand strings from a fixed seed.  Decoding is compared without the
// reference's clean-up of spaces, which no serving engine applies.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { MODELS, ask, random, reference } = require('./lib');
const { strings } = require('./strings');

const PER_KIND = 250;
const RANDOM_SEQUENCES = 400;

function decode(tokenizer, ids, skip) {
  return tokenizer.decode(ids, {
    skip_special_tokens: skip, clean_up_tokenization_spaces: false,
  });
}

// At most a few differences are shown, with the question.
function compare(questions, answers, expected) {
  const wrong = [];

  for (let i = 0; i < questions.length && wrong.length < 5; i++) {
    try {
      assert.deepEqual(answers[i], expected[i]);
    } catch {
      wrong.push({ question: questions[i], ours: answers[i],
                   reference: expected[i] });
    }
  }
  assert.deepEqual(wrong, []);
  assert.ok(questions.length > 100);
}

for (const [model, directory] of Object.entries(MODELS)) {
  test(`${model}: ids of strings, and back`, async t => {
    const tokenizer = await reference(model);
    const r = random(20240726);
    const questions = [], expected = [];

    for (const text of strings(r, tokenizer.special_tokens, PER_KIND)) {
      const special = r.below(2) === 1;
      const { ids } = tokenizer.encode(text, { add_special_tokens: special });

      questions.push({ text, special, parse: true });
      expected.push({ ids });
      if (ids.length > 0) {
        const skip = r.below(2) === 1;

        questions.push({ ids, skip });
        expected.push({ text: decode(tokenizer, ids, skip) });
      }
    }
    compare(questions, ask(directory, questions), expected);
    t.diagnostic(`${questions.length} comparisons`);
  });

  // Sequences that no text gives: characters cut anywhere.
  test(`${model}: texts of random ids`, async t => {
    const tokenizer = await reference(model);
    const r = random(31337);
    const size = tokenizer.model.vocab.length;
    const questions = [], expected = [];

    for (let i = 0; i < RANDOM_SEQUENCES; i++) {
      const ids = [], skip = r.below(2) === 1;
      const bound = i % 2 ? size : Math.min(size, 300);

      for (let n = 1 + r.below(30); n > 0; n--) {
        const id = r.below(bound);
        if (tokenizer.model.vocab[id] !== undefined) {
          ids.push(id);
        }
      }
      if (ids.length > 0) {
        questions.push({ ids, skip });
        expected.push({ text: decode(tokenizer, ids, skip) });
      }
    }
    compare(questions, ask(directory, questions), expected);
    t.diagnostic(`${questions.length} comparisons`);
  });
}
