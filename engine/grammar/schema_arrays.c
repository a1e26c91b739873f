/*
 * Arrays of a schema.  A number of items is counted, never written out.
 */
#include "schema_internal.h"

#include <stdio.h>

typedef struct {
    schema_t *c;
    uint32_t min, max, to;
    uint32_t n_prefix;
    const json_t *prefix;
    json_t *items;      /* of what is behind the prefix; NULL: anything */
    bool closed;        /* nothing may be behind the prefix */
    uint32_t item_rule; /* of items, when it is needed twice */
    bool has_rule;
} array_t;

static void
space(schema_t *c, uint32_t from, uint32_t to)
{
    tr_rules_call(c->b, from, c->json.space, to);
}

/* One item behind the prefix. */
static void
rest_item(array_t *a, uint32_t from, uint32_t to)
{
    tr_rules_t *b = a->c->b;

    if (a->items == NULL) {
        tr_rules_call(b, from, a->c->json.value, to);
        return;
    }
    if (!a->has_rule) {
        size_t mark = tr_schema_enter(a->c, "items", NULL);

        a->has_rule = true;
        a->item_rule = tr_rules_rule(b, "item");
        if (b->failed == TR_OK) {
            tr_schema_any(a->c, a->items, b->rules[a->item_rule].start,
                          b->rules[a->item_rule].accept);
        }
        tr_schema_leave(a->c, mark);
    }
    tr_rules_call(b, from, a->item_rule, to);
}

static void
prefix_item(array_t *a, uint32_t i, uint32_t from, uint32_t to)
{
    char number[16];
    size_t mark;

    snprintf(number, sizeof(number), "%u", i);
    mark = tr_schema_enter(a->c, "prefixItems", number);
    tr_schema_any(a->c, json_array_get(a->prefix, i), from, to);
    tr_schema_leave(a->c, mark);
}

static void
comma(schema_t *c, uint32_t from, uint32_t to)
{
    uint32_t before = tr_rules_state(c->b), behind = tr_rules_state(c->b);

    space(c, from, before);
    tr_rules_bytes(c->b, before, ',', ',', behind);
    space(c, behind, to);
}

static void
close_array(array_t *a, uint32_t from)
{
    uint32_t spaced = tr_rules_state(a->c->b);

    space(a->c, from, spaced);
    tr_rules_bytes(a->c->b, spaced, ']', ']', a->to);
}

/* Behind the n items that are there. */
static void
rest(array_t *a, uint32_t n, uint32_t from)
{
    tr_rules_t *b = a->c->b;
    uint32_t min = a->min > n ? a->min - n : 0;
    uint32_t max = a->max == TR_UNBOUNDED ? a->max : a->max - n;
    uint32_t item = tr_rules_state(b), done, rule;

    if (a->closed) {
        max = 0;
    }
    if (min > max) {
        return;
    }
    if (min == 0 && max == TR_UNBOUNDED) {
        comma(a->c, from, item);
        rest_item(a, item, from);
        close_array(a, from);
        return;
    }
    done = tr_rules_state(b);
    rule = tr_rules_rule(b, "items");
    if (b->failed != TR_OK) {
        return;
    }
    comma(a->c, b->rules[rule].start, item);
    rest_item(a, item, b->rules[rule].accept);
    tr_rules_repeat(b, from, rule, min, max, done);
    close_array(a, done);
}

void
tr_schema_array(schema_t *c, json_t *flat, uint32_t from, uint32_t to)
{
    array_t a = { .c = c, .to = to };
    tr_rules_t *b = c->b;
    uint32_t opened = tr_rules_state(b), at = tr_rules_state(b), n = 0;

    a.prefix = json_object_get(flat, "prefixItems");
    a.items = json_object_get(flat, "items");
    a.min = tr_schema_count(c, flat, "minItems", 0);
    a.max = tr_schema_count(c, flat, "maxItems", TR_UNBOUNDED);
    if (a.prefix != NULL && !json_is_array(a.prefix)) {
        tr_schema_invalid(c, "'prefixItems' is not an array");
    }
    a.n_prefix = (uint32_t) json_array_size(a.prefix);
    a.closed = json_is_false(a.items);
    if (!tr_schema_going(c) || a.min > a.max) {
        return;
    }
    tr_rules_bytes(b, from, '[', '[', opened);
    if (a.min == 0) {
        uint32_t empty = tr_rules_state(b);

        space(c, opened, empty);
        tr_rules_bytes(b, empty, ']', ']', to);
    }
    if (a.max == 0 || (a.n_prefix == 0 && a.closed)) {
        return;
    }
    space(c, opened, at);
    do {
        uint32_t done = tr_rules_state(b);

        if (n < a.n_prefix) {
            prefix_item(&a, n, at, done);
        } else {
            rest_item(&a, at, done);
        }
        n++;
        if (n >= a.n_prefix || n == a.max) {
            rest(&a, n, done);
            return;
        }
        if (n >= a.min) {
            close_array(&a, done);
        }
        at = tr_rules_state(b);
        comma(c, done, at);
    } while (tr_schema_going(c));
}
