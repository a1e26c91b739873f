'use strict';
//
// HTTP itself: keep-alive, pipelining, chunked and huge bodies, HTTP/2, and
// what NGINX's other modules do with our answers.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const http = require('node:http');
const net = require('node:net');
const zlib = require('node:zlib');
const { Stack, sleep, taken } = require('../lib/stack');
const {
  post, stream, request, SseReader, textOf, answer2,
} = require('../lib/http');
const { goldens, chat, endless } = require('../lib/prompts');

let stack;
let url;
let elsewhere;

before(async () => {
  // Takes every request in, and serves none.
  elsewhere = http.createServer((req, res) => {
    req.resume();
    req.on('end', () => { res.statusCode = 503; res.end(); });
  });
  await new Promise((resolve) => { elsewhere.listen(0, '127.0.0.1', resolve); });
  const { port } = elsewhere.address();
  stack = await Stack.start({
    http2: true,
    http: 'limit_conn_zone $binary_remote_addr zone=one:1m;',
    server: `
        location /gzip/v1/ { gzip on; gzip_types *; gzip_min_length 1;
            tokenring_pass main; }
        proxy_intercept_errors on;
        error_page 503 = @second;
        location /kept/v1/ { proxy_pass http://127.0.0.1:${port}; }
        location /sent/v1/ { proxy_pass http://127.0.0.1:${port};
            proxy_request_buffering off; }
        location @second { tokenring_pass main; }
        location /rewritten { rewrite ^ /v1/models break;
            tokenring_pass main; }`,
    engine: { channel_ring: '64k' },
  });
  url = `${stack.url}/v1/chat/completions`;
});
after(async () => {
  const complaints = stack.complaints();
  await stack.stop();
  elsewhere.close();
  assert.deepEqual(complaints, []);
});

const head = (path, body, more = '') => `POST ${path} HTTP/1.1\r\nHost: x\r\n`
  + `Content-Type: application/json\r\n${more}`
  + `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;

// Splits bytes into answers: heads by hand, bodies by length or chunks.
function answers(text) {
  const out = [];
  let rest = Buffer.from(text, 'latin1');
  while (rest.length > 0) {
    const at = rest.indexOf('\r\n\r\n');
    assert.ok(at > 0, 'a whole head');
    const fields = rest.subarray(0, at).toString().split('\r\n');
    const status = Number(fields[0].split(' ')[1]);
    const length = fields.find((f) => /^content-length:/i.test(f));
    rest = rest.subarray(at + 4);
    let body = '';
    if (length) {
      const n = Number(length.split(':')[1]);
      body = rest.subarray(0, n).toString();
      rest = rest.subarray(n);
    } else {
      assert.ok(fields.some((f) => /^transfer-encoding: chunked$/i.test(f)));
      for (;;) {
        const eol = rest.indexOf('\r\n');
        const n = parseInt(rest.subarray(0, eol).toString(), 16);
        body += rest.subarray(eol + 2, eol + 2 + n).toString();
        assert.equal(rest.subarray(eol + 2 + n, eol + 4 + n).toString(), '\r\n');
        rest = rest.subarray(eol + 4 + n);
        if (n === 0) break;
      }
    }
    out.push({ status, body });
  }
  return out;
}

function talk(bytes, wanted) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(stack.port, '127.0.0.1');
    let text = '';
    socket.setEncoding('latin1');
    socket.write(bytes);
    socket.on('data', (d) => {
      text += d;
      try {
        if (answers(text).length >= wanted) socket.end();
      } catch { /* not whole yet */ }
    });
    socket.on('error', reject);
    socket.on('close', () => resolve(answers(text)));
  });
}

test('keep-alive: streams and whole answers on one connection', async () => {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const ports = new Set();
  for (let i = 0; i < 6; i++) {
    const golden = goldens[i];
    const body = {
      model: 'pocket', messages: golden.messages, temperature: 0,
      max_tokens: golden.continuation_ids.length,
    };
    if (i % 2) {
      const s = stream(url, { ...body, stream: true }, { agent });
      await s.finished;
      ports.add(s.localPort);
      assert.equal(s.text(), golden.continuation);
    } else {
      const r = await post(url, body, {}, agent);
      assert.equal(r.json().choices[0].message.content, golden.continuation);
    }
    // Errors keep the connection, too.
    assert.equal((await post(url, '{', {}, agent)).status, 400);
  }
  agent.destroy();
  assert.equal(ports.size, 1);
});

test('pipelining: answers come in order, each its own', async () => {
  const bodies = goldens.map((golden, i) => JSON.stringify({
    model: 'pocket', messages: golden.messages, temperature: 0,
    max_tokens: golden.continuation_ids.length, stream: i % 2 === 1,
  }));
  const got = await talk(bodies.map((b) => head('/v1/chat/completions', b))
    .join(''), bodies.length);
  assert.equal(got.length, bodies.length);
  got.forEach((answer, i) => {
    assert.equal(answer.status, 200);
    if (i % 2) {
      const reader = new SseReader();
      reader.push(answer.body);
      reader.end();
      assert.ok(reader.done);
      assert.equal(textOf(reader.events), goldens[i].continuation);
    } else {
      assert.equal(JSON.parse(answer.body).choices[0].message.content,
        goldens[i].continuation);
    }
  });
});

test('HTTP/1.0 and Connection: close', async () => {
  const body = JSON.stringify(chat('Hello!', { stream: true }));
  const old = await new Promise((resolve, reject) => {
    const socket = net.connect(stack.port, '127.0.0.1');
    let text = '';
    socket.write(head('/v1/chat/completions', body).replace('HTTP/1.1',
      'HTTP/1.0'));
    socket.on('data', (d) => { text += d; });
    socket.on('error', reject);
    socket.on('close', () => resolve(text));
  });
  assert.match(old, /^HTTP\/1\.1 200 /);
  assert.doesNotMatch(old, /transfer-encoding/i);
  assert.ok(old.endsWith('data: [DONE]\n\n'));
});

test('a chunked body, byte by byte', async () => {
  const body = JSON.stringify(chat('Hello!'));
  const r = await new Promise((resolve, reject) => {
    const req = http.request(url, {
      method: 'POST', agent: false,
      headers: { 'Content-Type': 'application/json' },
    }, (res) => {
      let text = '';
      res.on('data', (d) => { text += d; });
      res.on('end', () => resolve({ status: res.statusCode, text }));
    });
    req.on('error', reject);
    (async () => {
      for (const c of body) {
        req.write(c);
        if (Math.random() < 0.1) await sleep(1);
      }
      req.end();
    })();
  });
  assert.equal(r.status, 200, r.text);
  assert.equal(JSON.parse(r.text).choices[0].message.content,
    goldens[0].continuation);
});

test('Expect: 100-continue', async () => {
  const body = JSON.stringify(chat('Hello!'));
  const r = await new Promise((resolve, reject) => {
    const req = http.request(url, {
      method: 'POST', agent: false,
      headers: {
        'Content-Type': 'application/json', Expect: '100-continue',
        'Content-Length': body.length,
      },
    }, (res) => {
      res.resume();
      res.on('end', () => resolve(res.statusCode));
    });
    req.on('continue', () => req.end(body));
    req.on('error', reject);
  });
  assert.equal(r, 200);
});

test('no condition of a cache takes an answer away', async () => {
  for (const [name, value] of [['If-None-Match', '*'], ['If-Match', '"x"'],
    ['If-Unmodified-Since', 'Fri, 01 Jan 2021 00:00:00 GMT']]) {
    for (const more of [{}, { stream: true }]) {
      const r = await post(url, { ...chat('Hello!'), max_tokens: 2, ...more },
        { [name]: value });
      assert.equal(r.status, 200, `${name} ${r.text}`);
    }
    const list = await request(`${stack.url}/v1/models`,
      { headers: { [name]: value } });
    assert.equal(list.status, 200, name);
  }
});

test('a compressed body is refused as one', async () => {
  const r = await request(url, { method: 'POST',
    headers: { 'Content-Type': 'application/json', 'Content-Encoding': 'gzip' },
    body: zlib.gzipSync('{}') });
  assert.equal(r.status, 415, r.text);
  assert.match(r.json().error.message,
    /^Unsupported Content-Encoding "gzip"\. Expected a body that is not compressed$/);
  const plain = await post(url, { ...chat('Hello!'), max_tokens: 2 },
    { 'Content-Encoding': 'Identity' });
  assert.equal(plain.status, 200, plain.text);
});

test('an 8 MiB body passes a 64 KiB ring', async () => {
  // Unknown fields are ignored, whatever their size.
  const big = { ...chat('Hello!'), metadata_blob: 'x'.repeat(8 << 20) };
  const [r, small] = await Promise.all([
    post(url, big),
    post(url, chat('Hello!')),
  ]);
  assert.equal(r.status, 200, r.text.slice(0, 300));
  assert.equal(r.json().choices[0].message.content, goldens[0].continuation);
  assert.equal(small.status, 200);
});

test('an 8 MiB prompt is read whole, and then found too long', async () => {
  const r = await post(url, chat('word '.repeat((8 << 20) / 5)));
  assert.equal(r.status, 400, r.text.slice(0, 300));
  assert.equal(r.json().error.code, 'context_length_exceeded');
});

test('many large bodies at once do not mix', async () => {
  const all = await Promise.all(goldens.concat(goldens).map((golden, i) =>
    post(url, {
      pad: 'y'.repeat(300000 + i * 1111), model: 'pocket',
      messages: golden.messages, temperature: 0,
      max_tokens: golden.continuation_ids.length,
    })));
  all.forEach((r, i) => {
    assert.equal(r.status, 200, r.text.slice(0, 300));
    assert.equal(r.json().choices[0].message.content,
      goldens[i % goldens.length].continuation);
  });
});

test('HTTP/2: many streams on one connection', async () => {
  const session = stack.http2();
  try {
    const run = async (golden, streaming) => {
      const req = session.request({
        ':method': 'POST', ':path': '/v1/chat/completions',
        'content-type': 'application/json',
      });
      req.end(JSON.stringify({
        model: 'pocket', messages: golden.messages, temperature: 0,
        max_tokens: golden.continuation_ids.length, stream: streaming,
      }));
      const { status, text } = await answer2(req);
      assert.equal(status, 200, text);
      if (!streaming) {
        return JSON.parse(text).choices[0].message.content;
      }
      const reader = new SseReader();
      reader.push(text);
      reader.end();
      assert.ok(reader.done);
      return textOf(reader.events);
    };
    const all = await Promise.all(Array.from({ length: 30 }, (_, i) =>
      run(goldens[i % goldens.length], i % 3 !== 0)));
    all.forEach((text, i) => {
      assert.equal(text, goldens[i % goldens.length].continuation);
    });
  } finally {
    session.close();
  }
});

test('HTTP/2: a large body', async () => {
  const session = stack.http2();
  try {
    const req = session.request({
      ':method': 'POST', ':path': '/v1/chat/completions',
      'content-type': 'application/json',
    });
    req.end(JSON.stringify({ ...chat('Hello!'), pad: 'z'.repeat(2 << 20) }));
    const { text } = await answer2(req);
    assert.equal(JSON.parse(text).choices[0].message.content,
      goldens[0].continuation);
  } finally {
    session.close();
  }
});

test('gzip: a stream arrives as it is made, and whole', async () => {
  const s = await stream(`${stack.url}/gzip/v1/chat/completions`,
    endless(0, 60)).finished;
  assert.equal(s.status, 200, s.raw);
  assert.ok(s.done);
});

test('a rewritten URI goes where it was rewritten to', async () => {
  const r = await request(`${stack.url}/rewritten`);
  assert.equal(r.status, 200, r.text);
  assert.equal(r.json().data[0].id, 'pocket');
});

// A POST whose body comes later than its head.
function late(place, body) {
  return new Promise((resolve, reject) => {
    const req = http.request(`${stack.url}/${place}/v1/chat/completions`, {
      method: 'POST', agent: false,
      headers: { 'Content-Type': 'application/json',
        'Content-Length': Buffer.byteLength(body) },
    }, (res) => {
      let text = '';
      res.on('data', (part) => { text += part; });
      res.on('end', () => resolve({ status: res.statusCode, text }));
    });
    req.on('error', reject);
    req.flushHeaders();
    req.once('socket', async (socket) => {
      socket.once('connect', async () => {
        await taken(socket);
        req.end(body);
      });
    });
  });
}

test('a request that failed elsewhere comes here with its body', async () => {
  const r = await late('kept', JSON.stringify(chat('Hello!')));
  assert.equal(r.status, 200, r.text);
  assert.ok(JSON.parse(r.text).choices[0].message.content.length > 0);
});

test('a request whose body stayed elsewhere is nobody else\'s trouble',
  async () => {
    const neighbour = stream(url, endless(0, 400));
    await neighbour.begun();
    const r = await late('sent', JSON.stringify(chat('Hello!')));
    await neighbour.finished;
    assert.ok(neighbour.done, neighbour.raw.slice(-300));
    assert.equal(r.status, 500, r.text);
  });
