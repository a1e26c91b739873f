/*
 * From a spec to a grammar, and the memory of its states and masks.
 *
 * That memory is reserved when a grammar is compiled, and taken page by page as
 * it is used, so that a step never allocates.  What all grammars use together
 * is counted: a grammar that gets no more makes its masks anew each time.
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <jansson.h>

#include "engine/config/log.h"

/* ---- memory */

#define ARENA_COUNTS (64u << 10) /* bytes: what is counted at a time */

static _Atomic size_t used_by_all[2]; /* by enum tr_arena_kind */

bool
tr_grammar_memory_tight(void)
{
    return atomic_load(&used_by_all[TR_ARENA_STATES])
               >= TR_GRAMMAR_MEMORY_KIND / 2
           || atomic_load(&used_by_all[TR_ARENA_MASKS])
                  >= TR_GRAMMAR_MEMORY_KIND / 2;
}

bool
tr_grammar_arena_init(tr_grammar_arena_t *a, size_t size,
                      enum tr_arena_kind kind)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    *a = (tr_grammar_arena_t){ .base = p == MAP_FAILED ? NULL : p,
                               .used = 16, /* offset 0 is nothing */
                               .size = size,
                               .kind = kind };
    return p != MAP_FAILED;
}

void *
tr_grammar_alloc(tr_grammar_arena_t *a, size_t n)
{
    void *p = a->base + a->used;

    n = (n + 15) & ~(size_t) 15;
    if (n > a->size - a->used) {
        return NULL;
    }
    while (a->used + n > a->counted) {
        if (atomic_fetch_add(&used_by_all[a->kind], ARENA_COUNTS)
            > TR_GRAMMAR_MEMORY_KIND - ARENA_COUNTS) {
            atomic_fetch_sub(&used_by_all[a->kind], ARENA_COUNTS);
            return NULL;
        }
        a->counted += ARENA_COUNTS;
    }
    a->used += n;
    return p;
}

void
tr_grammar_arena_reset(tr_grammar_arena_t *a)
{
    a->used = 16; /* its pages stay, and stay counted */
}

void
tr_grammar_arena_free(tr_grammar_arena_t *a)
{
    if (a->base != NULL) {
        munmap(a->base, a->size);
        atomic_fetch_sub(&used_by_all[a->kind], a->counted);
    }
    a->base = NULL;
}

/* ---- grammars */

tr_grammar_t *
tr_grammar_ref(tr_grammar_t *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void
tr_grammar_unref(tr_grammar_t *g)
{
    if (g == NULL || atomic_fetch_sub(&g->refs, 1) != 1) {
        return;
    }
    tr_program_free(&g->program);
    free(g->any);
    tr_grammar_arena_free(&g->states);
    tr_grammar_arena_free(&g->masks);
    free(g->mark);
    free(g->list);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

uint32_t
tr_grammar_dropped(const tr_grammar_t *g)
{
    return g->dropped;
}

/* The tokens of TR_ANY_SPECIAL. */
static bool
make_any(tr_grammar_t *g)
{
    const tr_program_t *p = &g->program;
    uint32_t words = g->vocabulary->words;
    bool any = false;

    for (uint32_t i = 0; i < p->n_tokens; i++) {
        any = any || p->tokens[i].token == TR_ANY_SPECIAL;
    }
    if (!any) {
        return true;
    }
    g->any = malloc(words * sizeof(*g->any) + 1);
    if (g->any == NULL) {
        return false;
    }
    memcpy(g->any, g->vocabulary->special, words * sizeof(*g->any));
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        uint32_t id = (uint32_t) p->tokens[i].token;

        if (id < g->vocabulary->vocab) {
            g->any[id / 32] &= ~(1u << (id % 32));
        }
    }
    return true;
}

static tr_grammar_t *
grammar_new(const tr_vocabulary_t *v, tr_program_t *program)
{
    tr_grammar_t *g = calloc(1, sizeof(*g));

    if (g == NULL) {
        return NULL;
    }
    pthread_mutex_init(&g->lock, NULL);
    g->refs = 1;
    g->vocabulary = v;
    g->program = *program;
    memset(program, 0, sizeof(*program));
    g->nullable = g->program.rules[0].nullable;
    if (!make_any(g)) {
        tr_grammar_unref(g);
        return NULL;
    }
    g->mark = calloc((size_t) g->program.n_states + 1, sizeof(*g->mark));
    g->list = calloc((size_t) g->program.n_states + 1, sizeof(*g->list));
    if (g->mark == NULL || g->list == NULL
        || !tr_grammar_arena_init(&g->states, TR_GRAMMAR_MEMORY / 2,
                                  TR_ARENA_STATES)
        || !tr_grammar_arena_init(&g->masks, TR_GRAMMAR_MEMORY / 2,
                                  TR_ARENA_MASKS)) {
        tr_grammar_unref(g);
        return NULL;
    }
    return g;
}

/* ---- the kinds */

static tr_status_t
regex_rules(tr_rules_t *b, const tr_grammar_spec_t *spec, tr_error_t *err)
{
    uint32_t whole = tr_rules_rule(b, "root");
    tr_regex_tree_t tree;
    char why[128];
    tr_status_t rc = tr_regex_parse(spec->text, spec->len, &tree, why);

    if (rc == TR_OK && b->failed == TR_OK) {
        rc = tr_regex_rules(b, &tree, b->rules[whole].start,
                            b->rules[whole].accept, why);
    }
    tr_regex_free(&tree);
    return rc == TR_OK ? TR_OK
                       : tr_error_set(err, TR_ERR_INVALID, spec->param,
                                      "Invalid regular expression in '%s': %s.",
                                      spec->param, why);
}

#define CHOICES_MAX 10000u

static tr_status_t
choice_rules(tr_rules_t *b, const tr_grammar_spec_t *spec, tr_error_t *err)
{
    uint32_t whole = tr_rules_rule(b, "root");
    json_t *list = json_loadb(spec->text, spec->len, JSON_ALLOW_NUL, NULL);
    size_t n = json_array_size(list), i;
    tr_text_t *texts = calloc(n + 1, sizeof(*texts));
    tr_status_t rc = texts == NULL ? TR_ERR_NOMEM : TR_OK;

    if (rc == TR_OK && (n == 0 || n > CHOICES_MAX)) {
        rc = tr_error_set(err, TR_ERR_INVALID, spec->param,
                          "Invalid '%s': %zu choices. Expected 1 to %u.",
                          spec->param, n, CHOICES_MAX);
    }
    for (i = 0; rc == TR_OK && i < n; i++) {
        const json_t *text = json_array_get(list, i);

        if (!json_is_string(text) || json_string_length(text) == 0) {
            rc = tr_error_set(err, TR_ERR_INVALID, spec->param,
                              "Invalid '%s[%zu]': expected a string that is "
                              "not empty.",
                              spec->param, i);
        } else {
            texts[i] = (tr_text_t){ json_string_value(text),
                                    json_string_length(text) };
        }
    }
    if (rc == TR_OK && b->failed == TR_OK) {
        tr_rules_texts(b, b->rules[whole].start, texts, n,
                       b->rules[whole].accept);
    }
    free(texts);
    json_decref(list);
    return rc;
}

static void
json_rules(tr_rules_t *b)
{
    uint32_t whole = tr_rules_rule(b, "root");
    tr_json_rules_t json;

    tr_json_rules(b, &json);
    if (b->failed == TR_OK) {
        tr_rules_call(b, b->rules[whole].start, json.object,
                      b->rules[whole].accept);
    }
}

static tr_status_t
build(tr_rules_t *b, const tr_grammar_spec_t *spec, uint32_t *dropped,
      tr_error_t *err)
{
    const tr_schema_part_t whole = { NULL, NULL };
    uint32_t rule;
    size_t most = spec->kind == TR_GRAMMAR_TREE ? TR_GRAMMAR_TREE_TEXT
                                                : TR_GRAMMAR_TEXT;

    if (spec->len > most) {
        return tr_error_set(err, TR_ERR_INVALID, spec->param,
                            "Invalid '%s': %zu bytes. Expected at most %zu.",
                            spec->param, spec->len, most);
    }
    switch (spec->kind) {
    case TR_GRAMMAR_JSON:
        json_rules(b);
        return TR_OK;
    case TR_GRAMMAR_SCHEMA:
        return tr_schema_rules(b, spec, &whole, &rule, dropped, err);
    case TR_GRAMMAR_REGEX:
        return regex_rules(b, spec, err);
    case TR_GRAMMAR_CHOICE:
        return choice_rules(b, spec, err);
    case TR_GRAMMAR_EBNF:
        return tr_ebnf_rules(b, spec->text, spec->len, spec->param, err);
    case TR_GRAMMAR_TREE:
        return tr_tree_rules(b, spec->text, spec->len, dropped, err);
    }
    return TR_ERR_INTERNAL;
}

tr_status_t
tr_grammar_compile(const tr_vocabulary_t *v, const tr_grammar_spec_t *spec,
                   tr_grammar_t **out, tr_error_t *err)
{
    tr_rules_t b = { 0 };
    tr_program_t program = { 0 };
    uint32_t dropped = 0;
    tr_status_t rc = build(&b, spec, &dropped, err);

    *out = NULL;
    if (rc == TR_OK && spec->around != NULL) {
        rc = tr_tree_rules(&b, spec->around, strlen(spec->around), &dropped,
                           err);
    }
    if (rc == TR_OK) {
        rc = tr_program_finish(&b, &program, spec->param, err);
    }
    tr_rules_free(&b);
    if (rc == TR_OK) {
        *out = grammar_new(v, &program);
        tr_program_free(&program);
        if (*out == NULL) {
            rc = TR_ERR_NOMEM;
        } else {
            (*out)->dropped = dropped;
        }
    }
    return rc == TR_ERR_NOMEM
               ? tr_error_set(err, rc, "", "out of memory for a grammar")
               : rc;
}
