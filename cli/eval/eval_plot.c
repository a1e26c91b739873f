/*
 * Accuracy over memory as SVG (eval_report.h).
 *
 * A point is a policy; those of one name are a curve.  Up and to the left is
 * better.  Colours come from a style sheet inside the file, which has a dark
 * half; nothing is loaded from elsewhere.
 */
#include "eval_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 960.0
#define BIG_HEIGHT 480.0
#define SMALL_HEIGHT 250.0
#define SMALL_COLUMNS 3u
#define COLOURS 10u
#define LETTER 6.1 /* about the width of a letter at 11 px */
#define LABEL_LETTERS 44u

static const char style[] =
    "<style>\n"
    "svg{--bg:#fff;--ink:#1c2128;--soft:#59636e;--line:#d8dee4;"
    "--c0:#57606a;--c1:#0969da;--c2:#cf222e;--c3:#1a7f37;--c4:#9a6700;"
    "--c5:#8250df;--c6:#bf3989;--c7:#0a7d8c;"
    "--c8:#7d4e00;--c9:#4d7c0f}\n"
    "@media (prefers-color-scheme:dark){svg{--bg:#0d1117;--ink:#e6edf3;"
    "--soft:#9198a1;--line:#30363d;--c0:#9198a1;--c1:#58a6ff;--c2:#ff7b72;"
    "--c3:#3fb950;--c4:#d29922;--c5:#bc8cff;--c6:#f778ba;--c7:#39c5cf;"
    "--c8:#e0a070;--c9:#a3d65c}}\n"
    "text{font:11px system-ui,sans-serif;fill:var(--ink)}\n"
    ".soft{fill:var(--soft)}.head{font-weight:600;font-size:13px}\n"
    ".grid{stroke:var(--line);stroke-width:1}\n"
    ".curve{fill:none;stroke-width:1.5;opacity:.6}\n"
    ".bar{stroke-width:1;opacity:.35}\n"
    "</style>\n";

typedef struct {
    double x, y;      /* kv_ratio, share right */
    double low, high; /* of y */
    const char *label;
    uint32_t series;
} point_t;

typedef struct {
    double x, y, w, h; /* of the plotting area */
    double x_max, y_min, y_max;
} frame_t;

typedef struct {
    double x, y, w, h;
} box_t;

static double
at_x(const frame_t *f, double x)
{
    return f->x + x / f->x_max * f->w;
}

static double
at_y(const frame_t *f, double y)
{
    return f->y + (f->y_max - y) / (f->y_max - f->y_min) * f->h;
}

static void
put_text(FILE *f, const char *text, size_t most)
{
    for (size_t i = 0; i < most && text[i] != '\0'; i++) {
        switch (text[i]) {
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '&':
            fputs("&amp;", f);
            break;
        default:
            /* control characters are not allowed in XML */
            fputc((unsigned char) text[i] < 0x20 ? ' ' : text[i], f);
        }
    }
}

/* ---- points ------------------------------------------------------------- */

/* Policies of one name are a series. */
static uint32_t
series_of(const char *const *labels, uint32_t p)
{
    size_t n = strcspn(labels[p], ":");
    uint32_t series = 0;

    for (uint32_t i = 0; i < p; i++) {
        size_t k = strcspn(labels[i], ":");
        uint32_t j;

        if (k == n && memcmp(labels[i], labels[p], n) == 0) {
            return series_of(labels, i);
        }
        for (j = 0; j < i; j++) {
            if (strcspn(labels[j], ":") == k
                && memcmp(labels[j], labels[i], k) == 0) {
                break;
            }
        }
        series += j == i;
    }
    return series;
}

/* family NULL: all.  Returns how many points there are. */
static uint32_t
collect(const tr_eval_results_t *r, const char *const *labels,
        const char *family, point_t *points)
{
    uint32_t n = 0;

    for (uint32_t p = 0; p < r->n_policies; p++) {
        tr_eval_cell_t c;

        if (family == NULL) {
            tr_eval_overall(r, p, &c);
        } else {
            tr_eval_summary(r, p, family, 0, &c);
        }
        if (isfinite(c.accuracy) && isfinite(c.kv_ratio)) {
            points[n++] = (point_t){
                .x = c.kv_ratio,
                .y = c.accuracy,
                .low = p == 0 ? c.accuracy
                              : c.accuracy + c.diff.low - c.diff.diff,
                .high = p == 0 ? c.accuracy
                               : c.accuracy + c.diff.high - c.diff.diff,
                .label = labels[p],
                .series = series_of(labels, p),
            };
        }
    }
    return n;
}

static int
by_series(const void *a, const void *b)
{
    const point_t *x = a, *y = b;

    if (x->series != y->series) {
        return x->series < y->series ? -1 : 1;
    }
    return (x->x > y->x) - (x->x < y->x);
}

/* ---- a panel ------------------------------------------------------------ */

static void
scale(frame_t *f, const point_t *points, uint32_t n)
{
    double low = 1, high = 0, right = 0.5;

    for (uint32_t i = 0; i < n; i++) {
        low = fmin(low, points[i].y);
        high = fmax(high, points[i].y);
        right = fmax(right, points[i].x);
    }
    f->x_max = ceil(right * 1.04 * 10) / 10;
    f->y_max = fmin(1, ceil((high + 0.01) * 20) / 20);
    f->y_min = fmax(0, floor((low - 0.01) * 20) / 20);
    f->y_min = fmin(f->y_min, f->y_max - 0.05);
}

static void
draw_axes(const frame_t *f, const char *title, FILE *out)
{
    double step = f->y_max - f->y_min > 0.5   ? 0.2
                  : f->y_max - f->y_min > 0.2 ? 0.1
                  : f->y_max - f->y_min > 0.1 ? 0.05
                                              : 0.01;
    double y, x, across = f->x_max > 0.8 ? 0.2 : 0.1;

    fprintf(out, "<text class=\"head\" x=\"%.1f\" y=\"%.1f\">", f->x - 30,
            f->y - 14);
    put_text(out, title, 80);
    fprintf(out, "</text>\n");
    for (y = ceil(f->y_min / step - 1e-6) * step; y <= f->y_max + 1e-6;
         y += step) {
        fprintf(out,
                "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" "
                "y2=\"%.1f\"/><text class=\"soft\" x=\"%.1f\" y=\"%.1f\" "
                "text-anchor=\"end\">%.0f</text>\n",
                f->x, f->x + f->w, at_y(f, y), at_y(f, y), f->x - 6,
                at_y(f, y) + 4, fabs(y) * 100);
    }
    for (x = 0; x <= f->x_max + 1e-6; x += across) {
        fprintf(out,
                "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" "
                "y2=\"%.1f\"/><text class=\"soft\" x=\"%.1f\" y=\"%.1f\" "
                "text-anchor=\"middle\">%.1f</text>\n",
                at_x(f, x), at_x(f, x), f->y + f->h, f->y + f->h + 4,
                at_x(f, x), f->y + f->h + 17, x);
    }
}

static void
draw_points(const frame_t *f, const point_t *points, uint32_t n, FILE *out)
{
    for (uint32_t i = 0; i < n; i++) {
        const point_t *p = &points[i];
        unsigned colour = p->series % COLOURS;

        if (i > 0 && points[i - 1].series == p->series) {
            fprintf(out,
                    "<line class=\"curve\" stroke=\"var(--c%u)\" x1=\"%.1f\" "
                    "y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                    colour, at_x(f, points[i - 1].x), at_y(f, points[i - 1].y),
                    at_x(f, p->x), at_y(f, p->y));
        }
        if (p->low < p->high) {
            fprintf(out,
                    "<line class=\"bar\" stroke=\"var(--c%u)\" x1=\"%.1f\" "
                    "x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
                    colour, at_x(f, p->x), at_x(f, p->x),
                    at_y(f, fmin(p->high, f->y_max)),
                    at_y(f, fmax(p->low, f->y_min)));
        }
        fprintf(out,
                "<circle fill=\"var(--c%u)\" cx=\"%.1f\" cy=\"%.1f\" "
                "r=\"4\"><title>",
                colour, at_x(f, p->x), at_y(f, p->y));
        put_text(out, p->label, 200);
        fprintf(out, ": %.2f%% right at %.3f</title></circle>\n", p->y * 100,
                p->x);
    }
}

static bool
overlap(const box_t *a, const box_t *b)
{
    return a->x < b->x + b->w && b->x < a->x + a->w && a->y < b->y + b->h
           && b->y < a->y + a->h;
}

/* A place for the label of point i beside it that no point and no earlier label
 * has; the first place when all are taken. */
static box_t
place_label(const frame_t *f, const box_t *taken, uint32_t n, double x,
            double y, double w)
{
    box_t b = { 0 };

    for (unsigned ring = 0; ring < 12; ring++) {
        for (unsigned side = 0; side < 4; side++) {
            double far = 3 + 7.0 * ring;
            uint32_t k;

            b = (box_t){ side & 1 ? x - w - 6 : x + 6,
                         side & 2 ? y - far - 8 : y + far - 8, w, 12 };
            for (k = 0; k < n && !overlap(&b, &taken[k]); k++) {
            }
            if (k == n && b.x >= f->x - 40 && b.x + w <= f->x + f->w + 8
                && b.y >= f->y - 6 && b.y + 12 <= f->y + f->h + 2) {
                return b;
            }
        }
    }
    return (box_t){ x + 6, y - 5, w, 12 };
}

static void
draw_labels(const frame_t *f, const point_t *points, uint32_t n, FILE *out)
{
    box_t *taken = calloc(2 * (size_t) n + 1, sizeof(*taken));
    uint32_t k = n;

    for (uint32_t i = 0; i < n && taken != NULL; i++) {
        taken[i] = (box_t){ at_x(f, points[i].x) - 5, at_y(f, points[i].y) - 5,
                            10, 10 };
    }
    for (uint32_t i = 0; i < n && taken != NULL; i++) {
        size_t letters = strlen(points[i].label);
        double x = at_x(f, points[i].x), y = at_y(f, points[i].y), end;
        box_t b;

        letters = letters < LABEL_LETTERS ? letters : LABEL_LETTERS;
        b = place_label(f, taken, k, x, y, LETTER * (double) letters);
        taken[k++] = b;
        end = b.x > x ? b.x - 1 : b.x + b.w + 1;
        if (fabs(b.y + 6 - y) > 12) { /* far: say whose it is */
            fprintf(out,
                    "<line class=\"bar\" stroke=\"var(--c%u)\" x1=\"%.1f\" "
                    "y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                    points[i].series % COLOURS, x, y, end, b.y + 6);
        }
        fprintf(out,
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" "
                "style=\"fill:var(--c%u)\">",
                b.x > x ? b.x : b.x + b.w, b.y + 10, b.x > x ? "start" : "end",
                points[i].series % COLOURS);
        put_text(out, points[i].label, LABEL_LETTERS);
        fprintf(out, "</text>\n");
    }
    free(taken);
}

static void
draw_panel(const tr_eval_results_t *r, const char *const *labels,
           const char *family, frame_t f, const char *title, FILE *out)
{
    point_t *points = calloc(r->n_policies, sizeof(*points));
    uint32_t n;

    if (points == NULL) {
        return;
    }
    n = collect(r, labels, family, points);
    qsort(points, n, sizeof(*points), by_series);
    scale(&f, points, n);
    draw_axes(&f, title, out);
    draw_points(&f, points, n, out);
    if (f.h > SMALL_HEIGHT) {
        draw_labels(&f, points, n, out);
    }
    free(points);
}

/* ---- the plot ----------------------------------------------------------- */

void
tr_eval_plot(const tr_eval_results_t *r, const char *const *labels,
             const char *title, FILE *out)
{
    tr_eval_family_t families[TR_EVAL_FAMILIES];
    uint32_t n = tr_eval_families(r, families);
    uint32_t small = n > 1 ? n : 0;
    uint32_t rows = (small + SMALL_COLUMNS - 1) / SMALL_COLUMNS;
    double column = WIDTH / SMALL_COLUMNS;
    double height = BIG_HEIGHT + rows * SMALL_HEIGHT;

    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f "
            "%.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\">\n<title>",
            WIDTH, height, WIDTH, height);
    put_text(out, title, 200);
    fprintf(out,
            "</title>\n%s<rect width=\"100%%\" height=\"100%%\" "
            "style=\"fill:var(--bg)\"/>\n",
            style);
    draw_panel(r, labels, n == 1 ? families[0].name : NULL,
               (frame_t){ 52, 42, WIDTH - 76, BIG_HEIGHT - 100, 0, 0, 0 },
               title, out);
    fprintf(out,
            "<text class=\"soft\" x=\"52\" y=\"%.0f\">right answers (%%) over "
            "KV memory, as a share of the same tokens' 16-bit keys and values; "
            "bars: 95%% of the paired difference to the first</text>\n",
            BIG_HEIGHT - 20);
    for (uint32_t i = 0; i < small; i++) {
        double x = i % SMALL_COLUMNS * column;
        double y = BIG_HEIGHT + (double) (i / SMALL_COLUMNS) * SMALL_HEIGHT;

        draw_panel(r, labels, families[i].name,
                   (frame_t){ x + 46, y + 36, column - 66, SMALL_HEIGHT - 76, 0,
                              0, 0 },
                   families[i].name, out);
    }
    fprintf(out, "</svg>\n");
}
