/*
 * Rules while they are built.  Everything is counted: a text that asks for more
 * states, memory or work than a grammar may have stops adding, and is refused
 * at the end by whoever builds (b->failed).
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

void
tr_rules_free(tr_rules_t *b)
{
    free(b->first);
    free(b->tick);
    free(b->edges);
    free(b->sites);
    free(b->rules);
    free(b->tokens);
    for (uint32_t i = 0; i < b->n_names; i++) {
        free(b->names[i]);
    }
    free(b->names);
    memset(b, 0, sizeof(*b));
}

static size_t
memory_of(const tr_rules_t *b)
{
    return (size_t) b->cap_states * (sizeof(*b->first) + sizeof(*b->tick))
           + (size_t) b->cap_edges * sizeof(*b->edges)
           + (size_t) b->cap_sites * sizeof(*b->sites)
           + (size_t) b->cap_rules * sizeof(*b->rules);
}

/* Room for one more of what has n of cap entries. */
static bool
grow(tr_rules_t *b, void **data, uint32_t n, uint32_t *cap, size_t size)
{
    uint32_t wanted = *cap == 0 ? 64 : *cap * 2;
    void *p;

    if (b->failed != TR_OK) {
        return false;
    }
    if (n < *cap) {
        return true;
    }
    if (memory_of(b) + (wanted - *cap) * size > TR_GRAMMAR_MEMORY) {
        b->failed = TR_ERR_UNSUPPORTED;
        return false;
    }
    p = realloc(*data, wanted * size);
    if (p == NULL) {
        b->failed = TR_ERR_NOMEM;
        return false;
    }
    *data = p;
    *cap = wanted;
    return true;
}

bool
tr_rules_count(tr_rules_t *b, uint64_t work)
{
    b->work += work;
    if (b->failed == TR_OK
        && b->work > (b->work_max != 0 ? b->work_max : TR_RULES_WORK)) {
        b->failed = TR_ERR_UNSUPPORTED;
    }
    return b->failed == TR_OK;
}

uint32_t
tr_rules_state(tr_rules_t *b)
{
    uint32_t cap = b->cap_states;

    if (b->n_states == TR_GRAMMAR_STATES && b->failed == TR_OK) {
        b->failed = TR_ERR_UNSUPPORTED;
    }
    if (!tr_rules_count(b, 1)
        || !grow(b, (void **) &b->first, b->n_states, &cap, sizeof(*b->first))
        || !grow(b, (void **) &b->tick, b->n_states, &b->cap_states,
                 sizeof(*b->tick))) {
        return 0;
    }
    b->first[b->n_states] = NONE;
    b->tick[b->n_states] = false;
    return b->n_states++;
}

uint32_t
tr_rules_rule_of(tr_rules_t *b, const char *name, uint32_t start,
                 uint32_t accept)
{
    if (!grow(b, (void **) &b->rules, b->n_rules, &b->cap_rules,
              sizeof(*b->rules))) {
        return 0;
    }
    b->rules[b->n_rules] = (tr_rule_t){ .start = start,
                                        .accept = accept,
                                        .name = name };
    return b->n_rules++;
}

uint32_t
tr_rules_rule(tr_rules_t *b, const char *name)
{
    uint32_t start = tr_rules_state(b), accept = tr_rules_state(b);

    return tr_rules_rule_of(b, name, start, accept);
}

const char *
tr_rules_name(tr_rules_t *b, const char *name, size_t len)
{
    char *copy;

    if (!tr_rules_count(b, len)
        || !grow(b, (void **) &b->names, b->n_names, &b->cap_names,
                 sizeof(*b->names))) {
        return "";
    }
    copy = strndup(name, len);
    if (copy == NULL) {
        b->failed = TR_ERR_NOMEM;
        return "";
    }
    b->names[b->n_names++] = copy;
    return copy;
}

static void
add_edge(tr_rules_t *b, uint32_t from, tr_edge_t edge)
{
    if (!tr_rules_count(b, 1)
        || !grow(b, (void **) &b->edges, b->n_edges, &b->cap_edges,
                 sizeof(*b->edges))) {
        return;
    }
    edge.next = b->first[from];
    b->edges[b->n_edges] = edge;
    b->first[from] = b->n_edges++;
}

void
tr_rules_empty(tr_rules_t *b, uint32_t from, uint32_t to)
{
    if (from != to) {
        add_edge(b, from, (tr_edge_t){ TR_EDGE_EMPTY, 0, 0, to, NONE });
    }
}

void
tr_rules_bytes(tr_rules_t *b, uint32_t from, uint8_t lo, uint8_t hi,
               uint32_t to)
{
    add_edge(b, from, (tr_edge_t){ TR_EDGE_BYTES, lo, hi, to, NONE });
}

void
tr_rules_text(tr_rules_t *b, uint32_t from, const char *text, size_t len,
              uint32_t to)
{
    if (len == 0) {
        tr_rules_empty(b, from, to);
        return;
    }
    for (size_t i = 0; i < len && b->failed == TR_OK; i++) {
        uint32_t next = i + 1 == len ? to : tr_rules_state(b);

        tr_rules_bytes(b, from, (uint8_t) text[i], (uint8_t) text[i], next);
        from = next;
    }
}

static void
add_site(tr_rules_t *b, tr_site_t site)
{
    if (!grow(b, (void **) &b->sites, b->n_sites, &b->cap_sites,
              sizeof(*b->sites))) {
        return;
    }
    b->sites[b->n_sites] = site;
    add_edge(b, site.from,
             (tr_edge_t){ TR_EDGE_CALL, 0, 0, b->n_sites++, NONE });
}

void
tr_rules_call(tr_rules_t *b, uint32_t from, uint32_t rule, uint32_t to)
{
    add_site(b,
             (tr_site_t){
                 .kind = TR_SITE_CALL, .rule = rule, .from = from, .to = to });
}

void
tr_rules_repeat(tr_rules_t *b, uint32_t from, uint32_t rule, uint32_t min,
                uint32_t max, uint32_t to)
{
    if (min == 0) {
        tr_rules_empty(b, from, to);
    }
    if (max == 0) {
        return;
    }
    if (min <= 1 && max == 1) {
        tr_rules_call(b, from, rule, to);
        return;
    }
    add_site(b, (tr_site_t){ .kind = TR_SITE_REPEAT,
                             .rule = rule,
                             .from = from,
                             .to = to,
                             .min = min,
                             .max = max });
}

void
tr_rules_length(tr_rules_t *b, uint32_t from, uint32_t rule, uint32_t min,
                uint32_t max, uint32_t to)
{
    add_site(b, (tr_site_t){ .kind = TR_SITE_LENGTH,
                             .rule = rule,
                             .from = from,
                             .to = to,
                             .min = min,
                             .max = max });
}

void
tr_rules_token(tr_rules_t *b, uint32_t from, int32_t token, uint32_t to)
{
    if (!grow(b, (void **) &b->tokens, b->n_tokens, &b->cap_tokens,
              sizeof(*b->tokens))) {
        return;
    }
    b->tokens[b->n_tokens] = (tr_token_edge_t){ token, to, 0 };
    add_edge(b, from, (tr_edge_t){ TR_EDGE_TOKEN, 0, 0, b->n_tokens++, NONE });
}

tr_rules_mark_t
tr_rules_mark(const tr_rules_t *b)
{
    return (tr_rules_mark_t){ b->n_states, b->n_edges,  b->n_sites,
                              b->n_rules,  b->n_tokens, b->n_names };
}

void
tr_rules_back(tr_rules_t *b, const tr_rules_mark_t *mark)
{
    while (b->n_names > mark->n_names) {
        free(b->names[--b->n_names]);
    }
    b->n_states = mark->n_states;
    b->n_edges = mark->n_edges;
    b->n_sites = mark->n_sites;
    b->n_rules = mark->n_rules;
    b->n_tokens = mark->n_tokens;
    if (b->failed != TR_ERR_NOMEM) {
        b->failed = TR_OK;
    }
}

/* ---- one of many texts */

int
tr_text_order(const void *a, const void *b)
{
    const tr_text_t *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int c = n == 0 ? 0 : memcmp(x->text, y->text, n);

    return c != 0 ? c : (x->len > y->len) - (x->len < y->len);
}

/* Texts [0, n), which are equal up to `at`. */
static void
add_texts(tr_rules_t *b, uint32_t from, const tr_text_t *t, size_t n, size_t at,
          uint32_t to)
{
    while (n > 0 && t[0].len == at) {
        tr_rules_empty(b, from, to);
        for (; n > 0 && t[0].len == at; t++, n--) { /* equal ones */
        }
    }
    while (n > 0 && b->failed == TR_OK) {
        size_t same = 1, deep = at + 1;
        uint32_t next;

        while (same < n && t[same].text[at] == t[0].text[at]) {
            same++;
        }
        if (same == 1) { /* the rest of one text */
            tr_rules_text(b, from, t[0].text + at, t[0].len - at, to);
        } else {
            /* down to where they part, without recursion for each byte */
            while (t[0].len > deep && t[same - 1].len > deep
                   && t[0].text[deep] == t[same - 1].text[deep]) {
                deep++;
            }
            next = tr_rules_state(b);
            tr_rules_text(b, from, t[0].text + at, deep - at, next);
            add_texts(b, next, t, same, deep, to);
        }
        t += same;
        n -= same;
    }
}

void
tr_rules_texts(tr_rules_t *b, uint32_t from, tr_text_t *texts, size_t n,
               uint32_t to)
{
    qsort(texts, n, sizeof(*texts), tr_text_order);
    add_texts(b, from, texts, n, 0, to);
}
