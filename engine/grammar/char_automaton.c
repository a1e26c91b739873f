/*
 * Deterministic automata over code points: patterns of JSON strings.
 *
 * What a schema says of one string (patterns, a length, names that it must not
 * be) is intersected here, exactly, so that no string begins that could not be
 * ended.  Sizes are bounded.
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

void
tr_chars_free(tr_chars_t *a)
{
    free(a->first);
    free(a->arcs);
    free(a->accept);
    memset(a, 0, sizeof(*a));
}

static bool
grow(void **data, size_t size)
{
    void *p = realloc(*data, size);

    if (p == NULL) {
        return false;
    }
    *data = p;
    return true;
}

/* The next state, whose arcs are added before the one behind it. */
static tr_status_t
begin_state(tr_chars_t *a, bool accept)
{
    if (a->n == TR_CHARS_STATES) {
        return TR_ERR_UNSUPPORTED;
    }
    if (a->n == a->cap) {
        uint32_t cap = a->cap == 0 ? 64 : a->cap * 2;

        if (!grow((void **) &a->first, (cap + 1) * sizeof(*a->first))
            || !grow((void **) &a->accept, cap * sizeof(*a->accept))) {
            return TR_ERR_NOMEM;
        }
        a->cap = cap;
    }
    a->first[a->n] = a->n_arcs;
    a->first[a->n + 1] = a->n_arcs;
    a->accept[a->n++] = accept;
    return TR_OK;
}

static tr_status_t
add_arc(tr_chars_t *a, uint32_t lo, uint32_t hi, uint32_t to)
{
    tr_arc_t *last = a->n_arcs > a->first[a->n - 1] ? &a->arcs[a->n_arcs - 1]
                                                    : NULL;

    if (last != NULL && last->to == to && last->hi + 1 == lo) {
        last->hi = hi;
        return TR_OK;
    }
    if (a->n_arcs == TR_CHARS_ARCS) {
        return TR_ERR_UNSUPPORTED;
    }
    if (a->n_arcs == a->cap_arcs) {
        uint32_t cap = a->cap_arcs == 0 ? 256 : a->cap_arcs * 2;
        tr_arc_t *arcs = realloc(a->arcs, cap * sizeof(*arcs));

        if (arcs == NULL) {
            return TR_ERR_NOMEM;
        }
        a->arcs = arcs;
        a->cap_arcs = cap;
    }
    a->arcs[a->n_arcs++] = (tr_arc_t){ lo, hi, to };
    a->first[a->n] = a->n_arcs;
    return TR_OK;
}

static uint32_t
follow(const tr_chars_t *a, uint32_t state, uint32_t c)
{
    uint32_t lo = a->first[state], hi = a->first[state + 1];

    while (lo < hi) {
        uint32_t at = (lo + hi) / 2;

        if (c < a->arcs[at].lo) {
            hi = at;
        } else if (c > a->arcs[at].hi) {
            lo = at + 1;
        } else {
            return a->arcs[at].to;
        }
    }
    return UINT32_MAX;
}

bool
tr_chars_accepts(const tr_chars_t *a, const char *text, size_t len)
{
    uint32_t state = 0;

    for (size_t at = 0; at < len;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *) text
                                                  + at,
                                              (utf8proc_ssize_t) (len - at),
                                              &c);

        state = n <= 0 ? UINT32_MAX : follow(a, state, (uint32_t) c);
        if (state == UINT32_MAX) {
            return false;
        }
        at += (size_t) n;
    }
    return a->accept[state];
}

/* ---- sets of numbers, by number: what deterministic states stand for */

typedef struct {
    uint32_t *data, *start; /* set k: data[start[k] .. start[k + 1]) */
    uint32_t n, cap_data, cap;
    uint32_t *slots, n_slots; /* k + 1 */
} sets_t;

#define SET_DATA_MAX (1u << 22)

static void
sets_free(sets_t *s)
{
    free(s->data);
    free(s->start);
    free(s->slots);
}

static tr_status_t
sets_init(sets_t *s)
{
    memset(s, 0, sizeof(*s));
    s->n_slots = 4 * TR_CHARS_STATES;
    s->slots = calloc(s->n_slots, sizeof(*s->slots));
    s->start = calloc(TR_CHARS_STATES + 2, sizeof(*s->start));
    return s->slots == NULL || s->start == NULL ? TR_ERR_NOMEM : TR_OK;
}

/* The number of a set, found or made. */
static tr_status_t
set_number(sets_t *s, const uint32_t *set, uint32_t n, uint32_t *out)
{
    uint32_t h = 2166136261u, used = s->start[s->n];

    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ set[i]) * 16777619u;
        h ^= h >> 13;
    }
    for (h %= s->n_slots; s->slots[h] != 0; h = (h + 1) % s->n_slots) {
        uint32_t k = s->slots[h] - 1;

        if (s->start[k + 1] - s->start[k] == n
            && memcmp(s->data + s->start[k], set, n * sizeof(*set)) == 0) {
            *out = k;
            return TR_OK;
        }
    }
    if (s->n == TR_CHARS_STATES || used + n > SET_DATA_MAX) {
        return TR_ERR_UNSUPPORTED;
    }
    if (used + n > s->cap_data) {
        uint32_t cap = 2 * (used + n) + 256;
        uint32_t *data = realloc(s->data, cap * sizeof(*data));

        if (data == NULL) {
            return TR_ERR_NOMEM;
        }
        s->data = data;
        s->cap_data = cap;
    }
    memcpy(s->data + used, set, n * sizeof(*set));
    s->slots[h] = ++s->n;
    s->start[s->n] = used + n;
    *out = s->n - 1;
    return TR_OK;
}

/* ---- regular expressions */

#define NFA_MAX 32768u

typedef struct {
    enum { EDGE_EMPTY, EDGE_SET, EDGE_ANY, EDGE_BEGIN, EDGE_END } kind;
    uint32_t set, to, next;
} edge_t;

typedef struct {
    const tr_regex_tree_t *t;
    uint32_t *first; /* [NFA_MAX] edge + 1 */
    edge_t *edges;   /* [cap] */
    uint32_t n, n_edges, cap;
    tr_status_t rc;
} nfa_t;

static uint32_t
nfa_state(nfa_t *f)
{
    if (f->n == NFA_MAX) {
        f->rc = f->rc == TR_OK ? TR_ERR_UNSUPPORTED : f->rc;
        return 0;
    }
    f->first[f->n] = 0;
    return f->n++;
}

static void
nfa_edge(nfa_t *f, uint32_t from, int kind, uint32_t set, uint32_t to)
{
    if (f->rc == TR_OK && f->n_edges == f->cap) {
        uint32_t cap = f->cap == 0 ? 256 : f->cap * 2;
        edge_t *edges = realloc(f->edges, cap * sizeof(*edges));

        if (edges == NULL) {
            f->rc = TR_ERR_NOMEM;
        } else {
            f->edges = edges;
            f->cap = cap;
        }
    }
    if (f->rc == TR_OK) {
        f->edges[f->n_edges].kind = kind;
        f->edges[f->n_edges].set = set;
        f->edges[f->n_edges].to = to;
        f->edges[f->n_edges].next = f->first[from];
        f->first[from] = ++f->n_edges;
    }
}

static void nfa_emit(nfa_t *f, uint32_t node, uint32_t from, uint32_t to);

static void
nfa_loop(nfa_t *f, uint32_t node, uint32_t from, uint32_t to, bool least_one)
{
    uint32_t in = nfa_state(f), out = nfa_state(f);

    nfa_edge(f, from, EDGE_EMPTY, 0, in);
    nfa_emit(f, node, in, out);
    nfa_edge(f, out, EDGE_EMPTY, 0, in);
    nfa_edge(f, least_one ? out : in, EDGE_EMPTY, 0, to);
}

static void
nfa_repeat(nfa_t *f, const tr_regex_node_t *x, uint32_t from, uint32_t to)
{
    uint32_t times = x->max == TR_UNBOUNDED ? x->min : x->max;

    if (x->max == TR_UNBOUNDED && x->min <= 1) {
        nfa_loop(f, x->a, from, to, x->min == 1);
        return;
    }
    for (uint32_t i = 0; i < times && f->rc == TR_OK; i++) {
        uint32_t next = nfa_state(f);

        if (i >= x->min) {
            nfa_edge(f, from, EDGE_EMPTY, 0, to);
        }
        nfa_emit(f, x->a, from, next);
        from = next;
    }
    if (x->max == TR_UNBOUNDED) {
        nfa_loop(f, x->a, from, to, false);
    } else {
        nfa_edge(f, from, EDGE_EMPTY, 0, to);
    }
}

static void
nfa_emit(nfa_t *f, uint32_t node, uint32_t from, uint32_t to)
{
    while (f->rc == TR_OK) {
        const tr_regex_node_t *x = &f->t->nodes[node];
        uint32_t middle;

        switch (x->kind) {
        case TR_REGEX_EMPTY:
            nfa_edge(f, from, EDGE_EMPTY, 0, to);
            return;
        case TR_REGEX_BEGIN:
            nfa_edge(f, from, EDGE_BEGIN, 0, to);
            return;
        case TR_REGEX_END:
            nfa_edge(f, from, EDGE_END, 0, to);
            return;
        case TR_REGEX_SET:
            nfa_edge(f, from, EDGE_SET, x->a, to);
            return;
        case TR_REGEX_REPEAT:
            nfa_repeat(f, x, from, to);
            return;
        case TR_REGEX_ALT:
            nfa_emit(f, x->b, from, to);
            node = x->a;
            break;
        case TR_REGEX_CAT:
            middle = nfa_state(f);
            nfa_emit(f, x->b, middle, to);
            to = middle;
            node = x->a;
            break;
        }
    }
}

typedef struct {
    uint32_t at, to;
    bool ends;
} event_t;

typedef struct {
    nfa_t nfa;
    uint32_t accept;
    uint32_t *mark, generation;
    uint32_t *list; /* [NFA_MAX] */
    event_t *events;
    uint32_t n_events, cap_events;
    uint32_t *active; /* [cap_events] */
    uint64_t work;
} subset_t;

#define SUBSET_WORK (1u << 22)

/* Closes s->list[0 .. n); begin, end: anchors that hold here. */
static uint32_t
subset_close(subset_t *s, uint32_t n, bool begin, bool end)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t e = s->nfa.first[s->list[i]]; e != 0;
             e = s->nfa.edges[e - 1].next) {
            const edge_t *edge = &s->nfa.edges[e - 1];

            s->work++;
            if ((edge->kind == EDGE_EMPTY || (edge->kind == EDGE_BEGIN && begin)
                 || (edge->kind == EDGE_END && end))
                && s->mark[edge->to] != s->generation) {
                s->mark[edge->to] = s->generation;
                s->list[n++] = edge->to;
            }
        }
    }
    return n;
}

static bool
subset_accepts(subset_t *s, const uint32_t *set, uint32_t n, bool begin)
{
    s->generation++;
    for (uint32_t i = 0; i < n; i++) {
        s->mark[set[i]] = s->generation;
        s->list[i] = set[i];
    }
    subset_close(s, n, begin, true);
    return s->mark[s->accept] == s->generation;
}

static int
by_place(const void *a, const void *b)
{
    const event_t *x = a, *y = b;

    return x->at != y->at ? (x->at > y->at) - (x->at < y->at)
                          : y->ends - x->ends;
}

static bool
add_event(subset_t *s, uint32_t lo, uint32_t hi, uint32_t to)
{
    if (s->n_events + 2 > s->cap_events) {
        uint32_t cap = s->cap_events * 2 + 512;

        if (!grow((void **) &s->events, cap * sizeof(*s->events))
            || !grow((void **) &s->active, cap * sizeof(*s->active))) {
            return false;
        }
        s->cap_events = cap;
    }
    s->events[s->n_events++] = (event_t){ lo, to, false };
    s->events[s->n_events++] = (event_t){ hi + 1, to, true };
    return true;
}

static bool
collect_events(subset_t *s, const uint32_t *set, uint32_t n)
{
    s->n_events = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t e = s->nfa.first[set[i]]; e != 0;
             e = s->nfa.edges[e - 1].next) {
            const edge_t *edge = &s->nfa.edges[e - 1];
            const tr_charset_t *c = edge->kind == EDGE_SET
                                        ? &s->nfa.t->sets[edge->set]
                                        : NULL;

            if (edge->kind == EDGE_ANY
                && (!add_event(s, 0, 0xd7ff, edge->to)
                    || !add_event(s, 0xe000, TR_CODE_POINTS - 1, edge->to))) {
                return false;
            }
            for (uint32_t k = 0; edge->kind == EDGE_SET && k < c->n; k++) {
                if (!add_event(s, c->ranges[k].lo, c->ranges[k].hi, edge->to)) {
                    return false;
                }
            }
        }
    }
    return true;
}

/* The set that the active targets close to. */
static tr_status_t
target_of(subset_t *s, sets_t *sets, uint32_t n_active, uint32_t *to)
{
    uint32_t n = 0;

    s->generation++;
    for (uint32_t i = 0; i < n_active; i++) {
        if (s->mark[s->active[i]] != s->generation) {
            s->mark[s->active[i]] = s->generation;
            s->list[n++] = s->active[i];
        }
    }
    n = subset_close(s, n, false, false);
    qsort(s->list, n, sizeof(*s->list), tr_number_order);
    return set_number(sets, s->list, n, to);
}

static tr_status_t
add_arcs(subset_t *s, sets_t *sets, tr_chars_t *out)
{
    uint32_t n_active = 0;
    tr_status_t rc = TR_OK;

    qsort(s->events, s->n_events, sizeof(*s->events), by_place);
    for (uint32_t i = 0; rc == TR_OK && i < s->n_events;) {
        uint32_t at = s->events[i].at, to;

        for (; i < s->n_events && s->events[i].at == at; i++) {
            if (!s->events[i].ends) {
                s->active[n_active++] = s->events[i].to;
                continue;
            }
            for (uint32_t k = 0; k < n_active; k++) {
                s->work++;
                if (s->active[k] == s->events[i].to) {
                    s->active[k] = s->active[--n_active];
                    break;
                }
            }
        }
        if (n_active > 0) {
            rc = target_of(s, sets, n_active, &to);
            if (rc == TR_OK) {
                rc = add_arc(out, at, s->events[i].at - 1, to);
            }
        }
        if (rc == TR_OK && s->work > SUBSET_WORK) {
            rc = TR_ERR_UNSUPPORTED;
        }
    }
    return rc;
}

static tr_status_t
determinise(subset_t *s, uint32_t start, tr_chars_t *out)
{
    sets_t sets;
    uint32_t number, n;
    tr_status_t rc = sets_init(&sets);

    if (rc == TR_OK) {
        s->generation++;
        s->mark[start] = s->generation;
        s->list[0] = start;
        n = subset_close(s, 1, true, false);
        qsort(s->list, n, sizeof(*s->list), tr_number_order);
        /* the first state is like no other: anchors hold there */
        s->list[n++] = UINT32_MAX;
        rc = set_number(&sets, s->list, n, &number);
    }
    for (uint32_t k = 0; rc == TR_OK && k < sets.n; k++) {
        uint32_t from = sets.start[k], size = sets.start[k + 1] - from;

        if (k == 0) {
            size--;
        }
        rc = begin_state(out,
                         subset_accepts(s, sets.data + from, size, k == 0));
        if (rc == TR_OK && !collect_events(s, sets.data + from, size)) {
            rc = TR_ERR_NOMEM;
        }
        if (rc == TR_OK) {
            rc = add_arcs(s, &sets, out);
        }
    }
    sets_free(&sets);
    return rc;
}

tr_status_t
tr_chars_of_regex(const tr_regex_tree_t *t, tr_chars_t *out)
{
    subset_t s = { .nfa = { .t = t } };
    uint32_t start, begin, end;
    tr_status_t rc = TR_ERR_NOMEM;

    memset(out, 0, sizeof(*out));
    s.nfa.first = malloc(NFA_MAX * sizeof(*s.nfa.first));
    s.mark = calloc(NFA_MAX, sizeof(*s.mark));
    s.list = malloc((NFA_MAX + 1) * sizeof(*s.list));
    if (s.nfa.first != NULL && s.mark != NULL && s.list != NULL) {
        start = nfa_state(&s.nfa);
        begin = nfa_state(&s.nfa);
        end = nfa_state(&s.nfa);
        s.accept = nfa_state(&s.nfa);
        nfa_edge(&s.nfa, start, EDGE_ANY, 0, start);
        nfa_edge(&s.nfa, start, EDGE_EMPTY, 0, begin);
        nfa_emit(&s.nfa, t->root, begin, end);
        nfa_edge(&s.nfa, end, EDGE_EMPTY, 0, s.accept);
        nfa_edge(&s.nfa, s.accept, EDGE_ANY, 0, s.accept);
        rc = s.nfa.rc == TR_OK ? determinise(&s, start, out) : s.nfa.rc;
    }
    free(s.nfa.first);
    free(s.nfa.edges);
    free(s.mark);
    free(s.list);
    free(s.events);
    free(s.active);
    out->work = s.work + out->n_arcs;
    return rc;
}

/* ---- texts */

/* A state of the trie: texts [from, to) are equal up to `at`. */
typedef struct {
    uint32_t from, to;
    size_t at;
} group_t;

tr_status_t
tr_chars_of_texts(const tr_text_t *texts, size_t n, tr_chars_t *out)
{
    tr_text_t *sorted = malloc((n + 1) * sizeof(*sorted));
    group_t *groups = malloc(TR_CHARS_STATES * sizeof(*groups));
    uint32_t n_groups = 1;
    tr_status_t rc = sorted == NULL || groups == NULL ? TR_ERR_NOMEM : TR_OK;

    memset(out, 0, sizeof(*out));
    if (rc == TR_OK) {
        memcpy(sorted, texts, n * sizeof(*texts));
        qsort(sorted, n, sizeof(*sorted), tr_text_order);
        groups[0] = (group_t){ 0, (uint32_t) n, 0 };
    }
    for (uint32_t k = 0; rc == TR_OK && k < n_groups; k++) {
        group_t g = groups[k];
        bool accept = false;

        for (; g.from < g.to && sorted[g.from].len == g.at; g.from++) {
            accept = true;
        }
        rc = begin_state(out, accept);
        while (rc == TR_OK && g.from < g.to) {
            utf8proc_int32_t c;
            utf8proc_ssize_t len = utf8proc_iterate(
                (const utf8proc_uint8_t *) sorted[g.from].text + g.at,
                (utf8proc_ssize_t) (sorted[g.from].len - g.at), &c);
            uint32_t end = g.from + 1;

            if (len <= 0) {
                rc = TR_ERR_UNSUPPORTED;
                break;
            }
            while (end < g.to && sorted[end].len - g.at >= (size_t) len
                   && memcmp(sorted[end].text + g.at,
                             sorted[g.from].text + g.at, (size_t) len)
                          == 0) {
                end++;
            }
            if (n_groups == TR_CHARS_STATES) {
                rc = TR_ERR_UNSUPPORTED;
                break;
            }
            groups[n_groups] = (group_t){ g.from, end, g.at + (size_t) len };
            rc = add_arc(out, (uint32_t) c, (uint32_t) c, n_groups++);
            g.from = end;
        }
    }
    free(sorted);
    free(groups);
    return rc;
}

/* ---- products */

#define GONE UINT32_MAX

/* Arcs of pair (x, y): a's, cut where b's begin and end. */
static tr_status_t
both_arcs(const tr_chars_t *a, const tr_chars_t *b, uint32_t x, uint32_t y,
          bool negative, sets_t *pairs, tr_chars_t *out)
{
    uint32_t i = a->first[x], j = y == GONE ? 0 : b->first[y];
    uint32_t j_end = y == GONE ? 0 : b->first[y + 1];
    tr_status_t rc = TR_OK;

    for (; i < a->first[x + 1] && rc == TR_OK; i++) {
        uint32_t lo = a->arcs[i].lo, hi = a->arcs[i].hi;

        while (lo <= hi && rc == TR_OK) {
            uint32_t end = hi, to = GONE, number;

            while (j < j_end && b->arcs[j].hi < lo) {
                j++;
            }
            if (j < j_end && b->arcs[j].lo <= lo) {
                to = b->arcs[j].to;
                end = b->arcs[j].hi < hi ? b->arcs[j].hi : hi;
            } else if (j < j_end && b->arcs[j].lo <= hi) {
                end = b->arcs[j].lo - 1;
            }
            if (to != GONE || negative) {
                uint32_t pair[2] = { a->arcs[i].to, to };

                rc = set_number(pairs, pair, 2, &number);
                if (rc == TR_OK) {
                    rc = add_arc(out, lo, end, number);
                }
            }
            lo = end + 1;
        }
    }
    return rc;
}

tr_status_t
tr_chars_both(const tr_chars_t *a, const tr_chars_t *b, bool negative,
              tr_chars_t *out)
{
    sets_t pairs;
    uint32_t pair[2] = { 0, 0 }, number;
    tr_status_t rc = sets_init(&pairs);

    memset(out, 0, sizeof(*out));
    if (rc == TR_OK) {
        rc = set_number(&pairs, pair, 2, &number);
    }
    for (uint32_t k = 0; rc == TR_OK && k < pairs.n; k++) {
        uint32_t x = pairs.data[pairs.start[k]];
        uint32_t y = pairs.data[pairs.start[k] + 1];
        bool has = y != GONE && b->accept[y];

        rc = begin_state(out, a->accept[x] && has != negative);
        if (rc == TR_OK) {
            rc = both_arcs(a, b, x, y, negative, &pairs, out);
        }
    }
    sets_free(&pairs);
    out->work = out->n + out->n_arcs;
    return rc;
}

tr_status_t
tr_chars_length(const tr_chars_t *a, uint32_t min, uint32_t max,
                tr_chars_t *out)
{
    sets_t pairs;
    uint32_t pair[2] = { 0, 0 }, number;
    uint32_t most = max == TR_UNBOUNDED ? min : max;
    tr_status_t rc = sets_init(&pairs);

    memset(out, 0, sizeof(*out));
    if (rc == TR_OK) {
        rc = set_number(&pairs, pair, 2, &number);
    }
    for (uint32_t k = 0; rc == TR_OK && k < pairs.n; k++) {
        uint32_t x = pairs.data[pairs.start[k]];
        uint32_t n = pairs.data[pairs.start[k] + 1];

        rc = begin_state(out, a->accept[x] && n >= min);
        for (uint32_t i = a->first[x]; rc == TR_OK && i < a->first[x + 1];
             i++) {
            if (n == most && max != TR_UNBOUNDED) {
                break;
            }
            pair[0] = a->arcs[i].to;
            pair[1] = n < most ? n + 1 : n;
            rc = set_number(&pairs, pair, 2, &number);
            if (rc == TR_OK) {
                rc = add_arc(out, a->arcs[i].lo, a->arcs[i].hi, number);
            }
        }
    }
    sets_free(&pairs);
    out->work = out->n + out->n_arcs;
    return rc;
}
