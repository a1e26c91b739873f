/*
 * The machine of a dialect (dialect.h): it runs a form's program over the bytes
 * of an answer.
 *
 * buf holds what is not decided yet.  [base, at) was read by the program since
 * the newest decision, [at, len) was not.  A decision (text goes out, a call
 * begins, a mark was complete) moves base to at.  When the program cannot go on,
 * what begins at base is no call: one character of it becomes content, and the
 * rest is read again as content.
 */
#include "dialect_internal.h"

#include <assert.h>
#include <string.h>

#include "engine/base/hash.h"

/* ---- output ------------------------------------------------------------- */

static uint32_t
put(tr_dialect_out_t *out, const char *bytes, uint32_t len)
{
    uint32_t at = out->len;

    assert(len <= sizeof(out->bytes) - out->len); /* tr_dialect_rows */
    memcpy(out->bytes + at, bytes, len);
    out->len += len;
    return at;
}

static tr_dialect_piece_t *
new_piece(tr_dialect_out_t *out, uint8_t kind)
{
    tr_dialect_piece_t *p = &out->pieces[out->n++];

    assert(out->n <= TR_DIALECT_PIECES);
    *p = (tr_dialect_piece_t){ .kind = kind, .text = out->len };
    return p;
}

void
tr_dialect_emit(tr_dialect_state_t *s, tr_dialect_out_t *out, uint8_t kind,
                const char *text, uint32_t len)
{
    tr_dialect_piece_t *p = out->n != 0 ? &out->pieces[out->n - 1] : NULL;

    if (len == 0) {
        return;
    }
    if (s->kind != kind || p == NULL || p->kind != kind) {
        p = new_piece(out, kind);
        p->begins = s->kind != kind;
        s->kind = kind;
    }
    put(out, text, len);
    p->text_len += len;
}

/* Ids differ between calls, choices and requests. */
static void
make_id(tr_dialect_state_t *s)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "abcdefghijklmnopqrstuvwxyz";
    bool brief = (s->d->form->flags & FORM_SHORT) != 0;
    uint32_t from = brief ? 0 : 5, to = brief ? 9 : 29;
    uint64_t x = s->start.seed + s->n_calls * 0xd1342543de82ef95ull;

    memcpy(s->id, "call_", 5);
    for (uint32_t i = from; i < to; i++) {
        s->id[i] = digits[tr_splitmix64(&x) % 62];
    }
    s->id_len = to;
}

bool
tr_dialect_name_ok(const char *name, uint32_t len)
{
    for (uint32_t i = 0; i < len; i++) {
        char c = name[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
              || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.')) {
            return false;
        }
    }
    return len != 0 && len <= TR_DIALECT_NAME_MAX;
}

static const tr_dialect_tool_t *
find_tool(const tr_dialect_state_t *s)
{
    const tr_dialect_tools_t *all = s->start.tools;

    for (uint32_t i = 0; all != NULL && i < all->n; i++) {
        if (all->tools[i].len == s->name_len
            && memcmp(all->tools[i].name, s->name, s->name_len) == 0) {
            return &all->tools[i];
        }
    }
    return NULL;
}

bool
tr_dialect_begin_call(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    tr_dialect_piece_t *p;

    if (!tr_dialect_name_ok(s->name, s->name_len)) {
        return false;
    }
    s->tool = find_tool(s);
    if ((s->d->form->flags & FORM_KNOWN) && s->tool == NULL) {
        return false;
    }
    if (!(s->d->form->flags & FORM_OWN_IDS)) {
        make_id(s);
    }
    p = new_piece(out, TR_DIALECT_CALL);
    p->begins = true;
    p->index = s->n_calls++;
    p->id = put(out, s->id, s->id_len);
    p->id_len = s->id_len;
    p->name = put(out, s->name, s->name_len);
    p->name_len = s->name_len;
    p->text = out->len;
    s->kind = TR_DIALECT_CALL;
    s->begun = true;
    s->arg_any = false;
    s->fresh = s->strip = false;
    s->base = s->at;
    return true;
}

void
tr_dialect_end_call(tr_dialect_state_t *s)
{
    s->begun = false;
    s->quiet = true;
    s->over = s->start.single;
    s->base = s->at;
}

/* ---- running ------------------------------------------------------------ */

static uint8_t
content_op(const tr_dialect_state_t *s)
{
    return s->d->form != NULL && (s->d->form->flags & FORM_START) ? 1 : 0;
}

static void
enter(tr_dialect_state_t *s, uint8_t pc)
{
    s->pc = pc;
    s->from = s->at;
    s->phase = CALL_OPEN;
    s->nested = 0;
    memset(&s->scan, 0, sizeof(s->scan));
}

enum match { NO, PARTIAL, MATCH };

/* Does p begin at b?  *take: bytes that it consumes. */
static enum match
match(const pattern_t *p, const char *b, uint32_t n, uint32_t *take)
{
    uint32_t k = 0, keep = UINT32_MAX;

    for (uint32_t i = 0; i < p->len; i++) {
        char c = p->bytes[i];

        if (c == P_SPACE) {
            uint32_t first = k;

            while (k < n && is_space(b[k]) && k - first < SPACE_MAX) {
                k++;
            }
        } else if (c == P_KEEP) {
            keep = k;
        } else if (k == n) {
            return PARTIAL;
        } else if (b[k++] != c) {
            return NO;
        }
    }
    *take = keep != UINT32_MAX ? keep : k;
    return MATCH;
}

/* The first alternative of the op that begins at `at`: its index, -1: none, -2:
 * more must come. */
static int
alternative(const tr_dialect_state_t *s, uint8_t pc, uint32_t *take)
{
    const pattern_t *p = s->d->patterns[pc];
    bool wait = false;

    for (int i = 0; i < ALTS && p[i].len != 0; i++) {
        enum match m = match(&p[i], s->buf + s->at, s->len - s->at, take);

        if (m == MATCH && !(wait && p[i].len == 1)) {
            return i;
        }
        wait |= m != NO;
    }
    return wait ? -2 : -1;
}

bool
tr_dialect_key_ok(const tr_dialect_t *d, const char *key, size_t len)
{
    uint32_t pc = 0, take;

    while (pc < OPS && d->form->ops[pc].kind != OP_KEY) {
        pc++;
    }
    for (size_t at = 0; pc < OPS && at < len; at++) {
        for (int i = 0; i < ALTS && d->patterns[pc][i].len != 0; i++) {
            if (match(&d->patterns[pc][i], key + at, (uint32_t) (len - at),
                      &take)
                == MATCH) {
                return false; /* it would end here */
            }
        }
    }
    return len <= WORD_MAX;
}

static uint32_t
char_bytes(const tr_dialect_state_t *s, uint32_t at)
{
    unsigned char c = (unsigned char) s->buf[at];
    uint32_t n = c == 0xff ? 2 : c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;

    return n <= s->len - at ? n : s->len - at;
}

/* One character as what it is, if it is no part of a mark. */
static void
release(tr_dialect_state_t *s, tr_dialect_out_t *out, uint8_t kind)
{
    uint32_t n = char_bytes(s, s->at);
    bool space = is_space(s->buf[s->at]);

    if (s->buf[s->at] != P_TOKEN && !(space && s->strip)) {
        tr_dialect_emit(s, out, kind, s->buf + s->at, n);
        s->strip = false;
        s->quiet &= space;
    }
    s->at += n;
    s->base = s->at;
}

static void
fail(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    s->at = s->base;
    s->begun = false;
    if (s->at < s->len) {
        release(s, out, TR_DIALECT_TEXT);
    }
    enter(s, content_op(s));
}

/* Past a pattern of the op. */
static void
go(tr_dialect_state_t *s, uint8_t to, uint32_t take, tr_dialect_out_t *out)
{
    s->at += take;
    if (to & CLOSE) {
        tr_dialect_close_arguments(s, out);
        tr_dialect_end_call(s);
    } else if (s->begun) {
        s->base = s->at;
    } else if (s->quiet) {
        /* behind a call: what closes it is dealt with, what opens another one
         * may turn out to be content */
        uint8_t next = s->d->form->ops[GO(to)].kind;

        s->quiet = next == OP_TEXT || next == OP_ALT;
        s->base = s->quiet ? s->at : s->base;
    }
    enter(s, GO(to));
}

static enum step
step_alternatives(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    uint32_t take = 0;
    int i = alternative(s, s->pc, &take);

    if (i < 0) {
        return i == -2 ? STEP_WAIT : STEP_FAIL;
    }
    go(s, s->d->patterns[s->pc][i].go, take, out);
    return STEP_ON;
}

static enum step
step_content(tr_dialect_state_t *s, tr_dialect_out_t *out, uint8_t kind)
{
    uint32_t take = 0;
    int i = alternative(s, s->pc, &take);

    if (i == -2) {
        return STEP_WAIT;
    }
    s->base = s->at;
    if (i < 0 || !(s->calls_on || (s->d->form->flags & FORM_HARMONY))) {
        release(s, out, kind);
        return STEP_ON;
    }
    s->quiet = false;
    s->at += take;
    if (s->d->form->ops[s->pc].kind == OP_BODY) {
        s->base = s->at;
    }
    enter(s, s->d->patterns[s->pc][i].go);
    return STEP_ON;
}

/* "functions.NAME:i" of Kimi, whose whole is the call's id. */
static bool
take_own_id(tr_dialect_state_t *s, const char **text, uint32_t *len)
{
    const char *colon = memrchr(*text, ':', *len);

    if (*len > TR_DIALECT_ID_MAX) {
        return false;
    }
    memcpy(s->id, *text, *len);
    s->id_len = *len;
    *len = colon != NULL ? (uint32_t) (colon - *text) : *len;
    if (*len > 10 && memcmp(*text, "functions.", 10) == 0) {
        *text += 10;
        *len -= 10;
    }
    return true;
}

static enum step
take_name(tr_dialect_state_t *s, uint8_t to, uint32_t take,
          tr_dialect_out_t *out)
{
    const char *text = s->buf + s->from;
    uint32_t len = tr_dialect_trim(&text, s->at - s->from);
    uint8_t next = s->d->form->ops[GO(to)].kind;

    if (((s->d->form->flags & FORM_OWN_IDS) && !take_own_id(s, &text, &len))
        || len == 0 || len > TR_DIALECT_NAME_MAX
        || !tr_dialect_name_ok(text, len)) {
        return STEP_FAIL;
    }
    memcpy(s->name, text, len);
    s->name_len = len;
    s->at += take;
    if (next != OP_JSON && next != OP_ID) {
        if (!tr_dialect_begin_call(s, out)) {
            return STEP_FAIL;
        }
        tr_dialect_open_arguments(s, out);
    }
    enter(s, GO(to));
    return STEP_ON;
}

/* A word up to one of the patterns. */
static enum step
step_word(tr_dialect_state_t *s, uint8_t kind, tr_dialect_out_t *out)
{
    uint32_t take = 0;
    int i = alternative(s, s->pc, &take);
    uint8_t to;

    if (i == -2) {
        return STEP_WAIT;
    }
    if (i < 0) {
        s->at += char_bytes(s, s->at);
        return s->at - s->from > WORD_MAX ? STEP_FAIL : STEP_ON;
    }
    to = s->d->patterns[s->pc][i].go;
    if (kind == OP_NAME) {
        return take_name(s, to, take, out);
    }
    if (kind == OP_KEY) {
        s->key_len = s->at - s->from;
        memcpy(s->key_text, s->buf + s->from, s->key_len);
    }
    s->at += take;
    if (kind == OP_KEY) {
        s->base = s->at;
    }
    enter(s, GO(to));
    if (kind == OP_KEY) {
        tr_dialect_begin_value(s, s->d->form->ops[GO(to)].kind);
    }
    return STEP_ON;
}

/* Takes the special token at `at` out: it is no part of a value, and what is
 * held of one is put out as it stands. */
static void
drop_token(tr_dialect_state_t *s, uint32_t at)
{
    uint32_t n = char_bytes(s, at);

    memmove(s->buf + at, s->buf + at + n, s->len - at - n);
    s->len -= n;
}

static enum step
step_value(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    uint32_t take = 0, n;
    int i = alternative(s, s->pc, &take);

    if (i == -2) {
        return STEP_WAIT;
    }
    if (i >= 0) {
        tr_dialect_end_value(s, out);
        go(s, s->d->patterns[s->pc][i].go, take, out);
        return STEP_ON;
    }
    if (s->buf[s->at] == P_TOKEN) {
        drop_token(s, s->at);
        return STEP_ON;
    }
    n = char_bytes(s, s->at);
    s->at += n;
    tr_dialect_value(s, s->buf + s->at - n, n, out);
    return STEP_ON;
}

/* ---- harmony ------------------------------------------------------------ */

static const char *
find(const char *text, uint32_t len, const char *what)
{
    return memmem(text, len, what, strlen(what));
}

/* Channel and recipient, in either order. */
static enum step
take_header(tr_dialect_state_t *s, uint32_t take)
{
    const char *text = s->buf + s->from, *to, *end;
    uint32_t len = s->at - s->from, n = 0;
    const char *const functions = "to=functions.";

    to = find(text, len, functions);
    end = text + len;
    if (to != NULL && s->calls_on) {
        to += strlen(functions);
        while (to + n < end && !is_space(to[n]) && to[n] != '<'
               && to[n] != P_TOKEN) {
            n++;
        }
        if (!tr_dialect_name_ok(to, n)) {
            return STEP_FAIL;
        }
        memcpy(s->name, to, n);
        s->name_len = n;
        s->at += take;
        enter(s, 4);
        return STEP_ON;
    }
    if (find(text, len, "analysis")) {
        s->body = TR_DIALECT_REASONING;
    } else if (find(text, len, "final") || find(text, len, "commentary")) {
        s->body = TR_DIALECT_TEXT;
    } else {
        return STEP_FAIL;
    }
    s->at += take;
    s->base = s->at;
    enter(s, 2);
    return STEP_ON;
}

static enum step
step_header(tr_dialect_state_t *s)
{
    uint32_t take = 0;
    int i = alternative(s, s->pc, &take);

    if (i == -2) {
        return STEP_WAIT;
    }
    if (i >= 0) {
        return take_header(s, take);
    }
    s->at += char_bytes(s, s->at);
    return s->at - s->from > HEADER_MAX ? STEP_FAIL : STEP_ON;
}

/* ---- the loop ----------------------------------------------------------- */

static enum step
step_op(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    uint8_t kind = s->d->form != NULL ? s->d->form->ops[s->pc].kind : OP_NONE;

    switch (kind) {
    case OP_TEXT:
        return step_content(s, out, TR_DIALECT_TEXT);
    case OP_BODY:
        return step_content(s, out, s->body);
    case OP_ALT:
        return step_alternatives(s, out);
    case OP_NAME:
    case OP_ID:
    case OP_KEY:
        return step_word(s, kind, out);
    case OP_CALL:
        return tr_dialect_step_call(s, out);
    case OP_JSON:
        return tr_dialect_step_json(s, out);
    case OP_VALUE:
    case OP_STRING:
    case OP_BARE:
        return step_value(s, out);
    case OP_HEADER:
        return step_header(s);
    default:
        s->base = s->at;
        release(s, out, TR_DIALECT_TEXT);
        return STEP_ON;
    }
}

/* Does a call's mark that is a special token begin here?  It ends reasoning. */
static bool
call_interrupts(const tr_dialect_state_t *s)
{
    const pattern_t *p = s->d->patterns[content_op(s)];
    uint32_t take;

    for (int i = 0; s->calls_on && i < ALTS && p[i].len != 0; i++) {
        if (memchr(p[i].bytes, 0xff, p[i].len) != NULL
            && match(&p[i], s->buf + s->at, s->len - s->at, &take) == MATCH) {
            return true;
        }
    }
    return false;
}

/* Within reasoning, or before what may be its opening mark; true: this byte is
 * dealt with. */
static enum step
step_reasoning(tr_dialect_state_t *s, tr_dialect_out_t *out, bool *done)
{
    const pattern_t *p = s->inside ? &s->d->close : &s->d->open;
    uint32_t take = 0;
    enum match m = match(p, s->buf + s->at, s->len - s->at, &take);

    *done = true;
    if (m == PARTIAL) {
        return STEP_WAIT;
    }
    if (m == MATCH) {
        s->at += take;
        s->base = s->at;
        s->strip = true;
        s->quiet = s->inside;
        s->inside = !s->inside;
        s->fresh = false;
        s->from = s->at;
        return STEP_ON;
    }
    if (s->inside && !call_interrupts(s)) {
        s->base = s->at;
        release(s, out, TR_DIALECT_REASONING);
        return STEP_ON;
    }
    s->inside = s->fresh = false;
    *done = false;
    return STEP_ON;
}

static void
run(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    while (s->at < s->len && !s->over) {
        enum step step = STEP_ON;
        bool done = false;

        if (s->inside || s->fresh) {
            step = step_reasoning(s, out, &done);
        }
        if (!done) {
            step = step_op(s, out);
        }
        if (step == STEP_FAIL
            || (step == STEP_WAIT
                && s->len - s->base > TR_DIALECT_HELD + 2 * SPACE_MAX)) {
            fail(s, out);
        } else if (step == STEP_WAIT) {
            return;
        }
    }
}

/* Drops what is decided. */
static void
compact(tr_dialect_state_t *s)
{
    uint32_t n = s->base;

    memmove(s->buf, s->buf + n, s->len - n);
    s->len -= n;
    s->at -= n;
    s->from = s->from > n ? s->from - n : 0;
    s->to = s->to > n ? s->to - n : 0;
    s->base = 0;
}

static void
append(tr_dialect_state_t *s, const char *text, uint32_t len)
{
    assert(len <= s->cap - s->len); /* tr_dialect_size */
    memcpy(s->buf + s->len, text, len);
    s->len += len;
}

void
tr_dialect_push(tr_dialect_state_t *s, int32_t token, const char *text,
                uint32_t len, tr_dialect_out_t *out)
{
    uint32_t i;

    out->n = out->len = 0;
    compact(s);
    if (len != 0) {
        append(s, text, len);
    }
    for (i = 0; token >= 0 && i < s->d->n_tokens; i++) {
        if (s->d->tokens[i] == token) {
            const char mark[2] = { P_TOKEN, (char) (16 + i) };

            append(s, mark, 2);
        }
    }
    run(s, out);
}

/* Nothing more comes of a pattern that began. */
static bool
ends_quietly(const tr_dialect_state_t *s)
{
    for (uint32_t i = s->base; i < s->len; i++) {
        if (!is_space(s->buf[i])) {
            return s->d->form != NULL && s->d->form->ops[s->pc].kind == OP_ALT;
        }
    }
    return true;
}

/* The value is all that came. */
static void
end_within_value(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    uint32_t from = s->at;

    while (s->at < s->len) {
        if (s->buf[s->at] == P_TOKEN) {
            drop_token(s, s->at);
        } else {
            s->at += char_bytes(s, s->at);
        }
    }
    tr_dialect_value(s, s->buf + from, s->len - from, out);
    tr_dialect_end_value(s, out);
    s->base = s->len;
}

void
tr_dialect_finish(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    uint8_t kind;

    out->n = out->len = 0;
    compact(s);
    if (s->over || (s->quiet && ends_quietly(s))) {
        s->len = s->at = 0;
        return;
    }
    while (s->len > s->base) {
        kind = s->d->form != NULL ? s->d->form->ops[s->pc].kind : OP_NONE;
        if (s->inside) {
            s->at = s->base;
            release(s, out, TR_DIALECT_REASONING);
        } else if (kind == OP_BODY) {
            s->at = s->base;
            release(s, out, s->body);
        } else if (kind == OP_VALUE || kind == OP_STRING || kind == OP_BARE) {
            end_within_value(s, out);
            return;
        } else {
            s->fresh = false;
            fail(s, out);
        }
        run(s, out);
    }
}

/* ---- a choice ----------------------------------------------------------- */

size_t
tr_dialect_size(const tr_dialect_t *d)
{
    return ((sizeof(tr_dialect_state_t) + 15) & ~(size_t) 15) + TR_DIALECT_HELD
           + 4 * SPACE_MAX + 3 * (size_t) d->max_token + 64;
}

tr_dialect_state_t *
tr_dialect_init(const tr_dialect_t *d, const tr_dialect_start_t *start,
                void *memory)
{
    tr_dialect_state_t *s = memory;
    size_t head = (sizeof(*s) + 15) & ~(size_t) 15;

    s->d = d;
    s->start = *start;
    s->buf = (char *) memory + head;
    s->cap = (uint32_t) (tr_dialect_size(d) - head);
    s->kind = TR_DIALECT_TEXT;
    s->calls_on = start->tools != NULL && start->tools->n != 0;
    s->inside = start->inside && d->open.len != 0;
    s->fresh = !s->inside && d->open.len != 0 && !d->by_prompt;
    s->strip = s->inside;
    enter(s, d->form != NULL && !s->calls_on && !(d->form->flags & FORM_HARMONY)
                 ? content_op(s)
                 : 0);
    return s;
}

uint32_t
tr_dialect_calls(const tr_dialect_state_t *s)
{
    return s->n_calls;
}

bool
tr_dialect_over(const tr_dialect_state_t *s)
{
    return s->over;
}

bool
tr_dialect_inside(const tr_dialect_state_t *s)
{
    return s->inside
           || (s->d->form != NULL && s->d->form->ops[s->pc].kind == OP_BODY
               && s->body == TR_DIALECT_REASONING);
}

bool
tr_dialect_in_text(const tr_dialect_state_t *s)
{
    uint8_t kind = s->d->form != NULL ? s->d->form->ops[s->pc].kind : OP_NONE;

    return !tr_dialect_inside(s) && !s->begun
           && (kind == OP_NONE || kind == OP_TEXT || kind == OP_BODY);
}

uint32_t
tr_dialect_room(const tr_dialect_t *d)
{
    return (uint32_t) (tr_dialect_size(d) - sizeof(tr_dialect_state_t));
}

uint32_t
tr_dialect_rows(const tr_dialect_t *d)
{
    return 3 + d->max_token / 128;
}
