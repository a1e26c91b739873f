/*
 * Regular expressions to a tree: what ECMA 262 and Python share.
 *
 * Groups of all kinds that only group; classes with ranges, \d \w \s, \p{..} of
 * general categories; quantifiers, lazy ones being the same language; ^ and $.
 * What looks around or back, or knows of words, is no regular expression here.
 */
#include "grammar_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#define DEPTH_MAX 64
#define NODES_MAX 65536u
#define REPEAT_MAX 65536u
#define WORK_MAX (1u << 22) /* some 25 ms */
#define PROPERTIES 16       /* of general categories, in one expression */

typedef struct {
    const char *text;
    size_t len, at;
    tr_regex_tree_t *tree;
    char *why; /* [128] */
    tr_status_t rc;
    int depth;
    bool ignore_case, dot_all;
    uint64_t work; /* characters and ranges that were looked at */
    struct {
        char name[32];
        tr_charset_t set;
    } known[PROPERTIES]; /* that were read already */
    uint32_t n_known;
} parser_t;

static uint32_t
fail(parser_t *p, tr_status_t rc, const char *what)
{
    if (p->rc == TR_OK) {
        p->rc = rc;
        snprintf(p->why, 128, "%s at byte %zu", what, p->at);
    }
    return 0;
}

/* Counts work; false: it was too much. */
static bool
count(parser_t *p, uint64_t work)
{
    p->work += work;
    if (p->work > WORK_MAX) {
        fail(p, TR_ERR_INVALID, "the expression is too complex");
    }
    return p->rc == TR_OK;
}

static uint32_t
add_node(parser_t *p, tr_regex_node_t node)
{
    tr_regex_tree_t *t = p->tree;

    if (p->rc != TR_OK) {
        return 0;
    }
    if (t->n == NODES_MAX) {
        return fail(p, TR_ERR_INVALID, "the expression is too long");
    }
    if (t->n == t->cap) {
        uint32_t cap = t->cap == 0 ? 32 : t->cap * 2;
        tr_regex_node_t *n = realloc(t->nodes, cap * sizeof(*n));

        if (n == NULL) {
            return fail(p, TR_ERR_NOMEM, "out of memory");
        }
        t->nodes = n;
        t->cap = cap;
    }
    t->nodes[t->n] = node;
    return t->n++;
}

/* Takes *set. */
static uint32_t
add_set(parser_t *p, tr_charset_t *set)
{
    tr_regex_tree_t *t = p->tree;

    tr_charset_normalise(set);
    count(p, 1 + set->n);
    if (t->n_sets == t->cap_sets) {
        uint32_t cap = t->cap_sets == 0 ? 16 : t->cap_sets * 2;
        tr_charset_t *n = realloc(t->sets, cap * sizeof(*n));

        if (n == NULL) {
            tr_charset_free(set);
            return fail(p, TR_ERR_NOMEM, "out of memory");
        }
        t->sets = n;
        t->cap_sets = cap;
    }
    if (set->failed) {
        fail(p, TR_ERR_NOMEM, "out of memory");
    }
    t->sets[t->n_sets] = *set;
    return add_node(p, (tr_regex_node_t){ TR_REGEX_SET, t->n_sets++, 0, 0, 0 });
}

void
tr_regex_free(tr_regex_tree_t *t)
{
    for (uint32_t i = 0; i < t->n_sets; i++) {
        tr_charset_free(&t->sets[i]);
    }
    free(t->sets);
    free(t->nodes);
    memset(t, 0, sizeof(*t));
}

static bool
more(const parser_t *p)
{
    return p->rc == TR_OK && p->at < p->len;
}

static bool
looking_at(const parser_t *p, const char *what)
{
    size_t n = strlen(what);

    return p->len - p->at >= n && memcmp(p->text + p->at, what, n) == 0;
}

static bool
skip(parser_t *p, const char *what)
{
    if (!looking_at(p, what)) {
        return false;
    }
    p->at += strlen(what);
    return true;
}

static uint32_t
code_point(parser_t *p)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *) p->text
                                              + p->at,
                                          (utf8proc_ssize_t) (p->len - p->at),
                                          &c);

    if (n <= 0) {
        return fail(p, TR_ERR_INVALID, "invalid UTF-8");
    }
    p->at += (size_t) n;
    return (uint32_t) c;
}

/* ---- escapes and classes */

static void
add_white(tr_charset_t *c)
{
    static const tr_range_t white[] = {
        { 0x09, 0x0d },     { 0x20, 0x20 },     { 0xa0, 0xa0 },
        { 0x1680, 0x1680 }, { 0x2000, 0x200a }, { 0x2028, 0x2029 },
        { 0x202f, 0x202f }, { 0x205f, 0x205f }, { 0x3000, 0x3000 },
        { 0xfeff, 0xfeff }
    };

    for (size_t i = 0; i < sizeof(white) / sizeof(white[0]); i++) {
        tr_charset_add(c, white[i].lo, white[i].hi);
    }
}

/* \d \D \w \W \s \S; false: none of them. */
static bool
add_class(tr_charset_t *out, char letter)
{
    tr_charset_t c = { 0 };

    switch (letter | 0x20) {
    case 'd':
        tr_charset_add(&c, '0', '9');
        break;
    case 'w':
        tr_charset_add(&c, '0', '9');
        tr_charset_add(&c, 'A', 'Z');
        tr_charset_add(&c, 'a', 'z');
        tr_charset_add(&c, '_', '_');
        break;
    case 's':
        add_white(&c);
        break;
    default:
        return false;
    }
    if (!(letter & 0x20)) {
        tr_charset_negate(&c);
    }
    for (uint32_t i = 0; i < c.n; i++) {
        tr_charset_add(out, c.ranges[i].lo, c.ranges[i].hi);
    }
    out->failed = out->failed || c.failed;
    tr_charset_free(&c);
    return true;
}

typedef struct {
    const char *name, *letters; /* of general categories */
} property_t;

static const property_t properties[] = { { "Letter", "L" },
                                         { "Uppercase_Letter", "Lu" },
                                         { "Lowercase_Letter", "Ll" },
                                         { "Titlecase_Letter", "Lt" },
                                         { "Modifier_Letter", "Lm" },
                                         { "Other_Letter", "Lo" },
                                         { "Mark", "M" },
                                         { "Number", "N" },
                                         { "Decimal_Number", "Nd" },
                                         { "Letter_Number", "Nl" },
                                         { "Other_Number", "No" },
                                         { "Punctuation", "P" },
                                         { "punct", "P" },
                                         { "Symbol", "S" },
                                         { "Separator", "Z" },
                                         { "digit", "Nd" },
                                         { "Space_Separator", "Zs" },
                                         { "Other", "C" },
                                         { "Control", "Cc" },
                                         { "Currency_Symbol", "Sc" } };

/* The characters of a general category, by its letters; empty: there is none.
 * Each is looked for once an expression. */
static const tr_charset_t *
property_set(parser_t *p, const char *name)
{
    static const tr_charset_t none;
    uint32_t first = 0, in = 0;
    tr_charset_t *c;

    for (uint32_t i = 0; i < p->n_known; i++) {
        if (strcmp(p->known[i].name, name) == 0) {
            return &p->known[i].set;
        }
    }
    if (p->n_known == PROPERTIES) {
        fail(p, TR_ERR_UNSUPPORTED, "more than 16 different properties");
        return &none;
    }
    snprintf(p->known[p->n_known].name, sizeof(p->known[0].name), "%s", name);
    c = &p->known[p->n_known++].set;
    for (uint32_t k = 0; k <= TR_CODE_POINTS; k++) {
        const char *category = k < TR_CODE_POINTS ? utf8proc_category_string(
                                   (utf8proc_int32_t) k)
                                                  : "";
        bool now = name[0] != '\0' && category[0] == name[0]
                   && (name[1] == '\0'
                       || (category[1] == name[1] && name[2] == '\0'));

        if (now && !in) {
            first = k;
        } else if (!now && in) {
            tr_charset_add(c, first, k - 1);
        }
        in = now;
    }
    return c;
}

/* Behind \p or \P. */
static void
read_property(parser_t *p, tr_charset_t *out, bool negative)
{
    tr_charset_t c = { 0 };
    char name[32] = "";
    const tr_charset_t *known;
    size_t n = 0;

    if (!skip(p, "{")) {
        fail(p, TR_ERR_INVALID, "\\p without {");
        return;
    }
    if (!skip(p, "General_Category=")) {
        skip(p, "gc=");
    }
    while (more(p) && p->text[p->at] != '}' && n + 1 < sizeof(name)) {
        name[n++] = p->text[p->at++];
    }
    if (!skip(p, "}")) {
        fail(p, TR_ERR_INVALID, "\\p{ without }");
        return;
    }
    for (size_t i = 0; i < sizeof(properties) / sizeof(properties[0]); i++) {
        if (strcmp(properties[i].name, name) == 0) {
            snprintf(name, sizeof(name), "%s", properties[i].letters);
        }
    }
    known = property_set(p, name);
    if (known->n == 0) {
        fail(p, TR_ERR_UNSUPPORTED, "this property is not known");
    }
    if (!count(p, known->n)) {
        return;
    }
    for (uint32_t i = 0; i < known->n; i++) {
        tr_charset_add(&c, known->ranges[i].lo, known->ranges[i].hi);
    }
    c.failed = c.failed || known->failed;
    if (negative) {
        tr_charset_negate(&c);
    }
    for (uint32_t i = 0; i < c.n; i++) {
        tr_charset_add(out, c.ranges[i].lo, c.ranges[i].hi);
    }
    out->failed = out->failed || c.failed;
    tr_charset_free(&c);
}

static uint32_t
hex(parser_t *p, int digits)
{
    uint32_t v = 0;
    int n = 0;

    for (; n < digits && p->at < p->len; n++, p->at++) {
        char c = p->text[p->at];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;

        if (d < 0) {
            break;
        }
        v = v << 4 | (uint32_t) d;
    }
    if (n < (digits > 4 ? 1 : digits) || v >= TR_CODE_POINTS) {
        fail(p, TR_ERR_INVALID, "a hexadecimal escape is incomplete");
    }
    return v;
}

/* Behind \u: four digits, a surrogate pair of such, or {...}. */
static uint32_t
unicode_escape(parser_t *p)
{
    uint32_t c, low;

    if (skip(p, "{")) {
        c = hex(p, 6);
        if (!skip(p, "}")) {
            fail(p, TR_ERR_INVALID, "\\u{ without }");
        }
        return c;
    }
    c = hex(p, 4);
    if (c >= 0xd800 && c < 0xdc00 && skip(p, "\\u")) {
        low = hex(p, 4);
        if (low >= 0xdc00 && low < 0xe000) {
            return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    if (c >= 0xd800 && c < 0xe000) {
        fail(p, TR_ERR_UNSUPPORTED, "half of a surrogate pair");
    }
    return c;
}

/* Behind the backslash, not a class: the character. */
static uint32_t
escape(parser_t *p, bool in_class)
{
    static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v";
    char c = p->text[p->at];
    const char *at = strchr(from, c);

    if (c != '\0' && at != NULL) {
        p->at++;
        if (c == '0' && p->at < p->len && p->text[p->at] >= '0'
            && p->text[p->at] <= '9') {
            return fail(p, TR_ERR_UNSUPPORTED, "an octal escape");
        }
        return c == '0' ? 0 : (uint32_t) to[at - from];
    }
    switch (c) {
    case 'x':
        p->at++;
        return hex(p, 2);
    case 'u':
        p->at++;
        return unicode_escape(p);
    case 'c':
        p->at++;
        if (more(p)
            && ((p->text[p->at] | 0x20) >= 'a'
                && (p->text[p->at] | 0x20) <= 'z')) {
            return (uint32_t) p->text[p->at++] & 0x1f;
        }
        return fail(p, TR_ERR_INVALID, "\\c without a letter");
    case 'a':
        p->at++;
        return 7;
    case 'b':
        if (in_class) {
            p->at++;
            return 8;
        }
        return fail(p, TR_ERR_UNSUPPORTED, "a word boundary");
    case 'B':
        return fail(p, TR_ERR_UNSUPPORTED, "a word boundary");
    default:
        if ((c >= '1' && c <= '9') || c == 'k') {
            return fail(p, TR_ERR_UNSUPPORTED, "a reference to a group");
        }
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
            return fail(p, TR_ERR_UNSUPPORTED, "this escape is not known");
        }
        return code_point(p);
    }
}

/* A class or property behind the backslash, into *out; false: a character. */
static bool
class_escape(parser_t *p, tr_charset_t *out)
{
    char c = p->text[p->at];

    if (add_class(out, c)) {
        p->at++;
        return true;
    }
    if (c == 'p' || c == 'P') {
        p->at++;
        read_property(p, out, c == 'P');
        return true;
    }
    return false;
}

static void
fold(parser_t *p, tr_charset_t *c)
{
    uint32_t n = c->n;

    if (!p->ignore_case) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t lo = c->ranges[i].lo, hi = c->ranges[i].hi;

        hi = hi < 0xffff ? hi : 0xffff;
        if (lo <= hi && !count(p, hi - lo + 1)) {
            return;
        }
        for (uint32_t k = lo; k <= hi; k++) {
            uint32_t low = (uint32_t) utf8proc_tolower((utf8proc_int32_t) k);
            uint32_t up = (uint32_t) utf8proc_toupper((utf8proc_int32_t) k);

            if (low != k) {
                tr_charset_add(c, low, low);
            }
            if (up != k) {
                tr_charset_add(c, up, up);
            }
        }
    }
}

/* One end of a range in [...]; *set: it was a class, added to *out. */
static uint32_t
class_atom(parser_t *p, tr_charset_t *out, bool *set)
{
    *set = false;
    if (skip(p, "\\")) {
        if (p->at == p->len) {
            return fail(p, TR_ERR_INVALID, "a backslash at the end");
        }
        *set = class_escape(p, out);
        return *set ? 0 : escape(p, true);
    }
    return code_point(p);
}

/* Behind '['. */
static uint32_t
read_class(parser_t *p)
{
    tr_charset_t c = { 0 };
    bool negative = skip(p, "^");

    while (more(p) && p->text[p->at] != ']') {
        bool is_set, is_set_2;
        uint32_t lo = class_atom(p, &c, &is_set), hi = lo;

        if (p->at + 1 < p->len && p->text[p->at] == '-'
            && p->text[p->at + 1] != ']') {
            p->at++;
            hi = class_atom(p, &c, &is_set_2);
            if (is_set || is_set_2) { /* then the dash is one */
                tr_charset_add(&c, '-', '-');
                if (!is_set_2) {
                    tr_charset_add(&c, hi, hi);
                }
                if (!is_set) {
                    tr_charset_add(&c, lo, lo);
                }
                continue;
            }
            if (lo > hi) {
                fail(p, TR_ERR_INVALID, "a range is the wrong way round");
            }
        }
        if (!is_set) {
            tr_charset_add(&c, lo, hi);
        }
    }
    if (!skip(p, "]")) {
        fail(p, TR_ERR_INVALID, "[ without ]");
    }
    if (p->rc != TR_OK) {
        tr_charset_free(&c);
        return 0;
    }
    fold(p, &c);
    if (negative) {
        tr_charset_negate(&c);
    }
    return add_set(p, &c);
}

/* ---- structure */

static uint32_t read_alternatives(parser_t *p);

static uint32_t
read_group(parser_t *p)
{
    uint32_t inner;

    if (skip(p, "?")) {
        if (looking_at(p, "=") || looking_at(p, "!") || looking_at(p, "<=")
            || looking_at(p, "<!")) {
            return fail(p, TR_ERR_UNSUPPORTED, "lookaround");
        }
        if (skip(p, "P<") || skip(p, "<")) {
            while (more(p) && p->text[p->at] != '>') {
                p->at++;
            }
            if (!skip(p, ">")) {
                return fail(p, TR_ERR_INVALID, "a group's name without >");
            }
        } else if (!skip(p, ":")) {
            return fail(p, TR_ERR_UNSUPPORTED, "this kind of group");
        }
    }
    if (++p->depth > DEPTH_MAX) {
        return fail(p, TR_ERR_INVALID, "groups are nested too deep");
    }
    inner = read_alternatives(p);
    p->depth--;
    if (!skip(p, ")")) {
        return fail(p, TR_ERR_INVALID, "( without )");
    }
    return inner;
}

static uint32_t
single(parser_t *p, uint32_t c)
{
    tr_charset_t set = { 0 };

    if (p->rc != TR_OK) {
        return 0;
    }
    tr_charset_add(&set, c, c);
    fold(p, &set);
    return add_set(p, &set);
}

static uint32_t
read_atom(parser_t *p)
{
    tr_charset_t set = { 0 };

    if (skip(p, "(")) {
        return read_group(p);
    }
    if (skip(p, "[")) {
        return read_class(p);
    }
    if (skip(p, "^")) {
        return add_node(p, (tr_regex_node_t){ TR_REGEX_BEGIN, 0, 0, 0, 0 });
    }
    if (skip(p, "$")) {
        return add_node(p, (tr_regex_node_t){ TR_REGEX_END, 0, 0, 0, 0 });
    }
    if (skip(p, ".")) {
        if (!p->dot_all) {
            tr_charset_add(&set, '\n', '\n');
            tr_charset_add(&set, '\r', '\r');
            tr_charset_add(&set, 0x2028, 0x2029);
        }
        tr_charset_negate(&set);
        return add_set(p, &set);
    }
    if (skip(p, "\\")) {
        if (p->at == p->len) {
            return fail(p, TR_ERR_INVALID, "a backslash at the end");
        }
        if (p->text[p->at] == 'A' || p->text[p->at] == 'Z'
            || p->text[p->at] == 'z') {
            return add_node(p, (tr_regex_node_t){ p->text[p->at++] == 'A'
                                                      ? TR_REGEX_BEGIN
                                                      : TR_REGEX_END,
                                                  0, 0, 0, 0 });
        }
        if (class_escape(p, &set)) {
            if (p->rc != TR_OK) {
                tr_charset_free(&set);
                return 0;
            }
            return add_set(p, &set);
        }
        return single(p, escape(p, false));
    }
    if (strchr("*+?", p->text[p->at]) != NULL && p->text[p->at] != '\0') {
        return fail(p, TR_ERR_INVALID, "nothing to repeat");
    }
    return single(p, code_point(p));
}

static bool
read_number(parser_t *p, uint32_t *out)
{
    size_t from = p->at;
    uint32_t v = 0;

    while (p->at < p->len && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        v = v > REPEAT_MAX * 4096 ? v
                                  : v * 10 + (uint32_t) (p->text[p->at] - '0');
        p->at++;
    }
    *out = v;
    return p->at > from;
}

/* {n}, {n,}, {n,m}: else the brace is a character, and *p stays. */
static bool
read_bounds(parser_t *p, uint32_t *min, uint32_t *max)
{
    size_t from = p->at;

    if (!skip(p, "{") || !read_number(p, min)) {
        p->at = from;
        return false;
    }
    *max = *min;
    if (skip(p, ",") && !read_number(p, max)) {
        *max = TR_UNBOUNDED;
    }
    if (!skip(p, "}")) {
        p->at = from;
        return false;
    }
    return true;
}

static uint32_t
read_repeated(parser_t *p)
{
    uint32_t node = read_atom(p), min, max;
    bool repeated = false;

    while (more(p)) {
        if (skip(p, "*")) {
            min = 0;
            max = TR_UNBOUNDED;
        } else if (skip(p, "+")) {
            min = 1;
            max = TR_UNBOUNDED;
        } else if (skip(p, "?")) {
            min = 0;
            max = 1;
        } else if (!read_bounds(p, &min, &max)) {
            break;
        }
        if (repeated) {
            return fail(p, TR_ERR_INVALID, "nothing to repeat");
        }
        repeated = true;
        if (min > max || (max != TR_UNBOUNDED ? max : min) > REPEAT_MAX) {
            return fail(p, TR_ERR_INVALID,
                        min > max ? "bounds are the wrong way round"
                                  : "a bound is above 65536");
        }
        if (skip(p, "?") || skip(p, "+")) {
            /* lazy: the same language; possessive: only nearly */
            if (p->text[p->at - 1] == '+') {
                return fail(p, TR_ERR_UNSUPPORTED, "a possessive quantifier");
            }
        }
        node = add_node(p, (tr_regex_node_t){ TR_REGEX_REPEAT, node, 0, min,
                                              max });
    }
    return node;
}

static uint32_t
read_sequence(parser_t *p)
{
    uint32_t node = add_node(p,
                             (tr_regex_node_t){ TR_REGEX_EMPTY, 0, 0, 0, 0 });
    bool empty = true;

    while (more(p) && p->text[p->at] != '|' && p->text[p->at] != ')') {
        uint32_t next = read_repeated(p);

        node = empty ? next
                     : add_node(p, (tr_regex_node_t){ TR_REGEX_CAT, node, next,
                                                      0, 0 });
        empty = false;
    }
    return node;
}

static uint32_t
read_alternatives(parser_t *p)
{
    uint32_t node = read_sequence(p);

    while (more(p) && skip(p, "|")) {
        uint32_t next = read_sequence(p);

        node = add_node(p, (tr_regex_node_t){ TR_REGEX_ALT, node, next, 0, 0 });
    }
    return node;
}

tr_status_t
tr_regex_parse(const char *text, size_t len, tr_regex_tree_t *out,
               char why[128])
{
    parser_t p = { .text = text, .len = len, .tree = out, .why = why };

    memset(out, 0, sizeof(*out));
    why[0] = '\0';
    for (;;) { /* flags at the beginning, as Python writes them */
        if (skip(&p, "(?i)")) {
            p.ignore_case = true;
        } else if (skip(&p, "(?s)")) {
            p.dot_all = true;
        } else {
            break;
        }
    }
    out->root = read_alternatives(&p);
    if (p.rc == TR_OK && p.at < p.len) {
        fail(&p, TR_ERR_INVALID, ") without (");
    }
    for (uint32_t i = 0; i < p.n_known; i++) {
        tr_charset_free(&p.known[i].set);
    }
    out->work = p.work;
    return p.rc;
}
