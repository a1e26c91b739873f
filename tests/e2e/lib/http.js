'use strict';
//
// HTTP as the tests need it: whole answers, streams that can be cut, and a
// reader of server-sent events that accepts nothing but what the format says.

const http = require('node:http');
const net = require('node:net');
const assert = require('node:assert/strict');

// One request, the whole answer: {status, headers, text, json()}.
function request(url, options = {}) {
  const { method = 'GET', headers = {}, body, agent = false } = options;
  return new Promise((resolve, reject) => {
    const req = http.request(url, { method, headers, agent }, (res) => {
      const parts = [];
      res.on('data', (d) => parts.push(d));
      res.on('error', reject);
      res.on('end', () => {
        const text = Buffer.concat(parts).toString('utf8');
        resolve({
          status: res.statusCode, headers: res.headers, text,
          json: () => JSON.parse(text),
        });
      });
      res.on('aborted', () => reject(new Error('the answer was cut short')));
    });
    req.on('error', reject);
    if (body !== undefined) req.write(body);
    req.end();
  });
}

// POST of a JSON value, or of the very bytes when it is a string.
function post(url, value, headers = {}, agent = false) {
  const body = typeof value === 'string' || Buffer.isBuffer(value)
    ? value : JSON.stringify(value);
  return request(url, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      'Content-Length': Buffer.byteLength(body),
      ...headers,
    },
    body,
    agent,
  });
}

// A POST whose body is written by the test, in its own time.
function upload(url, headers = {}) {
  let req;
  const answer = new Promise((resolve, reject) => {
    req = http.request(url, {
      method: 'POST', agent: false,
      headers: { 'Content-Type': 'application/json', ...headers },
    }, (res) => {
      let text = '';
      res.setEncoding('utf8').on('data', (d) => { text += d; });
      res.on('end', () => resolve({ status: res.statusCode, text }));
      res.on('error', reject);
    });
    req.on('error', reject);
  });
  answer.catch(() => {});
  return { req, answer };
}

// Server-sent events, strictly: every event is one line "data: ..." and an
// empty line; comments are ": ..." and an empty line; nothing else is allowed,
// and nothing may follow [DONE].  A line "id: N" may precede the data; numbers
// grow; and a line "event: NAME", which is the type of what follows.
class SseReader {
  constructor() {
    this.left = '';
    this.events = [];
    this.comments = [];
    this.ids = [];
    this.done = false;
  }

  push(text) {
    this.left += text;
    for (;;) {
      const at = this.left.indexOf('\n\n');
      if (at < 0) return;
      const block = this.left.slice(0, at);
      this.left = this.left.slice(at + 2);
      assert.ok(!this.done, `after [DONE]: ${JSON.stringify(block)}`);
      assert.ok(!block.includes('\r'), 'no carriage returns');
      if (block.startsWith(':')) {
        assert.ok(!block.includes('\n'), `a comment is one line: ${block}`);
        this.comments.push(block.slice(1).trim());
        continue;
      }
      const [, id, name, data]
        = /^(?:id: (\d+)\n)?(?:event: ([\w.]+)\n)?data: ([^\n]+)$/.exec(block)
        || assert.fail(`an event is one data line: ${JSON.stringify(block)}`);
      if (id !== undefined) {
        assert.ok(Number(id) > (this.ids.at(-1) || 0), `id ${id} is not new`);
        this.ids.push(Number(id));
      }
      if (data === '[DONE]') {
        this.done = true;
      } else {
        this.events.push(JSON.parse(data));
        if (name !== undefined) assert.equal(this.events.at(-1).type, name);
      }
    }
  }

  end() {
    assert.equal(this.left, '', 'a stream ends with a whole event');
  }
}

// An open stream.  `start` resolves with the response's head; `finished` when
// it is over: {status, headers, raw, events, done, cut}.
// Without a value it is a GET, or options.method; options.send(req, body) writes
// the body in its own way.
function stream(url, value, options = {}) {
  const body = value === undefined ? ''
    : typeof value === 'string' ? value : JSON.stringify(value);
  const reader = new SseReader();
  const out = {
    events: reader.events, comments: reader.comments, ids: reader.ids,
    raw: '', done: false,
    cut: false, status: 0, headers: null,
  };
  let req;
  const waiters = [];
  const wake = () => {
    for (const w of [...waiters]) {
      if (w.test()) {
        waiters.splice(waiters.indexOf(w), 1);
        w.resolve(out);
      }
    }
  };
  let started;
  out.start = new Promise((resolve) => { started = resolve; });
  out.finished = new Promise((resolve, reject) => {
    const settle = (cut) => {
      out.cut = cut;
      out.over = true;
      started(out);
      wake();
      for (const w of waiters.splice(0)) {
        w.reject(new Error(`the stream ended first: ${out.raw.slice(-300)}`));
      }
      resolve(out);
    };
    req = http.request(url, {
      method: options.method || (value === undefined ? 'GET' : 'POST'),
      agent: options.agent || false,
      headers: value === undefined ? options.headers : {
        'Content-Type': 'application/json',
        'Content-Length': Buffer.byteLength(body),
        ...options.headers,
      },
    }, (res) => {
      out.res = res;
      out.status = res.statusCode;
      out.headers = res.headers;
      out.localPort = res.socket.localPort;
      started(out);
      res.setEncoding('utf8');
      const sse = /^text\/event-stream/.test(res.headers['content-type'] || '');
      res.on('data', (text) => {
        out.raw += text;
        if (sse) {
          try {
            reader.push(text);
          } catch (error) {
            reject(error);
            req.destroy();
            return;
          }
        }
        out.done = reader.done;
        wake();
      });
      res.on('end', () => {
        if (sse && res.complete) reader.end();
        settle(!res.complete);
      });
      res.on('error', () => settle(true));
    });
    req.on('error', () => settle(true));
    if (options.send) options.send(req, body);
    else req.end(body);
  });
  out.hangUp = () => req.destroy();
  // Resolves when test() holds; rejects when the stream is over before.
  out.when = (test) => new Promise((resolve, reject) => {
    if (test()) {
      resolve(out);
    } else if (out.over) {
      reject(new Error(`the stream ended first: ${out.raw.slice(-300)}`));
    } else {
      waiters.push({ test, resolve, reject });
    }
  });
  out.text = (choice = 0) => textOf(out.events, choice);
  // Resolves at the first text.
  out.begun = () => out.when(() => out.text().length > 0);
  return out;
}

// The text of one choice, of chat or of completion chunks.
function textOf(events, choice = 0) {
  let text = '';
  for (const event of events) {
    for (const c of event.choices || []) {
      if (c.index !== choice) continue;
      text += c.delta ? c.delta.content || '' : c.text || '';
    }
  }
  return text;
}

// Bytes over TCP, for what a well-behaved client would not send.
function raw(port, bytes, { end = true } = {}) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(port, '127.0.0.1');
    const parts = [];
    socket.on('connect', () => (end ? socket.end(bytes) : socket.write(bytes)));
    socket.on('data', (d) => parts.push(d));
    socket.on('error', reject);
    socket.on('close', () => resolve(Buffer.concat(parts).toString('latin1')));
  });
}

// What answers a request of an HTTP/2 session (stack.http2()): {status, text}.
async function answer2(req) {
  const out = { status: 0, text: '' };
  req.setEncoding('utf8');
  req.on('response', (headers) => { out.status = headers[':status']; });
  for await (const part of req) out.text += part;
  return out;
}

module.exports = {
  request, post, upload, stream, raw, textOf, answer2, SseReader,
};
