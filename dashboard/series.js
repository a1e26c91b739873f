// From samples to what is drawn: one value for each second of the time shown, or
// for each step of several seconds, summed over the engines.  Pure functions; tests/e2e/pages/dashboard.test.js holds
// the arithmetic.

// A sample stands for this long when no other follows it: an engine that has
// gone leaves the sums.
const STANDS = 3000;
export const WINDOW = 60;
const RATE = 3;

// Average bits of a level ("8/4": keys 8, values 4); NaN when it has none.
export function bits(level) {
  const [k, v] = String(level).split('/').map(Number);
  return (k + (v === undefined ? k : v)) / 2;
}

// The p-th part of what a histogram counted, in the bounds' unit, by linear
// interpolation within the bucket.  The last bucket has no upper end: its
// lower end is given.  NaN when nothing was counted.
export function percentile(counts, bounds, p) {
  let total = 0;
  for (const c of counts) total += c;
  if (!(total > 0)) return NaN;
  const rank = p * total;
  let below = 0;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] > 0 && below + counts[i] >= rank) {
      const lower = i === 0 ? 0 : bounds[i - 1];
      if (i >= bounds.length) return lower;
      return lower + (bounds[i] - lower) * Math.max(0, rank - below) / counts[i];
    }
    below += counts[i];
  }
  return bounds[bounds.length - 1];
}

const COUNTERS = ['prompt', 'generation', 'stop', 'length', 'aborted', 'error',
  'preemptions', 'ended', 'endedFull'];
const HISTOGRAMS = ['ttft', 'inter', 'e2e'];

// Counters begin at 0 with every run of an engine; here they go on.
function continued(samples) {
  const out = [];
  const base = Object.fromEntries(COUNTERS.map((k) => [k, 0]));
  const baseH = Object.fromEntries(HISTOGRAMS.map((k) => [k, []]));
  let before = null;
  for (const s of samples) {
    if (before && before.run !== s.run) {
      for (const k of COUNTERS) base[k] += before[k] || 0;
      for (const k of HISTOGRAMS) {
        baseH[k] = before[k].map((c, i) => c + (baseH[k][i] || 0));
      }
    }
    const c = { t: s.t, s };
    for (const k of COUNTERS) c[k] = (s[k] || 0) + base[k];
    for (const k of HISTOGRAMS) {
      const b = baseH[k];
      c[k] = b.length ? s[k].map((v, i) => v + (b[i] || 0)) : s[k];
    }
    out.push(c);
    before = s;
  }
  return out;
}

// For each point of time, the sample that stands for it; `late` is the last one
// before it, however old: what counters are read from.
function onGrid(samples, x, stands) {
  const rows = continued(samples);
  const now = [];
  const late = [];
  let at = -1;
  for (const second of x) {
    const end = second * 1000 + 999;
    while (at + 1 < rows.length && rows[at + 1].t <= end) at++;
    const row = at >= 0 ? rows[at] : null;
    late.push(row);
    now.push(row && end - row.t <= stands ? row : null);
  }
  return { now, late, first: rows[0] || null };
}

const blank = (n) => new Array(n).fill(null);
const add = (to, i, v) => {
  if (Number.isFinite(v)) to[i] = (to[i] || 0) + v;
};

// engines: those to sum up; now: Unix ms of the right end; span: seconds, step:
// of them that a point stands for.
export function series(engines, bounds, now, span, step = 1) {
  // Before the time shown, as much as the first percentile looks back to.
  const end = Math.floor((Math.floor(now / 1000) - 1) / step) * step;
  const window = WINDOW / step;
  const points = span / step;
  const lag = Math.max(1, Math.round(RATE / step));
  const n = points + window;
  const x = Array.from({ length: n }, (_, i) => end - (n - 1 - i) * step);
  const out = {
    running: blank(n), waiting: blank(n), tokensIn: blank(n),
    tokensOut: blank(n), held: blank(n), swapped: blank(n), full: blank(n),
    cached: blank(n), pool: blank(n), kvTokens: blank(n), ended: blank(n), failed: blank(n),
    preempted: blank(n),
    levels: new Map(), levelPages: new Map(),
  };
  const grids = engines.map((e) => ({ e, grid: onGrid(e.samples, x, STANDS + (step - 1) * 1000) }));

  for (const { e, grid } of grids) {
    const names = e.levels;
    for (let i = 0; i < n; i++) {
      const row = grid.now[i];
      if (!row) continue;
      const s = row.s;
      add(out.running, i, s.running);
      add(out.waiting, i, s.waiting);
      const past = (i >= lag && grid.late[i - lag]) || grid.first;
      const seconds = (row.t - past.t) / 1000;
      if (seconds > 0) {
        add(out.tokensIn, i, (row.prompt - past.prompt) / seconds);
        add(out.tokensOut, i, (row.generation - past.generation) / seconds);
      }
      // Of an engine that had gone before we came, no page size is known.
      if (!(e.pageBytes > 0)) continue;
      add(out.full, i, s.kvFull);
      add(out.kvTokens, i, s.kvTokens);
      let pages = 0;
      s.kvUsed.forEach((used, l) => {
        const name = names[l] || `level ${l}`;
        if (!out.levels.has(name)) {
          out.levels.set(name, blank(n));
          out.levelPages.set(name, blank(n));
        }
        add(out.levels.get(name), i, used * e.pageBytes);
        add(out.levelPages.get(name), i, used);
        pages += used;
      });
      const swapped = s.kvSwapped || 0;
      add(out.swapped, i, swapped * e.pageBytes);
      add(out.cached, i, (s.kvCached || 0) * e.pageBytes);
      add(out.held, i, (pages + swapped) * e.pageBytes);
      add(out.pool, i, (Number.isFinite(e.pages) ? e.pages : pages + s.kvFree)
        * e.pageBytes);
    }
  }

  const skip = window;
  const total = (row) => row.stop + row.length + row.aborted + row.error;
  for (const key of HISTOGRAMS) {
    out[key] = { p50: blank(points), p95: blank(points), p99: blank(points) };
  }
  for (let i = skip; i < n; i++) {
    for (const { grid } of grids) {
      const row = grid.late[i];
      const past = grid.late[i - window] || grid.first;
      if (!row || !past) continue;
      add(out.ended, i, total(row) - total(past));
      add(out.failed, i, row.error - past.error);
      add(out.preempted, i, row.preemptions - past.preemptions);
    }
    for (const key of HISTOGRAMS) {
      const counts = new Array(bounds.length + 1).fill(0);
      for (const { grid } of grids) {
        const row = grid.late[i];
        const past = grid.late[i - window] || grid.first;
        if (!row || !past) continue;
        row[key].forEach((c, b) => { counts[b] += c - (past[key][b] || 0); });
      }
      for (const [name, p] of [['p50', 0.5], ['p95', 0.95], ['p99', 0.99]]) {
        const v = percentile(counts, bounds, p);
        out[key][name][i - skip] = Number.isFinite(v) ? v / 1000 : null;
      }
    }
  }

  for (const key of ['running', 'waiting', 'tokensIn', 'tokensOut', 'held',
    'swapped', 'cached', 'full', 'pool', 'kvTokens', 'ended', 'failed', 'preempted']) {
    out[key] = out[key].slice(skip);
  }
  for (const map of [out.levels, out.levelPages]) {
    for (const [name, values] of map) map.set(name, values.slice(skip));
  }
  out.x = x.slice(skip);
  out.since = since(grids.map(({ grid }) => grid.late[n - 1]));
  // From the most exact to the coarsest.
  out.order = [...out.levels.keys()].sort((a, b) =>
    (bits(b) || 0) - (bits(a) || 0) || a.localeCompare(b));
  return out;
}

// All requests that the engines have ended: how many, what they held at their
// ends, and what that would be at 16 bits.
function since(rows) {
  const out = { requests: 0, held: 0, full: 0 };
  for (const row of rows.filter(Boolean)) {
    out.requests += row.stop + row.length;
    out.held += row.ended;
    out.full += row.endedFull;
  }
  return out;
}

// The last value that is known.
export function latest(values) {
  for (let i = values.length - 1; i >= Math.max(0, values.length - 4); i--) {
    if (values[i] !== null) return values[i];
  }
  return NaN;
}
