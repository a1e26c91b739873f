'use strict';
//
// docker/ without a container engine: the Dockerfile calls scripts and targets
// that exist and copies what is there; compose.yaml keeps to the Compose
// specification and to what docs/images.md promises.  Building the images' roots
// takes minutes and is tests/docker/check.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const { parse, lint, lineage } = require('../../docker/dockerfile');
const { read, validate, asCompose } = require('../../docker/compose');
const { ROOT } = require('../lib/stack');

const FINALS = ['nginx', 'engine-cpu', 'engine-cuda'];

test('the Dockerfile: every step is one of our scripts, every source is there',
  () => {
    const file = parse();
    assert.deepEqual(lint(file, { finals: FINALS }), []);
    for (const name of FINALS) {
      const { image } = lineage(file, name);
      assert.match(image, /^debian:bookworm/, `${name} is Debian 12`);
    }
  });

test('the Dockerfile: what is wrong is found', () => {
  const text = fs.readFileSync(path.join(ROOT, 'docker/Dockerfile'), 'utf8');
  for (const [from, to, what] of [
    ['RUN scripts/deps.sh build', 'RUN scripts/dep.sh build', /no scripts\/dep/],
    ['RUN scripts/deps.sh build', 'RUN apt-get update', /belongs in a script/],
    [' install DESTDIR', ' instal DESTDIR', /no target instal/],
    ['COPY docker/nginx-conf.sh', 'COPY docker/conf.sh', /no docker\/conf/],
    ['--from=build-cuda', '--from=later', /no stage later/],
    ['USER 10002:10001', 'USER root', /runs as root/],
    ['debian:bookworm-slim', 'debian', /has no tag/],
  ]) {
    assert.ok(text.includes(from), from);
    const bad = lint(parse(text.replace(from, to)), { finals: FINALS });
    assert.ok(bad.some((line) => what.test(line)), `${to}: ${bad}`);
  }
  assert.throws(() => parse(text.replace('EXPOSE', 'ADD')), /cannot read/);
});

test('compose.yaml: valid, pinned, nobody root, nothing writable', () => {
  const compose = read();
  assert.deepEqual(validate(compose), []);
  assert.deepEqual(Object.keys(compose.services).sort(), ['engine',
    'engine-gpu', 'grafana', 'nginx', 'prometheus', 'redis']);
  assert.deepEqual(compose.services['engine-gpu'].profiles, ['gpu']);
});

test('compose.yaml: what is wrong is found', () => {
  const break_ = (change) => {
    const compose = read();
    change(compose.services, compose);
    return validate(compose).join('\n');
  };
  for (const [change, what] of [
    [(s) => { s.redis.imag = 'x'; }, /additional properties/],
    [(s) => { s.redis.healthcheck.interval = 5; }, /must be string/],
    [(s) => { delete s.redis.healthcheck; }, /redis: has no health check/],
    [(s) => { s.redis.image = 'redis:latest'; }, /not pinned/],
    [(s) => { s.redis.user = '0:0'; }, /not a number other than 0/],
    [(s) => { s.engine.user = '10009:10001'; }, /the image's is 10001/],
    [(s) => { s.nginx.read_only = false; }, /read_only/],
    [(s) => { s.nginx.cap_add = ['NET_RAW']; }, /should not have/],
    [(s) => { s.nginx.ports = ['8080:8080']; }, /open to the world/],
    [(s) => { s.nginx.build.target = 'web'; }, /no target web/],
    [(s) => { s.nginx.depends_on = ['engine']; }, /a profile may leave out/],
    [(s) => { s.grafana.volumes = ['../conf/graf:/x:ro']; }, /no ..\/conf\/graf/],
    [(s, c) => { delete c.volumes.socket; }, /socket is not declared/],
  ]) {
    assert.match(break_(change), what);
  }
});

const asked = asCompose();

test('compose.yaml: Compose itself takes it, with each profile',
  { skip: asked === null && 'docker-compose is not installed' }, () => {
    assert.deepEqual(asked, []);
    const text = fs.readFileSync(path.join(ROOT, 'docker/compose.yaml'), 'utf8');
    const bad = asCompose(text.replace('read_only:', 'read_onl:'));
    assert.match(bad.join('\n'), /read_onl/);
  });

// The shipped configuration, as the image has it, is one that NGINX would take.
test('nginx-conf.sh finds every line that it changes', () => {
  const dir = fs.mkdtempSync('/tmp/tokenring-image-');
  try {
    for (const name of ['nginx.conf', 'tokenring.conf']) {
      fs.copyFileSync(path.join(ROOT, 'conf', name), path.join(dir, name));
    }
    const script = path.join(ROOT, 'docker/nginx-conf.sh');
    const out = spawnSync(script, [dir], { encoding: 'utf8' });
    assert.equal(out.status, 0, out.stderr);
    const text = fs.readFileSync(path.join(dir, 'nginx.conf'), 'utf8')
      + fs.readFileSync(path.join(dir, 'tokenring.conf'), 'utf8');
    assert.doesNotMatch(text, /^user |\/var\/log|\/run\/nginx/m);
    // Done twice it says so, and does no harm quietly.
    fs.writeFileSync(path.join(dir, 'tokenring.conf'), '# empty\n');
    const bad = spawnSync(script, [dir], { encoding: 'utf8' });
    assert.equal(bad.status, 1);
    assert.match(bad.stderr, /no line has become/);
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
});
