/*
 * Which variable a name means (jinja_ast.h).
 *
 * jinja2 decides this when it compiles, and templates lean on the details: what
 * a loop's body sets is gone after it, a name that only one branch of an `if`
 * sets is the caller's in the other, a macro sees what stands around it when it
 * runs.  So this follows jinja2's idtracking.py: a scope is analysed as a whole,
 * then the scopes in it.
 *
 * Every variable has a slot in the activation of its function (the template, a
 * macro, a call block).  When a scope is entered, its entries say what its
 * variables are: the caller's value of that name, another variable, nothing yet.
 */
#include "jinja_ast.h"

#include <string.h>

/* A function while it is resolved. */
typedef struct {
    uint32_t depth, n_slots;
} owner_t;

typedef struct {
    owner_t *owner;
    uint32_t slot;
} place_t;

typedef struct {
    bool there; /* the name is known in this scope */
    bool has_load, stored;
    load_t load;
    place_t alias;
} state_t;

/* A scope's names.  Copies of a scope, for the branches of an `if`, share them. */
struct family {
    const scope_t *parent;
    owner_t *owner;
    string_t **names;
    uint32_t *slots;
    uint32_t n, cap;
};

struct scope {
    family_t *f;
    state_t *states;
    uint32_t n, cap;
};

typedef struct {
    tr_jinja_t *t;
    tr_jinja_arena_t *a;
} resolver_t;

static scope_t *
new_scope(resolver_t *r, const scope_t *parent, owner_t *owner)
{
    scope_t *s = tr_jinja_zalloc(r->a, sizeof(*s));

    s->f = tr_jinja_zalloc(r->a, sizeof(*s->f));
    s->f->parent = parent;
    s->f->owner = owner;
    return s;
}

static scope_t *
copy_scope(resolver_t *r, const scope_t *s)
{
    scope_t *c = tr_jinja_alloc(r->a, sizeof(*c));

    *c = *s;
    c->states = tr_jinja_alloc(r->a, s->cap * sizeof(state_t));
    if (s->n > 0) {
        memcpy(c->states, s->states, s->n * sizeof(state_t));
    }
    return c;
}

/* The state of a name in this scope alone, NULL when it is not known there. */
static state_t *
own(const scope_t *s, const string_t *name)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->states[i].there && tr_jinja_same(s->f->names[i], name)) {
            return &s->states[i];
        }
    }
    return NULL;
}

static uint32_t
name_index(resolver_t *r, family_t *f, string_t *name)
{
    for (uint32_t i = 0; i < f->n; i++) {
        if (tr_jinja_same(f->names[i], name)) {
            return i;
        }
    }
    if (f->n == f->cap) {
        uint32_t cap = f->cap ? f->cap * 2 : 8;

        f->names = tr_jinja_grow(r->a, f->names, f->n * sizeof(*f->names),
                                 cap * sizeof(*f->names));
        f->slots = tr_jinja_grow(r->a, f->slots, f->n * sizeof(*f->slots),
                                 cap * sizeof(*f->slots));
        f->cap = cap;
    }
    if (f->owner->n_slots == UINT16_MAX) {
        tr_jinja_fail(r->a, "too many variables");
    }
    f->names[f->n] = name;
    f->slots[f->n] = f->owner->n_slots++;
    return f->n++;
}

static state_t *
state_at(resolver_t *r, scope_t *s, uint32_t i)
{
    if (i >= s->cap) {
        uint32_t cap = (i + 1) * 2;
        state_t *states = tr_jinja_zalloc(r->a, cap * sizeof(*states));

        if (s->n > 0) {
            memcpy(states, s->states, s->n * sizeof(*states));
        }
        s->states = states;
        s->cap = cap;
    }
    while (s->n <= i) {
        s->states[s->n++] = (state_t){ 0 };
    }
    return &s->states[i];
}

static state_t *
define(resolver_t *r, scope_t *s, string_t *name, load_t load)
{
    state_t *st = state_at(r, s, name_index(r, s->f, name));

    st->there = st->has_load = true;
    st->load = load;
    return st;
}

/* Where a name stands, from this scope outwards. */
static bool
find(const scope_t *s, const string_t *name, place_t *out)
{
    for (; s != NULL; s = s->f->parent) {
        for (uint32_t i = 0; i < s->n; i++) {
            if (s->states[i].there && tr_jinja_same(s->f->names[i], name)) {
                *out = (place_t){ s->f->owner, s->f->slots[i] };
                return true;
            }
        }
    }
    return false;
}

static void
load(resolver_t *r, scope_t *s, string_t *name)
{
    place_t p;

    if (!find(s, name, &p)) {
        define(r, s, name, LOAD_RESOLVE);
    }
}

static void
store(resolver_t *r, scope_t *s, string_t *name)
{
    state_t *st = own(s, name);
    place_t outer;

    if (st == NULL) {
        st = define(r, s, name, LOAD_UNDEFINED);
        if (find(s->f->parent, name, &outer)) {
            st->load = LOAD_ALIAS;
            st->alias = outer;
        }
    }
    st->stored = true;
}

static void
parameter(resolver_t *r, scope_t *s, string_t *name)
{
    define(r, s, name, LOAD_PARAMETER)->stored = true;
}

/* ---- analysis ----------------------------------------------------------- */

static void analyse(resolver_t *r, scope_t *s, node_t *const *body, uint32_t n);

static void analyse_expression(resolver_t *r, scope_t *s, const node_t *n);

static void
analyse_call(resolver_t *r, scope_t *s, const call_t *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        analyse_expression(r, s, c->items[i]);
    }
    for (uint32_t i = 0; i < c->n_names; i++) {
        analyse_expression(r, s, c->values[i]);
    }
    analyse_expression(r, s, c->star);
    analyse_expression(r, s, c->star_star);
}

static void
analyse_expression(resolver_t *r, scope_t *s, const node_t *n)
{
    if (n == NULL) {
        return;
    }
    if (n->kind == N_NAME || n->kind == N_NSREF) {
        load(r, s, n->name);
        return;
    }
    analyse_expression(r, s, n->a);
    analyse_expression(r, s, n->b);
    analyse_expression(r, s, n->c);
    for (uint32_t i = 0; i < n->n; i++) {
        analyse_expression(r, s, n->items[i]);
    }
    if (n->call != NULL) {
        analyse_call(r, s, n->call);
    }
}

static void
analyse_target(resolver_t *r, scope_t *s, const node_t *n, bool as_parameter)
{
    if (n->kind == N_TUPLE) {
        for (uint32_t i = 0; i < n->n; i++) {
            analyse_target(r, s, n->items[i], as_parameter);
        }
    } else if (n->kind == N_NSREF) {
        load(r, s, n->name);
    } else if (as_parameter) {
        parameter(r, s, n->name);
    } else {
        store(r, s, n->name);
    }
}

/* A name that some of the branches set is, where they do not, what it was
 * outside. */
static void
join_branches(resolver_t *r, scope_t *s, scope_t *const *branches, uint32_t n)
{
    uint32_t most = 0;
    bool *was;

    for (uint32_t b = 0; b < n; b++) {
        most = branches[b]->n > most ? branches[b]->n : most;
    }
    was = tr_jinja_zalloc(r->a, most + 1);
    for (uint32_t i = 0; i < s->n; i++) {
        was[i] = s->states[i].stored;
    }
    for (uint32_t b = 0; b < n; b++) {
        for (uint32_t i = 0; i < branches[b]->n; i++) {
            const state_t *from = &branches[b]->states[i];
            state_t *to = state_at(r, s, i);
            bool stored = to->stored || from->stored;

            if (from->there) {
                *to = *from;
            }
            to->stored = stored;
        }
    }
    for (uint32_t i = 0; i < s->n; i++) {
        state_t *st = &s->states[i];
        place_t outer;

        if (!st->stored || (i < most && was[i])) {
            continue;
        }
        st->has_load = true;
        if (find(s->f->parent, s->f->names[i], &outer)) {
            st->load = LOAD_ALIAS;
            st->alias = outer;
        } else {
            st->load = LOAD_RESOLVE;
        }
    }
}

static void
analyse_if(resolver_t *r, scope_t *s, const node_t *n)
{
    scope_t *branches[3]; /* if, all elif, else */

    analyse_expression(r, s, n->items[0]->a);
    for (int i = 0; i < 3; i++) {
        branches[i] = copy_scope(r, s);
    }
    for (uint32_t i = 0; i < n->n; i++) {
        const node_t *b = n->items[i];
        scope_t *to = branches[i == 0 ? 0 : b->a != NULL ? 1 : 2];

        if (i == 0 || b->a == NULL) {
            analyse(r, to, b->items, b->n);
        } else {
            /* jinja2 keeps an elif as an `if` of its own */
            scope_t *alone[3];

            analyse_expression(r, to, b->a);
            for (int k = 0; k < 3; k++) {
                alone[k] = copy_scope(r, to);
            }
            analyse(r, alone[0], b->items, b->n);
            join_branches(r, to, alone, 3);
        }
    }
    join_branches(r, s, branches, 3);
}

static void
analyse_statement(resolver_t *r, scope_t *s, const node_t *n)
{
    switch (n->kind) {
    case N_PRINT:
        analyse_expression(r, s, n->a);
        break;
    case N_IF:
        analyse_if(r, s, n);
        break;
    case N_FOR:
        analyse_expression(r, s, n->loop->iter);
        break;
    case N_SET:
        analyse_expression(r, s, n->b);
        analyse_target(r, s, n->a, false);
        break;
    case N_SETBLOCK:
        analyse_target(r, s, n->a, false);
        break;
    case N_MACRO:
        store(r, s, n->name);
        break;
    case N_CALLBLOCK:
        analyse_expression(r, s, n->a);
        break;
    case N_FILTERBLOCK:
        analyse_expression(r, s, n->b);
        break;
    default:
        break;
    }
}

static void
analyse(resolver_t *r, scope_t *s, node_t *const *body, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        analyse_statement(r, s, body[i]);
    }
}

/* ---- does a body speak of a name? --------------------------------------- */

static bool mentions(const node_t *n, const char *name);

static bool
any_mentions(node_t *const *items, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++) {
        if (mentions(items[i], name)) {
            return true;
        }
    }
    return false;
}

static bool
mentions(const node_t *n, const char *name)
{
    if (n == NULL) {
        return false;
    }
    if (n->kind == N_NAME && tr_jinja_is(n->name, name)) {
        return true;
    }
    if (n->call != NULL
        && (any_mentions(n->call->items, n->call->n, name)
            || any_mentions(n->call->values, n->call->n_names, name)
            || mentions(n->call->star, name)
            || mentions(n->call->star_star, name))) {
        return true;
    }
    if (n->loop != NULL
        && (mentions(n->loop->iter, name) || mentions(n->loop->test, name)
            || any_mentions(n->loop->otherwise, n->loop->n_otherwise, name))) {
        return true;
    }
    for (uint32_t i = 0; n->function != NULL && i < n->function->n; i++) {
        if (mentions(n->function->parameters[i].fallback, name)) {
            return true;
        }
    }
    return (n->kind != N_SET && n->kind != N_SETBLOCK && mentions(n->a, name))
           || mentions(n->b, name) || mentions(n->c, name)
           || any_mentions(n->items, n->n, name);
}

/* ---- resolving ---------------------------------------------------------- */

static void resolve(resolver_t *r, scope_t *s, node_t *const *body, uint32_t n);

static ref_t
ref_of(const scope_t *s, place_t p)
{
    return (ref_t){ (uint16_t) (s->f->owner->depth - p.owner->depth),
                    (uint16_t) p.slot };
}

static ref_t
ref_to(resolver_t *r, scope_t *s, string_t *name)
{
    place_t p;

    if (!find(s, name, &p)) {
        load(r, s, name);
        find(s, name, &p);
    }
    return ref_of(s, p);
}

static void resolve_expression(resolver_t *r, scope_t *s, node_t *n);

static void
resolve_call(resolver_t *r, scope_t *s, call_t *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        resolve_expression(r, s, c->items[i]);
    }
    for (uint32_t i = 0; i < c->n_names; i++) {
        resolve_expression(r, s, c->values[i]);
    }
    resolve_expression(r, s, c->star);
    resolve_expression(r, s, c->star_star);
}

static void
resolve_expression(resolver_t *r, scope_t *s, node_t *n)
{
    if (n == NULL) {
        return;
    }
    if (n->kind == N_NAME || n->kind == N_NSREF) {
        n->ref = ref_to(r, s, n->name);
        return;
    }
    resolve_expression(r, s, n->a);
    resolve_expression(r, s, n->b);
    resolve_expression(r, s, n->c);
    for (uint32_t i = 0; i < n->n; i++) {
        resolve_expression(r, s, n->items[i]);
    }
    if (n->call != NULL) {
        resolve_call(r, s, n->call);
    }
}

/* What has to be done when the scope is entered. */
static entries_t
entries_of(resolver_t *r, const scope_t *s)
{
    entries_t e = { tr_jinja_alloc(r->a, s->n * sizeof(entry_t)), 0 };

    for (uint32_t i = 0; i < s->n; i++) {
        const state_t *st = &s->states[i];
        entry_t *to = &e.entries[e.n];

        if (!st->there || !st->has_load) {
            continue;
        }
        to->at = (ref_t){ 0, (uint16_t) s->f->slots[i] };
        to->load = st->load;
        to->name = s->f->names[i];
        if (st->load == LOAD_ALIAS) {
            to->alias = ref_of(s, st->alias);
        } else if (st->load == LOAD_RESOLVE) {
            tr_jinja_append(r->a, &r->t->reads, &r->t->reads_cap,
                            of_string(to->name));
        }
        e.n++;
    }
    return e;
}

static node_t *
copy_target(resolver_t *r, const node_t *n)
{
    node_t *c = tr_jinja_alloc(r->a, sizeof(*c));

    *c = *n;
    if (n->n > 0) {
        c->items = tr_jinja_alloc(r->a, n->n * sizeof(node_t *));
        for (uint32_t i = 0; i < n->n; i++) {
            c->items[i] = copy_target(r, n->items[i]);
        }
    }
    return c;
}

static void
resolve_for(resolver_t *r, scope_t *outer, node_t *n)
{
    for_t *f = n->loop;
    scope_t *s = new_scope(r, outer, outer->f->owner);
    scope_t *test = new_scope(r, outer, outer->f->owner);
    scope_t *otherwise = new_scope(r, outer, outer->f->owner);
    string_t *loop = tr_jinja_string(r->a, "loop", 4, TR_JINJA_T);

    f->uses_loop = any_mentions(n->items, n->n, "loop");
    if (f->uses_loop) {
        parameter(r, s, loop);
    }
    analyse_target(r, s, f->target, true);
    analyse(r, s, n->items, n->n);
    resolve_expression(r, outer, f->iter);
    if (f->test != NULL) {
        f->test_target = copy_target(r, f->target);
        analyse_target(r, test, f->test_target, true);
        analyse_expression(r, test, f->test);
        resolve_expression(r, test, f->test_target);
        resolve_expression(r, test, f->test);
        f->test_entries = entries_of(r, test);
    }
    resolve_expression(r, s, f->target);
    if (f->uses_loop) {
        f->loop_at = ref_to(r, s, loop);
    }
    n->entries = entries_of(r, s);
    resolve(r, s, n->items, n->n);
    analyse(r, otherwise, f->otherwise, f->n_otherwise);
    f->else_entries = entries_of(r, otherwise);
    resolve(r, otherwise, f->otherwise, f->n_otherwise);
}

/* A variable that a function's body asks for, unless it is a parameter. */
static bool
special(resolver_t *r, scope_t *s, node_t *n, const char *name, ref_t *at)
{
    string_t *text = tr_jinja_string(r->a, name, strlen(name), TR_JINJA_T);

    for (uint32_t i = 0; i < n->function->n; i++) {
        if (tr_jinja_is(n->function->parameters[i].name, name)) {
            return false;
        }
    }
    if (!any_mentions(n->items, n->n, name)) {
        return false;
    }
    parameter(r, s, text);
    *at = ref_to(r, s, text);
    return true;
}

static void
resolve_function(resolver_t *r, scope_t *outer, node_t *n)
{
    function_t *f = n->function;
    owner_t *owner = tr_jinja_zalloc(r->a, sizeof(*owner));
    scope_t *s = new_scope(r, outer, owner);

    owner->depth = outer->f->owner->depth + 1;
    for (uint32_t i = 0; i < f->n; i++) {
        parameter(r, s, f->parameters[i].name);
        f->explicit_caller |= tr_jinja_is(f->parameters[i].name, "caller");
    }
    for (uint32_t i = 0; i < f->n; i++) {
        analyse_expression(r, s, f->parameters[i].fallback);
    }
    analyse(r, s, n->items, n->n);
    f->caller = special(r, s, n, "caller", &f->caller_at);
    f->kwargs = special(r, s, n, "kwargs", &f->kwargs_at);
    f->varargs = special(r, s, n, "varargs", &f->varargs_at);
    for (uint32_t i = 0; i < f->n; i++) {
        f->parameters[i].at = ref_to(r, s, f->parameters[i].name);
        resolve_expression(r, s, f->parameters[i].fallback);
    }
    n->entries = entries_of(r, s);
    resolve(r, s, n->items, n->n);
    f->n_slots = owner->n_slots;
}

/* A block with a scope of its own in the same function. */
static void
resolve_block(resolver_t *r, scope_t *outer, node_t *n)
{
    scope_t *s = new_scope(r, outer, outer->f->owner);

    analyse(r, s, n->items, n->n);
    analyse_expression(r, s, n->b);
    resolve_expression(r, s, n->b);
    n->entries = entries_of(r, s);
    resolve(r, s, n->items, n->n);
    if (n->a != NULL) {
        resolve_expression(r, outer, n->a);
    }
}

static void
resolve_statement(resolver_t *r, scope_t *s, node_t *n)
{
    switch (n->kind) {
    case N_IF:
        for (uint32_t i = 0; i < n->n; i++) {
            resolve_expression(r, s, n->items[i]->a);
            resolve(r, s, n->items[i]->items, n->items[i]->n);
        }
        break;
    case N_FOR:
        resolve_for(r, s, n);
        break;
    case N_PRINT:
    case N_SET:
        resolve_expression(r, s, n->b);
        resolve_expression(r, s, n->a);
        break;
    case N_MACRO:
        resolve_function(r, s, n);
        n->ref = ref_to(r, s, n->name);
        break;
    case N_CALLBLOCK:
        resolve_function(r, s, n);
        resolve_expression(r, s, n->a);
        break;
    case N_SETBLOCK:
    case N_FILTERBLOCK:
    case N_SCOPE:
        resolve_block(r, s, n);
        break;
    default:
        break;
    }
}

static void
resolve(resolver_t *r, scope_t *s, node_t *const *body, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        resolve_statement(r, s, body[i]);
    }
}

void
tr_jinja_scopes(tr_jinja_t *t)
{
    resolver_t r = { .t = t, .a = &t->arena };
    owner_t owner = { 0 };
    scope_t *s = new_scope(&r, NULL, &owner);

    analyse(&r, s, t->body, t->n);
    t->entries = entries_of(&r, s);
    resolve(&r, s, t->body, t->n);
    t->n_slots = owner.n_slots;
}
