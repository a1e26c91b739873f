/*
 * The settings of policies.  The table declares each of them once: its name,
 * where it goes, its bounds, and what a message says is expected; reading and
 * printing walk it.  Which of them a policy takes, and their defaults, are in
 * its own file.
 */
#include "kv_policy_internal.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

typedef enum {
    KIND_NUMBER, /* uint32_t */
    KIND_REAL,   /* double */
    KIND_SHARE,  /* budget[index] in tokens, or fraction[index] */
    KIND_LEVELS, /* level[], n_levels */
    KIND_LEVEL,  /* tr_kv_level_t */
    KIND_BASE,   /* bool */
    KIND_PATH    /* char[128] */
} setting_kind_t;

typedef struct {
    const char *key;
    setting_kind_t kind;
    size_t offset; /* KIND_SHARE: the index */
    double min, max;
    const char *expected;
} setting_t;

#define AT(field) offsetof(tr_kv_policy_t, field)
#define ALPHA "a number from 0 to 1000"
#define SHARE "tokens (64), or a fraction of the length up to 1.0 (0.25)"
#define TOKENS_MAX 16777216.0

static const setting_t settings[] = {
    { "levels", KIND_LEVELS, 0, 0, 0, "" }, /* its message is made below */
    { "window", KIND_NUMBER, AT(window), 0, 65536, "tokens, 0 to 65536" },
    { "window_level", KIND_LEVEL, AT(window_level), 0, 0,
      "key bits/value bits from 16, 8, 4, 2, as in 8/4" },
    { "alpha_top", KIND_REAL, AT(alpha_top), 0, TR_KV_ALPHA_MAX, ALPHA },
    { "alpha_high", KIND_REAL, AT(alpha_high), 0, TR_KV_ALPHA_MAX, ALPHA },
    { "alpha_low", KIND_REAL, AT(alpha_low), 0, TR_KV_ALPHA_MAX, ALPHA },
    { "alpha_file", KIND_PATH, AT(alpha_file), 0, 0,
      "a path of 1 to 127 bytes without a comma" },
    { "base", KIND_BASE, AT(base_position), 0, 0,
      "N (tokens so far) or i (the token's own position)" },
    { "observe", KIND_NUMBER, AT(observe), 0, TR_KV_OBSERVATION_WINDOW,
      "queries, 0 (all) to 32" },
    { "groups", KIND_NUMBER, AT(groups), 1, 4, "1, 2 or 4" },
    { "group", KIND_NUMBER, AT(group), 0, 256,
      "dimensions, 0 (all of a head) to 256" },
    { "bits", KIND_NUMBER, AT(bits), 2, 8, "2, 4 or 8" },
    { "high", KIND_REAL, AT(fraction[0]), 0, 1, "a fraction, 0 to 1" },
    { "low", KIND_REAL, AT(fraction[1]), 0, 1, "a fraction, 0 to 1" },
    { "budget", KIND_SHARE, 0, 0, 0, SHARE },
    { "recent", KIND_SHARE, 1, 0, 0, SHARE },
    { "sinks", KIND_NUMBER, AT(sinks), 0, 65536, "tokens, 0 to 65536" },
    { "pool", KIND_NUMBER, AT(pool), 1, 255, "an odd number of tokens to 255" },
    { "from", KIND_NUMBER, AT(read_from), 0, 65536, "a layer, 0 to 65536" },
};

#define N_SETTINGS (sizeof(settings) / sizeof(settings[0]))

/* Is the word among those of a list separated by blanks? */
static bool
listed(const char *list, const char *word, size_t n)
{
    for (const char *at = list; *at != '\0';) {
        size_t len = strcspn(at, " ");

        if (len == n && memcmp(at, word, n) == 0) {
            return true;
        }
        at += len + (at[len] == ' ');
    }
    return false;
}

static const setting_t *
find(const tr_kv_policy_row_t *row, const char *key, size_t n)
{
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (strlen(settings[i].key) == n
            && memcmp(settings[i].key, key, n) == 0) {
            return listed(row->settings, key, n) ? &settings[i] : NULL;
        }
    }
    return NULL;
}

/* ---- reading ------------------------------------------------------------ */

/* A finite number without blanks, sign, hexadecimal or what follows it. */
static bool
read_real(const char *text, double *out)
{
    char *end;

    if (text[0] == '\0' || text[strspn(text, "0123456789.eE-")] != '\0'
        || text[0] == '-' || text[0] == 'e' || text[0] == 'E') {
        return false;
    }
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

static bool
read_number(const char *text, double max, uint32_t *out)
{
    double v;

    if (text[strspn(text, "0123456789")] != '\0' || !read_real(text, &v)
        || v > max) {
        return false;
    }
    *out = (uint32_t) v;
    return true;
}

static bool
read_share(const char *text, tr_kv_policy_t *p, size_t index)
{
    uint32_t tokens = 0;
    double share = 0;

    if (!read_number(text, TOKENS_MAX, &tokens)
        && (!read_real(text, &share) || share > 1)) {
        return false;
    }
    p->budget[index] = tokens;
    p->fraction[index] = share;
    return true;
}

/* "8/4"; what follows must be `end` or the end of the text. */
static bool
read_level(const char **text, tr_kv_level_t *out, char end)
{
    static const uint8_t bits[] = { 16, 8, 4, 2 };
    static const char *const name[] = { "16", "8", "4", "2" };
    const char *at = *text;
    uint8_t got[2] = { 0, 0 };

    for (int side = 0; side < 2; side++) {
        size_t i = 0;

        while (i < 4 && strncmp(at, name[i], strlen(name[i])) != 0) {
            i++;
        }
        if (i == 4) {
            return false;
        }
        at += strlen(name[i]);
        got[side] = bits[i];
        if (side == 0 && *at++ != '/') {
            return false;
        }
    }
    if (*at != '\0' && *at != end) {
        return false;
    }
    *text = at + (*at == end && end != '\0');
    *out = (tr_kv_level_t){ .key_bits = got[0], .value_bits = got[1] };
    return true;
}

static bool
read_levels(const char *text, tr_kv_policy_t *p, uint32_t max)
{
    uint32_t n = 0;

    while (*text != '\0') {
        if (n == max || !read_level(&text, &p->level[n], '+')) {
            return false;
        }
        n++;
        if (*text == '\0' && text[-1] == '+') {
            return false;
        }
    }
    p->n_levels = n;
    return n > 0;
}

static bool
read_value(const setting_t *s, const tr_kv_policy_row_t *row, const char *value,
           tr_kv_policy_t *p)
{
    void *field = (char *) p + s->offset;
    double real = 0;
    uint32_t number = 0;

    switch (s->kind) {
    case KIND_NUMBER:
        if (!read_number(value, s->max, &number) || number < s->min) {
            return false;
        }
        *(uint32_t *) field = number;
        return true;
    case KIND_REAL:
        if (!read_real(value, &real) || real < s->min || real > s->max) {
            return false;
        }
        *(double *) field = real;
        return true;
    case KIND_SHARE:
        return read_share(value, p, s->offset);
    case KIND_LEVELS:
        return read_levels(value, p, row->levels_max);
    case KIND_LEVEL:
        return read_level(&value, field, '\0');
    case KIND_BASE:
        p->base_position = strcmp(value, "i") == 0;
        return p->base_position || strcmp(value, "N") == 0;
    case KIND_PATH:
        if (value[0] == '\0' || strlen(value) >= sizeof(p->alpha_file)) {
            return false;
        }
        memcpy(field, value, strlen(value) + 1);
        return true;
    }
    return false;
}

static tr_status_t
unknown(const tr_kv_policy_row_t *row, const char *key, size_t n,
        tr_error_t *err)
{
    int shown = n > 64 ? 64 : (int) n;

    if (row->settings[0] == '\0') {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy %s has no setting \"%.*s\": it has none",
                            row->name, shown, key);
    }
    return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                        "KV policy %s has no setting \"%.*s\": known are %s",
                        row->name, shown, key, row->settings);
}

static tr_status_t
bad_value(const tr_kv_policy_row_t *row, const setting_t *s, const char *value,
          tr_error_t *err)
{
    char levels[160];
    const char *expected = s->expected;

    if (s->kind == KIND_LEVELS) {
        snprintf(levels, sizeof(levels),
                 "1 to %u levels of key bits/value bits from 16, 8, 4, 2, best"
                 " first, as in %s",
                 row->levels_max, row->levels_max > 1 ? "8/4+4/2" : "8/4");
        expected = levels;
    }
    return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                        "KV policy %s: %s=%.64s: expected %s", row->name,
                        s->key, value, expected);
}

tr_status_t
tr_kv_settings_read(const tr_kv_policy_row_t *row, const char *text,
                    tr_kv_policy_t *p, tr_error_t *err)
{
    bool given[N_SETTINGS] = { false };
    char value[TR_KV_SPEC_MAX + 1];

    while (*text != '\0') {
        size_t n = strcspn(text, ","), key = strcspn(text, "=,");
        const setting_t *s = find(row, text, key);

        if (s == NULL) {
            return unknown(row, text, key, err);
        }
        if (key == n || n - key > TR_KV_SPEC_MAX) {
            return bad_value(row, s, key == n ? "" : "(too long)", err);
        }
        if (given[s - settings]) {
            return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                                "KV policy %s: %s is given twice: once is"
                                " enough",
                                row->name, s->key);
        }
        given[s - settings] = true;
        snprintf(value, sizeof(value), "%.*s", (int) (n - key - 1),
                 text + key + 1);
        if (!read_value(s, row, value, p)) {
            return bad_value(row, s, value, err);
        }
        text += n;
        if (*text == ',' && *++text == '\0') {
            return unknown(row, "", 0, err);
        }
    }
    return TR_OK;
}

/* ---- printing ----------------------------------------------------------- */

/* The shortest decimal, from 6 digits on, that reads back as v. */
static void
print_real(char *out, size_t size, double v)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, v);
        if (strtod(out, NULL) == v) {
            return;
        }
    }
}

static void
print_levels(char *out, size_t size, const tr_kv_level_t *level, uint32_t n)
{
    size_t used = 0;

    for (uint32_t i = 0; i < n && used < size; i++) {
        used += (size_t) snprintf(out + used, size - used, "%s%u/%u",
                                  i == 0 ? "" : "+", level[i].key_bits,
                                  level[i].value_bits);
    }
}

static void
print_value(const setting_t *s, const tr_kv_policy_t *p, char *out, size_t size)
{
    const void *field = (const char *) p + s->offset;

    out[0] = '\0';
    switch (s->kind) {
    case KIND_NUMBER:
        snprintf(out, size, "%u", *(const uint32_t *) field);
        break;
    case KIND_REAL:
        print_real(out, size, *(const double *) field);
        break;
    case KIND_SHARE:
        if (p->fraction[s->offset] == 0) {
            snprintf(out, size, "%u", p->budget[s->offset]);
            break;
        }
        print_real(out, size - 2, p->fraction[s->offset]);
        if (strpbrk(out, ".e") == NULL) { /* 1 would read as one token */
            strcat(out, ".0");
        }
        break;
    case KIND_LEVELS:
        print_levels(out, size, p->level, p->n_levels);
        break;
    case KIND_LEVEL:
        print_levels(out, size, field, 1);
        break;
    case KIND_BASE:
        snprintf(out, size, "%s", p->base_position ? "i" : "N");
        break;
    case KIND_PATH:
        snprintf(out, size, "%s", (const char *) field);
        break;
    }
}

tr_status_t
tr_kv_settings_print(const tr_kv_policy_row_t *row, tr_kv_policy_t *p,
                     tr_error_t *err)
{
    size_t used = (size_t) snprintf(p->spec, sizeof(p->spec), "%s", p->name);
    char value[160];
    char next = ':';

    for (const char *at = row->settings; *at != '\0';) {
        size_t n = strcspn(at, " ");
        const setting_t *s = find(row, at, n);

        at += n + (at[n] == ' ');
        if (s == NULL) { /* a misspelt table */
            return tr_error_set(err, TR_ERR_INTERNAL, "kv_policy",
                                "KV policy %s: unknown setting in its table",
                                row->name);
        }
        print_value(s, p, value, sizeof(value));
        if (value[0] == '\0') { /* no file */
            continue;
        }
        if (used < sizeof(p->spec)) {
            used += (size_t) snprintf(p->spec + used, sizeof(p->spec) - used,
                                      "%c%s=%s", next, s->key, value);
        }
        next = ',';
    }
    if (used >= sizeof(p->spec)) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy %s: its settings take %zu bytes: up to"
                            " %u are possible",
                            row->name, used, TR_KV_SPEC_MAX);
    }
    return TR_OK;
}
