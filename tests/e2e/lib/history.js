'use strict';
//
// Histories: what clients saw, line by line, and a checker that knows nothing of
// the product.  A history is an array, in the order of time:
//
//   {r, kind: 'ask', key, streamed, choices}   request r, of the body called key
//   {r, kind: 'follow', key, choices, of}      r reads request `of` from Redis
//   {r, kind: 'head', status}
//   {r, kind: 'event', data}                   a chunk of a stream, parsed
//   {r, kind: 'done'}                          [DONE]
//   {r, kind: 'answer', data}                  a whole answer
//   {r, kind: 'end', cut}                      the connection's
//   {kind: 'nemesis', what}                    what was done to the engines
//
// A right history: each request is answered with 200, each choice has one text
// without a gap and one end, with nothing behind it; usage stands once and has the
// tokens that were seen; then comes one [DONE], and the end.  Who follows a request
// sees the same, under its id.  wants: by key, {texts, reasons, prompt, completion}
// of an undisturbed run.

const http = require('node:http');

class History {
  constructor() {
    this.lines = [];
    this.next = 0;
  }

  put(line) { this.lines.push(line); }

  // Asks and records; resolves at the end, whatever it is.  named(id, r): the
  // response has come, and has this id.
  ask(url, key, body, named = () => {}) {
    const r = this.next++;
    const streamed = Boolean(body.stream);
    this.put({ r, kind: 'ask', key, streamed, choices: body.n || 1 });
    return this.read(url, r, streamed, body, named);
  }

  // Reads what request `of` says, or has said.
  follow(url, key, choices, of) {
    const r = this.next++;
    this.put({ r, kind: 'follow', key, choices, of });
    return this.read(url, r, true, null, () => {});
  }

  read(url, r, streamed, body, named) {
    return new Promise((resolve) => {
      const end = (cut) => {
        this.put({ r, kind: 'end', cut });
        resolve(r);
      };
      const text = body ? JSON.stringify(body) : '';
      const req = http.request(url, { method: body ? 'POST' : 'GET', agent: false,
        headers: body ? { 'Content-Type': 'application/json',
          'Content-Length': Buffer.byteLength(text) } : {} }, (res) => {
        let left = '';
        this.put({ r, kind: 'head', status: res.statusCode });
        named(res.headers['x-tokenring-id'], r);
        res.setEncoding('utf8').on('data', (part) => {
          left += part;
          if (!streamed) return;
          const blocks = left.split('\n\n');
          left = blocks.pop();
          blocks.flatMap((b) => b.split('\n')
            .filter((l) => l.startsWith('data: '))).forEach((l) => {
            this.put(l === 'data: [DONE]' ? { r, kind: 'done' }
              : { r, kind: 'event', data: JSON.parse(l.slice(6)) });
          });
        });
        res.on('end', () => {
          if (!streamed) this.put({ r, kind: 'answer', data: JSON.parse(left) });
          end(!res.complete);
        });
        res.on('error', () => end(true));
      });
      req.on('error', () => end(true));
      req.end(text);
    });
  }
}

// What was seen of one request, and what was wrong with it.
class Seen {
  constructor(ask, want, faults) {
    this.ask = ask;
    this.want = want;
    this.fault = (what) => faults.push(`request ${ask.r} (${ask.key}): ${what}`);
    this.heads = 0;
    this.id = null;
    this.usage = null;
    this.done = 0;
    this.ends = 0;
    this.choices = Array.from({ length: ask.choices }, () =>
      ({ text: '', tokens: 0, reason: null }));
  }

  // The same in all events of a request.
  identity(data) {
    const id = [data.id, data.created, data.model, data.object].join(' ');
    if (!data.id) this.fault('an event without an id');
    if (this.id === null) this.id = id;
    else if (this.id !== id) this.fault(`"${id}" after "${this.id}"`);
  }

  // More of a choice: text, the tokens of its logprobs, its end.
  more(index, text, logprobs, reason) {
    const c = this.choices[index];
    if (!c) {
      this.fault(`choice ${index} of ${this.ask.choices}`);
      return;
    }
    if (c.reason) this.fault(`choice ${index}: something behind its end`);
    c.text += text;
    if (!this.want.texts[index].startsWith(c.text)) {
      this.fault(`choice ${index}: other text, up to ${c.text.length}`);
      c.text = this.want.texts[index].slice(0, c.text.length);
    }
    for (const t of (logprobs && logprobs.content) || []) {
      c.tokens++;
      if (typeof t.token !== 'string') this.fault('a token without its text');
    }
    if (reason) c.reason = reason;
  }

  used(usage) {
    if (this.usage) this.fault('usage twice');
    if (this.choices.some((c) => !c.reason)) this.fault('usage before the ends');
    this.usage = usage;
  }

  event(data) {
    if (this.ends) this.fault('an event behind the end');
    if (this.done) this.fault('an event behind [DONE]');
    if (!this.heads) this.fault('an event before the head');
    if (data.error) {
      this.fault(`error ${data.error.code}`);
      return;
    }
    this.identity(data);
    for (const c of data.choices) {
      const text = (c.delta && c.delta.content) || '';
      if (text || c.logprobs || c.finish_reason) {
        this.more(c.index, text, c.logprobs, c.finish_reason);
      }
    }
    if (data.usage) this.used(data.usage);
  }

  answer(data) {
    if (data.error) {
      this.fault(`error ${data.error.code}`);
      return;
    }
    this.identity(data);
    for (const c of data.choices) {
      this.more(c.index, c.message.content, c.logprobs, c.finish_reason);
    }
    this.used(data.usage);
    this.done++;
  }

  line(line) {
    switch (line.kind) {
      case 'head':
        this.heads++;
        if (line.status !== 200) this.fault(`status ${line.status}`);
        break;
      case 'event':
        this.event(line.data);
        break;
      case 'answer':
        this.answer(line.data);
        break;
      case 'done':
        this.done++;
        if (!this.usage) this.fault('[DONE] before the usage');
        break;
      default:
        this.ends++;
        if (line.cut) this.fault('cut');
    }
  }

  // Nothing more comes.
  finish() {
    const { want } = this;
    for (const [what, n] of [['head', this.heads], ['[DONE]', this.done],
      ['end', this.ends]]) {
      if (n !== 1) this.fault(`${n} times ${what}`);
    }
    this.choices.forEach((c, i) => {
      if (c.text !== want.texts[i]) this.fault(`choice ${i}: text is missing`);
      if (c.reason !== want.reasons[i]) {
        this.fault(`choice ${i}: ends with ${c.reason}, not ${want.reasons[i]}`);
      }
    });
    if (!this.usage) {
      this.fault('no usage');
      return;
    }
    const tokens = this.choices.reduce((sum, c) => sum + c.tokens, 0);
    if (this.usage.completion_tokens !== tokens) {
      this.fault(`usage has ${this.usage.completion_tokens} tokens, seen were `
        + `${tokens}`);
    }
    for (const [what, n] of [['prompt_tokens', want.prompt],
      ['completion_tokens', want.completion],
      ['total_tokens', want.prompt + want.completion]]) {
      if (this.usage[what] !== n) {
        this.fault(`${what} ${this.usage[what]}, not ${n}`);
      }
    }
  }
}

// Everything that is wrong with a history; [] when nothing is.
function check(lines, wants) {
  const faults = [];
  const all = new Map();
  for (const line of lines) {
    if (line.kind === 'nemesis') continue;
    if (line.kind === 'ask' || line.kind === 'follow') {
      if (all.has(line.r)) faults.push(`request ${line.r} is asked twice`);
      all.set(line.r, new Seen(line, wants[line.key], faults));
    } else if (all.has(line.r)) {
      all.get(line.r).line(line);
    } else {
      faults.push(`${line.kind} of nobody's request ${line.r}`);
    }
  }
  const ids = new Map();
  for (const [r, seen] of all) {
    seen.finish();
    const id = (seen.id || '').split(' ')[0];
    if (seen.ask.kind === 'follow') {
      const of = all.get(seen.ask.of);
      if (!of || of.id !== seen.id) {
        faults.push(`request ${r} follows ${seen.ask.of}, and has another id`);
      }
      continue;
    }
    if (id && ids.has(id)) {
      faults.push(`requests ${ids.get(id)} and ${r} have one id`);
    }
    ids.set(id, r);
  }
  return faults;
}

// What an undisturbed run of one request is, as wants has it.
function wanted(lines) {
  const { choices } = lines.find((l) => l.kind === 'ask');
  const want = { texts: Array(choices).fill(''), reasons: Array(choices).fill(null),
    prompt: 0, completion: 0 };
  for (const { data } of lines) {
    if (!data) continue;
    for (const c of data.choices) {
      want.texts[c.index] += (c.delta || c.message).content || '';
      want.reasons[c.index] = c.finish_reason || want.reasons[c.index];
    }
    if (data.usage) {
      want.prompt = data.usage.prompt_tokens;
      want.completion = data.usage.completion_tokens;
    }
  }
  return want;
}

module.exports = { History, check, wanted };
