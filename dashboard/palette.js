// Colours as the style sheet has them now.  A precision's colour is a place on
// one ordered ramp, by its bits: 16 at the strong end, 2 at the faint one.  It
// is told by lightness, so that eyes that see fewer colours read it as well.

import { bits } from './series.js';

const STOPS = 6;
let cache = new Map();

export function forget() {
  cache = new Map();
}

export function colour(name) {
  let value = cache.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement)
      .getPropertyValue(`--${name}`).trim();
    cache.set(name, value);
  }
  return value;
}

function rgb(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

export function levelColour(level) {
  const b = bits(level);
  const f = Number.isFinite(b)
    ? Math.min(1, Math.max(0, (4 - Math.log2(b)) / 3)) : 1;
  const at = f * (STOPS - 1);
  const i = Math.min(STOPS - 2, Math.floor(at));
  const a = rgb(colour(`ramp-${i}`));
  const c = rgb(colour(`ramp-${i + 1}`));
  const mix = a.map((v, k) => Math.round(v + (c[k] - v) * (at - i)));
  return `rgb(${mix.join(' ')})`;
}

// Memory that was not needed: thin strokes on nothing.
export function hatch(ctx, ratio) {
  const key = `hatch ${ratio}`;
  if (!cache.has(key)) {
    const size = Math.round(8 * ratio);
    const tile = document.createElement('canvas');
    tile.width = size;
    tile.height = size;
    const t = tile.getContext('2d');
    t.fillStyle = colour('accent-wash');
    t.fillRect(0, 0, size, size);
    t.strokeStyle = colour('accent-faint');
    t.lineWidth = ratio;
    t.beginPath();
    for (const d of [-1, 0, 1]) {
      t.moveTo(d * size, size);
      t.lineTo((d + 1) * size, 0);
    }
    t.stroke();
    cache.set(key, ctx.createPattern(tile, 'repeat'));
  }
  return cache.get(key);
}
