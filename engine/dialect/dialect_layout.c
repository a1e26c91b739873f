/*
 * How a template writes calls (layout_t): the text round names and arguments is
 * cut out of a turn that it has written, with one call and with two.  So an
 * answer that is held to the layout looks exactly as the model has learned it.
 *
 * Whatever does not fit leaves no layout, and then nothing is held.
 */
#include "dialect_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPECIAL_MAX 64

typedef struct {
    const char *at;
    size_t len;
} piece_t;

/* ---- texts as nodes */

/* Bytes of the special token that begins here; *id; 0: none does. */
static size_t
special_at(const tr_tokenizer_t *t, const char *text, size_t len, int32_t *id)
{
    char name[SPECIAL_MAX + 1];

    if (t == NULL || (*text != '<' && *text != '[')) {
        return 0;
    }
    for (size_t n = len < SPECIAL_MAX ? len : SPECIAL_MAX; n > 1; n--) {
        memcpy(name, text, n);
        name[n] = '\0';
        *id = tr_tokenizer_find(t, name);
        if (*id >= 0 && tr_tokenizer_is_special(t, *id)) {
            return n;
        }
    }
    return 0;
}

static void
put_text(FILE *f, const char *text, size_t len, bool *any)
{
    json_t *string;
    char *quoted;

    if (len == 0) {
        return;
    }
    string = json_stringn(text, len);
    quoted = json_dumps(string, JSON_ENCODE_ANY);
    fprintf(f, "%s%s", *any ? "," : "", quoted != NULL ? quoted : "[]");
    *any = true;
    json_decref(string);
    free(quoted);
}

char *
tr_dialect_nodes(const tr_tokenizer_t *t, const char *text, size_t len)
{
    char *out = NULL;
    size_t size, from = 0, at = 0;
    FILE *f = open_memstream(&out, &size);
    bool any = false;

    if (f == NULL) {
        return NULL;
    }
    while (at < len) {
        int32_t id;
        size_t n = special_at(t, text + at, len - at, &id);

        if (n == 0) {
            at++;
            continue;
        }
        put_text(f, text + from, at - from, &any);
        fprintf(f, "%s%d", any ? "," : "", id);
        any = true;
        at += n;
        from = at;
    }
    put_text(f, text + from, len - from, &any);
    if (!any) {
        fputs("\"\"", f);
    }
    fclose(f);
    return out;
}

static char *
nodes_of(const tr_tokenizer_t *t, piece_t p)
{
    return tr_dialect_nodes(t, p.at, p.len);
}

static piece_t
between(const char *from, const char *to)
{
    return (piece_t){ from, to > from ? (size_t) (to - from) : 0 };
}

/* One stop of "stop": the text's first mark, and the rest of it.  White space
 * before a mark that is a token is left to what precedes it. */
static char *
stop_of(const tr_tokenizer_t *t, piece_t p)
{
    char *out = NULL, *rest;
    size_t size, n = 0;
    int32_t id;
    FILE *f = open_memstream(&out, &size);
    piece_t space = p;

    if (f == NULL) {
        return NULL;
    }
    while (space.len > 0 && is_space(*space.at)) {
        space.at++;
        space.len--;
    }
    n = space.len > 0 ? special_at(t, space.at, space.len, &id) : 0;
    if (n > 0) {
        rest = tr_dialect_nodes(t, space.at + n, space.len - n);
        fprintf(f, "[%d,[\"seq\",%s]]", id, rest != NULL ? rest : "\"\"");
        free(rest);
    } else {
        rest = nodes_of(NULL, p);
        fprintf(f, "[%s,\"\"]", rest != NULL ? rest : "\"\"");
        free(rest);
    }
    fclose(f);
    return out;
}

/* ---- where things stand in a turn */

static piece_t
find(piece_t in, const char *what)
{
    const char *at = memmem(in.at, in.len, what, strlen(what));

    return (piece_t){ at, at != NULL ? strlen(what) : 0 };
}

static piece_t
behind(piece_t in, piece_t what)
{
    return between(what.at + what.len, in.at + in.len);
}

/* The arguments of the first call, as an object of JSON. */
static piece_t
find_json(piece_t in)
{
    const char *at = memchr(in.at, '{', in.len);
    json_t *want = json_pack("{s:s, s:i}", TR_PROBE_KEY, TR_PROBE_VALUE,
                             TR_PROBE_KEY_2, TR_PROBE_VALUE_2);
    json_error_t where;
    json_t *got = at == NULL ? NULL
                             : json_loadb(at, (size_t) (in.at + in.len - at),
                                          JSON_DISABLE_EOF_CHECK, &where);
    bool good = got != NULL && json_equal(want, got);

    json_decref(want);
    json_decref(got);
    return good ? (piece_t){ at, (size_t) where.position }
                : (piece_t){ NULL, 0 };
}

/* Text of a turn behind its arguments, up to the end of the last mark: what ends
 * the turn is no part of it. */
static piece_t
cut_tail(const tr_dialect_t *d, const tr_tokenizer_t *t, piece_t rest)
{
    size_t end = 0, i;

    for (i = 0; i < rest.len; i++) {
        int32_t id = -1;
        size_t n = special_at(t, rest.at + i, rest.len - i, &id);
        bool own = false;

        for (uint32_t k = 0; k < d->n_tokens; k++) {
            own |= d->tokens[k] == id;
        }
        if (n != 0 && !own) {
            while (i > 0 && is_space(rest.at[i - 1])) {
                i--;
            }
            return (piece_t){ rest.at, i };
        }
        i += n != 0 ? n - 1 : 0;
    }
    /* no token that ends it: the marks of the form */
    for (int k = 0; k < MARKS && d->form->marks[k] != NULL; k++) {
        const char *mark = d->form->marks[k];

        for (piece_t at = find(rest, mark); at.at != NULL;
             at = find(behind(rest, at), mark)) {
            size_t to = (size_t) (at.at + at.len - rest.at);

            end = to > end ? to : end;
        }
    }
    while (end == 0 && i > 0 && strchr("}]", rest.at[i - 1]) == NULL) {
        i--;
    }
    return (piece_t){ rest.at, end != 0 ? end : i };
}

/* ---- ids that the model writes */

/* Kimi's end of an id, ":0", with any number. */
static char *
nodes_with_number(const tr_tokenizer_t *t, piece_t p)
{
    char *rest, *out = NULL;

    if (p.len < 2 || memcmp(p.at, ":0", 2) != 0) {
        return nodes_of(t, p);
    }
    rest = nodes_of(t, (piece_t){ p.at + 2, p.len - 2 });
    if (rest == NULL
        || asprintf(&out, "\":\",[\"chars\",\"09\",1,3],%s", rest) < 0) {
        out = NULL;
    }
    free(rest);
    return out;
}

/* The history's ids become any nine letters and digits; a blank behind a colon
 * or a comma of JSON may be what it is elsewhere in JSON. */
static char *
nodes_of_json(const tr_tokenizer_t *t, piece_t p)
{
    static const char *const blanks[] = { "\": ", "\", ", "}, " };
    const char *instead = "[\"chars\",\"09AZaz\",9,9]";
    piece_t at = find(p, TR_PROBE_ID);
    char *before, *rest, *out = NULL;

    at.len++; /* "probecal" and a digit */
    for (size_t i = 0; i < sizeof(blanks) / sizeof(blanks[0]); i++) {
        piece_t blank = find(p, blanks[i]);

        if (blank.at != NULL && (at.at == NULL || blank.at < at.at)) {
            at = (piece_t){ blank.at + blank.len - 1, 1 };
            instead = "[\"space\"]";
        }
    }
    if (at.at == NULL) {
        return nodes_of(t, p);
    }
    before = nodes_of(t, between(p.at, at.at));
    rest = nodes_of_json(t, behind(p, at));
    if (before == NULL || rest == NULL
        || asprintf(&out, "%s,%s,%s", before, instead, rest) < 0) {
        out = NULL;
    }
    free(before);
    free(rest);
    return out;
}

/* ---- marks that begin a call */

/* A pattern of the form as its characters. */
static piece_t
pattern_text(const char *pattern, char out[PATTERN_MAX])
{
    size_t n = 0;

    for (; *pattern != '\0'; pattern++) {
        if (*pattern != P_SPACE && *pattern != P_KEEP) {
            out[n++] = *pattern;
        }
    }
    out[n] = '\0';
    return (piece_t){ out, n };
}

/* Where the head has a mark, what follows is the rest of it; a mark that it does
 * not have is barred, or followed by all of it (FORM_KNOWN). */
static void
read_marks(tr_dialect_t *d, const tr_tokenizer_t *t, piece_t head)
{
    bool start = (d->form->flags & FORM_START) != 0;
    const op_t *content = &d->form->ops[start ? 1 : 0];
    layout_t *l = d->layout;
    size_t size[2];
    FILE *stops = open_memstream(&l->stops, &size[0]);
    FILE *bars = open_memstream(&l->bars, &size[1]);
    bool any = false;

    for (int k = 0; k < ALTS && content->alts[k].pattern != NULL; k++) {
        char text[PATTERN_MAX], *mark, *rest;
        piece_t p = pattern_text(content->alts[k].pattern, text);
        piece_t at = find(head, p.at);

        mark = nodes_of(t, p);
        fprintf(bars, "%s%s", k > 0 ? "," : "", mark);
        if (at.at != NULL || (d->form->flags & FORM_KNOWN)) {
            rest = nodes_of_json(t, at.at != NULL ? behind(head, at) : head);
            fprintf(stops, "%s[%s,[\"seq\",%s]]", any ? "," : "", mark, rest);
            any = true;
            free(rest);
        }
        free(mark);
    }
    l->starts = start;
    fclose(stops);
    fclose(bars);
}

/* ---- arguments as marked-up text */

static size_t
common_suffix(piece_t a, piece_t b)
{
    size_t n = 0;

    while (n < a.len && n < b.len
           && a.at[a.len - 1 - n] == b.at[b.len - 1 - n]) {
        n++;
    }
    while (n > 0 && (a.at[a.len - n] & 0xc0) == 0x80) {
        n--; /* whole characters */
    }
    return n;
}

/* A place that is within a special token moves behind it. */
static size_t
no_token_across(const tr_tokenizer_t *t, piece_t p, size_t place)
{
    for (size_t i = place > SPECIAL_MAX ? place - SPECIAL_MAX : 0; i < place;
         i++) {
        int32_t id;
        size_t n = special_at(t, p.at + i, p.len - i, &id);

        if (n != 0 && i + n > place) {
            return i + n;
        }
    }
    return place;
}

/* What a value must not contain, so that it ends where it shall: the marks that
 * open another one, close it, and end the call. */
static char *
value_bars(piece_t open, piece_t close, piece_t end)
{
    const char *from = memrchr(open.at, '<', open.len), *to;
    piece_t parts[3] = { { NULL, 0 } };
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    bool any = false;

    if (from != NULL) {
        parts[0] = between(from, open.at + open.len);
    }
    while (close.len > 0 && is_space(*close.at)) {
        close.at++;
        close.len--;
    }
    parts[1] = close;
    from = memchr(end.at, '<', end.len);
    to = from == NULL ? NULL
                      : memchr(from, '>', (size_t) (end.at + end.len - from));
    if (to != NULL) {
        parts[2] = between(from, to + 1);
    }
    for (int i = 0; i < 3; i++) {
        put_text(f, parts[i].at, parts[i].len, &any);
    }
    fclose(f);
    return out;
}

/* The first mark of a pattern that the machine may find in a text; *len 0: a
 * special token is part of the pattern, or it begins otherwise than all marks. */
static const char *
first_mark(const pattern_t *p, size_t *len)
{
    size_t from = 0, to;

    while (from < p->len
           && (p->bytes[from] == P_SPACE || p->bytes[from] == P_KEEP)) {
        from++;
    }
    for (to = from;
         to < p->len && p->bytes[to] != P_SPACE && p->bytes[to] != P_KEEP;
         to++) {
    }
    *len = p->bytes[from] == '<' && memchr(p->bytes, 0xff, p->len) == NULL
               ? to - from
               : 0;
    return p->bytes + from;
}

/* What ends a value that is JSON, wherever it stands in it, and (of content that
 * is JSON) what begins a call.  The machine does not know the quotes of JSON. */
static char *
json_bars(const tr_dialect_t *d)
{
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    bool any = false;

    for (int pc = 0; f != NULL && pc < OPS; pc++) {
        uint8_t kind = d->form->ops[pc].kind;

        if (kind != OP_TEXT && kind != OP_VALUE && kind != OP_STRING
            && kind != OP_BARE) {
            continue;
        }
        for (int i = 0; i < ALTS && d->patterns[pc][i].len != 0; i++) {
            size_t n;
            const char *mark = first_mark(&d->patterns[pc][i], &n);

            put_text(f, mark, n, &any);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return out;
}

/* What stands behind the name of a call without arguments, what closes a value,
 * and what is behind the arguments and that. */
typedef struct {
    piece_t after, close, tail;
} cuts_t;

/* in: the turn from behind the name. */
static bool
read_parameters(tr_dialect_t *d, const tr_tokenizer_t *t, piece_t in,
                cuts_t *cut)
{
    layout_t *l = d->layout;
    piece_t key = find(in, TR_PROBE_KEY), value, first, next, number, sep, open;
    piece_t rest = behind(in, key);
    char name[16];
    size_t n;

    if (key.at == NULL) {
        return false;
    }
    first = between(in.at, key.at);
    value = find(rest, TR_PROBE_VALUE);
    if (value.at == NULL || first.len == 0) {
        return false;
    }
    l->is_string = nodes_of(t, between(rest.at, value.at));
    /* the other key stands behind the same mark */
    n = first.len < 8 ? first.len : 8;
    memcpy(name, first.at + first.len - n, n);
    memcpy(name + n, TR_PROBE_KEY_2, sizeof(TR_PROBE_KEY_2));
    rest = behind(in, value);
    next = find(rest, name);
    number = next.at == NULL ? next : find(behind(rest, next), "3");
    if (number.at == NULL) {
        return false;
    }
    sep = between(rest.at, next.at + n);
    l->is_other = nodes_of(t, between(next.at + next.len, number.at));
    n = common_suffix(first, sep);
    n = sep.len - no_token_across(t, sep, sep.len - n);
    open = (piece_t){ sep.at + sep.len - n, n };
    cut->close = (piece_t){ sep.at, sep.len - n };
    if (first.len < n) {
        return false;
    }
    cut->after = (piece_t){ first.at, first.len - n };
    cut->tail = behind(in, number);
    if (n == 0 || cut->close.len == 0 || cut->tail.len < cut->close.len
        || memcmp(cut->tail.at, cut->close.at, cut->close.len) != 0) {
        return false;
    }
    cut->tail.at += cut->close.len;
    cut->tail.len -= cut->close.len;
    l->open = nodes_of(t, open);
    l->close = nodes_of(t, cut->close);
    l->value_end = stop_of(t, cut->close);
    l->value_bars = value_bars(open, cut->close, cut->tail);
    return true;
}

/* ---- the whole */

static void
read_second(tr_dialect_t *d, const tr_tokenizer_t *t, const char *two,
            piece_t head, piece_t close)
{
    piece_t in = { two, strlen(two) }, name = find(in, TR_PROBE_NAME_1), rest;
    piece_t name_2, end;

    if (name.at == NULL || (size_t) (name.at - two) != head.len
        || memcmp(two, head.at, head.len) != 0) {
        return;
    }
    rest = behind(in, name);
    name_2 = find(rest, TR_PROBE_NAME_2);
    if (name_2.at == NULL) {
        return;
    }
    if (d->layout->open == NULL) {
        end = find_json(rest);
    } else {
        /* the last value of the first call, and what closes it */
        end = find(between(rest.at, name_2.at), TR_PROBE_VALUE);
        if (end.at != NULL) {
            piece_t values = between(end.at, name_2.at);
            const char *last = memrchr(values.at, '3', values.len);

            end = last == NULL ? (piece_t){ NULL, 0 }
                               : (piece_t){ last, 1 + close.len };
        }
    }
    if (end.at == NULL || end.at + end.len > name_2.at) {
        return;
    }
    d->layout->between = nodes_of_json(t, between(end.at + end.len, name_2.at));
}

/* The head from its first mark on: the turn may begin with a header, or with
 * reasoning, which are no part of the calls. */
static piece_t
from_mark(const tr_dialect_t *d, piece_t head)
{
    const char *first = NULL;

    for (int k = 0; k < ALTS && d->form->ops[0].alts[k].pattern != NULL; k++) {
        char text[PATTERN_MAX];
        piece_t at = find(
            head, pattern_text(d->form->ops[0].alts[k].pattern, text).at);

        if (at.at != NULL && (first == NULL || at.at < first)) {
            first = at.at;
        }
    }
    return first != NULL ? between(first, head.at + head.len) : head;
}

static bool
read_first(tr_dialect_t *d, const tr_tokenizer_t *t, const char *one,
           const char *two)
{
    layout_t *l = d->layout;
    piece_t in = { one, strlen(one) }, name, rest, args, head;
    cuts_t cut = { .close = { NULL, 0 } };

    name = find(in, TR_PROBE_NAME_1);
    if (name.at == NULL) {
        return false;
    }
    head = between(one, name.at);
    rest = behind(in, name);
    args = find_json(rest);
    if (args.at != NULL) {
        cut.after = between(rest.at, args.at);
        cut.tail = behind(in, args);
    } else if (!read_parameters(d, t, rest, &cut)) {
        return false;
    }
    l->after = d->form->flags & FORM_OWN_IDS ? nodes_with_number(t, cut.after)
                                             : nodes_of_json(t, cut.after);
    l->tail = nodes_of_json(t, cut_tail(d, t, cut.tail));
    if (two != NULL) {
        read_second(d, t, two, head, cut.close);
    }
    head = from_mark(d, head);
    l->head = nodes_of_json(t, head);
    l->json_bars = json_bars(d);
    read_marks(d, t, head);
    return l->json_bars != NULL && l->after != NULL && l->tail != NULL
           && l->head != NULL && l->stops != NULL && l->bars != NULL
           && l->stops[0] != '\0';
}

void
tr_dialect_read_layout(tr_dialect_t *d, const tr_tokenizer_t *t,
                       const char *one, const char *two)
{
    if (d->form == NULL || (d->form->flags & FORM_HARMONY)) {
        return;
    }
    d->layout = calloc(1, sizeof(*d->layout));
    if (d->layout != NULL && !read_first(d, t, one, two)) {
        tr_dialect_free_layout(d);
    }
}

void
tr_dialect_free_layout(tr_dialect_t *d)
{
    layout_t *l = d->layout;

    if (l == NULL) {
        return;
    }
    free(l->head);
    free(l->after);
    free(l->between);
    free(l->tail);
    free(l->stops);
    free(l->bars);
    free(l->open);
    free(l->is_string);
    free(l->is_other);
    free(l->value_end);
    free(l->close);
    free(l->value_bars);
    free(l->json_bars);
    free(l);
    d->layout = NULL;
}
