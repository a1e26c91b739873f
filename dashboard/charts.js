// The charts: uPlot with our axes and colours.  Each is made once and fed every
// second; figures beside it follow the pointer, and else show the last values.

import uPlot from './vendor/uPlot.esm.js';
import { colour, hatch, levelColour } from './palette.js';
import { clock, tickBytes } from './format.js';
import { make, rows, setText } from './dom.js';
import { latest } from './series.js';

const FAMILY = 'Inter, system-ui, sans-serif';
const FONT = `11px ${FAMILY}`;

function timeAxis() {
  return {
    stroke: () => colour('ink-3'),
    font: FONT,
    size: 26,
    gap: 6,
    space: 70,
    grid: { show: false },
    ticks: { show: false },
    values: (u, splits) => splits.map((s) => clock(s * 1000, false)),
    incrs: [60, 120, 180, 300, 600, 900],
  };
}

function valueAxis(format, size, splits) {
  return {
    stroke: () => colour('ink-3'),
    font: FONT,
    size,
    gap: 6,
    space: 34,
    grid: { stroke: () => colour('line'), width: 1 },
    ticks: { show: false },
    ...(splits ? { splits } : {}),
    values: (u, values) => values.map(format),
  };
}

// Marks that are whole powers of two of bytes apart.
function byteSplits(u, axis, low, high, incr) {
  let step = 1;
  while (step < incr) step *= 2;
  const out = [];
  for (let v = 0; v <= high; v += step) out.push(v);
  return out;
}

class Chart {
  constructor(el, height) {
    this.el = el;
    this.height = height;
    this.plot = null;
    this.hover = null;
    this.onHover = () => {};
    new ResizeObserver(() => this.resize()).observe(el);
  }

  size() {
    return { width: Math.max(120, this.el.clientWidth), height: this.height() };
  }

  resize() {
    if (!this.plot) return;
    const s = this.size();
    if (s.width !== this.plot.width || s.height !== this.plot.height) {
      this.plot.setSize(s);
    }
  }

  build(options, data) {
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: false },
      padding: [10, 14, 0, 0],
      cursor: {
        y: false,
        drag: { x: false, y: false },
        points: { size: 6, width: 1.5, fill: () => colour('card'),
          stroke: (u, i) => u.series[i].mark() },
      },
      ...options,
      hooks: {
        ...options.hooks,
        setCursor: [(u) => {
          const i = u.cursor.idx === undefined ? null : u.cursor.idx;
          if (i !== this.hover) {
            this.hover = i;
            this.onHover();
          }
        }],
      },
    }, data, this.el);
  }

  redraw() {
    if (this.plot) this.plot.redraw(false, true);
  }

  // Data for an index that the pointer is at, else the last of `recent`, which has
  // a point for every second.
  pick(values, recent) {
    return this.hover !== null && values && values[this.hover] !== undefined
      ? (values[this.hover] === null ? NaN : values[this.hover])
      : latest(recent || []);
  }

  get at() {
    return this.hover !== null && this.plot
      ? this.plot.data[0][this.hover] * 1000 : null;
  }
}

// Lines over time.  series: [{name, colour, dash, fill}]
export class Lines extends Chart {
  constructor(el, keys, lines, format, axisFormat) {
    super(el, () => 168);
    this.keys = keys;
    this.lines = lines;
    this.format = format;
    this.axisFormat = axisFormat || format;
    this.values = lines.map(() => []);
    this.recent = this.values;
    this.onHover = () => this.legend();
  }

  options() {
    return {
      scales: {
        x: { time: true },
        y: { range: (u, min, max) => [0, max > 0 ? max * 1.08 : 1] },
      },
      axes: [timeAxis(), valueAxis(this.axisFormat, 54)],
      series: [{}, ...this.lines.map((l) => ({
        stroke: () => colour(l.colour),
        mark: () => colour(l.colour),
        width: l.width || 1.5,
        dash: l.dash,
        fill: l.fill ? () => colour(l.fill) : undefined,
        points: { show: false },
        spanGaps: false,
      }))],
    };
  }

  show(x, values, recent) {
    this.values = values;
    this.recent = recent;
    const data = [x, ...values];
    if (!this.plot) {
      this.build(this.options(), data);
    } else {
      this.plot.setData(data);
    }
    this.legend();
  }

  legend() {
    rows(this.keys, this.lines, (l) => l.name, (l) => {
      const swatch = make('span', { class: `swatch line ${l.dash ? 'dash' : ''}`,
        'data-colour': l.colour, 'aria-hidden': 'true' });
      return make('span', { class: 'key' }, swatch,
        make('span', { class: 'key-name' }, l.name), make('b', {}));
    }, (row, l) => {
      const i = this.lines.indexOf(l);
      setText(row.lastElementChild,
        this.format(this.pick(this.values[i], this.recent[i])));
    });
    this.el.setAttribute('aria-label', this.lines.map((l, i) =>
      `${l.name} ${this.format(latest(this.recent[i]))}`).join(', '));
  }
}

// The picture of the KV cache: what is held, level upon level, and above it the
// line of what the same tokens would take at 16 bits.
export class Pool extends Chart {
  constructor(el, format) {
    super(el, () => (window.innerWidth < 720 ? 280 : 370));
    this.format = format;
    this.shape = '';
    this.marks = [];
  }

  show(s, recent) {
    const names = [...s.order].reverse();   // the coarsest at the bottom
    const layers = names.map((n) => ({ name: n, values: s.levels.get(n) }));
    // Free to whoever wants it, and so on top of what is held.
    if (s.cached.some((v) => v > 0)) {
      layers.push({ name: 'prefixes', values: s.cached });
    }
    if (s.swapped.some((v) => v > 0)) {
      layers.push({ name: 'swapped out', values: s.swapped });
    }
    const sum = new Array(s.x.length).fill(null);
    const stacked = layers.map((l) => l.values.map((v, i) => {
      if (v !== null) sum[i] = (sum[i] || 0) + v;
      return sum[i];
    }));
    const peak = Math.max(0, ...s.full, ...sum);
    const poolPeak = Math.max(0, ...s.pool);
    // A pool far above everything would flatten the picture: it stays outside.
    this.poolFits = peak === 0 || poolPeak <= peak * 2.5;
    const pool = this.poolFits ? s.pool : s.pool.map(() => null);
    const data = [s.x, ...stacked, s.full, pool];
    const shape = layers.map((l) => l.name).join(' ');
    this.marks = [
      { value: latest(recent.full), colour: 'accent', name: 'FP16 needs' },
      { value: this.poolFits ? latest(recent.pool) : NaN, colour: 'ink-2',
        name: 'pool' },
      { value: latest(recent.held), colour: 'line-strong', name: 'held' },
    ];
    if (!this.plot || shape !== this.shape) {
      this.shape = shape;
      this.build(this.options(layers), data);
    } else {
      this.plot.setData(data);
    }
  }

  options(layers) {
    const n = layers.length;
    const own = { 'swapped out': 'swap', prefixes: 'kept' };
    const fill = (l) => (own[l.name] ? colour(own[l.name])
      : levelColour(l.name));
    return {
      padding: [10, 84, 0, 0],
      scales: {
        x: { time: true },
        y: { range: (u, min, max) => [0, max > 0 ? max * 1.06 : 1] },
      },
      axes: [timeAxis(), valueAxis(tickBytes, 62, byteSplits)],
      series: [{},
        ...layers.map((l, i) => ({
          stroke: () => colour('card'),
          mark: () => fill(l),
          width: 1,
          fill: i === 0 ? () => fill(l) : undefined,
          points: { show: false },
        })),
        { stroke: () => colour('accent'), mark: () => colour('accent'),
          width: 2.5, points: { show: false } },
        { stroke: () => colour('ink-2'), mark: () => colour('ink-2'),
          width: 1.25, dash: [5, 4], points: { show: false } },
      ],
      bands: [
        ...layers.slice(1).map((l, i) => ({ series: [i + 2, i + 1],
          fill: () => fill(l) })),
        ...(n ? [{ series: [n + 1, n],
          fill: (u) => hatch(u.ctx, devicePixelRatio) }] : []),
      ],
      hooks: { draw: [(u) => this.label(u)] },
    };
  }

  // Names beside the ends of the lines, never one on the other.
  label(u) {
    const ratio = devicePixelRatio;
    const { ctx } = u;
    const left = u.bbox.left + u.bbox.width + 10 * ratio;
    const top = u.bbox.top + 10 * ratio;
    const bottom = u.bbox.top + u.bbox.height - 12 * ratio;
    const apart = 36 * ratio;
    const placed = this.marks.filter((m) => m.value > 0)
      .map((m) => ({ m, y: u.valToPos(m.value, 'y', true) }))
      .sort((a, b) => a.y - b.y);
    placed.forEach((p, i) => {
      p.y = Math.max(p.y, top, i ? placed[i - 1].y + apart : top);
    });
    for (let i = placed.length - 1; i >= 0; i--) {
      placed[i].y = Math.min(placed[i].y, i === placed.length - 1 ? bottom
        : placed[i + 1].y - apart);
    }
    ctx.save();
    ctx.textAlign = 'left';
    for (const { m, y } of placed) {
      ctx.fillStyle = colour(m.colour);
      ctx.textBaseline = 'bottom';
      ctx.font = `${11 * ratio}px ${FAMILY}`;
      ctx.fillText(m.name, left, y + 1 * ratio);
      ctx.textBaseline = 'top';
      ctx.font = `600 ${13 * ratio}px ${FAMILY}`;
      ctx.fillText(this.format(m.value), left, y + 1 * ratio);
    }
    ctx.restore();
  }
}
