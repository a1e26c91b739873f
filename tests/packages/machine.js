'use strict';
//
// A clean Debian that runs as a system, with systemd and a network of its own:
// a root made by debootstrap, started by systemd-nspawn.

const fs = require('node:fs');
const path = require('node:path');
const { spawn, spawnSync } = require('node:child_process');
const { setTimeout: sleep } = require('node:timers/promises');
const { ROOTS, run, step, makeBase, chroot } = require('../docker/roots');

// Says yes, as somebody at a terminal would; nothing else is changed.
const APT = `APT::Get::Assume-Yes "true";
Dpkg::Use-Pty "false";
`;

class Machine {
  // packages: what it has from the archive.
  constructor(name, packages) {
    this.root = path.join(ROOTS, name);
    step(`a Debian with ${packages.join(', ')}`);
    run('rm', ['-rf', '--one-file-system', this.root]);
    run('cp', ['-a', makeBase('debian:bookworm'), this.root]);
    fs.copyFileSync('/etc/resolv.conf', this.file('/etc/resolv.conf'));
    this.write('/etc/apt/apt.conf.d/90yes', APT);
    // No service starts while there is no system.
    const policy = '/usr/sbin/policy-rc.d';
    this.write(policy, '#!/bin/sh\nexit 101\n');
    fs.chmodSync(this.file(policy), 0o755);
    this.apt(`update && apt-get -qq install --no-install-recommends ${
      packages.join(' ')}`);
    fs.rmSync(this.file(policy));
  }

  file(name) {
    return path.join(this.root, name);
  }

  read(name) {
    return fs.readFileSync(this.file(name), 'utf8');
  }

  write(name, text) {
    fs.mkdirSync(path.dirname(this.file(name)), { recursive: true });
    fs.writeFileSync(this.file(name), text);
  }

  // Before it is started; it has no network afterwards.
  apt(command) {
    chroot(this.root, '/', `export DEBIAN_FRONTEND=noninteractive
      { apt-get -qq ${command}; } >/var/log/apt-setup.log 2>&1 \
      || { cat /var/log/apt-setup.log; exit 1; }`);
  }

  async boot() {
    const log = fs.openSync(`${this.root}.log`, 'w');
    this.nspawn = spawn('systemd-nspawn', ['-q', '-D', this.root, '--boot',
      '--register=no', '--keep-unit', '--private-network',
      '-M', `tokenring-${process.pid}`],
    { stdio: ['ignore', log, log], detached: true });
    fs.closeSync(log);
    this.nspawn.on('exit', (code) => { this.ended = code; });
    const children = `/proc/${this.nspawn.pid}/task/${this.nspawn.pid}/children`;
    for (let tries = 0; tries < 600; tries++) {
      if (this.ended !== undefined) break;
      for (const pid of fs.readFileSync(children, 'utf8').split(' ')) {
        // nspawn's own helper has another name.
        if (pid && fs.readFileSync(`/proc/${pid}/comm`, 'utf8')
          === 'systemd\n') this.leader = pid;
      }
      if (this.leader && this.try('systemctl is-system-running').out
        .match(/running|degraded/)) return;
      await sleep(100);
    }
    throw new Error(`the system does not start:\n${
      fs.readFileSync(`${this.root}.log`, 'utf8').slice(-2000)}`);
  }

  // The arguments that run a command in it.
  enter(command) {
    return ['nsenter', ['-a', '-t', this.leader, 'env', '-i', 'HOME=/root',
      'LC_ALL=C', 'DEBIAN_FRONTEND=noninteractive',
      'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
      'bash', '-c', command]];
  }

  try(command) {
    const out = spawnSync(...this.enter(command), { encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'], timeout: 300000 });
    return { status: out.status, out: `${out.stdout}${out.stderr}` };
  }

  // What it said.
  run(command) {
    const { status, out } = this.try(command);
    if (status !== 0) throw new Error(`${command}: ${status}\n${out}`);
    return out;
  }

  // Until it succeeds.
  async until(command, seconds = 20) {
    for (let tries = 0; ; tries++) {
      const { status, out } = this.try(command);
      if (status === 0) return out;
      if (tries > seconds * 5) throw new Error(`${command}: never\n${out}`);
      await sleep(200);
    }
  }

  // Runs beside the rest; its end is the caller's.
  start(command) {
    const [file, args] = this.enter(command);
    return spawn(file, args, { stdio: 'ignore', detached: true });
  }

  kill() {
    if (this.nspawn && this.ended === undefined) {
      if (this.leader) process.kill(Number(this.leader), 'SIGKILL');
      process.kill(-this.nspawn.pid, 'SIGKILL');
    }
  }
}

module.exports = { Machine };
