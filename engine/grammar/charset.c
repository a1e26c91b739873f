/*
 * Sets of code points, and the bytes that spell their characters.
 */
#include "grammar_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#define SURROGATE_FIRST 0xd800u
#define SURROGATE_LAST 0xdfffu

void
tr_charset_free(tr_charset_t *c)
{
    free(c->ranges);
    memset(c, 0, sizeof(*c));
}

void
tr_charset_add(tr_charset_t *c, uint32_t lo, uint32_t hi)
{
    if (c->n == c->cap) {
        uint32_t cap = c->cap == 0 ? 8 : c->cap * 2;
        tr_range_t *p = realloc(c->ranges, cap * sizeof(*p));

        if (p == NULL) {
            c->failed = true;
            return;
        }
        c->ranges = p;
        c->cap = cap;
    }
    c->ranges[c->n++] = (tr_range_t){ lo, hi };
}

static int
by_start(const void *a, const void *b)
{
    const tr_range_t *x = a, *y = b;

    return (x->lo > y->lo) - (x->lo < y->lo);
}

void
tr_charset_normalise(tr_charset_t *c)
{
    uint32_t n = 0, before;

    /* surrogates are no characters */
    before = c->n;
    for (uint32_t i = 0; i < before; i++) {
        tr_range_t r = c->ranges[i];

        if (r.lo <= SURROGATE_LAST && r.hi >= SURROGATE_FIRST) {
            if (r.hi > SURROGATE_LAST) {
                tr_charset_add(c, SURROGATE_LAST + 1, r.hi);
            }
            c->ranges[i].hi = SURROGATE_FIRST - 1;
            if (r.lo >= SURROGATE_FIRST) {
                c->ranges[i] = (tr_range_t){ 1, 0 };
            }
        }
    }
    if (c->n > 0) {
        qsort(c->ranges, c->n, sizeof(*c->ranges), by_start);
    }
    for (uint32_t i = 0; i < c->n; i++) {
        tr_range_t r = c->ranges[i];

        if (r.lo > r.hi) {
            continue;
        }
        if (n > 0 && r.lo <= c->ranges[n - 1].hi + 1) {
            if (r.hi > c->ranges[n - 1].hi) {
                c->ranges[n - 1].hi = r.hi;
            }
        } else {
            c->ranges[n++] = r;
        }
    }
    c->n = n;
}

void
tr_charset_negate(tr_charset_t *c)
{
    tr_charset_t out = { 0 };
    uint32_t from = 0;

    tr_charset_normalise(c);
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->ranges[i].lo > from) {
            tr_charset_add(&out, from, c->ranges[i].lo - 1);
        }
        from = c->ranges[i].hi + 1;
    }
    if (from < TR_CODE_POINTS) {
        tr_charset_add(&out, from, TR_CODE_POINTS - 1);
    }
    out.failed = out.failed || c->failed;
    tr_charset_free(c);
    *c = out;
    tr_charset_normalise(c);
}

/* ---- bytes */

/* States behind the first bytes of one set's characters, so that equal beginnings
 * of escapes and equal continuations are shared: tail[k] goes to `to` by any k
 * continuing bytes. */
typedef struct {
    tr_rules_t *b;
    uint32_t from, to, tail[4];
    bool has_tail[4];
    uint32_t escape;   /* behind a backslash; 0: not made, as all of these */
    uint32_t code;     /* behind "\\u00" */
    uint32_t digit[2]; /* behind "\\u000" and "\\u001" */
} spell_t;

static uint32_t
tail(spell_t *s, uint32_t n)
{
    if (n == 0) {
        return s->to;
    }
    if (!s->has_tail[n]) {
        uint32_t next = tail(s, n - 1);

        s->has_tail[n] = true;
        s->tail[n] = tr_rules_state(s->b);
        tr_rules_bytes(s->b, s->tail[n], 0x80, 0xbf, next);
    }
    return s->tail[n];
}

/* Characters of equal length from lo to hi, of which bytes [at, n) remain. */
static void
spell(spell_t *s, uint32_t from, const uint8_t *lo, const uint8_t *hi,
      uint32_t at, uint32_t n)
{
    uint8_t least[4] = { 0, 0x80, 0x80, 0x80 },
            most[4] = { 0, 0xbf, 0xbf, 0xbf };
    bool lo_full, hi_full;
    uint32_t first = lo[at], last = hi[at];

    if (at + 1 == n) {
        tr_rules_bytes(s->b, from, (uint8_t) first, (uint8_t) last, s->to);
        return;
    }
    lo_full = memcmp(lo + at + 1, least + 1, n - at - 1) == 0;
    hi_full = memcmp(hi + at + 1, most + 1, n - at - 1) == 0;
    if (first == last && !(lo_full && hi_full)) {
        uint32_t next = tr_rules_state(s->b);

        tr_rules_bytes(s->b, from, (uint8_t) first, (uint8_t) first, next);
        spell(s, next, lo, hi, at + 1, n);
        return;
    }
    if (!lo_full) {
        uint32_t next = tr_rules_state(s->b);

        tr_rules_bytes(s->b, from, (uint8_t) first, (uint8_t) first, next);
        memcpy(most, lo, at + 1);
        spell(s, next, lo, most, at + 1, n);
        first++;
    }
    if (!hi_full) {
        uint32_t next = tr_rules_state(s->b);

        tr_rules_bytes(s->b, from, (uint8_t) last, (uint8_t) last, next);
        memcpy(least, hi, at + 1);
        spell(s, next, least, hi, at + 1, n);
        last--;
    }
    if (first <= last) {
        tr_rules_bytes(s->b, from, (uint8_t) first, (uint8_t) last,
                       tail(s, n - at - 1));
    }
}

static void
spell_range(spell_t *s, uint32_t from, uint32_t lo, uint32_t hi)
{
    static const uint32_t last[] = { 0x7f, 0x7ff, 0xffff, 0x10ffff };

    for (uint32_t k = 0; k < 4 && lo <= hi; k++) {
        uint8_t a[4] = { 0 }, b[4] = { 0 };
        uint32_t end = hi < last[k] ? hi : last[k], n;

        if (lo > last[k]) {
            continue;
        }
        utf8proc_encode_char((utf8proc_int32_t) lo, a);
        n = (uint32_t) utf8proc_encode_char((utf8proc_int32_t) end, b);
        spell(s, from, a, b, 0, n);
        lo = end + 1;
    }
}

/* The state behind a text from a state; made if it is not there. */
static uint32_t
behind(spell_t *s, uint32_t *state, uint32_t from, const char *text)
{
    if (*state == 0) {
        *state = tr_rules_state(s->b);
        tr_rules_text(s->b, from, text, strlen(text), *state);
    }
    return *state;
}

/* The one spelling of a character that a JSON string must escape. */
static void
spell_escaped(spell_t *s, uint32_t c)
{
    static const char shorts[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *at = strchr(shorts, (int) c);
    uint32_t from = behind(s, &s->escape, s->from, "\\");
    uint8_t last;

    if (c != 0 && at != NULL) {
        last = (uint8_t) letters[at - shorts];
    } else {
        from = behind(s, &s->code, from, "u00");
        from = behind(s, &s->digit[c >> 4], from, c >> 4 != 0 ? "1" : "0");
        last = (uint8_t) "0123456789abcdef"[c & 15];
    }
    tr_rules_bytes(s->b, from, last, last, s->to);
}

void
tr_charset_rules(tr_rules_t *b, uint32_t from, const tr_charset_t *c, bool json,
                 uint32_t to)
{
    spell_t s = { .b = b, .from = from, .to = to };

    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t lo = c->ranges[i].lo, hi = c->ranges[i].hi;

        if (!json) {
            spell_range(&s, from, lo, hi);
            continue;
        }
        for (; lo <= hi && lo < 0x20; lo++) {
            spell_escaped(&s, lo);
        }
        for (uint32_t k = 0; k < 2 && lo <= hi; k++) {
            uint32_t odd = k == 0 ? '"' : '\\';

            if (lo <= odd && odd <= hi) {
                if (lo < odd) {
                    spell_range(&s, from, lo, odd - 1);
                }
                spell_escaped(&s, odd);
                lo = odd + 1;
            }
        }
        if (lo <= hi) {
            spell_range(&s, from, lo, hi);
        }
    }
}
