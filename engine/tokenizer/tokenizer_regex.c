/*
 * The patterns of tokenizer.json are written for Oniguruma; here they are
 * rewritten for PCRE2, which differs in a few things that real files use:
 *
 *   \s \S \w \W \d \D   Unicode properties (PCRE2's \s has U+180E in addition)
 *   \h \H               a hexadecimal digit, not a blank
 *   (?i:...)            folds ASCII letters only, as the reference does
 *   X{n,m}+             repeats X{n,m}, it is not possessive; {,m} is {0,m}
 *   ^ $                 match at every line; a line ends with \n alone
 *   \uHHHH              a code point
 *
 * What PCRE2 would read differently without saying so (nested classes,
 * intersections, other inline options) is refused.  Matching runs under
 * limits, so that a bad pattern ends with an error and not never.
 */
#include "tokenizer_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_MAX 64
#define MATCH_LIMIT 100000000u
#define HEAP_LIMIT_KIB (64u * 1024)
#define JIT_STACK_BYTES (1u << 20)

#define WORD_PROPERTIES "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define HEX_DIGITS "0-9A-Fa-f"

typedef struct {
    const char *in;
    size_t len, i;
    tr_bytes_t out;
    size_t atom; /* where the last atom begins in out */
    bool has_atom;
    bool fold; /* inside (?i:...) */
    struct {
        size_t atom;
        bool fold;
    } groups[GROUPS_MAX];
    uint32_t depth;
    const char *problem; /* what is not supported */
    bool nomem;
} rewrite_t;

static void
put(rewrite_t *w, const char *text, size_t len)
{
    if (!tr_bytes_append(&w->out, text, len)) {
        w->nomem = true;
    }
}

static void
puts_text(rewrite_t *w, const char *text)
{
    put(w, text, strlen(text));
}

static void
begin_atom(rewrite_t *w)
{
    w->atom = w->out.len;
    w->has_atom = true;
}

static bool
looking_at(const rewrite_t *w, const char *text)
{
    size_t n = strlen(text);

    return w->len - w->i >= n && memcmp(w->in + w->i, text, n) == 0;
}

/* A letter under (?i: in a class or, with brackets, outside. */
static void
put_letter(rewrite_t *w, char c, bool in_class)
{
    char both[4] = { '[', (char) tolower(c), (char) toupper(c), ']' };

    if (!w->fold || !isascii(c) || !isalpha((unsigned char) c)) {
        put(w, &c, 1);
    } else if (in_class) {
        put(w, both + 1, 2);
    } else {
        put(w, both, 4);
    }
}

/* \s, \w and friends.  False when the escape is not one of them. */
static bool
rewrite_shorthand(rewrite_t *w, char c, bool in_class)
{
    switch (c) {
    case 's':
        puts_text(w, "\\p{White_Space}");
        return true;
    case 'S':
        puts_text(w, "\\P{White_Space}");
        return true;
    case 'd':
        puts_text(w, "\\p{Nd}");
        return true;
    case 'D':
        puts_text(w, "\\P{Nd}");
        return true;
    case 'w':
        puts_text(w, in_class ? WORD_PROPERTIES : "[" WORD_PROPERTIES "]");
        return true;
    case 'h':
        puts_text(w, in_class ? HEX_DIGITS : "[" HEX_DIGITS "]");
        return true;
    case 'W':
        puts_text(w, "[^" WORD_PROPERTIES "]");
        break;
    case 'H':
        puts_text(w, "[^" HEX_DIGITS "]");
        break;
    default:
        return false;
    }
    if (in_class) {
        w->problem = "\\W or \\H inside a character class";
    }
    return true;
}

/* w->i stands at a backslash. */
static void
rewrite_escape(rewrite_t *w, bool in_class)
{
    char c;
    size_t n = 2;

    if (w->i + 1 >= w->len) {
        w->problem = "a backslash at the end";
        return;
    }
    c = w->in[w->i + 1];
    if (rewrite_shorthand(w, c, in_class)) {
        w->i += 2;
        return;
    }
    if (c == 'u' && w->len - w->i >= 6) {
        puts_text(w, "\\x{");
        put(w, w->in + w->i + 2, 4);
        puts_text(w, "}");
        w->i += 6;
        return;
    }
    if (strchr("pPxkgo", c) != NULL && w->i + 2 < w->len
        && w->in[w->i + 2] == '{') {
        const char *close = memchr(w->in + w->i, '}', w->len - w->i);

        if (close == NULL) {
            w->problem = "an escape without its closing brace";
            return;
        }
        n = (size_t) (close + 1 - (w->in + w->i));
    }
    put(w, w->in + w->i, n);
    w->i += n;
}

/* w->i stands at '['. */
static void
rewrite_class(rewrite_t *w)
{
    size_t first;

    put(w, "[", 1);
    w->i++;
    if (w->i < w->len && w->in[w->i] == '^') {
        put(w, "^", 1);
        w->i++;
    }
    first = w->i;
    while (w->i < w->len && w->problem == NULL) {
        char c = w->in[w->i];

        if (c == ']' && w->i != first) {
            put(w, "]", 1);
            w->i++;
            return;
        }
        if (c == '\\') {
            rewrite_escape(w, true);
        } else if (looking_at(w, "[:")) {
            const char *p = w->in + w->i;
            const char *close = memmem(p, w->len - w->i, ":]", 2);

            if (close == NULL) {
                break;
            }
            put(w, p, (size_t) (close + 2 - p));
            w->i += (size_t) (close + 2 - p);
        } else if (c == '[') {
            w->problem = "a character class inside another";
        } else if (looking_at(w, "&&")) {
            w->problem = "the intersection of character classes (&&)";
        } else if (w->fold && w->i + 2 < w->len && w->in[w->i + 1] == '-'
                   && w->in[w->i + 2] != ']' && isalpha((unsigned char) c)) {
            char range[6] = {
                (char) tolower(c), '-', (char) tolower(w->in[w->i + 2]),
                (char) toupper(c), '-', (char) toupper(w->in[w->i + 2])
            };

            put(w, range, 6);
            w->i += 3;
        } else {
            put_letter(w, c, true);
            w->i++;
        }
    }
    if (w->problem == NULL) {
        w->problem = "a character class without its end";
    }
}

/* w->i stands at '('. */
static void
rewrite_group(rewrite_t *w)
{
    static const char *const kinds[] = { "(?:",  "(?=",  "(?!",
                                         "(?<=", "(?<!", "(?>" };

    if (w->depth == GROUPS_MAX) {
        w->problem = "more than 64 nested groups";
        return;
    }
    if (looking_at(w, "(?i)")) {
        w->fold = true; /* until the group around it ends */
        w->i += 4;
        return;
    }
    w->groups[w->depth].atom = w->out.len;
    w->groups[w->depth++].fold = w->fold;
    w->has_atom = false;
    if (looking_at(w, "(?i:")) {
        w->fold = true;
        puts_text(w, "(?:");
        w->i += 4;
        return;
    }
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        if (looking_at(w, kinds[k])) {
            puts_text(w, kinds[k]);
            w->i += strlen(kinds[k]);
            return;
        }
    }
    if (looking_at(w, "(?") && !looking_at(w, "(?<")) {
        w->problem = "this inline option or kind of group";
        return;
    }
    put(w, "(", 1);
    w->i++;
}

/* w->i stands at '{'.  False when it is no quantifier. */
static bool
rewrite_interval(rewrite_t *w)
{
    size_t j = w->i + 1;
    bool digits = false, no_low = j < w->len && w->in[j] == ',';
    size_t inside = j;
    tr_bytes_t atom = { 0 };

    while (j < w->len
           && (isdigit((unsigned char) w->in[j]) || w->in[j] == ',')) {
        digits |= w->in[j] != ',';
        j++;
    }
    if (!digits || j >= w->len || w->in[j] != '}' || !w->has_atom) {
        return false;
    }
    if (j + 1 < w->len && (w->in[j + 1] == '+' || w->in[j + 1] == '*')) {
        if (!tr_bytes_append(&atom, w->out.data + w->atom,
                             w->out.len - w->atom)) {
            w->nomem = true;
            return true;
        }
        w->out.len = w->atom;
        puts_text(w, "(?:");
        put(w, atom.data, atom.len);
        free(atom.data);
    }
    puts_text(w, no_low ? "{0" : "{");
    put(w, w->in + inside, j + 1 - inside);
    w->i = j + 1;
    if (atom.len > 0) {
        put(w, ")", 1);
        put(w, w->in + w->i, 1);
        w->i++;
    }
    return true;
}

static void
rewrite_step(rewrite_t *w)
{
    char c = w->in[w->i];

    switch (c) {
    case '\\':
        begin_atom(w);
        rewrite_escape(w, false);
        return;
    case '[':
        begin_atom(w);
        rewrite_class(w);
        return;
    case '(':
        rewrite_group(w);
        return;
    case ')':
        put(w, ")", 1);
        w->i++;
        if (w->depth > 0) {
            w->depth--;
            w->atom = w->groups[w->depth].atom;
            w->fold = w->groups[w->depth].fold;
            w->has_atom = true;
        }
        return;
    case '{':
        if (!rewrite_interval(w)) {
            begin_atom(w);
            puts_text(w, "\\{");
            w->i++;
        }
        return;
    case '|':
        w->has_atom = false;
        break;
    case '*':
    case '+':
    case '?':
        break;
    default:
        /* a continuation byte belongs to the atom before it */
        if ((c & 0xc0) != 0x80) {
            begin_atom(w);
        }
        put_letter(w, c, false);
        w->i++;
        return;
    }
    put(w, &c, 1);
    w->i++;
}

static tr_status_t
compile(tr_regex_t *r, const char *pattern, size_t len, uint32_t options,
        const char *where, tr_error_t *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    PCRE2_SIZE at;
    int code;
    PCRE2_UCHAR text[160];

    if (context == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR) pattern, len, options | PCRE2_UTF,
                            &code, &at, context);
    pcre2_compile_context_free(context);
    if (r->code == NULL) {
        pcre2_get_error_message(code, text, sizeof(text));
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer.json: %s: the pattern does not compile: "
                            "%s at byte %zu of its PCRE2 form",
                            where, (char *) text, (size_t) at);
    }
    /* without a JIT the interpreter gives the same answers */
    (void) pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    return TR_OK;
}

tr_status_t
tr_regex_compile(tr_regex_t *r, const char *pattern, size_t len,
                 const char *where, tr_error_t *err)
{
    rewrite_t w = { .in = pattern, .len = len };
    tr_status_t rc;

    while (w.i < w.len && w.problem == NULL && !w.nomem) {
        rewrite_step(&w);
    }
    if (w.nomem) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    } else if (w.problem != NULL) {
        rc = tr_error_set(err, TR_ERR_UNSUPPORTED, "",
                          "tokenizer.json: %s: the pattern uses %s at byte "
                          "%zu, which is not supported",
                          where, w.problem, w.i);
    } else {
        rc = compile(r, w.out.data ? w.out.data : "", w.out.len,
                     PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                     where, err);
    }
    free(w.out.data);
    return rc;
}

tr_status_t
tr_regex_compile_literal(tr_regex_t *r, const char *text, size_t len,
                         const char *where, tr_error_t *err)
{
    return compile(r, text, len, PCRE2_LITERAL, where, err);
}

bool
tr_regex_scratch_init(tr_regex_scratch_t *s)
{
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->jit_stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_BYTES, NULL);
    if (s->data == NULL || s->context == NULL) {
        return false;
    }
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    pcre2_set_heap_limit(s->context, HEAP_LIMIT_KIB);
    if (s->jit_stack != NULL) { /* NULL where there is no JIT */
        pcre2_jit_stack_assign(s->context, NULL, s->jit_stack);
    }
    return true;
}

void
tr_regex_scratch_free(tr_regex_scratch_t *s)
{
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->jit_stack);
}

tr_status_t
tr_regex_find(const tr_regex_t *r, tr_regex_scratch_t *s, const char *text,
              size_t len, size_t from, tr_span_t *match, bool *found,
              tr_error_t *err)
{
    /* the text was checked once; checking it at every match would make the
     * whole quadratic */
    int rc = pcre2_match(r->code, (PCRE2_SPTR) text, len, from,
                         PCRE2_NO_UTF_CHECK, s->data, s->context);
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->data);
    PCRE2_UCHAR message[160];

    *found = rc >= 0;
    if (rc >= 0) {
        if (at[0] > at[1] || at[0] < from) { /* \K in a lookaround */
            return tr_error_set(err, TR_ERR_FORMAT, "",
                                "tokenizer.json: a pattern matched backwards");
        }
        *match = (tr_span_t){ (uint32_t) at[0], (uint32_t) at[1] };
        return TR_OK;
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
        return TR_OK;
    }
    pcre2_get_error_message(rc, message, sizeof(message));
    return tr_error_set(err, TR_ERR_INVALID, "",
                        "the text cannot be split into words within bounds: %s",
                        (char *) message);
}
