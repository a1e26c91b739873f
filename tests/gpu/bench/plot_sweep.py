#!/usr/bin/env python3
"""Draws latency over request rate: time to the first token and time per output
token at p50, p95 and p99, a colour for each policy.

    plot_sweep.py gpu.json gpu.svg

Times are on a logarithmic axis: past saturation they have no bound. Standard
library only.
"""
import json
import math
import sys

from plot_decode import HEIGHT, LEFT, RIGHT, WIDTH, line, text

COLOURS = ["#444444", "#d62728", "#1f77b4", "#2ca02c"]
DASHES = {"p50": "", "p95": "7 4", "p99": "2 3"}


def ticks_between(low, high):
    """1, 2, 5, 10 .. from below low to above high."""
    steps = [m * 10 ** e for e in range(-3, 8) for m in (1, 2, 5)]
    first = max(i for i, s in enumerate(steps) if s <= low)
    last = min(i for i, s in enumerate(steps) if s >= high)
    return steps[first:last + 1]


def chart(out, sweep, colours, top, title, key):
    values = [max(s[key][p], 1e-3) for s in sweep for p in DASHES]
    ticks = ticks_between(min(values), max(values))
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    most = max(s["rate"] for s in sweep)

    def x_of(rate):
        return LEFT + (WIDTH - LEFT - RIGHT) * rate / (most * 1.03)

    def y_of(value):
        share = (math.log10(max(value, 1e-3)) - low) / max(high - low, 1e-9)
        return top + HEIGHT * (1 - share)

    out.append(text(LEFT, top - 12, title, 'font-weight="bold"'))
    for t in ticks:
        out.append(line(LEFT, y_of(t), WIDTH - RIGHT, y_of(t)))
        out.append(text(LEFT - 6, y_of(t) + 4, f"{t:g}", 'text-anchor="end"'))
    for rate in sorted({s["rate"] for s in sweep}):
        out.append(line(x_of(rate), top + HEIGHT, x_of(rate),
                        top + HEIGHT + 5))
        out.append(text(x_of(rate), top + HEIGHT + 18, f"{rate:g}",
                        'text-anchor="middle"'))
    for policy, colour in colours.items():
        mine = [s for s in sweep if s["policy"] == policy]
        for p, dash in DASHES.items():
            at = [(x_of(s["rate"]), y_of(s[key][p])) for s in mine]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
            out.append(f'<polyline points="{path}" fill="none" '
                       f'stroke="{colour}" stroke-width="1.5" '
                       f'stroke-dasharray="{dash}"/>')
            out.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" '
                       f'fill="{colour}"/>' for x, y in at)


def legend(out, colours, y):
    x = LEFT
    for policy, colour in colours.items():
        for p, dash in DASHES.items():
            out.append(f'<polyline points="{x},{y} {x + 28},{y}" '
                       f'stroke="{colour}" stroke-width="1.5" '
                       f'stroke-dasharray="{dash}"/>')
            out.append(text(x + 34, y + 4, f"{policy} {p}"))
            x += 125


def plot(sweep, path):
    names = sorted({s["policy"] for s in sweep})
    colours = dict(zip(names, COLOURS))
    height = 2 * HEIGHT + 190
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
           f'height="{height}" font-family="sans-serif" font-size="12">'
           '<rect width="100%" height="100%" fill="white"/>']
    chart(out, sweep, colours, 40, "Time to first token, milliseconds",
          "ttft_ms")
    chart(out, sweep, colours, HEIGHT + 110,
          "Time per output token, milliseconds", "tpot_ms")
    out.append(text(WIDTH - RIGHT, 2 * HEIGHT + 150, "requests a second",
                    'text-anchor="end"'))
    legend(out, colours, 2 * HEIGHT + 172)
    out.append("</svg>\n")
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as sweep_file:
        plot(json.load(sweep_file)["sweep"], sys.argv[2])
