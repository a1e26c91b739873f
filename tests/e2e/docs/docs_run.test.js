'use strict';
//
// Every command of README.md and docs/, page by page, as it stands there: blocks
// marked sh run in their order, and the first that fails ends its page.  They run
// where nothing else does: a network of their own with a loopback only, an empty
// /tmp, /run and /srv, an /etc that may be changed, a build/run of its own, and
// what make install installs in PATH.
//
// Not here: docs/administration.md, whose commands install on a clean Debian with
// systemd (tests/packages/check, make test-deb), and docs/cookbook.md
// (cookbook.test.js).  A block below "<!-- not run: WHY -->" is not run; lines of
// one below "<!-- until stopped -->" run for some seconds each.
//
// Needs root, for the namespaces.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { BUILD, MODULE } = require('../lib/stack');
const { ROOT, PAGES, blocks } = require('../lib/docs');

const ELSEWHERE = ['docs/administration.md', 'docs/cookbook.md'];

// What a reader has who comes to the page.
const BEFORE = {
  'README.md': 'cp -R models/pocket /srv/models/X',
  'docs/getting-started.md':
    'cp -R models/pocket /srv/models/Qwen2.5-0.5B-Instruct',
  'docs/engine.md': `mkdir /run/tokenring /etc/tokenring
    sed "s|^model .*|model $PWD/models/pocket|" conf/engine.conf \
      >/etc/tokenring/engine.conf`,
  'docs/api.md': 'make -s up',
  'docs/tools.md': 'make -s up',
  'docs/dashboard.md': 'mkdir -p /etc/prometheus /etc/grafana/provisioning',
  'docs/kv-cache.md': `cp -R models/pocket /srv/models/X; cd /tmp
    cp /srv/cases.jsonl cases.jsonl`,
  'docs/eval.md': `cp -R models/pocket /srv/models/X; cd /tmp
    ln -s $OLDPWD/models models; ln -s $OLDPWD/tests tests
    cp /srv/cases.jsonl cases.jsonl
    for i in $(seq 200); do
        echo "The amber key number $i from Penholm costs 793 crowns."
    done >text.txt`,
};

// What cannot be meant in here, and what stands for it.
const INSTEAD = [
  [/^make test\b.*$/m, 'make -n test >/dev/null'], // this is part of it
];

function script(page, list) {
  const lines = [`set -e; cd "${ROOT}"; mkdir -p /srv/models`,
    BEFORE[page] || ':'];
  for (const b of list) {
    let { text } = b;
    for (const [what, other] of INSTEAD) text = text.replace(what, other);
    lines.push(`echo "==> ${page}:${b.line}"`);
    if (b.note === 'until stopped') {
      for (const line of text.trim().split('\n')) {
        lines.push(`timeout -s INT 4 ${line.replace(/ +#.*/, '')} </dev/null \
          || [ $? = 124 ] || { echo "failed: ${line}"; exit 1; }`);
      }
    } else {
      lines.push(`bash -ec '${text.replaceAll('\'', '\'\\\'\'')}' </dev/null`);
    }
  }
  return lines.join('\n');
}

// Mounts, then the script; the namespace of processes takes all with it.
const SANDBOX = `set -e
ip link set lo up
mount -t tmpfs none /run
cp -a /etc "$HERE/etc" && mount --bind "$HERE/etc" /etc
mkdir -p "$BUILD/run" && mount -t tmpfs none "$BUILD/run"
mount -t tmpfs none /srv
cp "$HERE"/cases.jsonl /srv/ 2>/dev/null || true
case "$ROOT" in /tmp/*) ;; *)
    mount -t tmpfs none /tmp; chmod 1777 /tmp ;;
esac
export HOME=/srv/home; mkdir -p $HOME
exec bash /dev/fd/3 3<<<"$SCRIPT"`;

function can() {
  if (process.getuid() !== 0) return 'needs root';
  if (MODULE === 'static') return 'the module is built into this nginx';
  const out = spawnSync('unshare', ['-mnpf', 'ip', 'link', 'set', 'lo', 'up'],
    { encoding: 'utf8' });
  return out.status === 0 ? false : `no namespaces: ${out.stderr}`;
}

const skip = can();
for (const page of PAGES.filter((p) => !ELSEWHERE.includes(p))) {
  const list = blocks(page).filter((b) => b.language === 'sh'
    && !b.note.startsWith('not run'));
  if (list.length === 0) continue;
  test(`${page}: what is typed works`, { skip }, (t) => {
    const here = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-docs-'));
    t.after(() => fs.rmSync(here, { recursive: true, force: true }));
    const cases = blocks('docs/eval.md').find((b) => b.mark === 'cases.jsonl');
    fs.writeFileSync(path.join(here, 'cases.jsonl'), cases.text);
    const out = spawnSync('unshare', ['-mnpf', '--mount-proc', '--kill-child',
      'bash', '-c', SANDBOX], {
      stdio: ['ignore', 'pipe', 'pipe'], encoding: 'utf8', timeout: 300000,
      env: {
        PATH: `${BUILD}/bin:/usr/sbin:/usr/bin:/sbin:/bin:${path.dirname(
          process.execPath)}`,
        LC_ALL: 'C.UTF-8', B: BUILD, NO_COLOR: '1', HERE: here, ROOT, BUILD,
        SCRIPT: script(page, list),
      },
    });
    assert.equal(out.status, 0, `${out.stdout.slice(-3000)}${out.stderr}`);
  });
}
