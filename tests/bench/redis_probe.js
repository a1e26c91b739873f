'use strict';
//
// The load of redis_faults.js, a process of its own: streaming requests at an
// even pace, and questions for the state of requests beside them, timed as a
// client sees them.  The parent sends the name of the phase that begins, or
// 'end', and then gets, for each phase, the times in milliseconds of the
// requests that began in it.

const http = require('node:http');

const { port, pace, tokens } = JSON.parse(process.argv[2]);
const agent = new http.Agent({ keepAlive: true, maxSockets: 256 });
const now = () => Number(process.hrtime.bigint()) / 1e6;
const body = JSON.stringify({ model: 'pocket', prompt: 'once', stream: true,
  max_tokens: tokens });

const phases = {};
let phase = null;
let last = '0'.repeat(32);
let sent = 0;
let open = 0;

// One stream.  An event is counted when its bytes are read; several that come
// in one piece have no time between them.
function ask(into) {
  const begun = now();
  let at = 0;
  let tail = '';
  let events = 0;
  const fail = (why) => { into.failed.push(why); open--; };
  open++;
  const req = http.request({ port, path: '/v1/completions', agent,
    method: 'POST', headers: { 'content-type': 'application/json',
      'content-length': Buffer.byteLength(body) } }, (res) => {
    if (res.statusCode === 200) last = res.headers['x-tokenring-id'] || last;
    res.setEncoding('utf8');
    res.on('data', (text) => {
      const t = now();
      const n = text.split('\ndata: {').length - 1
        + (text.startsWith('data: {') ? 1 : 0);
      tail = (tail + text).slice(-40);
      if (n === 0) return;
      if (at === 0) into.ttft.push(t - begun);
      else into.gap.push(t - at);
      at = t;
      events += n;
    });
    res.on('error', (e) => fail(e.message));
    res.on('end', () => {
      if (res.statusCode !== 200 || !tail.includes('[DONE]')
        || events < tokens) {
        fail(`${res.statusCode}, ${events} events, ${tail}`);
        return;
      }
      into.whole++;
      open--;
    });
  });
  req.on('error', (e) => fail(e.message));
  req.end(body);
}

// The state of the request before: that one may be refused, the rest may not
// notice.
function look(into) {
  const begun = now();
  http.get({ port, path: `/v1/requests/${last}`, agent }, (res) => {
    res.resume();
    res.on('end', () => {
      into.state[res.statusCode] = (into.state[res.statusCode] || 0) + 1;
      into.stateMs.push(now() - begun);
    });
  }).on('error', (e) => into.failed.push(e.message));
}

const begun = now();
const timer = setInterval(() => {
  if (phase === null) return;
  while (sent < (now() - begun) / 1000 * pace) {
    sent++;
    ask(phase);
    if (sent % 5 === 0) look(phase);
  }
}, 5);

process.on('message', (name) => {
  if (name !== 'end') {
    phases[name] ||= { ttft: [], gap: [], stateMs: [], state: {}, failed: [],
      whole: 0 };
    if (phase === null) sent = Math.floor((now() - begun) / 1000 * pace);
    phase = phases[name];
    return;
  }
  clearInterval(timer);
  const wait = setInterval(() => {
    if (open !== 0) return;
    clearInterval(wait);
    process.send(phases, () => process.exit(0));
  }, 10);
});
