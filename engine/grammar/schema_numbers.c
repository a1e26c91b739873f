/*
 * Numbers of a schema: digits that stay between two bounds, and for integers
 * the remainder by a divisor.
 *
 * A number is written digit by digit; as long as all digits are those of a
 * bound, the next one is limited by the bound's (it is "tight").  Bounded
 * numbers are written without an exponent.
 */
#include "schema_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE_DIGITS 19
#define PART_DIGITS 17
#define DIVISOR_MAX 1000

/* The size of a number, in decimal; no needless zeros. */
typedef struct {
    bool known; /* else: there is no such bound */
    bool excluded;
    int n_whole, n_part;
    char whole[WHOLE_DIGITS + 1], part[PART_DIGITS + 1];
} decimal_t;

typedef struct {
    bool negative;
    decimal_t size;
} bound_t;

/* ---- reading */

/* false: it needs more digits than are written. */
static bool
read_decimal(const json_t *value, bound_t *out)
{
    char text[64], plain[512];
    double v = json_number_value(value);
    char *dot, *at = plain;
    size_t len;

    memset(out, 0, sizeof(*out));
    if (json_is_integer(value)) {
        snprintf(plain, sizeof(plain), "%lld",
                 (long long) json_integer_value(value));
    } else {
        int precision = 15;

        do { /* the shortest text that is this number */
            snprintf(text, sizeof(text), "%.*e", precision - 1, v);
        } while (strtod(text, NULL) != v && ++precision <= 17);
        len = (size_t) precision;
        if (fabs(v) >= 1e19) {
            return false;
        }
        snprintf(plain, sizeof(plain), "%.*f",
                 v == 0
                     ? 0
                     : (int) fmax(0, (double) len - 1 - floor(log10(fabs(v)))),
                 v);
    }
    if (*at == '-') {
        out->negative = true;
        at++;
    }
    dot = strchr(at, '.');
    if (dot != NULL) {
        *dot = '\0';
        len = strlen(dot + 1);
        while (len > 0 && dot[len] == '0') {
            dot[len--] = '\0';
        }
        if (len > PART_DIGITS) {
            return false;
        }
        out->size.n_part = (int) len;
        memcpy(out->size.part, dot + 1, len);
    }
    while (at[0] == '0' && at[1] != '\0') {
        at++;
    }
    len = strlen(at);
    if (len > WHOLE_DIGITS) {
        return false;
    }
    out->size.known = true;
    out->size.n_whole = (int) len;
    memcpy(out->size.whole, at, len);
    if (len == 1 && at[0] == '0' && out->size.n_part == 0) {
        out->negative = false;
    }
    return true;
}

/* ---- writing */

typedef struct {
    tr_rules_t *b;
    uint32_t to;
    uint32_t divisor; /* 1: any; integers alone */
    bool parts;       /* fractions are allowed */
    const decimal_t *low, *high;
    int len; /* whole digits of what is being written */
    /* states where nothing is tight, 0: not made */
    uint32_t free_whole[WHOLE_DIGITS + 1][DIVISOR_MAX];
    uint32_t free_end, free_part[PART_DIGITS + 1];
} writer_t;

static void
part(writer_t *w, int at, bool tight_low, bool tight_high, uint32_t from)
{
    bool ends = at > 0;
    uint32_t to;

    if (tight_low && (at < w->low->n_part || w->low->excluded)) {
        ends = false;
    }
    if (tight_high && at >= w->high->n_part && w->high->excluded) {
        ends = false;
    }
    if (ends) {
        tr_rules_empty(w->b, from, w->to);
    }
    if (at == PART_DIGITS || w->b->failed != TR_OK) {
        return;
    }
    for (int d = 0, lo, hi; d <= 9; d++) {
        bool low, high;

        lo = tight_low && at < w->low->n_part ? w->low->part[at] - '0' : 0;
        hi = tight_high ? (at < w->high->n_part ? w->high->part[at] - '0' : 0)
                        : 9;
        if (d < lo || d > hi) {
            continue;
        }
        low = tight_low && d == lo;
        high = tight_high && d == hi;
        if (!low && !high) {
            if (w->free_part[at + 1] == 0) {
                w->free_part[at + 1] = tr_rules_state(w->b);
                part(w, at + 1, false, false, w->free_part[at + 1]);
            }
            to = w->free_part[at + 1];
        } else {
            to = tr_rules_state(w->b);
            part(w, at + 1, low, high, to);
        }
        tr_rules_bytes(w->b, from, (uint8_t) ('0' + d), (uint8_t) ('0' + d),
                       to);
    }
}

/* All whole digits are there. */
static void
whole_end(writer_t *w, bool tight_low, bool tight_high, uint32_t rest,
          uint32_t from)
{
    bool ends = rest == 0;

    if (tight_low && (w->low->n_part > 0 || w->low->excluded)) {
        ends = false;
    }
    if (tight_high && w->high->n_part == 0 && w->high->excluded) {
        ends = false;
    }
    if (ends) {
        tr_rules_empty(w->b, from, w->to);
    }
    if (!w->parts) {
        return;
    }
    if (!tight_low && !tight_high) {
        if (w->free_end == 0) {
            w->free_end = tr_rules_state(w->b);
            part(w, 0, false, false, w->free_end);
        }
        tr_rules_bytes(w->b, from, '.', '.', w->free_end);
    } else {
        uint32_t point = tr_rules_state(w->b);

        tr_rules_bytes(w->b, from, '.', '.', point);
        part(w, 0, tight_low, tight_high, point);
    }
}

static void
whole(writer_t *w, int at, bool tight_low, bool tight_high, uint32_t rest,
      uint32_t from)
{
    if (at == w->len) {
        whole_end(w, tight_low, tight_high, rest, from);
        return;
    }
    for (int d = at == 0 && w->len > 1 ? 1 : 0; d <= 9 && w->b->failed == TR_OK;
         d++) {
        int lo = tight_low ? w->low->whole[at] - '0' : 0;
        int hi = tight_high ? w->high->whole[at] - '0' : 9;
        bool low = tight_low && d == lo, high = tight_high && d == hi;
        uint32_t next = (rest * 10 + (uint32_t) d) % w->divisor, to;

        if (d < lo || d > hi) {
            continue;
        }
        if (!low && !high) {
            uint32_t *slot = &w->free_whole[w->len - at - 1][next];

            if (*slot == 0) {
                *slot = tr_rules_state(w->b);
                whole(w, at + 1, false, false, next, *slot);
            }
            to = *slot;
        } else {
            to = tr_rules_state(w->b);
            whole(w, at + 1, low, high, next, to);
        }
        tr_rules_bytes(w->b, from, (uint8_t) ('0' + d), (uint8_t) ('0' + d),
                       to);
    }
}

/* Sizes between two bounds. */
static void
sizes(writer_t *w, const decimal_t *low, const decimal_t *high, uint32_t from)
{
    int most = high->known ? high->n_whole : WHOLE_DIGITS;

    w->low = low;
    w->high = high;
    for (int len = low->known ? low->n_whole : 1; len <= most; len++) {
        w->len = len;
        whole(w, 0, low->known && len == low->n_whole,
              high->known && len == high->n_whole, 0, from);
    }
}

/* ---- bounds of a schema */

static int
compare(const bound_t *a, const bound_t *b)
{
    int c;

    if (a->negative != b->negative) {
        return a->negative ? -1 : 1;
    }
    c = a->size.n_whole != b->size.n_whole
            ? a->size.n_whole - b->size.n_whole
            : strcmp(a->size.whole, b->size.whole);
    c = c != 0 ? c : strcmp(a->size.part, b->size.part);
    return a->negative ? -c : c;
}

/* The stricter of `key` and its exclusive form.  way: 1 for a least value. */
static bool
read_bound(schema_t *c, const json_t *flat, const char *key,
           const char *exclusive, int way, bound_t *out)
{
    const char *keys[2] = { key, exclusive };

    memset(out, 0, sizeof(*out));
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(flat, keys[i]);
        bound_t b;

        if (value == NULL) {
            continue;
        }
        if (!json_is_number(value)) {
            tr_schema_invalid(c, "a bound is not a number");
            return false;
        }
        if (!read_decimal(value, &b)) {
            double v = json_number_value(value) * way;

            if (fabs(v) >= 1 && v < 0) {
                continue; /* beyond all that is written */
            }
            tr_schema_unsupported(c, keys[i]);
            return false;
        }
        b.size.excluded = i == 1;
        if (!out->size.known || compare(&b, out) * way > 0
            || (compare(&b, out) == 0 && i == 1)) {
            *out = b;
        }
    }
    return true;
}

static void
bounded(schema_t *c, writer_t *w, const bound_t *low, const bound_t *high,
        uint32_t from)
{
    static const decimal_t zero = { true, false, 1, 0, "0", "" };
    static const decimal_t above_zero = { true, true, 1, 0, "0", "" };
    static const decimal_t none = { 0 };
    uint32_t minus;

    if (low->size.known && high->size.known && compare(low, high) > 0) {
        return;
    }
    /* from 0 up */
    if (!(high->size.known && high->negative)) {
        sizes(w, low->size.known && !low->negative ? &low->size : &zero,
              high->size.known ? &high->size : &none, from);
    }
    /* below 0: sizes the other way round */
    if (!(low->size.known && !low->negative)) {
        minus = tr_rules_state(c->b);
        memset(w->free_whole, 0, sizeof(w->free_whole));
        memset(w->free_part, 0, sizeof(w->free_part));
        w->free_end = 0;
        tr_rules_bytes(c->b, from, '-', '-', minus);
        sizes(w, high->size.known && high->negative ? &high->size : &above_zero,
              low->size.known ? &low->size : &none, minus);
    }
}

/* 1: none; 0: refused, dropped, or nothing can match. */
static uint32_t
read_divisor(schema_t *c, const json_t *flat, bool *integer)
{
    const json_t *value = json_object_get(flat, "multipleOf");
    double v = json_number_value(value);

    if (value == NULL) {
        return 1;
    }
    if (!json_is_number(value) || !(v > 0)) {
        tr_schema_invalid(c, "'multipleOf' is not a number above 0");
        return 1;
    }
    if (v != floor(v) || v > DIVISOR_MAX) {
        if (*integer && floor(1 / v) * v == 1 && v < 1) {
            return 1; /* every integer is a multiple */
        }
        tr_schema_unsupported(c, "multipleOf");
        return 1;
    }
    *integer = true;
    return (uint32_t) v;
}

void
tr_schema_number(schema_t *c, json_t *flat, bool integer, uint32_t from,
                 uint32_t to)
{
    uint32_t divisor = read_divisor(c, flat, &integer);
    bound_t low, high;
    writer_t *w;

    if (!read_bound(c, flat, "minimum", "exclusiveMinimum", 1, &low)
        || !read_bound(c, flat, "maximum", "exclusiveMaximum", -1, &high)) {
        if (!tr_schema_going(c)) {
            return;
        }
        memset(&low, 0, sizeof(low)); /* dropped */
        memset(&high, 0, sizeof(high));
    }
    if (!low.size.known && !high.size.known && divisor == 1) {
        tr_rules_call(c->b, from, integer ? c->json.integer : c->json.number,
                      to);
        return;
    }
    w = calloc(1, sizeof(*w));
    if (w == NULL) {
        c->rc = TR_ERR_NOMEM;
        return;
    }
    w->b = c->b;
    w->to = to;
    w->divisor = divisor;
    w->parts = !integer;
    bounded(c, w, &low, &high, from);
    free(w);
}
