#!/usr/bin/env python3
"""Draws what bench_decode measured: time, and share of the copy's speed.

    plot_decode.py decode.json decode.svg

One line for each level, over batch x tokens in the order of the tokens that a
launch reads; both axes of the upper chart are logarithmic.  Standard library
only.
"""
import json
import math
import sys

COLOURS = {
    "16-bit": "#444444",
    "K8V8": "#1f77b4",
    "K8V4": "#2ca02c",
    "K4V2": "#d62728",
    "30% K8V4 70% K4V2": "#9467bd",
}
WIDTH, LEFT, RIGHT, HEIGHT = 1200, 70, 20, 300
PREFIX = "llama-8b "


def cases(path):
    with open(path, encoding="utf-8") as f:
        rows = json.load(f)
    return [r for r in rows if r["name"].startswith(PREFIX)]


def text(x, y, s, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{s}</text>'


def line(x0, y0, x1, y1):
    return (f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" '
            'stroke="#ddd"/>')


def chart(out, rows, shapes, top, title, ticks, y_of, value):
    out.append(text(LEFT, top - 12, title, 'font-weight="bold"'))
    step = (WIDTH - LEFT - RIGHT) / len(shapes)
    x_of = {s: LEFT + (i + 0.5) * step for i, s in enumerate(shapes)}
    for t, label in ticks:
        y = top + y_of(t)
        out.append(line(LEFT, y, WIDTH - RIGHT, y))
        out.append(text(LEFT - 6, y + 4, label, 'text-anchor="end"'))
    for s in shapes:
        out.append(text(x_of[s], top + HEIGHT + 18, f"{s[0]} x {s[1]}",
                        'text-anchor="middle" font-size="10"'))
    for level, colour in COLOURS.items():
        mine = sorted((r["seqs"] * r["tokens"], r["tokens"], r) for r in rows
                      if r["name"] == PREFIX + level)
        at = [(x_of[r["seqs"], r["tokens"]], top + y_of(value(r)))
              for _, _, r in mine]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        out.append(f'<polyline points="{path}" fill="none" '
                   f'stroke="{colour}" stroke-width="1.5"/>')
        out.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" '
                   f'fill="{colour}"/>' for x, y in at)


def main():
    rows = cases(sys.argv[1])
    if not rows:
        sys.exit(f"{sys.argv[1]}: no case begins with '{PREFIX}'")
    shapes = sorted({(r["seqs"], r["tokens"]) for r in rows},
                    key=lambda s: (s[0] * s[1], s[1]))
    most = math.ceil(math.log10(max(r["us"] for r in rows)))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
           f'height="{2 * HEIGHT + 150}" font-family="sans-serif" '
           'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    chart(out, rows, shapes, 50, "Decode attention, one layer, microseconds",
          [(10 ** e, str(10 ** e)) for e in range(1, most + 1)],
          lambda us: HEIGHT * (1 - (math.log10(us) - 0.7) / (most - 0.7)),
          lambda r: r["us"])
    chart(out, rows, shapes, HEIGHT + 110,
          "Bytes over time, share of the speed of a copy",
          [(p / 100, f"{p}%") for p in range(0, 101, 20)],
          lambda share: HEIGHT * (1 - share / 1.1), lambda r: r["share"])
    for i, (level, colour) in enumerate(COLOURS.items()):
        x = LEFT + 130 * i
        out.append(f'<circle cx="{x}" cy="{2 * HEIGHT + 140}" r="4" '
                   f'fill="{colour}"/>')
        out.append(text(x + 8, 2 * HEIGHT + 144, level))
    out.append("</svg>\n")
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write("\n".join(out))


if __name__ == "__main__":
    main()
