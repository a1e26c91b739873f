'use strict';

// Checks that dependencies run down.  The floors of the program are below, the
// lowest first.  A room is a folder with all that lies in it, except what has a
// floor of its own.  A file may include headers of its own room and of rooms on
// lower floors; not of a higher floor, nor of another room on its own floor.
// So there are no circles between rooms, either.
//
//   node scripts/check-includes.js [ROOT]
//
// Prints each #include that breaks this, and fails when there is one.

const fs = require('fs');
const path = require('path');

const floors = [
  ['include/tokenring', 'kernels', 'engine/base'],
  ['kernels/kv_manager'],
  ['kernels/cpu', 'kernels/cuda', 'ngx_module', 'engine/config'],
  ['kernels/cuda/runtime', 'engine/tokenizer'],
  ['kernels/cuda/gemm', 'kernels/cuda/kv', 'kernels/cuda/layers',
    'kernels/cuda/sampling'],
  ['kernels/cuda/attention'],
  ['engine/grammar', 'engine/sampling', 'engine/template'],
  ['engine/dialect'],
  ['engine/kv/policy', 'engine/prefix'],
  ['engine/store'],
  ['engine/kv', 'engine/model'],
  ['engine/model/cpu', 'engine/model/cuda'],
  ['engine/executor', 'engine/transport'],
  ['engine/scheduler'],
  ['engine/api', 'engine/redis'],
  ['engine/frontend'],
  ['engine'],
  ['cli'],
  ['cli/eval'],
];

// Rooms that may use only these of what is below them.
const only = { ngx_module: ['include/tokenring'] };

const root = path.resolve(process.argv[2] || path.join(__dirname, '..'));
const floor = new Map();
floors.forEach((rooms, i) => rooms.forEach((room) => floor.set(room, i)));

function files(folder) {
  return fs.readdirSync(path.join(root, folder), { withFileTypes: true })
    .flatMap((e) => {
      const name = `${folder}/${e.name}`;
      if (e.isDirectory()) return files(name);
      return /\.(c|h|cu|cuh)$/.test(name) ? [name] : [];
    });
}

// The room of a file; undefined when its folder has no floor.
function roomOf(file) {
  for (let at = path.dirname(file); at !== '.'; at = path.dirname(at)) {
    if (floor.has(at)) return at;
  }
  return undefined;
}

const tops = [...new Set([...floor.keys()].map((room) => room.split('/')[0]))];
const all = tops.filter((top) => fs.existsSync(path.join(root, top)))
  .flatMap(files);
const byName = new Map(all.map((f) => [`${f.split('/')[0]}:${path.basename(f)}`,
  f]));

// The file that an #include means: by path from the root, by name in the same
// folder, or (the module, as nginx compiles it) by name in the same tree.
function target(file, open, name) {
  if (open === '<') {
    return name.startsWith('tokenring/') ? `include/${name}` : undefined;
  }
  const beside = path.join(path.dirname(file), name);
  if (fs.existsSync(path.join(root, beside))) return beside;
  return byName.get(`${file.split('/')[0]}:${name}`) || name;
}

function why(file, to) {
  const from = roomOf(file);
  const below = roomOf(to);
  if (from === undefined) return 'its folder has no floor';
  if (below === undefined) return `${path.dirname(to)} has no floor`;
  if (from === below) return undefined;
  if (only[from] && !only[from].includes(below)) {
    return `${from} may use only ${only[from].join(', ')}`;
  }
  if (floor.get(from) === floor.get(below)) {
    return `${from} and ${below} are on one floor`;
  }
  return floor.get(from) < floor.get(below)
    ? `${from} is below ${below}` : undefined;
}

let bad = 0;
for (const file of all) {
  fs.readFileSync(path.join(root, file), 'utf8').split('\n')
    .forEach((line, i) => {
      const m = line.match(/^\s*#\s*include\s+([<"])([^>"]+)[>"]/);
      const to = m && target(file, m[1], m[2]);
      const wrong = to && why(file, to);
      if (wrong) {
        console.log(`${file}:${i + 1}: includes ${m[2]}: ${wrong}`);
        bad = 1;
      }
    });
}
process.exitCode = bad;
