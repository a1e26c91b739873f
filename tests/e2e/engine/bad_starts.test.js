'use strict';
//
// What does not start, and says why: the engine with bad settings or a bad
// model directory, NGINX with bad directives.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { Stack, POCKET, ENGINE, Engine } = require('../lib/stack');
const { post } = require('../lib/http');

function inTemp(body) {
  return async () => {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-e2e-'));
    try {
      await body(dir);
    } finally {
      fs.rmSync(dir, { recursive: true, force: true });
    }
  };
}

function engine(dir, ...args) {
  const out = spawnSync(ENGINE, args, {
    cwd: dir, encoding: 'utf8', timeout: 60000, killSignal: 'SIGKILL',
  });
  return { status: out.status, text: `${out.stdout}${out.stderr}` };
}

function refuses(dir, args, message) {
  const out = engine(dir, ...args);
  // 2: a setting is wrong; 1: the start failed.
  assert.ok([1, 2].includes(out.status), `${out.status}; it said: ${out.text}`);
  assert.match(out.text, message);
  assert.ok(out.text.trim().split('\n').length <= 6,
    `an error is a line or two:\n${out.text}`);
}

// What a start refuses, a check refuses with the same words.
function refusesAlso(dir, args, message) {
  refuses(dir, args, message);
  const out = engine(dir, '--check', ...args);
  assert.ok([1, 2].includes(out.status), `--check: ${out.text}`);
  assert.match(out.text, message);
  assert.doesNotMatch(out.text, /are fine/);
}

const good = (dir) => ['--model', POCKET, '--socket', path.join(dir, 's.sock'),
  '--kv_memory', '16m'];

// A copy of the model with one file changed.
function model(dir, changes) {
  const to = path.join(dir, 'model');
  fs.mkdirSync(to);
  for (const name of fs.readdirSync(POCKET)) {
    if (!/\.(json|safetensors)$/.test(name)) continue;
    if (!(name in changes)) {
      fs.symlinkSync(path.join(POCKET, name), path.join(to, name));
    } else if (changes[name] !== null) {
      const text = fs.readFileSync(path.join(POCKET, name));
      fs.writeFileSync(path.join(to, name), changes[name](text));
    }
  }
  return to;
}

const json = (change) => (text) => {
  const value = JSON.parse(text);
  change(value);
  return JSON.stringify(value);
};

for (const [what, args, message] of [
  ['an unknown setting', ['--kv_memry', '5m'], /kv_memry.*kv_memory/s],
  ['a setting without value', ['--kv_memory'], /kv_memory/],
  ['a size that is none', ['--kv_memory', 'lots'], /kv_memory.*lots.*size/s],
  ['a size out of bounds', ['--kv_memory', '1k'], /kv_memory.*1k/s],
  ['a negative number', ['--max_queue', '-1'], /max_queue.*-1/s],
  ['a number with a tail', ['--threads', '2x'], /threads.*2x/s],
  ['a duration that is none', ['--drain_timeout', '5 parsecs'],
    /drain_timeout.*parsecs/s],
  ['an unknown backend', ['--backend', 'quantum'], /backend.*quantum.*cpu/s],
  ['an unknown policy', ['--kv_policy', 'magic'], /kv_policy.*magic.*full/s],
  ['an unknown template', ['--chat_template', 'x'], /chat_template/],
  ['a mode that is none', ['--socket_mode', '999'], /socket_mode.*999/s],
  ['an unknown level', ['--log_level', 'loud'], /log_level.*loud/s],
  ['a socket path that is too long', ['--socket', `/tmp/${'x'.repeat(200)}`],
    /socket/],
  ['a socket in no directory', ['--socket', '/nonexistent/dir/s.sock'],
    /nonexistent/],
  ['no such model', ['--model', '/nonexistent/model'], /nonexistent/],
  ['the id of a model on a hub', ['--model', 'meta-llama/Llama-3.1-8B'],
    /there is no such directory.*id of a model on a hub: download it first/s],
  ['a longer context than the model has', ['--max_model_len', '100000'],
    /max_model_len is 100000, expected at most the model's 4096/],
  ['more memory than there is', ['--kv_memory', '9t'],
    /kv_memory is 9437184 MiB, but this machine has \d+ MiB of memory in all/],
  ['the same, of backend null', ['--kv_memory', '9t', '--backend', 'null'],
    /kv_memory is 9437184 MiB/],
  ['a log in no directory', ['--log', '/nonexistent/log'],
    /log "\/nonexistent\/log": cannot write a file in \/nonexistent: No such/],
  ['a pid file in no directory', ['--pid', '/nonexistent/pid'],
    /pid "\/nonexistent\/pid": cannot write a file in \/nonexistent: No such/],
  ['a trace in no directory', ['--backend', 'null', '--null_trace',
    '/nonexistent/x'], /null_trace "\/nonexistent\/x": cannot write/],
  ['a cache in no directory', ['--cache_dir', '/nonexistent/x'],
    /cache_dir \/nonexistent\/x: cannot make it: No such file/],
  ['a cache that others can read', ['--cache_dir', '/tmp'],
    /cache_dir \/tmp has owner 0 and mode 1777, expected \d+ and 0700/],
  ['a cache that is a file', ['--cache_dir', `${POCKET}/config.json`],
    /cache_dir .*config\.json: expected a directory/],
  ['a socket below a file', ['--socket', `${POCKET}/config.json/s.sock`],
    /socket .*cannot write a file in .*config\.json: Not a directory/],
  ['a socket where a folder is', ['--socket', '/tmp'],
    /socket "\/tmp" exists and is not a socket; remove it or choose another/],
  ['a socket where a file is', ['--socket', `${POCKET}/config.json`],
    /socket .*config\.json" exists and is not a socket/],
  ['a log that is a folder', ['--log', '/tmp'],
    /log "\/tmp" is a directory; expected a file/],
  ['more policies than can be', ['--kv_policies', 'full '.repeat(40)],
    /kv_policies "full.*expected at most \d+ policies/],
  ['fewer batch tokens than sequences',
    ['--max_batch_tokens', '4', '--max_num_seqs', '8'], /max_batch_tokens/],
]) {
  test(`engine: ${what}`, inTemp((dir) =>
    refusesAlso(dir, [...good(dir), ...args], message)));
}

test('--check of an engine that systemd has not started yet', inTemp((dir) => {
  const out = engine(dir, '--check', '--model', POCKET);
  assert.equal(out.status, 0, out.text);
  assert.equal(/tokenring-engine\.service makes it/.test(out.text),
    !fs.existsSync('/run/tokenring'), out.text);
  const cached = engine(dir, '--check', '--model', POCKET, '--socket', 's.sock',
    '--cache_dir', '/var/cache/tokenring/main');
  assert.equal(cached.status, 0, cached.text);
  assert.equal(/cache\/tokenring is not there: tokenring-engine/
    .test(cached.text), !fs.existsSync('/var/cache/tokenring'), cached.text);
}));

test('engine: no model at all', inTemp((dir) =>
  refusesAlso(dir, ['--socket', path.join(dir, 's')], /model/)));

test('engine: a configuration that is not there', inTemp((dir) =>
  refuses(dir, ['-c', path.join(dir, 'none.conf')], /none\.conf/)));

for (const [what, text, message] of [
  ['names file and line', 'model x\n\nkv_memory lots\n', /bad\.conf:3/],
  ['an unknown key', 'colour blue\n', /bad\.conf:1.*colour/s],
  ['a key without value', 'model\n', /bad\.conf:1.*model/s],
  ['an unfinished quote', 'model "x\n', /bad\.conf:1.*quote/s],
  ['a NUL byte', 'model x\0y\n', /bad\.conf:1.*NUL/s],
  ['a key twice', 'model x\nthreads 1\n# and\nthreads 2\n',
    /bad\.conf:4: threads is already set in line 2/],
  ['an equals sign', 'model x\nkv_memory = 1g\n',
    /bad\.conf:2: there is no `=` .*write `kv_memory 1g`/],
  ['a semicolon', 'model x\nkv_memory 1g;\n',
    /bad\.conf:2: there is no `;` .*write `kv_memory 1g`/],
  ...[['kv_policy magic', /kv_policy: .*"magic"/],
    ['kv_policies full magic', /kv_policies: .*"magic"/],
    ['kv_policy diffkv:alpha_high=x', /kv_policy: .*alpha_high=x: expected/],
    ['max_model_len 100000', /max_model_len is 100000/],
    ['max_batch_tokens 4', /max_batch_tokens 4 is below/],
    ['kv_memory 9t', /kv_memory is 9437184 MiB/],
    ['cache_dir /nonexistent/x', /cache_dir \/nonexistent\/x/],
    ['pid /nonexistent/pid', /pid "\/nonexistent\/pid"/],
    ['redis_password_file /nonexistent/p\nredis h', /cannot open/],
  ].map(([line, message]) => [`line and value of ${line.split('\n')[0]}`,
    `model ${POCKET}\n\n${line}\nsocket s.sock\n`,
    new RegExp(`bad\\.conf:3: ${message.source}`)]),
]) {
  test(`engine.conf: ${what}`, inTemp((dir) => {
    fs.writeFileSync(path.join(dir, 'bad.conf'), text);
    refusesAlso(dir, ['-c', path.join(dir, 'bad.conf')], message);
  }));
}

test('engine: a second one on the same socket', inTemp(async (dir) => {
  const first = new Engine(dir, 'main', { kv_memory: '16m' });
  await first.start();
  try {
    refuses(dir, ['--model', POCKET, '--socket', first.socket, '--kv_memory',
      '16m'], /main\.sock/);
    assert.ok(await first.connects(), 'the first one is not disturbed');
  } finally {
    await first.kill('SIGTERM');
  }
  assert.ok(!fs.existsSync(first.socket), 'it unlinks its socket at its end');
}));

test('engine: a socket that a killed one left is no obstacle', inTemp(
  async (dir) => {
    const first = new Engine(dir, 'main', { kv_memory: '16m' });
    await first.start();
    await first.kill('SIGKILL');
    assert.ok(fs.existsSync(first.socket));
    await first.start();
    await first.kill('SIGTERM');
  }));

const shard = 'model-00001-of-00002.safetensors';

test('engine: what a model may have that nobody needs', inTemp((dir) => {
  const to = model(dir, {
    'generation_config.json': () => '{"temperature": 0.6, "top_p": NaN, '
      + '"eos_token_id": [4, 999999]}',
    'tokenizer.json': json((t) => { t.decoder = null; }),
  });
  const out = engine(dir, '--check', ...good(dir), '--model', to);
  assert.equal(out.status, 0, out.text);
  assert.match(out.text, /ignored an end token .*eos_token_id=999999/);
}));

test('generation_config: the sampling that a model asks for', async () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-e2e-'));
  const to = model(dir, {
    'generation_config.json': json((g) => { g.temperature = 2; }),
  });
  fs.chmodSync(dir, 0o755);
  const texts = async (generation_config) => {
    const stack = await Stack.start({ engine: { model: to, generation_config } });
    try {
      const ask = async (more) => (await post(
        `${stack.url}/v1/completions`, { model: 'model', prompt: 'Once upon',
          max_tokens: 40, seed: 5, ...more })).json().choices[0].text;
      return [await ask({}), await ask({ temperature: 1 }),
        await ask({ temperature: 2 })];
    } finally {
      await stack.stop();
    }
  };
  try {
    const [vllm, one, two] = await texts('vllm');
    assert.notEqual(one, two);
    assert.equal(vllm, two);
    assert.equal((await texts('openai'))[0], one);
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
});

for (const [what, changes, message] of [
  ['no config.json', { 'config.json': null }, /config\.json/],
  ['config.json is no JSON', { 'config.json': () => '{oops' }, /config\.json/],
  ['an unknown architecture', {
    'config.json': json((c) => {
      c.architectures = ['MambaForCausalLM'];
      c.model_type = 'mamba';
    }),
  }, /[mM]amba/],
  ['an unknown architecture, before its tokenizer', {
    'config.json': json((c) => {
      c.architectures = ['MambaForCausalLM'];
      c.model_type = 'mamba';
    }),
    'tokenizer.json': () => 'x',
  }, /[mM]amba/],
  ['a pointer of git-lfs', {
    [shard]: () => 'version https://git-lfs.github.com/spec/v1\noid sha256:0\n',
  }, /00001-of-00002\.safetensors: a pointer of git-lfs/],
  ['a size of the wrong type', {
    'config.json': json((c) => { c.hidden_size = 'big'; }),
  }, /hidden_size/],
  ['heads that do not divide', {
    'config.json': json((c) => { c.num_key_value_heads = 4; }),
  }, /num_key_value_heads|k_proj|heads/],
  ['a hidden size that the weights have not', {
    'config.json': json((c) => { c.hidden_size = 512; }),
  }, /512|shape|hidden/],
  ['more layers than the weights have', {
    'config.json': json((c) => { c.num_hidden_layers = 9; }),
  }, /layers\.8/],
  ['an absurd number of layers', {
    'config.json': json((c) => { c.num_hidden_layers = 2 ** 31; }),
  }, /num_hidden_layers/],
  ['an unknown rope scaling', {
    'config.json': json((c) => { c.rope_scaling = { rope_type: 'spiral' }; }),
  }, /spiral|rope/],
  ['no weights', {
    [shard]: null, 'model-00002-of-00002.safetensors': null,
    'model.safetensors.index.json': null,
  }, /safetensors/],
  ['a missing shard', { [shard]: null }, /00001-of-00002/],
  ['an index that is no JSON', { 'model.safetensors.index.json': () => '[' },
    /index\.json/],
  ['a truncated shard', { [shard]: (b) => b.subarray(0, b.length - 100) },
    /00001-of-00002/],
  ['an empty shard', { [shard]: () => '' }, /00001-of-00002/],
  ['a header longer than its file', {
    [shard]: (b) => {
      const c = Buffer.from(b.subarray(0, 4096));
      c.writeBigUInt64LE(1n << 60n, 0);
      return c;
    },
  }, /00001-of-00002/],
  ['a header that is no JSON', {
    [shard]: (b) => { const c = Buffer.from(b); c[8] = 0x21; return c; },
  }, /00001-of-00002/],
  ['no tokenizer.json', { 'tokenizer.json': null }, /tokenizer\.json/],
  ['tokenizer.json is no JSON', { 'tokenizer.json': () => 'x' },
    /tokenizer\.json/],
  ['a tokenizer of another kind', {
    'tokenizer.json': json((t) => { t.model.type = 'Unigram'; }),
  }, /Unigram/],
  ['a merge of unknown pieces', {
    'tokenizer.json': json((t) => { t.model.merges[0] = ['\u0001q', 'zz\u0002']; }),
  }, /merge/],
  ['a chat template that is none', {
    'tokenizer_config.json': json((t) => { t.chat_template = 5; }),
  }, /tokenizer_config\.json: chat_template is neither a string nor a list/],
  ['a chat template that is no Jinja', {
    'tokenizer_config.json': json((t) => { t.chat_template = '{% if x %}'; }),
  }, /chat_template:1:\d+: unexpected end of the template/],
]) {
  test(`model: ${what}`, inTemp((dir) => {
    const at = model(dir, changes);
    refusesAlso(dir, ['--model', at, '--socket', path.join(dir, 's.sock'),
      '--kv_memory', '16m'], message);
  }));
}

test('a tokenizer of another kind is named', inTemp((dir) => {
  const at = model(dir, { 'tokenizer.json': null });
  fs.writeFileSync(path.join(at, 'tokenizer.model'), '');
  refuses(dir, ['--model', at, '--check'],
    /tokenizer\.json is missing, and tokenizer\.model alone is not supported/);
}));

// NGINX: text that stands somewhere in the configuration.
let checker;
const nginx = async (options, message) => {
  checker = new Stack({ engine: null });
  try {
    checker.port = 1;
    checker.configure(options);
    const out = checker.nginx('-t');
    assert.notEqual(out.status, 0, `it was accepted\n${out.text}`);
    assert.match(out.text, message);
    assert.match(out.text, /nginx\.conf:\d+/);
  } finally {
    await checker.stop();
  }
};

for (const [what, options, message] of [
  ['an unknown engine', { pass: 'other' }, /other/],
  ['an engine without a socket', { http: 'tokenring_engine empty weight=2;' },
    /no socket/],
  ['an engine with an empty name',
    { http: 'tokenring_engine "" unix:/tmp/x.sock;' },
    /invalid engine name "", expected NAME and then unix:PATH/],
  ['an engine with a name alone', { http: 'tokenring_engine empty;' },
    /arguments/],
  ['an engine over TCP', { http: 'tokenring_engine tcp 127.0.0.1:9;' },
    /"127\.0\.0\.1:9", expected unix:PATH/],
  ['an engine over TCP beside a socket',
    { http: 'tokenring_engine tcp unix:/tmp/x.sock localhost;' },
    /"localhost", expected unix:PATH/],
  ['an engine without a name',
    { http: 'tokenring_engine unix:/tmp/x.sock unix:/tmp/y.sock;' },
    /invalid engine name "unix:\/tmp\/x\.sock", expected NAME/],
  ['a relative socket', { http: 'tokenring_engine w unix:run/x.sock;' },
    /relative path in "unix:run\/x\.sock", expected unix:\/PATH/],
  ['a relative socket of Redis', { location: 'tokenring_redis unix:x.sock;' },
    /relative path in "unix:x\.sock"/],
  ['a socket twice in a line',
    { http: 'tokenring_engine w unix:/tmp/x.sock unix:/tmp/x.sock;' },
    /duplicate "unix:\/tmp\/x\.sock" of engine "w"/],
  ['a socket twice in two lines', {
    http: 'tokenring_engine w unix:/tmp/x.sock;\n'
      + 'tokenring_engine w unix:/tmp/y.sock unix:/tmp/x.sock weight=2;',
  }, /duplicate "unix:\/tmp\/x\.sock" of engine "w"/],
  ['a weight of nothing',
    { http: 'tokenring_engine w unix:/tmp/x.sock weight=0;' }, /weight/],
  ['an unknown parameter of an engine',
    { http: 'tokenring_engine w unix:/tmp/x.sock colour=red;' }, /colour/],
  ['a ring that is no size',
    { http: 'tokenring_engine w unix:/tmp/x.sock ring=7;' }, /ring/],
  ['tokenring_pass twice', { location: 'tokenring_pass main;' }, /duplicate/],
  ...['proxy_pass http://127.0.0.1:9', 'fastcgi_pass 127.0.0.1:9', 'empty_gif',
    'tokenring_health', 'tokenring_error', 'stub_status'].flatMap((other) => [
    [`${other} before tokenring_pass`, { location: `${other};` },
      /"tokenring_pass".* shares its location .* keep one/],
    [`${other} behind tokenring_pass`, {
      server: `location /x/ { tokenring_pass main; ${other}; }`,
    }, /"\w+".* shares its location .* keep one/],
  ]),
  ['tokenring_metrics beside proxy_pass', {
    server: 'location = /x { tokenring_metrics; proxy_pass http://[::1]:9; }',
  }, /"tokenring_metrics" in .*nginx\.conf:\d+ shares its location/],
  ['tokenring_error twice', {
    server: 'location @x { tokenring_error; tokenring_error; }',
  }, /"tokenring_error".* duplicate/],
  ['tokenring_resumable without Redis', { location: 'tokenring_resumable on;' },
    /"tokenring_resumable on" needs "tokenring_redis"/],
  ['tokenring_resumable of the whole server without Redis',
    { server: 'tokenring_resumable on;' },
    /"tokenring_resumable on" needs "tokenring_redis"/],
  ['models that nobody defines',
    { server: 'location /x/ { tokenring_pass models=none; }' },
    /no tokenring_models "none" is defined, it is named in/],
  ['models of an unknown engine', {
    http: 'tokenring_models m { engine other; }' }, /other/],
  ...[
    ['an unknown line', 'colour red;', /unknown "colour" .* expected engine/],
    ['two defaults', 'default a; default b;', /duplicate "default"/],
    ['an alias of nothing', 'alias a;', /expected "alias NAME MODEL"/],
    ['an alias twice', 'alias a b; alias a c;', /duplicate name "a"/],
    ['an alias that is a split', 'split a b=1; alias a c;',
      /duplicate name "a"/],
    ['aliases in a circle', 'alias a b; split b c=1 a=1;',
      /"a" leads back to itself/],
    ['a fallback twice', 'fallback a b; fallback a c;',
      /duplicate fallback of "a"/],
    ['a split into nothing', 'split a;', /weights of split "a" add up to 0/],
    ['a weight that is none', 'split a b=much;', /invalid part "b=much"/],
    ['a part without a name', 'split a =5;', /invalid part "=5"/],
    ['allow twice', 'allow a; allow b;', /duplicate "allow"/],
    ['an engine twice', 'engine main main;', /duplicate engine "main"/],
  ].map(([how, text, why]) => [`models with ${how}`,
    { http: `tokenring_models m { ${text} }` }, why]),
  ['models twice', { http: 'tokenring_models m { }\ntokenring_models m { }' },
    /"tokenring_models".* duplicate/],
  ...['start=now', 'start=ondemand idle=0', 'start=ondemand start_timeout=x',
    'start=ondemand model='].map((l) => [`an engine with ${l}`,
    { http: `tokenring_engine x unix:/x ${l};` }, /invalid parameter "/]),
  ...['weight=2 weight=2', 'start=ondemand model=longer unix:/y model=b',
  ].map((l) => [`an engine with ${l}`,
    { http: `tokenring_engine x unix:/x ${l};` }, /duplicate parameter "/]),
  ['an engine that idles but is not on demand',
    { http: 'tokenring_engine x unix:/x idle=5m;' },
    /start_timeout=, idle= and model= are only for engines with start=ondemand/],
  ['a plan that nobody defines', { location: 'tokenring_limits none;' },
    /no tokenring_plan "none" is defined, it is named in/],
  ['a plan twice', { http: 'tokenring_plan p in=1/m;tokenring_plan p in=1/m;' },
    /"tokenring_plan".* duplicate/],
  ...['in=5', 'in=0/m', 'in=5/y', 'seat=20', 'in=5k', 'in=-1/m'].map((l) => [
    `a plan with ${l}`, { http: `tokenring_plan p ${l};` },
    /invalid limit ".*", expected requests=, in=, out= or tokens=/]),
  ...['seats=0', 'queue=65536', 'choices=4097', 'share=1001', 'hosts=1001', 'wait=0',
    'wait=soon'].map((l) => [`a plan with ${l}`,
    { http: `tokenring_plan p ${l};` },
    new RegExp(`invalid ${l.split('=')[0]} in "${l}", expected`)]),
  ['a plan of a tier that there is not', { http: 'tokenring_plan p tier=x;' },
    /invalid tier in "tier=x", expected flex, default or priority/],
  ['a plan of too little for its hosts', { http: 'tokenring_plan p in=2/m '
    + 'hosts=3;' }, /"in=2\/m" is less than one for each of 3 hosts/],
  ['a plan of too few seats for its hosts', { http: 'tokenring_plan p seats=2 '
    + 'hosts=3;' }, /seats=2 is less than one for each of 3 hosts/],
  ['a shared plan of one budget twice', { http: 'tokenring_plan p out=10/m '
    + 'out=20/m shared;' }, /"out=10\/m" and "out=20\/m" of the shared plan "p"/],
  ['a plan of seats twice', { http: 'tokenring_plan p seats=1 seats=2;' },
    /duplicate seats in "seats=2"/],
  ['a plan with a queue for nothing', { http: 'tokenring_plan p queue=1;' },
    /plan "p" has queue= without seats=, expected both/],
  ['a plan that waits nowhere', { http: 'tokenring_plan p seats=1 wait=1s;' },
    /plan "p" has wait= without queue=, expected both/],
  ['a plan of too much', { http: `tokenring_plan p ${'in=1/m '.repeat(9)};` },
    /too many limits of plan "p", expected no more than 8/],
  ['tenants without a zone', { http: 'tokenring_tenants 8m;' },
    /invalid parameter "8m", expected zone=NAME:SIZE/],
  ['tenants with a small zone', { http: 'tokenring_tenants zone=t:4k;' },
    /invalid zone size in "zone=t:4k", expected at least/],
  ['a buffer of nothing', { location: 'tokenring_buffer_size 0;' },
    /"tokenring_buffer_size" directive must not be 0/],
  ['tokenring_pass without a name', { location: 'tokenring_pass;' },
    /arguments/],
  ['a size that is none', { location: 'tokenring_buffer_size big;' },
    /tokenring_buffer_size|invalid/],
  ['a time that is none', { location: 'tokenring_idle_timeout soon;' },
    /tokenring_idle_timeout|invalid/],
  ['a time twice', {
    location: 'tokenring_idle_timeout 1s; tokenring_idle_timeout 2s;',
  }, /duplicate/],
  ['a time of nothing', { location: 'tokenring_queue_timeout 0;' },
    /tokenring_queue_timeout/],
  ['tokenring_pass in http', { http: 'tokenring_pass main;' },
    /not allowed here/],
  ['tokenring_error with an argument', {
    server: 'location = /x { tokenring_error main; }',
  }, /arguments/],
  ['health of an unknown engine', {
    server: 'location = /x { tokenring_health other; }',
  }, /other/],
]) {
  test(`nginx.conf: ${what}`, () => nginx(options, message));
}

test('nginx.conf: what looks alike and is right', async () => {
  checker = new Stack({ engine: null });
  try {
    checker.port = 1;
    checker.configure({
      http: 'tokenring_engine alias unix:/tmp/x.sock;'
        + 'tokenring_engine again unix:/tmp/x.sock;',
      location: 'tokenring_resumable on; tokenring_retry_buffer 0;'
        + 'if ($http_x_old) { proxy_pass http://127.0.0.1:9; }'
        + 'limit_except POST { deny all; }',
      server: `location /closed/ { tokenring_pass alias; return 403; }
        location /mixed/ {
            proxy_pass http://127.0.0.1:9;
            if ($http_x_new) { tokenring_pass main; }
            location /mixed/old/ { proxy_pass http://127.0.0.1:9; }
        }
        location /v1/requests/ {
            tokenring_pass again;
            tokenring_redis 127.0.0.1:9;
        }`,
    });
    const out = checker.nginx('-t');
    assert.equal(out.status, 0, out.text);
  } finally {
    await checker.stop();
  }
});
