'use strict';
//
// The chat page, as conf/tokenring.conf serves it, in a real browser with a real
// engine: it streams, stops the engine's work, copies, takes documents, chooses
// a policy, and shows the KV cache of its conversation; on a phone, in the dark,
// by keyboard; within its policy, and without a byte from elsewhere.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { Stack, ROOT, until } = require('../lib/stack');
const { Browser, PHONE, when } = require('../lib/browser');
const { request, post } = require('../lib/http');

const PAGE = path.join(ROOT, 'page');
const DIFFKV = 'diffkv:alpha_high=12,alpha_low=0';

// The location that ships, with our files.
const shipped = /^ {4}location \/ \{[^]*?^ {4}\}\n/m.exec(
  fs.readFileSync(path.join(ROOT, 'conf/tokenring.conf'), 'utf8'))[0];
const server = `${shipped.replace('/usr/share/tokenring/page', PAGE)}
  location /dashboard/ { tokenring_dashboard ${ROOT}/dashboard; }`;

let stack;
let browser;

before(async () => {
  stack = await Stack.start({ server, engine: { kv_policy: DIFFKV,
    kv_policies: 'full uniform:levels=8/4' } });
  browser = await Browser.start();
});
after(async () => {
  await browser.stop();
  await stack.end();
});

// A page that knows its models; what it asked for is in page.asked.
async function open(options = {}, url = stack.url) {
  const page = await browser.open(`${url}/`, options);
  page.asked = [];
  page.on('request', (r) => {
    if (r.method() === 'POST') page.asked.push(r.postDataJSON());
  });
  await when(page, () => document.getElementById('model').value === 'pocket');
  return page;
}

async function say(page, text) {
  await page.locator('#prompt').fill(text);
  await page.keyboard.press('Enter');
}

const answered = (page, n = 1) => when(page, (k) =>
  document.querySelectorAll('.foot [data-again]').length === 1
  && document.querySelectorAll('.answer').length === k, n);

// Nothing that must not happen has happened.
async function clean(page) {
  assert.deepEqual(page.complaints, []);
  assert.deepEqual(page.foreign, []);
  assert.deepEqual(await page.evaluate(() => window.violations), []);
}

test('one round of small files, under the policy of the dashboard', async () => {
  const index = await request(`${stack.url}/`);
  const listed = [...index.text.matchAll(/(?:href|src)="([\w.]+)"/g)]
    .map(([, file]) => file);
  assert.ok(listed.length > 8);
  let bytes = Buffer.byteLength(index.text);
  for (const file of listed) {
    const r = await request(`${stack.url}/${file}`);
    assert.equal(r.status, 200, file);
    assert.match(r.headers['content-type'],
      { '.js': /^text\/javascript/, '.css': /^text\/css/,
        '.svg': /^image\/svg\+xml/ }[path.extname(file)], file);
    bytes += Buffer.byteLength(r.text);
  }
  assert.ok(bytes < 150 * 1024, `${bytes} bytes`);

  const dashboard = await request(`${stack.url}/dashboard/`);
  for (const name of ['content-security-policy', 'x-content-type-options',
    'x-frame-options', 'referrer-policy', 'cross-origin-opener-policy',
    'cross-origin-resource-policy', 'cache-control']) {
    assert.ok(index.headers[name], name);
    assert.equal(index.headers[name], dashboard.headers[name], name);
  }

  // Nothing that is found only by running what came first.
  const page = await browser.open('about:blank');
  const asked = new Set();
  page.on('request', (r) => asked.add(new URL(r.url()).pathname.slice(1)));
  await page.goto(`${stack.url}/`);
  await when(page, () => document.getElementById('model').value === 'pocket');
  for (const file of asked) {
    assert.ok(file === '' || file === 'v1/models' || listed.includes(file), file);
  }
});

test('an answer streams, is copied, and its cache stands beside it', async () => {
  const page = await open();
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  assert.equal(await page.locator('#memory').getAttribute('data-state'), 'empty');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'prompt');
  assert.ok(await page.locator('#send').isDisabled());

  // By keyboard alone: the long document that the page offers.
  await page.locator('.idea').first().press('Enter');
  assert.equal(await page.locator('.chip').count(), 1);
  await page.keyboard.press('Enter');
  await when(page, () => document.getElementById('send').title.startsWith('Stop'));
  await answered(page);
  const [{ messages, kv_policy }] = page.asked;
  assert.equal(kv_policy, undefined, 'the default is not asked for');
  const { usage, choices } = (await post(`${stack.url}/v1/chat/completions`,
    { model: 'pocket', messages, temperature: 0 })).json();
  assert.ok(usage.prompt_tokens > 2500, `${usage.prompt_tokens} tokens`);
  assert.match(choices[0].message.content, /shelf C67/);
  const seen = async (id) => page.locator(`#${id}`).textContent();
  assert.match(await seen('instead'), /^instead of [\d.]+ MiB at 16 bits/);
  const words = /^([\d,]+) tokens: ([\d.]+) MiB instead of ([\d.]+)$/
    .exec(await seen('brief'));
  assert.ok(words, await seen('brief'));
  const total = Number(words[1].replace(',', ''));
  assert.ok(total > usage.prompt_tokens && total < usage.prompt_tokens + 100);
  const ratio = Number(words[2]) / Number(words[3]);
  assert.ok(Math.abs(ratio - usage.kv_cache.ratio) < 0.03,
    `${ratio}, ${usage.kv_cache.ratio}`);
  assert.equal(await page.locator('#memory').getAttribute('data-state'), 'known');
  const tiers = await page.evaluate(() =>
    [...document.querySelectorAll('#kinds tr')].map((tr) =>
      [tr.querySelector('th span:nth-child(2)').textContent,
        Number(tr.children[1].textContent.replace(',', ''))]));
  const tokens = tiers.reduce((n, [, k]) => n + k, 0);
  assert.ok(Math.abs(tokens - total) <= 2, JSON.stringify(tiers));

  await page.locator('[data-copy="answer"]').click();
  await when(page, () => document.querySelector('[data-copy="answer"]')
    .textContent === 'Copied');
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()),
    await page.locator('.answer').textContent());

  // A second turn carries the first; another answer replaces the last.
  await say(page, 'Where is the yellow hammer stored?');
  await answered(page, 2);
  assert.equal(page.asked[1].messages.length, 3);
  await page.locator('[data-again]').click();
  await until(() => page.asked.length === 3, 'asked again');
  await answered(page, 2);
  assert.deepEqual(page.asked[2].messages, page.asked[1].messages);

  // And all is gone.
  await page.locator('#new').click();
  assert.equal(await page.locator('.message').count(), 0);
  assert.equal(await page.locator('#memory').getAttribute('data-state'), 'empty');
  await clean(page);
});

test('a model that may think shows its reasoning, then its answer', async () => {
  const page = await open();
  await page.locator('.idea', { hasText: 'Work out a sum' }).click();
  assert.equal(await page.locator('#think').getAttribute('aria-pressed'), 'true');
  await page.keyboard.press('Enter');
  await answered(page);
  assert.deepEqual(page.asked[0].chat_template_kwargs, { enable_thinking: true });
  const reasoning = page.locator('.thinking');
  assert.equal(await reasoning.count(), 1);
  assert.equal(await reasoning.evaluate((d) => d.open), false, 'the answer is there');
  assert.match(await reasoning.locator('pre').textContent(), /So far: 5218$/);
  assert.equal(await page.locator('.answer').textContent(), 'Answer: 5218');

  // What was reasoned is not sent again; without the button none comes.
  await page.locator('#think').click();
  await say(page, 'Hello!');
  await answered(page, 2);
  assert.deepEqual(page.asked[1].chat_template_kwargs, { enable_thinking: false });
  assert.deepEqual(page.asked[1].messages.map((m) => m.content),
    ['What is 4827 + 391?', 'Answer: 5218', 'Hello!']);
  assert.equal(await page.locator('.thinking').count(), 1);
  await clean(page);
});

test('stop ends the work of the engine, too', async () => {
  // An engine that goes on until somebody stops it.
  const slow = await Stack.start({ server,
    engine: { backend: 'null', null_rate: 20 } });
  try {
    const page = await open({}, slow.url);
    const aborted = async () => (await slow.metrics())
      .value('tokenring_request_success_total', { finished_reason: 'abort' });
    for (const [n, stop] of [() => page.locator('#send').click(),
      () => page.keyboard.press('Escape')].entries()) {
      await say(page, `Go on and on, ${n}.`);
      await when(page, (k) => document.querySelectorAll('.answer')[k]
        ?.textContent.length > 5, n);
      assert.equal((await slow.metrics()).value('tokenring_num_requests_running'), 1);
      await stop();
      await answered(page, n + 1);
      await slow.idle();
      await until(async () => await aborted() === n + 1, 'the engine aborted it');
      const kept = await page.locator('.answer').nth(n).textContent();
      assert.ok(kept.length > 5, 'what came is kept');
    }
    assert.match(await page.locator('.foot').last().textContent(), /stopped/);
    await clean(page);
  } finally {
    await slow.stop();
  }
});

test('policy, system prompt and settings travel with the request', async () => {
  const page = await open();
  assert.deepEqual(await page.evaluate(() =>
    [...document.getElementById('policy').options].map((o) => o.text)),
  ['diffkv', 'full', 'uniform']);
  await page.locator('#policy').selectOption('full');
  await page.locator('#settings-open').press('Enter');
  await page.locator('#system').fill('You are brief.');
  await page.locator('#temperature').fill('0');
  await page.locator('#max-tokens').fill('12');
  await page.locator('#key').fill('sk-1');
  await page.keyboard.press('Escape');
  const sent = page.waitForRequest((r) => r.method() === 'POST');
  await say(page, 'Hello!');
  assert.equal(await (await sent).headerValue('authorization'), 'Bearer sk-1');
  await answered(page);
  const [body] = page.asked;
  assert.equal(body.kv_policy, 'full');
  assert.equal(body.temperature, 0);
  assert.equal(body.max_tokens, 12);
  assert.deepEqual(body.messages, [
    { role: 'system', content: 'You are brief.' },
    { role: 'user', content: 'Hello!' }]);
  assert.match(await page.locator('#system-line').textContent(), /You are brief\./);
  await clean(page);
});

test('a long paste becomes a document, and can be taken away', async () => {
  const page = await open();
  const paste = (text) => page.evaluate((t) => {
    const data = new DataTransfer();
    data.setData('text/plain', t);
    document.getElementById('prompt').dispatchEvent(new ClipboardEvent('paste',
      { clipboardData: data, bubbles: true, cancelable: true }));
  }, text);
  const long = 'The red lamp is stored on shelf A10.\n'.repeat(60);
  await paste(long);
  await paste(long);
  assert.equal(await page.locator('.chip').count(), 2);
  await page.locator('.chip .away').last().click();
  assert.equal(await page.locator('.chip').count(), 1);
  await say(page, 'Where is the red lamp?');
  await answered(page);
  assert.equal(page.asked[0].messages[0].content,
    `${long.trim()}\n\nWhere is the red lamp?`);
  await page.locator('.document summary').click();
  assert.match(await page.locator('.document pre').textContent(), /^The red lamp/);

  // What the server refuses is said in its words, and the text is not lost.
  page.complaints.length = 0;
  await paste('word '.repeat(9000));
  await say(page, 'Too long.');
  await when(page, () => document.querySelector('.message .alert'));
  assert.match(await page.locator('.message .alert').textContent(), /4096/);
  assert.match(page.complaints.join(), /400 \(Bad Request\)/);
});

// Answers as a stream of these events.
const sse = (list) => list.map((e) => `data: ${typeof e === 'string' ? e
  : JSON.stringify(e)}\n\n`).join('');
const delta = (content, usage, finish_reason = null) => ({ usage,
  choices: [{ index: 0, delta: content ? { content } : {}, finish_reason }] });
const usage = (prompt, completion, kv_cache) => ({ prompt_tokens: prompt,
  completion_tokens: completion, total_tokens: prompt + completion,
  ...(kv_cache ? { kv_cache } : {}) });

test('figures of every chunk are shown; servers without them are understood',
  async () => {
    const page = await open();
    const bodies = [];
    let answers = null;
    await page.route('**/v1/chat/completions', (route) => {
      const body = route.request().postDataJSON();
      bodies.push(body.stream_options);
      const [status, text] = answers(body);
      return route.fulfill({ status, body: text, contentType: status === 200
        ? 'text/event-stream' : 'application/json' });
    });
    const MiB = 1024 * 1024;
    const kv = (bytes, full, tokens) => ({ policy: 'diffkv:levels=8/4+4/2',
      bytes, fp16_bytes: full, ratio: bytes / full, tokens });

    answers = () => [200, sse([
      delta('A', usage(3000, 1, kv(12 * MiB, 12 * MiB,
        { full: 3000, high: 0, low: 0, pruned: 0 }))),
      delta('B', usage(3000, 99, kv(4.9 * MiB, 12.08 * MiB,
        { full: 64, high: 1204, low: 1800, pruned: 31 }))),
      delta('', usage(3000, 100, kv(4.9 * MiB, 12.1 * MiB,
        { full: 64, high: 1205, low: 1800, pruned: 31 })), 'stop'), '[DONE]'])];
    await say(page, 'one');
    await answered(page);
    assert.equal(await page.locator('#brief').textContent(),
      '3,100 tokens: 4.9 MiB instead of 12.1');
    assert.deepEqual(await page.evaluate(() =>
      [...document.querySelectorAll('#kinds tr')].map((tr) => tr.textContent)),
    ['16 bits642%', 'High precision8-bit keys, 4-bit values1,20539%',
      'Low precision4-bit keys, 2-bit values1,80058%', 'Dropped311%']);
    // The picture goes on from where the prompt was compressed.
    const line = await page.locator('.held-line:not(.before)').getAttribute('d');
    assert.match(line, /^M[\d. ]+L[\d. ]+$/);
    assert.deepEqual(bodies[0], { include_usage: true,
      continuous_usage_stats: true, include_kv: true });

    // One that refuses what it does not know, and tells nothing of its cache.
    answers = (body) => (body.stream_options.continuous_usage_stats
      ? [400, JSON.stringify({ error: { message: 'Unknown field.',
        param: body.stream_options.include_kv ? 'stream_options.include_kv'
          : 'stream_options.continuous_usage_stats' } })]
      : [200, sse([delta('C', null), { choices: [], usage: usage(10, 1) }, '[DONE]'])]);
    await say(page, 'two');
    await answered(page, 2);
    assert.equal(await page.locator('#brief').textContent(), '11 tokens');
    assert.match(await page.locator('#memory-note').textContent(), /does not tell/);
    await say(page, 'three');
    await answered(page, 3);
    assert.deepEqual(bodies.slice(-1), [{ include_usage: true }], 'it has learnt');

    // A stream that breaks off is no answer, nor is an error in it.
    answers = () => [200, sse([delta('D', null)])];
    await say(page, 'four');
    await when(page, () => /ended before/.test(
      document.querySelector('.message .alert')?.textContent));
    answers = () => [200, sse([delta('E', null),
      { error: { message: 'The engine has gone.' } }])];
    await say(page, 'five');
    await when(page, () => [...document.querySelectorAll('.message .alert')]
      .some((a) => a.textContent === 'The engine has gone.'));
    assert.deepEqual(page.foreign, []);
  });

test('an answer is text, whatever it says; markdown has its forms', async () => {
  const page = await open();
  const shown = (text) => page.evaluate(async (t) => {
    const { render } = await import('./markdown.js');
    const box = document.createElement('div');
    // As it comes, piece by piece.
    for (let i = 0; i <= t.length; i += 3) render(box, t.slice(0, i));
    render(box, t);
    const flat = (el) => (el.nodeType === 3 ? el.textContent
      : [el.tagName.toLowerCase(), ...[...el.childNodes].map(flat)]);
    return [...box.children].map(flat);
  }, text);
  const evil = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>';
  assert.deepEqual(await shown(evil), [['p', evil]]);
  assert.deepEqual(await shown(`[x](javascript:alert(1)) **<b>${evil}</b>**`),
    [['p', '[x](javascript:alert(1)) ', ['strong', `<b>${evil}</b>`]]]);
  assert.deepEqual(await shown('# Title\n\nA *b* `c<d>` 2*3*4 a_b_c\nnext\n\n---'),
    [['h3', 'Title'], ['p', 'A ', ['em', 'b'], ' ', ['code', 'c<d>'],
      ' 2*3*4 a_b_c\nnext'], ['hr']]);
  assert.deepEqual(await shown('1. one\n2. two\n   - deep\n\nend'),
    [['ol', ['li', 'one'], ['li', 'two', ['ul', ['li', 'deep']]]], ['p', 'end']]);
  assert.deepEqual(await shown('> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |'),
    [['blockquote', ['p', 'quoted']], ['div', ['table',
      ['thead', ['tr', ['th', 'a'], ['th', 'b']]],
      ['tbody', ['tr', ['td', '1'], ['td', '2']]]]]]);
  const code = (await shown('```c\nif (a < b) {\n\n```\nafter'));
  assert.deepEqual(code[0][2], ['pre', ['code', 'if (a < b) {\n']]);
  assert.deepEqual(code[1], ['p', 'after']);
  assert.equal((await shown('```\nnot closed'))[0][2][1][1], 'not closed');
  assert.equal((await shown('[docs](https://example.org/a)'))[0][1][0], 'a');
  // Deep and long input ends, and soon.
  for (const hard of ['>'.repeat(3000), '- '.repeat(2000), '*'.repeat(5000),
    '`'.repeat(5000), '**a'.repeat(2000), `${'['.repeat(3000)}](`]) {
    assert.ok((await page.evaluate(async (t) => {
      const { render } = await import('./markdown.js');
      const box = document.createElement('div');
      render(box, t);
      return box.textContent.length > 0 || box.children.length > 0;
    }, hard)));
  }
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  await clean(page);
});

test('on a phone, in the dark: nothing is cut off, everything is in reach',
  async () => {
    const page = await open({ viewport: PHONE, scheme: 'dark', hasTouch: true });
    const fits = async () => assert.equal(await page.evaluate(() =>
      document.documentElement.scrollWidth), PHONE.width);
    const ground = () => page.evaluate(() =>
      getComputedStyle(document.body).backgroundColor);
    await fits();
    await page.locator('.idea').nth(1).tap();
    await page.locator('#send').tap();
    await answered(page);
    await fits();
    assert.match(await page.locator('#brief').textContent(), /tokens: .* instead of/);
    assert.ok(!await page.locator('#kinds').isVisible());
    await page.locator('#memory-brief').tap();
    assert.ok(await page.locator('#kinds').isVisible());
    await fits();
    const small = await page.evaluate(() => [...document.querySelectorAll(
      'button, a, select, summary')].filter((el) => el.offsetParent
      && !el.classList.contains('skip'))
      .filter((el) => el.getBoundingClientRect().height < 24)
      .map((el) => el.outerHTML));
    assert.deepEqual(small, [], 'what is tapped is large enough');
    const dark = await ground();
    await page.locator('#theme').tap();
    assert.notEqual(await ground(), dark);
    await page.reload();
    assert.notEqual(await ground(), dark, 'the choice is kept');
    await clean(page);
  });

test('without an engine the page says so, and recovers', async () => {
  const alone = await Stack.start({ server, engine: null });
  try {
    const page = await browser.open(`${alone.url}/`);
    await when(page, () => document.getElementById('trouble'));
    assert.match(await page.locator('#trouble').textContent(), /No engine/);
    await alone.engine.start();
    await alone.healthy();
    await page.locator('#trouble button').click();
    await when(page, () => document.getElementById('model').value === 'pocket'
      && !document.getElementById('trouble'));
  } finally {
    await alone.stop();
  }
});
