'use strict';
//
// The documentation as text: blocks say what they are, tables have as many cells
// in each row as in their head, NGINX accepts what is shown to it, Redis the ACL
// lines, and pages name all directives and settings that there are.  Commands are
// run by docs_run.test.js.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { Stack, BUILD, ENGINE, MODULE, POCKET, until } = require('../lib/stack');
const { request, post } = require('../lib/http');
const { Redis } = require('../lib/redis');
const { ROOT, PAGES, blocks } = require('../lib/docs');

const read = (name) => fs.readFileSync(path.join(ROOT, name), 'utf8');
const ALL = PAGES.flatMap((page) => blocks(page));
const at = (b) => `${b.file}:${b.line}`;

test('commands stand in blocks of sh', () => {
  const command = new RegExp('^ *(?:[A-Z_]+=\\S+ )*(?:sudo )?(make|curl|tokenring'
    + '|tokenring-engine|build/bin/\\S+|git|docker|systemctl|apt|apt-get|nginx'
    + '|pip|npm|cd|cp|ln|mkdir|tests/\\S+|scripts/\\S+) +[^ :={]');
  const wrong = ALL.filter((b) => ['', 'text', 'bash', 'console']
    .includes(b.language)
    && b.text.split('\n').some((line) => command.test(line)));
  assert.deepEqual(wrong.map(at), []);
  // Indented ones are text.
  const indented = PAGES.flatMap((page) => {
    let fenced = false;
    return read(page).split('\n').map((line, i) => {
      if (line.startsWith('```')) fenced = !fenced;
      return !fenced && /^ {4}/.test(line) && command.test(line)
        ? `${page}:${i + 1}: ${line}` : '';
    }).filter(Boolean);
  });
  assert.deepEqual(indented, []);
});

test('a block that is not run says why', () => {
  for (const b of ALL.filter((x) => /^not run/.test(x.note))) {
    assert.match(b.note, /^not run: \w.{8,}/, at(b));
    assert.equal(b.language, 'sh', at(b));
  }
});

// Cells of a row; a bar within `code` divides cells, too, unless it is escaped.
const cells = (line) => line.replace(/\\\|/g, '').trim().replace(/^\||\|$/g, '')
  .split('|').length;

test('tables render', () => {
  const wrong = [];
  for (const page of PAGES) {
    let fenced = false;
    let head = 0;
    const lines = read(page).split('\n');
    for (const [i, line] of lines.entries()) {
      if (line.startsWith('```')) fenced = !fenced;
      if (fenced || !line.startsWith('|')) {
        head = 0;
        continue;
      }
      const where = `${page}:${i + 1}: ${line.slice(0, 60)}`;
      if (head === 0) {
        head = cells(line);
        if (!/^\|( *:?-+:? *\|)+$/.test(lines[i + 1] || '')) {
          wrong.push(`${where}: no line of dashes below`);
        }
        if (i > 0 && lines[i - 1] !== '' && !lines[i - 1].startsWith('<')) {
          wrong.push(`${where}: no empty line above`);
        }
      } else if (cells(line) !== head) {
        wrong.push(`${where}: ${cells(line)} cells, not ${head}`);
      }
    }
  }
  assert.deepEqual(wrong, []);
});

// What stands around a piece of configuration, by what it begins with.
function whole(text) {
  const levels = { http: /^ *http \{/m, server: /^ *server \{/m };
  if (levels.http.test(text)) return text.replace(/^http \{|^\}$/gm, '');
  if (levels.server.test(text)
    || /^(map|upstream|tokenring_engine|split_clients|\w+_zone)\b/m.test(text)) {
    return text;
  }
  return `server { listen 127.0.0.1:1; ${text} }`;
}

const PIECES = ALL.filter((b) => b.language === 'nginx'
  && b.file !== 'docs/cookbook.md'); // its own test serves what is there

for (const b of PIECES) {
  test(`NGINX accepts ${b.title} (${at(b)})`, async () => {
    const stack = new Stack({ engine: null, http2: true });
    try {
      stack.port = 1;
      stack.tlsPort = 2;
      spawnSync('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes',
        '-subj', '/CN=x', '-keyout', `${stack.dir}/key.pem`, '-out',
        `${stack.dir}/cert.pem`]);
      fs.writeFileSync(path.join(stack.dir, 'password'), 'sesame\n');
      const named = [...b.text.matchAll(/tokenring_pass (\w+)/g)]
        .map((m) => m[1]).filter((name) => name !== 'main'
          && !b.text.includes(`tokenring_engine ${name} `));
      let text = whole(b.text)
        .replace(/listen \d+ ssl/g, 'listen 127.0.0.1:3 ssl')
        .replace(/# ssl_certificate .*/, `ssl_certificate ${stack.dir}/cert.pem;
          ssl_certificate_key ${stack.dir}/key.pem;`)
        .replace(/\/etc\/tokenring\/redis-password/g, `${stack.dir}/password`)
        .replace(/\/usr\/share\/tokenring\//g, `${ROOT}/`);
      for (const name of new Set(named)) {
        text += `\ntokenring_engine ${name} unix:/tmp/x.sock;`;
      }
      stack.configure({ http: text });
      const out = stack.nginx('-t');
      assert.equal(out.status, 0, `${out.text}\n${text}`);
    } finally {
      await stack.stop();
    }
  });
}

// What a stream has said when it matches.
function first(url, what) {
  return new Promise((resolve, reject) => {
    const req = http.get(url, { agent: false }, (res) => {
      let all = '';
      res.setEncoding('utf8').on('data', (d) => {
        all += d;
        if (!/"type":"tick".*\n/.test(all)) return;
        if (!what.test(all)) return;
        req.destroy();
        resolve(all);
      });
    });
    req.on('error', reject);
    req.setTimeout(60000, () => reject(new Error('nothing comes')));
  });
}

// Each line as somebody pastes it into redis-cli, and then used.
test('the ACL lines of Redis suffice for what they are for', async () => {
  const redis = await Redis.start();
  const lines = ALL.filter((b) => b.language === 'redis').flatMap((b) =>
    b.text.trim().split('\n'));
  let stack;
  try {
    const users = lines.map((line) => {
      const out = spawnSync('redis-cli', ['-h', '127.0.0.1', '-p',
        String(redis.port)], { input: line.replace('PASSWORD', 'sesame'),
        encoding: 'utf8' });
      assert.equal(out.stdout.trim(), 'OK', line);
      return /SETUSER (\w+)/.exec(line)[1];
    });
    assert.deepEqual([...new Set(users)].sort(),
      ['dashboard', 'nginx', 'tokenring']);
    const password = path.join('/tmp', `tokenring-acl-${process.pid}`);
    fs.writeFileSync(password, 'sesame\n');
    stack = await Stack.start({
      engine: { kv_memory: '32m', redis: redis.address, redis_user: 'tokenring',
        redis_password_file: password },
      http: `tokenring_redis ${redis.address} user=nginx
        password_file=${password};
        tokenring_plan some requests=10/d shared;`,
      location: 'tokenring_resumable on; tokenring_limits some;',
      server: `location /dashboard/ {
        tokenring_dashboard ${path.join(ROOT, 'dashboard')};
        tokenring_redis ${redis.address} user=dashboard
          password_file=${password};
      }`,
    });
    fs.rmSync(password);
    const out = await post(`${stack.url}/v1/chat/completions`, { model: 'pocket',
      max_tokens: 4, messages: [{ role: 'user', content: 'Hello!' }] });
    assert.equal(out.status, 200, out.text);
    assert.equal(out.headers['x-ratelimit-remaining-requests'], '9');
    const id = out.headers['x-tokenring-id'];
    const ask = (rest = '', method = 'GET') =>
      request(`${stack.url}/v1/requests/${id}${rest}`, { method });
    await until(async () => (await ask()).text.includes('"state":"done"')
      || (await ask()).text.includes('"state": "done"'), 'it is in Redis');
    assert.equal((await ask('/stream')).status, 200);
    assert.equal((await ask('', 'DELETE')).status, 200);
    assert.equal((await stack.metrics()).value('tokenring_redis_refusals_total'),
      0);
    const seen = await first(`${stack.url}/dashboard/events`,
      /"redis":"up"/);
    assert.match(seen, /"name":"main"/);
    const log = fs.readFileSync(stack.engine.log, 'utf8') + stack.errorLog();
    assert.doesNotMatch(log, /NOPERM/);
  } finally {
    if (stack) await stack.stop();
    await redis.stop();
  }
});

const sources = fs.readdirSync(path.join(ROOT, 'ngx_module'),
  { recursive: true }).filter((name) => /\.[ch]$/.test(name))
  .map((name) => read(`ngx_module/${name}`)).join('');

test('names of directives, variables and metrics are there', () => {
  const known = new Set(sources.match(/tokenring_[a-z0-9_]+/g));
  for (const page of PAGES) {
    const unknown = (read(page).match(/\btokenring_[a-z0-9_]+[a-z0-9]\b(?!_)/g) || [])
      .filter((name) => !known.has(name)
        && !known.has(name.replace(/_(bucket|sum|count)$/, '')));
    assert.deepEqual(unknown, [], page);
  }
});

test('files that are named are there', () => {
  const named = new RegExp('(?<![\\w/.:<-])((?:tests|scripts|conf|engine|kernels|cli'
    + '|ngx_module|docker|models|include|mk|dashboard|debian|docs)'
    + '/[\\w./@-]*\\w/?)(?![\\w*])', 'g');
  for (const page of PAGES) {
    const missing = [...read(page).matchAll(named)].map((m) => m[1])
      .filter((name) => !/[A-Z]{4}/.test(name.replace('README', '')))
      .filter((name) => !fs.existsSync(path.join(ROOT, name))
        && !['.c', '.h'].some((end) => fs.existsSync(path.join(ROOT,
          `${name}${end}`))));
    assert.deepEqual(missing, [], page);
  }
});

test('directives.md has every directive, and no other', () => {
  const there = [...sources.matchAll(/ngx_string\("(tokenring_\w+)"\),\n\s+NGX_/g)]
    .map((m) => m[1]).sort();
  const said = [...read('docs/directives.md').matchAll(/^### (tokenring_\w+)$/gm)]
    .map((m) => m[1]).sort();
  assert.ok(there.length > 15, `${there}`);
  assert.deepEqual(said, there);
});

test('engine.md has every setting, with its default', () => {
  const help = spawnSync(ENGINE, ['--help'], { encoding: 'utf8' }).stdout;
  const page = read('docs/engine.md');
  // Said in other words there.
  const words = { empty: /none|found|all|default|the host|the system|last part|required|NAME/ };
  for (const [, key, value] of help.matchAll(
    /^ +--(\w+) +\(default: (.*)\)$/gm)) {
    const row = page.split('\n').find((line) => line.startsWith('|')
      && line.split('|')[1].includes(`\`${key}\``));
    assert.ok(row, `${key} is in no table`);
    const cell = row.split('|')[2];
    const bare = cell.replace(/`/g, '').trim();
    assert.ok(bare === value || (words[value] || /$^/).test(cell)
      || (value === '0' && /all cores|the model's/.test(cell)),
    `${key}: the page says ${cell}, --help ${value}`);
  }
});

test('the engine takes each line of an engine.conf that is shown', () => {
  const shown = ALL.filter((b) => b.language === 'conf').flatMap((b) =>
    b.text.trim().split('\n').map((line) => [at(b), line]));
  assert.ok(shown.length >= 3);
  const file = path.join('/tmp', `tokenring-docs-${process.pid}.conf`);
  for (const [where, line] of shown) {
    fs.writeFileSync(file, line);
    const out = spawnSync(ENGINE, ['-c', file, '--check', '--model', POCKET,
      '--socket', '/tmp/x.sock'], { encoding: 'utf8' });
    assert.equal(out.status, 0, `${where}: ${line}: ${out.stderr}`);
  }
  fs.rmSync(file);
});

test('administration.md names all that make install installs',
  { skip: MODULE === 'static' && 'the module is built into this nginx' }, (t) => {
    const dir = fs.mkdtempSync(path.join('/tmp', 'tokenring-e2e-'));
    t.after(() => fs.rmSync(dir, { recursive: true, force: true }));
    const out = spawnSync(path.join(ROOT, 'scripts/install.sh'), {
      env: { ...process.env, B: BUILD, DESTDIR: dir, PREFIX: '/usr',
        TR_MODULE: MODULE }, encoding: 'utf8' });
    assert.equal(out.status, 0, out.stderr);
    const [, section] = read('docs/administration.md')
      .split('\n## Install from source\n');
    const named = [...section.split('\n\n## ')[0]
      .matchAll(/^\| (`.*?) \|/gm)].flatMap((m) => m[1].split(', '))
      .map((name) => name.replace(/`/g, '').replace('PREFIX', '/usr'))
      .flatMap((name) => (name === 'tokenring' ? '/usr/bin/tokenring' : name));
    const files = fs.readdirSync(dir, { recursive: true })
      .map((name) => `/${name}`)
      .filter((name) => !fs.statSync(path.join(dir, name)).isDirectory());
    assert.ok(files.length > 50);
    assert.deepEqual(files.filter((file) => !named.some((name) => file === name
      || file.startsWith(`${name}/`) || path.basename(file) === name)), []);
  });

test('nobody is told to reload NGINX without nginx -t', () => {
  const files = [...PAGES, ...['scripts', 'debian', 'conf'].flatMap((dir) =>
    fs.readdirSync(path.join(ROOT, dir), { recursive: true })
      .map((name) => `${dir}/${name}`))
    .filter((name) => fs.statSync(path.join(ROOT, name)).isFile())];
  const told = files.flatMap((name) => read(name).split('\n')
    .filter((line) => /systemctl (reload|restart) nginx/.test(line))
    .map((line) => `${name}: ${line.trim()}`));
  assert.ok(told.length >= 5, told.join('\n'));
  assert.deepEqual(told.filter((line) =>
    !/nginx -t && systemctl reload nginx/.test(line)), []);
});
