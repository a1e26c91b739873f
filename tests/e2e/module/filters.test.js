'use strict';
//
// NGINX's own output filters and limits on our streams.  Small events go into a
// plain socket by a way of ours (ngx_http_tokenring_socket.c), behind all
// filters: with them, beside them and after them, answers are the same.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const os = require('node:os');
const path = require('node:path');
const { Stack } = require('../lib/stack');
const { post, stream, request } = require('../lib/http');
const { endless } = require('../lib/prompts');

const TOKENS = 24;
const RATE = 512; // bytes a second

let stack;
let plain; // the text without any of it
let files;

before(async () => {
  files = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-files-'));
  fs.chmodSync(files, 0o755);
  stack = await Stack.start({
    server: `
        location /slow/v1/ { limit_rate ${RATE}; tokenring_pass main; }
        location /pieces/v1/ { sendfile_max_chunk 100; tokenring_pass main; }
        location /ssi/v1/ { ssi on; ssi_types *; tokenring_pass main; }
        location /files/ { sendfile on; alias ${files}/; }`,
    engine: { max_num_seqs: 32 },
  });
  const s = await stream(`${stack.url}/v1/chat/completions`,
    endless(0, TOKENS)).finished;
  assert.ok(s.done);
  plain = s.text();
  assert.notEqual(plain, '');
});
after(async () => {
  const complaints = stack.complaints();
  await stack.stop();
  fs.rmSync(files, { recursive: true });
  assert.deepEqual(complaints, []);
});

for (const name of ['pieces', 'ssi']) {
  test(`${name}: the same text`, async () => {
    const s = await stream(`${stack.url}/${name}/v1/chat/completions`,
      endless(0, TOKENS)).finished;
    assert.ok(s.done);
    assert.ok(!s.cut);
    assert.equal(s.text(), plain);
  });
}

test('limit_rate: the same text, not sooner than it may come', {
  timeout: 120000,
}, async () => {
  const begin = Date.now();
  const s = await stream(`${stack.url}/slow/v1/chat/completions`,
    endless(0, TOKENS)).finished;
  const seconds = (Date.now() - begin) / 1000;
  assert.ok(s.done);
  assert.equal(s.text(), plain);
  // the first second's bytes come at once, and NGINX counts whole seconds
  const least = s.raw.length / RATE - 2;
  assert.ok(s.raw.length > 2 * RATE, `${s.raw.length} bytes`);
  assert.ok(seconds >= least, `${s.raw.length} bytes in ${seconds} s`);
});

test('more choices at once than the small way takes', async () => {
  const body = { ...endless(1, TOKENS), n: 16, temperature: 1, seed: 7 };
  const s = await stream(`${stack.url}/v1/chat/completions`, body).finished;
  const whole = (await post(`${stack.url}/v1/chat/completions`,
    { ...body, stream: false })).json();
  assert.ok(s.done);
  assert.equal(whole.choices.length, 16);
  for (const { index, message } of whole.choices) {
    assert.equal(s.text(index), message.content);
  }
});

test('after a stream, a file on the same connection', async () => {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const bytes = crypto.randomBytes(300000).toString('hex');
  fs.writeFileSync(path.join(files, 'file'), bytes);
  const ports = new Set();
  for (let i = 0; i < 3; i++) {
    const s = await stream(`${stack.url}/v1/chat/completions`,
      endless(0, TOKENS), { agent }).finished;
    ports.add(s.localPort);
    assert.equal(s.text(), plain);
    const file = await request(`${stack.url}/files/file`, { agent });
    assert.equal(file.status, 200);
    assert.ok(file.text === bytes, 'the bytes of the file');
  }
  agent.destroy();
  assert.equal(ports.size, 1);
});
