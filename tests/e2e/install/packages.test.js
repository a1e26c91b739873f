'use strict';
//
// debian/ in seconds: what make install installs is in exactly one package, or
// said to be in none.  Building the packages and trying them is make test-deb.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { ROOT, BUILD, MODULE, read } = require('../lib/stack');

const DEBIAN = path.join(ROOT, 'debian');
const lines = (name) => read(path.join(DEBIAN, name)).split('\n').filter(Boolean);

test('packages: every installed file is in one of them',
  { skip: MODULE === 'static' && 'the module is built into this nginx' },
  (t) => {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-e2e-'));
    t.after(() => fs.rmSync(dir, { recursive: true, force: true }));
    const out = spawnSync(path.join(ROOT, 'scripts/install.sh'), {
      env: { ...process.env, B: BUILD, DESTDIR: dir, PREFIX: '/usr',
        TR_MODULE: MODULE }, encoding: 'utf8',
    });
    assert.equal(out.status, 0, out.stderr);
    const packages = fs.readdirSync(DEBIAN).filter((name) =>
      name.endsWith('.install') || name === 'not-installed');
    assert.equal(packages.length, 5, packages.join(' '));
    // Only where make cuda was run is there something for it.
    const cuda = 'tokenring-engine-cuda.install';
    const files = fs.readdirSync(dir, { recursive: true })
      .filter((name) => !fs.statSync(path.join(dir, name)).isDirectory());
    const homes = (file) => packages.filter((name) => lines(name)
      .some((entry) => file === entry || file.startsWith(`${entry}/`)));
    for (const file of files) {
      // A module for another NGINX has another name there.
      if (file.endsWith('.so') && file.includes('nginx/modules')) continue;
      assert.equal(homes(file).length, 1, `${file}: ${homes(file)}`);
    }
    for (const name of packages.filter((p) => p !== cuda)) {
      for (const entry of lines(name).filter((e) => !e.endsWith('.so'))) {
        assert.ok(fs.existsSync(path.join(dir, entry)), `${name}: ${entry}`);
      }
    }
  });
