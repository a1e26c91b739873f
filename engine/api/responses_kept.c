/*
 * Responses that are kept (responses.h): a body may go on from one, or refer to
 * items of one.  It is read twice then: at first only to know what it refers to,
 * and again when that has come from Redis (kept.h).
 *
 * Of a response its input is kept as JSON, and its output as the records that
 * the gateway made its items of: here they are made once more, with the same
 * ids, so that a client may refer to them.  `instructions` are not part of a
 * conversation.
 */
#include "responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_MAX (TR_TURNS_BYTES / 2) /* bytes of an input */

/* Of this one, and those that it may refer to. */
static bool
can_keep(const tr_translation_t *t)
{
    return t->c->api->keeps_responses && t->c->r->events != NULL;
}

static bool
wants_store(const json_t *root)
{
    return !json_is_false(json_object_get(root, "store"));
}

/* "PREFIX_ID", of which the digits are wanted. */
static const char *
digits_of(const char *id, const char *prefix)
{
    size_t n = strlen(prefix);

    return strncmp(id, prefix, n) == 0
                   && strspn(id + n, "0123456789abcdef") == TR_COMPLETION_LEN
               ? id + n
               : NULL;
}

/* The response that an item belongs to: "msg_ID_3"; *index: its place. */
static const char *
response_of(const char *item, uint32_t *index)
{
    static const char *const prefixes[] = { "msg_", "fc_", "rs_" };
    const char *digits = NULL, *at;
    char *end;
    size_t i;

    for (i = 0; digits == NULL && i < 3; i++) {
        digits = digits_of(item, prefixes[i]);
    }
    if (digits == NULL || digits[TR_COMPLETION_LEN] != '_') {
        return NULL;
    }
    at = digits + TR_COMPLETION_LEN + 1;
    *index = (uint32_t) strtoul(at, &end, 10);
    return *at >= '0' && *at <= '9' && end - at < 8 && *end == '\0' ? digits
                                                                    : NULL;
}

/* ---- what a body refers to ---------------------------------------------- */

static tr_status_t
not_found(const tr_translation_t *t, const char *param, const char *what,
          const char *id)
{
    return tr_error_set(t->c->err, TR_ERR_NO_RESPONSE, param,
                        "%s with id '%.80s' not found.", what, id);
}

static bool
is_asked(const tr_lookup_t *l, const char *digits)
{
    uint32_t i;

    for (i = 0; i < l->n_turns; i++) {
        if (!l->turns[i].conversation
            && memcmp(l->turns[i].id, digits, TR_COMPLETION_LEN) == 0) {
            return true;
        }
    }
    return false;
}

static tr_status_t
ask_reference(const tr_translation_t *t, tr_lookup_t *l, const json_t *item,
              size_t i)
{
    const json_t *id = json_object_get(item, "id");
    const char *digits;
    uint32_t index;
    char param[64];

    snprintf(param, sizeof(param), "input[%zu].id", i);
    if (!json_is_string(id)) {
        return tr_translate_wrong_type(t, param, "a string", id);
    }
    if (!can_keep(t)) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, param,
                            "'input[%zu]' refers to an item, but responses are "
                            "not kept here (this needs a Redis); send the item "
                            "itself, as clients do with 'store': false.",
                            i);
    }
    digits = response_of(json_string_value(id), &index);
    if (digits == NULL) {
        return not_found(t, param, "Item", json_string_value(id));
    }
    if (is_asked(l, digits) || tr_lookup_add(l, digits, false)) {
        return TR_OK;
    }
    return tr_error_set(t->c->err, TR_ERR_INVALID, "input",
                        "'input' refers to items of more than %u responses.",
                        TR_TURNS_MAX - 1);
}

static tr_status_t
ask_previous(const tr_translation_t *t, tr_lookup_t *l)
{
    const json_t *id = tr_json_field(t->c->root, "previous_response_id");
    const char *digits;

    if (id == NULL) {
        return TR_OK;
    }
    if (!json_is_string(id)) {
        return tr_translate_wrong_type(t, "previous_response_id", "a string",
                                       id);
    }
    if (!can_keep(t)) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, "previous_response_id",
                            "'previous_response_id' is not supported here: "
                            "responses are not kept (this needs a Redis); send "
                            "the whole conversation.");
    }
    digits = digits_of(json_string_value(id), "resp_");
    if (digits == NULL || digits[TR_COMPLETION_LEN] != '\0') {
        return not_found(t, "previous_response_id", "Previous response",
                         json_string_value(id));
    }
    return tr_lookup_add(l, digits, true) ? TR_OK : tr_translate_no_memory(t);
}

static tr_status_t
check_store(const tr_translation_t *t)
{
    bool store = false;
    tr_status_t rc = tr_json_bool(t->c->root, "store", &store, t->c->err);

    return rc == TR_OK && store && !can_keep(t)
               ? tr_error_set(t->c->err, TR_ERR_INVALID, "store",
                              "'store' is not supported here: responses are "
                              "not kept (this needs a Redis); use false.")
               : rc;
}

tr_status_t
tr_responses_look_up(const tr_translation_t *t)
{
    tr_request_t *r = t->c->r;
    json_t *input = tr_json_field(t->c->root, "input"), *item;
    tr_status_t rc = check_store(t);
    tr_lookup_t *l;
    size_t i;

    json_object_del(t->body, "store");
    json_object_del(t->body, "previous_response_id");
    if (rc != TR_OK) {
        return rc;
    }
    if (r->lookup != NULL) {
        *t->c->err = r->lookup->error;
        return r->lookup->error.status;
    }
    l = calloc(1, sizeof(*l));
    if (l == NULL) {
        return tr_translate_no_memory(t);
    }
    rc = ask_previous(t, l);
    json_array_foreach (input, i, item) {
        if (rc == TR_OK
            && tr_translate_is(json_object_get(item, "type"),
                               "item_reference")) {
            rc = ask_reference(t, l, item, i);
        }
    }
    if (rc != TR_OK || l->n_turns == 0) {
        tr_lookup_free(l);
        return rc;
    }
    l->n_asked = l->n_turns;
    memcpy(l->holder, r->holder, sizeof(l->holder));
    r->lookup = l;
    return TR_AGAIN;
}

/* ---- what a response said ----------------------------------------------- */

/* Items in the making, of the records of a response. */
typedef struct {
    const tr_turn_t *turn;
    json_t *items;
    uint16_t kind; /* of what comes, enum tr_item_kind */
    bool open;     /* the newest of items is it */
    char call_id[TR_ITEM_ID_MAX + 1], name[TR_ITEM_NAME_MAX + 1];
    char *text; /* of it, malloc'ed */
    size_t len, cap;
} saying_t;

static json_t *
item_of(const saying_t *s)
{
    char id[TR_COMPLETION_LEN + 24];
    size_t n = json_array_size(s->items);
    json_t *text = json_stringn(s->text != NULL ? s->text : "", s->len);

    snprintf(id, sizeof(id), "%s_%s_%zu",
             s->kind == TR_ITEM_TOOL_CALL   ? "fc"
             : s->kind == TR_ITEM_REASONING ? "rs"
                                            : "msg",
             s->turn->id, n);
    if (s->kind == TR_ITEM_TOOL_CALL) {
        return json_pack("{s:s, s:s, s:s, s:s, s:o}", "type", "function_call",
                         "id", id, "call_id", s->call_id, "name", s->name,
                         "arguments", text);
    }
    return s->kind == TR_ITEM_REASONING
               ? json_pack("{s:s, s:s, s:[], s:[{s:s, s:o}]}", "type",
                           "reasoning", "id", id, "summary", "content", "type",
                           "reasoning_text", "text", text)
               : json_pack("{s:s, s:s, s:s, s:[{s:s, s:o}]}", "type", "message",
                           "id", id, "role", "assistant", "content", "type",
                           "output_text", "text", text);
}

static bool
close_item(saying_t *s)
{
    bool open = s->open;

    s->open = false;
    return !open || json_array_append_new(s->items, item_of(s)) == 0;
}

static bool
take_text(saying_t *s, tr_wire_bytes_t text)
{
    char *grown;

    if (text.len == 0) {
        return true;
    }
    if (s->len + text.len > s->cap) {
        s->cap = 2 * (s->len + text.len);
        grown = realloc(s->text, s->cap);
        if (grown == NULL) {
            return false;
        }
        s->text = grown;
    }
    memcpy(s->text + s->len, text.data, text.len);
    s->len += text.len;
    s->open = true;
    return true;
}

static bool
take_item(saying_t *s, const uint8_t *payload, size_t len)
{
    tr_wire_bytes_t id, name;
    tr_wire_item_t head;

    if (tr_wire_item_parse(payload, len, &head, &id, &name) != TR_OK
        || !close_item(s)) {
        return false;
    }
    s->kind = head.kind;
    s->len = 0;
    snprintf(s->call_id, sizeof(s->call_id), "%.*s", (int) id.len, id.data);
    snprintf(s->name, sizeof(s->name), "%.*s", (int) name.len, name.data);
    s->open = head.kind == TR_ITEM_TOOL_CALL; /* also without arguments */
    return true;
}

/* Its items, as they were sent, onto `items`; false: they cannot be read. */
static bool
read_output(const tr_turn_t *turn, json_t *items)
{
    saying_t s = { .turn = turn, .items = items, .kind = TR_ITEM_TEXT };
    tr_wire_bytes_t text, logprobs, ids;
    tr_wire_delta_t delta;
    const uint8_t *payload;
    tr_record_t rec;
    size_t at = 0;
    bool ok = true;

    while (
        ok
        && tr_kept_record(turn->output, turn->output_len, &at, &rec, &payload)
               == TR_OK) {
        if (rec.type == TR_RECORD_ITEM) {
            ok = take_item(&s, payload, rec.length);
        } else if (rec.type == TR_RECORD_DELTA) {
            ok = tr_wire_delta_parse(payload, rec.length, &delta, &text,
                                     &logprobs, &ids)
                     == TR_OK
                 && take_text(&s, text);
        }
    }
    ok = ok && close_item(&s);
    free(s.text);
    return ok;
}

/* ---- the conversation --------------------------------------------------- */

static tr_status_t
unreadable(const tr_translation_t *t, const tr_turn_t *turn)
{
    return tr_error_set(t->c->err, TR_ERR_INTERNAL, "",
                        "The response with id 'resp_%s' cannot be read",
                        turn->id);
}

static tr_status_t
say_turn(const tr_translation_t *t, const tr_turn_t *turn, json_t *items)
{
    json_t *input = json_loadb(turn->input, turn->input_len, JSON_ALLOW_NUL,
                               NULL);
    json_t *output = json_array();
    bool ok = json_is_array(input) && read_output(turn, output)
              && json_array_extend(items, input) == 0
              && json_array_extend(items, output) == 0;

    json_decref(input);
    json_decref(output);
    return ok ? TR_OK : unreadable(t, turn);
}

tr_status_t
tr_responses_conversation(const tr_translation_t *t, json_t *items)
{
    const tr_lookup_t *l = t->c->r->lookup;
    tr_status_t rc = TR_OK;
    uint32_t i;

    if (l == NULL || !l->turns[0].conversation) {
        return TR_OK;
    }
    for (i = l->n_asked; i < l->n_turns && rc == TR_OK; i++) {
        rc = say_turn(t, &l->turns[i], items);
    }
    return rc == TR_OK ? say_turn(t, &l->turns[0], items) : rc;
}

/* ---- the input ---------------------------------------------------------- */

/* What input[i] refers to; *item is the caller's. */
static tr_status_t
resolve(const tr_translation_t *t, const json_t *reference, size_t i,
        json_t **item)
{
    const char *id = json_string_value(json_object_get(reference, "id"));
    const tr_lookup_t *l = t->c->r->lookup;
    const tr_turn_t *turn = NULL;
    json_t *items = json_array(), *found;
    const char *digits;
    uint32_t index = 0;
    char param[64];

    digits = response_of(id, &index);
    for (uint32_t k = 0; k < l->n_asked; k++) {
        if (!l->turns[k].conversation
            && memcmp(l->turns[k].id, digits, TR_COMPLETION_LEN) == 0) {
            turn = &l->turns[k];
        }
    }
    found = turn != NULL && !turn->missing && read_output(turn, items)
                ? json_array_get(items, index)
                : NULL;
    if (found != NULL
        && strcmp(json_string_value(json_object_get(found, "id")), id) == 0) {
        *item = json_incref(found);
    }
    json_decref(items);
    if (*item != NULL) {
        return TR_OK;
    }
    snprintf(param, sizeof(param), "input[%zu].id", i);
    return not_found(t, param, "Item", id);
}

tr_status_t
tr_responses_input(const tr_translation_t *t, json_t *input, json_t **items)
{
    tr_status_t rc = TR_OK;
    json_t *item, *own;
    size_t i;

    *items = json_is_string(input)
                 ? json_pack("[{s:s, s:s, s:O}]", "type", "message", "role",
                             "user", "content", input)
                 : json_array();
    json_array_foreach (input, i, item) {
        own = NULL;
        if (rc == TR_OK
            && tr_translate_is(json_object_get(item, "type"),
                               "item_reference")) {
            rc = resolve(t, item, i, &own);
        } else {
            own = json_incref(item);
        }
        if (rc == TR_OK && json_array_append(*items, own) != 0) {
            rc = tr_translate_no_memory(t);
        }
        json_decref(own);
    }
    return rc;
}

/* ---- what is kept of this one ------------------------------------------- */

/* The ids that it goes on from, oldest first, at `at`. */
static uint32_t
write_ancestors(const tr_lookup_t *l, char *at)
{
    uint32_t n = 0, i;

    if (l == NULL || !l->turns[0].conversation) {
        return 0;
    }
    for (i = l->n_asked; i <= l->n_turns; i++) {
        const tr_turn_t *turn = &l->turns[i < l->n_turns ? i : 0];

        memcpy(at + n, turn->id, TR_COMPLETION_LEN);
        n += TR_COMPLETION_LEN;
    }
    return n;
}

/* An item as it is listed: with its id ahead of all else, a message's content in
 * parts, and without members that are null, which say as little as none. */
static json_t *
listed(const json_t *item)
{
    json_t *out = json_object(), *value;
    json_t *content = json_object_get(item, "content");
    const char *key;

    if (json_is_string(json_object_get(item, "id"))) {
        json_object_set(out, "id", json_object_get(item, "id"));
    }
    if (tr_json_field(item, "type") == NULL) {
        json_object_set_new(out, "type", json_string("message"));
    }
    json_object_foreach ((json_t *) item, key, value) {
        if (!json_is_null(value)) {
            json_object_set(out, key, value);
        }
    }
    if (tr_translate_is(json_object_get(out, "type"), "message")) {
        if (json_is_string(content)) {
            json_object_set_new(
                out, "content",
                json_pack("[{s:s, s:O}]", "type",
                          tr_translate_is(json_object_get(item, "role"),
                                          "assistant")
                              ? "output_text"
                              : "input_text",
                          "text", content));
        }
        if (tr_json_field(item, "status") == NULL) {
            json_object_set_new(out, "status", json_string("completed"));
        }
    }
    return out;
}

/* The items as a JSON array, one a line, of which a gateway may make a list
 * without reading them: malloc'ed; NULL: out of memory. */
static char *
write_items(const json_t *items, size_t *len)
{
    size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(17), i;
    const json_t *item;
    char *out = NULL;
    FILE *f = open_memstream(&out, len);
    bool ok = f != NULL;

    if (f == NULL) {
        return NULL;
    }
    fputs("[", f);
    json_array_foreach ((json_t *) items, i, item) {
        json_t *one = listed(item);

        fputs(i == 0 ? "" : ",\n", f);
        ok = ok && json_dumpf(one, f, flags) == 0;
        json_decref(one);
    }
    fputs("]", f);
    if (fclose(f) != 0 || !ok) {
        free(out);
        return NULL;
    }
    return out;
}

tr_status_t
tr_responses_keep(const tr_translation_t *t, const json_t *items)
{
    const json_t *root = t->c->root;
    tr_request_t *r = t->c->r;
    char *input, *all;
    size_t len;

    if (!can_keep(t) || !wants_store(root)) {
        return TR_OK;
    }
    input = write_items(items, &len);
    if (input == NULL) {
        return tr_translate_no_memory(t);
    }
    if (len > KEPT_MAX) {
        free(input);
        return json_is_true(json_object_get(root, "store"))
                   ? tr_error_set(t->c->err, TR_ERR_INVALID, "store",
                                  "'input' is too large to be kept (more than "
                                  "%u bytes); use 'store': false.",
                                  KEPT_MAX)
                   : TR_OK;
    }
    all = realloc(input, len + (size_t) TR_TURNS_MAX * TR_COMPLETION_LEN);
    if (all == NULL) {
        free(input);
        return tr_translate_no_memory(t);
    }
    r->kept = all;
    r->kept_input_len = len;
    r->kept_ancestors_len = write_ancestors(r->lookup, all + len);
    return TR_OK;
}
