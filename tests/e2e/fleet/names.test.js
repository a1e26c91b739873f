'use strict';
//
// An engine that serves its model under several names: each request is answered
// with the name that it asks for, and goes where that name is served.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack } = require('../lib/stack');
const { post, request, stream } = require('../lib/http');

const NULL = { backend: 'null', null_rate: 2000, kv_memory: '64m' };
let stack;

before(async () => {
  stack = await Stack.start({
    engine: { ...NULL, served_model_name: 'llama  gpt-4' },
    engines: {
      second: { ...NULL, served_model_name: 'llama gpt-4' },
      third: { ...NULL, served_model_name: 'qwen gpt-3' },
    },
    http: `
      tokenring_engine same unix:DIR/main.sock unix:DIR/second.sock;
      tokenring_engine mixed unix:DIR/main.sock unix:DIR/third.sock;
      tokenring_models named { engine mixed; alias best gpt-4; }`,
    server: `
      location /same/v1/ { tokenring_pass same; }
      location /mixed/v1/ { tokenring_pass mixed; }
      location /named/v1/ { tokenring_pass models=named; }`,
  });
});

after(async () => {
  if (stack) await stack.stop();
});

const ask = (at, model) => post(`${stack.url}/${at}/v1/completions`, {
  prompt: 'Hello', max_tokens: 2, ...(model ? { model } : {}) });
const list = async (at) => (await request(`${stack.url}/${at}/v1/models`))
  .json().data;

test('answers have the name that was asked for', async () => {
  for (const at of ['same', 'mixed', 'named']) {
    for (const model of ['llama', 'gpt-4']) {
      const answer = await ask(at, model);
      assert.equal(answer.status, 200, answer.text);
      assert.equal(answer.json().model, model);
    }
  }
  for (const model of ['qwen', 'gpt-3']) {
    assert.equal((await ask('mixed', model)).json().model, model);
    const other = await ask('same', model);
    assert.equal(other.status, 404);
    assert.equal(other.json().error.param, 'model');
  }
  // nothing asked for: the first one; an alias is no name of the engine's
  assert.equal((await ask('same')).json().model, 'llama');
  assert.equal((await ask('mixed')).status, 400);
  assert.equal((await ask('named', 'best')).json().model, 'llama');
});

test('in every API, whole and streamed', async () => {
  const chat = { model: 'gpt-4', max_tokens: 2,
    messages: [{ role: 'user', content: 'Hello' }] };
  const whole = async (path, body) => {
    const answer = await post(`${stack.url}/same/v1/${path}`, body);
    assert.equal(answer.status, 200, answer.text);
    return answer.json().model;
  };
  assert.equal(await whole('chat/completions', chat), 'gpt-4');
  assert.equal(await whole('messages', chat), 'gpt-4');
  assert.equal(await whole('responses', { model: 'gpt-4', input: 'Hello',
    max_output_tokens: 2 }), 'gpt-4');
  const streamed = await stream(`${stack.url}/same/v1/chat/completions`, {
    ...chat, stream: true }).finished;
  assert.ok(streamed.events.length > 1);
  for (const event of streamed.events) assert.equal(event.model, 'gpt-4');
});

test('/v1/models has all names; those behind the first say of which', async () => {
  assert.deepEqual((await list('same')).map((m) => [m.id, m.root]),
    [['llama', undefined], ['gpt-4', 'llama']]);
  assert.deepEqual((await list('mixed')).map((m) => m.id).sort(),
    ['gpt-3', 'gpt-4', 'llama', 'qwen']);
  assert.deepEqual((await list('named')).map((m) => m.id).sort(),
    ['best', 'gpt-3', 'gpt-4', 'llama', 'qwen']);
  const one = await request(`${stack.url}/same/v1/models/gpt-4`);
  assert.equal(one.json().id, 'gpt-4');
});
