/*
 * Grammars as trees (grammar.h): literal texts, special tokens and schemas put
 * together by a program, such as the forms in which models call tools.
 *
 * All of a tree but its schemas is one rule, so that a free text in it is a loop
 * of that rule and no stack stands behind its states.
 */
#include "grammar_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/config/log.h"

#define DEPTH_MAX 32
#define NO_RULE UINT32_MAX

typedef struct {
    tr_rules_t *b;
    tr_json_rules_t json; /* made when they are asked for */
    bool has_json;
    uint32_t end;    /* of the whole */
    uint32_t inner;  /* rule of ["inner"], or NO_RULE */
    tr_bars_t *bars; /* of its JSON; NULL: not met yet */
    json_t *barred;  /* the texts, borrowed: all parts have the same */
    uint32_t *dropped;
    tr_error_t *err;
    tr_status_t rc;
} tree_t;

static bool
going(const tree_t *t)
{
    return t->rc == TR_OK && t->b->failed == TR_OK;
}

/* Only a program writes trees: what is wrong with one is a mistake of ours. */
static void
malformed(tree_t *t)
{
    if (going(t)) {
        t->rc = tr_error_set(t->err, TR_ERR_INTERNAL, "", "malformed grammar");
    }
}

static const tr_json_rules_t *
json_of(tree_t *t)
{
    if (!t->has_json) {
        tr_json_rules(t->b, &t->json);
        t->has_json = true;
    }
    return &t->json;
}

/* ---- free text: an automaton over its marks */

enum { BARRED = -2 };

typedef struct {
    const json_t *said;
    tr_marks_t marks;
    uint32_t *state; /* [marks.n] */
    uint32_t *stops; /* [n_stops] where the mark leads */
} free_t;

static void compile(tree_t *t, const json_t *node, uint32_t from, uint32_t to,
                    int depth);

static void
free_bytes(tree_t *t, const free_t *f, const tr_mark_node_t *node,
           uint32_t from, const char *barred)
{
    uint32_t lo = 0;

    while (lo < 256) {
        uint32_t next = node->next[lo], hi = lo;
        int stop = f->marks.nodes[next].mark;
        bool bar = lo != 0 && strchr(barred, (int) lo) != NULL;

        while (!bar && hi + 1 < 256 && node->next[hi + 1] == next
               && strchr(barred, (int) hi + 1) == NULL) {
            hi++;
        }
        if (!bar && stop != BARRED) {
            tr_rules_bytes(t->b, from, (uint8_t) lo, (uint8_t) hi,
                           stop == TR_NO_MARK ? f->state[next]
                                              : f->stops[stop]);
        }
        lo = hi + 1;
    }
}

static void
free_edges(tree_t *t, const free_t *f, uint32_t at)
{
    const json_t *list = json_object_get(f->said, "stop"), *one;
    uint32_t state = f->state[at];
    size_t i;

    free_bytes(t, f, &f->marks.nodes[at], state, "");
    if (!json_is_false(json_object_get(f->said, "special"))) {
        tr_rules_token(t->b, state, TR_ANY_SPECIAL, state);
    }
    if (json_is_true(json_object_get(f->said, "end"))) {
        tr_rules_empty(t->b, state, t->end);
    }
    json_array_foreach ((json_t *) list, i, one) {
        const json_t *mark = json_array_get(one, 0);

        if (json_is_integer(mark)) {
            tr_rules_token(t->b, state, (int32_t) json_integer_value(mark),
                           f->stops[i]);
        }
    }
}

/* White space, and then one of the bytes that may begin the text. */
static uint32_t
free_start(tree_t *t, const free_t *f)
{
    const char *first = json_string_value(json_object_get(f->said, "first"));
    uint32_t state = f->state[0];
    char barred[16];

    if (first == NULL) {
        return state;
    }
    snprintf(barred, sizeof(barred), " \n%s", first);
    state = tr_rules_state(t->b);
    tr_rules_bytes(t->b, state, ' ', ' ', state);
    tr_rules_bytes(t->b, state, '\n', '\n', state);
    free_bytes(t, f, &f->marks.nodes[0], state, barred);
    if (json_is_true(json_object_get(f->said, "end"))) {
        tr_rules_empty(t->b, state, t->end);
    }
    return state;
}

static void
add_mark(tr_marks_t *m, const json_t *text, int stop)
{
    tr_marks_add(m, json_string_value(text), json_string_length(text), stop);
}

static void
complete(tree_t *t, tr_marks_t *m)
{
    if (going(t) && !tr_marks_complete(m)) {
        t->rc = TR_ERR_NOMEM;
    }
}

static void
bar_tokens(tree_t *t, const json_t *list)
{
    uint32_t nowhere = tr_rules_state(t->b);
    const json_t *one;
    size_t i;

    json_array_foreach ((json_t *) list, i, one) {
        if (json_is_integer(one)) { /* named, and so not any */
            tr_rules_token(t->b, nowhere, (int32_t) json_integer_value(one),
                           nowhere);
        }
    }
}

static void
read_marks(tree_t *t, free_t *f)
{
    const json_t *stops = json_object_get(f->said, "stop");
    const json_t *bars = json_object_get(f->said, "bar"), *one;
    size_t i;

    json_array_foreach ((json_t *) stops, i, one) {
        add_mark(&f->marks, json_array_get(one, 0), (int) i);
    }
    json_array_foreach ((json_t *) bars, i, one) {
        add_mark(&f->marks, one, BARRED);
    }
    bar_tokens(t, bars);
    complete(t, &f->marks);
}

static void
compile_free(tree_t *t, const json_t *said, uint32_t from, uint32_t to,
             int depth)
{
    free_t f = { .said = said };
    const json_t *stops = json_object_get(said, "stop"), *one;
    size_t i;

    read_marks(t, &f);
    f.state = calloc(f.marks.n + 1, sizeof(*f.state));
    f.stops = calloc(json_array_size(stops) + 1, sizeof(*f.stops));
    if (f.state == NULL || f.stops == NULL) {
        t->rc = TR_ERR_NOMEM;
    }
    for (i = 0; going(t) && i < f.marks.n; i++) {
        f.state[i] = tr_rules_state(t->b);
    }
    json_array_foreach ((json_t *) stops, i, one) {
        if (!going(t)) {
            break;
        }
        f.stops[i] = tr_rules_state(t->b);
        compile(t, json_array_get(one, 1), f.stops[i], to, depth + 1);
    }
    for (i = 0; going(t) && i < f.marks.n; i++) {
        if (i == 0 || f.marks.nodes[i].mark == TR_NO_MARK) {
            free_edges(t, &f, (uint32_t) i);
        }
    }
    if (going(t)) {
        tr_rules_empty(t->b, from, free_start(t, &f));
    }
    tr_marks_free(&f.marks);
    free(f.state);
    free(f.stops);
}

/* ---- JSON whose strings have no marks in them */

static void
read_bars(tree_t *t, json_t *list)
{
    tr_marks_t texts = { 0 };
    json_t *one;
    size_t i;

    json_array_foreach (list, i, one) {
        const char *text = json_string_value(one);

        if (text == NULL || *text != '<' || strchr(text, '"') != NULL) {
            malformed(t);
        }
        add_mark(&texts, one, BARRED);
    }
    complete(t, &texts);
    if (!going(t)) {
        tr_marks_free(&texts);
        return;
    }
    t->barred = list;
    t->bars = tr_bars_new(&texts);
    if (t->bars == NULL) {
        t->rc = TR_ERR_NOMEM;
    }
}

/* The rule, without the texts of the list in its strings. */
static uint32_t
without(tree_t *t, json_t *list, uint32_t rule)
{
    if (json_array_size(list) == 0 || !going(t)) {
        return rule;
    }
    if (t->bars == NULL) {
        read_bars(t, list);
    } else if (!json_equal(list, t->barred)) {
        malformed(t);
    }
    return going(t) ? tr_rules_barred(t->b, t->bars, rule) : rule;
}

/* ---- schemas */

/* What a schema that cannot be read stands for, where it need not be held. */
static void
anything(tree_t *t, const json_t *said, uint32_t from, uint32_t to)
{
    const tr_json_rules_t *json = json_of(t);

    ++*t->dropped;
    tr_rules_call(t->b, from,
                  without(t, json_object_get(said, "bar"),
                          json_object_get(said, "property") != NULL
                              ? json->value
                              : json->object),
                  to);
}

static void
compile_schema(tree_t *t, const json_t *said, uint32_t from, uint32_t to)
{
    tr_rules_t *b = t->b;
    tr_schema_part_t part = {
        json_of(t), json_string_value(json_object_get(said, "property"))
    };
    char *text = json_dumps(json_object_get(said, "schema"),
                            JSON_COMPACT | JSON_ENCODE_ANY);
    tr_grammar_spec_t spec = {
        .kind = TR_GRAMMAR_SCHEMA,
        .flags = (unsigned) json_integer_value(json_object_get(said, "flags")),
        .text = text,
        .len = text != NULL ? strlen(text) : 0,
        .param = json_string_value(json_object_get(said, "param")),
        .name = json_string_value(json_object_get(said, "name")),
        .what = "function",
    };
    bool must = (spec.flags & TR_GRAMMAR_REFUSE) != 0;
    tr_rules_mark_t mark = tr_rules_mark(b);
    uint64_t most = b->work_max != 0 ? b->work_max : TR_RULES_WORK;
    tr_error_t err = { 0 };
    uint32_t rule = 0;
    tr_status_t rc;

    if (text == NULL || spec.param == NULL || !going(t)) {
        free(text);
        malformed(t);
        return;
    }
    /* one schema leaves work for those that follow */
    b->work_max = must ? most : b->work + (most - b->work) / 4;
    rc = tr_schema_rules(b, &spec, &part, &rule, t->dropped, &err);
    rule = rc == TR_OK ? without(t, json_object_get(said, "bar"), rule) : 0;
    b->work_max = most;
    free(text);
    if (must || (rc == TR_OK && b->failed == TR_OK)) {
        tr_rules_call(b, from, rule, to);
        if (rc != TR_OK) {
            t->rc = rc;
            *t->err = err;
        }
    } else if (rc == TR_ERR_NOMEM) {
        t->rc = rc;
    } else {
        tr_rules_back(b, &mark);
        if (t->bars != NULL) {
            tr_bars_reset(t->bars);
        }
        anything(t, said, from, to);
    }
}

/* ---- nodes */

static void
compile_many(tree_t *t, const json_t *node, uint32_t from, uint32_t to,
             int depth)
{
    uint32_t again = tr_rules_state(t->b), done = tr_rules_state(t->b);

    tr_rules_empty(t->b, from, again);
    compile(t, json_array_get(node, 1), again, done, depth + 1);
    compile(t, json_array_get(node, 2), done, again, depth + 1);
    tr_rules_empty(t->b, done, to);
}

static void
compile_seq(tree_t *t, const json_t *node, uint32_t from, uint32_t to,
            int depth)
{
    size_t n = json_array_size(node);

    for (size_t i = 1; i < n && going(t); i++) {
        uint32_t next = i + 1 == n ? to : tr_rules_state(t->b);

        compile(t, json_array_get(node, i), from, next, depth + 1);
        from = next;
    }
    if (n == 1) {
        tr_rules_empty(t->b, from, to);
    }
}

/* So many bytes of ranges, which are pairs of bytes. */
static void
compile_chars(tree_t *t, const json_t *node, uint32_t from, uint32_t to)
{
    const char *ranges = json_string_value(json_array_get(node, 1));
    json_int_t min = json_integer_value(json_array_get(node, 2));
    json_int_t max = json_integer_value(json_array_get(node, 3));

    if (ranges == NULL || strlen(ranges) % 2 != 0 || max > 64) {
        malformed(t);
        return;
    }
    for (json_int_t i = 0; i < max; i++) {
        uint32_t next = tr_rules_state(t->b);

        for (const char *p = ranges; *p != '\0'; p += 2) {
            tr_rules_bytes(t->b, from, (uint8_t) p[0], (uint8_t) p[1], next);
        }
        if (i + 1 >= min) {
            tr_rules_empty(t->b, next, to);
        }
        from = next;
    }
}

static void
compile_array(tree_t *t, const json_t *node, uint32_t from, uint32_t to,
              int depth)
{
    const char *kind = json_string_value(json_array_get(node, 0));
    const json_t *one = json_array_get(node, 1);

    if (kind == NULL || depth > DEPTH_MAX) {
        malformed(t);
    } else if (strcmp(kind, "seq") == 0) {
        compile_seq(t, node, from, to, depth);
    } else if (strcmp(kind, "or") == 0) {
        for (size_t i = 1; i < json_array_size(node); i++) {
            compile(t, json_array_get(node, i), from, to, depth + 1);
        }
    } else if (strcmp(kind, "many") == 0) {
        compile_many(t, node, from, to, depth);
    } else if (strcmp(kind, "free") == 0) {
        compile_free(t, one, from, to, depth);
    } else if (strcmp(kind, "end") == 0) {
        tr_rules_empty(t->b, from, t->end);
    } else if (strcmp(kind, "chars") == 0) {
        compile_chars(t, node, from, to);
    } else if (strcmp(kind, "space") == 0) {
        tr_rules_call(t->b, from, json_of(t)->space, to);
    } else if (strcmp(kind, "json") == 0) {
        tr_rules_call(t->b, from, json_of(t)->object, to);
    } else if (strcmp(kind, "schema") == 0) {
        compile_schema(t, one, from, to);
    } else if (strcmp(kind, "inner") == 0 && t->inner != NO_RULE) {
        tr_rules_call(t->b, from, without(t, (json_t *) one, t->inner), to);
    } else {
        malformed(t);
    }
}

static void
compile(tree_t *t, const json_t *node, uint32_t from, uint32_t to, int depth)
{
    if (!going(t)) {
        return;
    }
    if (json_is_string(node)) {
        tr_rules_text(t->b, from, json_string_value(node),
                      json_string_length(node), to);
    } else if (json_is_integer(node)) {
        tr_rules_token(t->b, from, (int32_t) json_integer_value(node), to);
    } else {
        compile_array(t, node, from, to, depth);
    }
}

/* Rule `which` becomes rule 0, and the other way round. */
static void
make_first(tr_rules_t *b, uint32_t which)
{
    tr_rule_t first = b->rules[0];

    b->rules[0] = b->rules[which];
    b->rules[which] = first;
    for (uint32_t i = 0; i < b->n_sites; i++) {
        if (b->sites[i].rule == 0) {
            b->sites[i].rule = which;
        }
    }
}

tr_status_t
tr_tree_rules(tr_rules_t *b, const char *text, size_t len, uint32_t *dropped,
              tr_error_t *err)
{
    tree_t t = { .b = b,
                 .inner = b->n_rules > 0 ? 0 : NO_RULE,
                 .dropped = dropped,
                 .err = err };
    json_t *root = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL,
                              NULL);
    uint32_t whole;

    if (root == NULL) {
        malformed(&t);
        return t.rc;
    }
    whole = tr_rules_rule(b, "answer");
    if (going(&t)) {
        t.end = b->rules[whole].accept;
        compile(&t, root, b->rules[whole].start, t.end, 0);
    }
    if (going(&t) && whole != 0) {
        make_first(b, whole);
    }
    if (b->failed == TR_ERR_INTERNAL) {
        t.rc = tr_error_set(err, TR_ERR_INTERNAL, "", "malformed grammar");
    }
    tr_bars_free(t.bars);
    json_decref(root);
    return t.rc;
}
