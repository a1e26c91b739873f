'use strict';
//
// Certificates for a test, by the openssl command, in a directory of its own:
// two authorities that know nothing of one another, and what they sign.
//
//   const certs = new Certs();
//   certs.sign('server', { names: ['DNS:redis.test', 'IP:127.0.0.1'] });
//   certs.path('server.pem'), certs.path('server.key'), certs.path('ca.pem')
//   certs.remove();

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'];

class Certs {
  constructor() {
    this.dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-certs-'));
    fs.chmodSync(this.dir, 0o755);
    for (const ca of ['ca', 'other-ca']) {
      this.openssl('req', '-x509', ...KEY, '-nodes', '-days', '2',
        '-subj', `/CN=${ca}`, '-keyout', this.path(`${ca}.key`),
        '-out', this.path(`${ca}.pem`));
    }
  }

  path(name) { return path.join(this.dir, name); }

  openssl(...args) {
    const out = spawnSync('openssl', args, { encoding: 'utf8' });
    if (out.status !== 0) throw new Error(`openssl ${args[0]}: ${out.stderr}`);
  }

  // NAME.pem and NAME.key; password: of the key.
  sign(name, { names = [], ca = 'ca', password } = {}) {
    const ext = this.path(`${name}.ext`);
    fs.writeFileSync(ext, names.length
      ? `subjectAltName=${names.join(',')}\n` : '');
    this.openssl('req', ...KEY,
      ...(password ? ['-passout', `pass:${password}`] : ['-nodes']),
      '-subj', `/CN=${name}`, '-keyout', this.path(`${name}.key`),
      '-out', this.path(`${name}.csr`));
    this.openssl('x509', '-req', '-in', this.path(`${name}.csr`),
      '-CA', this.path(`${ca}.pem`), '-CAkey', this.path(`${ca}.key`),
      '-CAcreateserial', '-days', '2', '-extfile', ext,
      '-out', this.path(`${name}.pem`));
    // the worker's user reads none of them: the master does
    fs.chmodSync(this.path(`${name}.key`), 0o600);
    return this;
  }

  remove() { fs.rmSync(this.dir, { recursive: true, force: true }); }
}

module.exports = { Certs };
