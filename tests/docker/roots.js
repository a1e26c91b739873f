'use strict';
//
// Clean Debian roots without a container engine: directories made by debootstrap
// (kept for the next time), in which tests/docker/check runs the steps of an
// image and tests/packages/check a whole system.
//
//   TR_ROOTS=DIR   where the roots are made (build/docker-check)

const fs = require('node:fs');
const path = require('node:path');
const { spawnSync } = require('node:child_process');

const ROOT = path.join(__dirname, '../..');
const ROOTS = path.resolve(process.env.TR_ROOTS
  || path.join(ROOT, 'build/docker-check'));
const mounted = [];

function run(command, args, options = {}) {
  const out = spawnSync(command, args, {
    stdio: ['ignore', 'inherit', 'inherit'], ...options,
  });
  if (out.status !== 0) {
    throw new Error(`${command} ${args.join(' ')}: ${out.error
      || `exit status ${out.status}`}`);
  }
  return out;
}

function step(text) {
  process.stdout.write(`==> ${text}\n`);
}

// The first mirror that this system's apt knows for its own release.
function mirror() {
  const dir = '/etc/apt/sources.list.d';
  const files = ['/etc/apt/sources.list',
    ...(fs.existsSync(dir) ? fs.readdirSync(dir).map((f) => `${dir}/${f}`)
      : [])].filter((f) => fs.existsSync(f));
  for (const file of files) {
    const text = fs.readFileSync(file, 'utf8').replace(/^#.*$/gm, '');
    const m = /\bURIs:\s*(\S+debian)\/?\s*$/m.exec(text)
      || /^deb\s+(?:\[.*?\]\s+)?(\S+debian)\/?\s+bookworm\s/m.exec(text);
    if (m) return { url: m[1], file, text };
  }
  return { url: 'http://deb.debian.org/debian' };
}

function makeBase(image) {
  const suite = /^debian:(\w+)/.exec(image);
  if (!suite) throw new Error(`${image} is not a Debian image`);
  const base = path.join(ROOTS, `base-${suite[1]}`);
  if (fs.existsSync(`${base}.made`)) return base;
  step(`debootstrap ${suite[1]}`);
  fs.rmSync(base, { recursive: true, force: true });
  const from = mirror();
  run('debootstrap', ['--variant=minbase', suite[1], base, from.url],
    { stdio: ['ignore', 'ignore', 'inherit'] });
  // How apt gets out of here is this system's business.
  const conf = '/etc/apt/apt.conf.d';
  for (const name of fs.existsSync(conf) ? fs.readdirSync(conf) : []) {
    const text = fs.readFileSync(`${conf}/${name}`, 'utf8');
    if (/^\s*Acquire/m.test(text)) {
      fs.writeFileSync(path.join(base, conf, name), text);
    }
  }
  fs.writeFileSync(`${base}.made`, '');
  return base;
}

function mount(root, what, at, options) {
  const target = path.join(root, at);
  fs.mkdirSync(target, { recursive: true });
  run('mount', [...options, what, target]);
  mounted.push(target);
}

function unmount(root) {
  for (const target of mounted.filter((t) => t.startsWith(`${root}/`))
    .reverse()) {
    run('umount', ['-l', target]);
    mounted.splice(mounted.indexOf(target), 1);
  }
}

// What `COPY . .` of a Dockerfile takes: the files that git knows or would,
// without what .dockerignore names (which is what git ignores).
function copyTree(root, to) {
  const list = spawnSync('git', ['ls-files', '-z', '--cached', '--others',
    '--exclude-standard'], { cwd: ROOT, maxBuffer: 1 << 26 });
  const files = list.stdout.toString().split('\0').filter((f) =>
    f && fs.existsSync(path.join(ROOT, f))).join('\0');
  const tar = spawnSync('tar', ['-C', ROOT, '--null', '-T', '-', '-cf', '-'],
    { input: files, maxBuffer: 1 << 29 });
  fs.mkdirSync(path.join(root, to), { recursive: true });
  run('tar', ['-C', path.join(root, to), '-xf', '-'],
    { input: tar.stdout, stdio: ['pipe', 'inherit', 'inherit'] });
}

function chroot(root, cwd, command) {
  run('chroot', [root, '/usr/bin/env', '-i', 'HOME=/root', 'LC_ALL=C',
    'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
    '/bin/sh', '-c', `cd ${cwd} && ${command}`]);
}

module.exports = {
  ROOT, ROOTS, run, step, makeBase, mount, unmount, copyTree, chroot,
};
