/*
 * Branches: one answer under one policy, from the compression of its copy of
 * the prompt to the judgement (eval_run.h).
 */
#include "eval_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

static bool
is_text(const branch_t *f)
{
    return f->prefix->task->c == NULL;
}

/* ---- begin and end ------------------------------------------------------ */

tr_status_t
tr_branch_start(driver_t *d, branch_t *f, uint32_t turn, uint32_t limit)
{
    f->turn = turn;
    f->limit = limit;
    f->n_out = f->steps = 0;
    f->bytes = f->full_bytes = f->high = f->low = f->pruned = 0;
    f->nll = f->seconds = 0;
    if (limit > f->out_cap) {
        int32_t *grown = realloc(f->out, limit * sizeof(*grown));

        if (grown == NULL) {
            return tr_error_set(d->err, TR_ERR_NOMEM, "", "out of memory");
        }
        f->out = grown;
        f->out_cap = limit;
    }
    return TR_OK;
}

uint64_t
tr_branch_charge(const driver_t *d, uint32_t policy, uint32_t len)
{
    uint64_t pages = tr_kv_pages_for(d->kv, d->e->policy[policy], len);

    /* a block that was cut in each head, beside the one that it is cut from */
    return pages
           + (d->e->reused[policy] ? (uint64_t) d->e->layers * d->e->kv_heads
                                   : 0);
}

/* The prompt, which its prefix has computed, unless the policy compresses it in
 * stages: what follows a stage then depends on the policy. */
static tr_status_t
begin_prompt(driver_t *d, branch_t *f)
{
    prefix_t *t = f->prefix;
    uint32_t stage = tr_kv_stages(d->kv, d->e->policy[f->policy]);
    tr_status_t rc;

    if (stage != 0 && f->prompt > stage) {
        f->len = 0;
        return tr_branch_compute(d, f, t->ids.data, f->prompt);
    }

    f->state = BRANCH_COMPRESS;
    f->len = f->prompt;
    tr_kv_prompt(d->kv, f->slot, f->len);
    rc = tr_kv_fork(d->kv, t->prompt, f->slot, f->len);
    if (rc == TR_OK && !is_text(f)) {
        f->out[f->n_out++] = t->first.token;
    }
    return rc;
}

tr_status_t
tr_branch_begin(driver_t *d, prefix_t *t, uint32_t policy)
{
    uint64_t charge = tr_branch_charge(d, policy, t->longest);
    tr_status_t rc;
    branch_t *f;
    uint32_t i;

    for (i = 0; i < d->n_branches && d->branches[i].state != BRANCH_FREE; i++) {
    }
    if (i == d->n_branches || d->charged + charge > d->pages) {
        return TR_AGAIN;
    }
    f = &d->branches[i];
    f->slot = tr_kv_open(d->kv, d->e->policy[policy]);
    if (f->slot < 0) {
        return TR_AGAIN;
    }
    f->state = BRANCH_FREE;
    f->prefix = t;
    f->policy = policy;
    f->prompt = t->len[t->turn];
    f->reused = 0;
    f->leaves = false;
    rc = tr_branch_start(d, f, t->turn, t->limit[t->turn]);
    if (rc == TR_OK) {
        rc = tr_kl_begin(d, f);
    }
    if (rc == TR_OK && d->e->reused[policy]) {
        rc = tr_reuse_begin(d, f);
    }
    if (rc == TR_OK && f->state != BRANCH_PROMPT) {
        rc = begin_prompt(d, f);
    }
    if (rc != TR_OK) {
        tr_kv_close(d->kv, f->slot);
        free(f->next.data);
        f->next = (tr_ids_t){ 0 };
        f->state = BRANCH_FREE;
        return rc;
    }
    f->charge = charge;
    d->charged += charge;
    t->n_branches++;
    return TR_OK;
}

void
tr_branch_end(driver_t *d, branch_t *f)
{
    if (f->state == BRANCH_FREE) {
        return;
    }
    if (f->slot >= 0) {
        tr_kv_close(d->kv, f->slot);
    }
    d->charged -= f->charge;
    f->prefix->n_branches--;
    free(f->next.data);
    f->next = (tr_ids_t){ 0 };
    f->state = BRANCH_FREE;
}

/* ---- memory ------------------------------------------------------------- */

/* What the slot holds now, in pages of an engine that has this policy alone. */
static void
take_usage(driver_t *d, branch_t *f)
{
    tr_kv_usage_t u;

    tr_kv_usage_in(d->kv, f->slot, &d->e->plan[f->policy], &u);
    f->steps++;
    f->bytes += (double) u.bytes;
    f->full_bytes += (double) u.full_bytes;
    f->high += u.share_high;
    f->low += u.share_low;
    f->pruned += u.share_pruned;
}

/* ---- the end of a turn -------------------------------------------------- */

/* The answer's text, without the end token, into d->text; its bytes. */
static tr_status_t
detokenize(driver_t *d, const branch_t *f, size_t *len)
{
    uint32_t each = tr_tokenizer_max_token_bytes(d->e->tokenizer) * 3 + 16;
    size_t need = (size_t) (f->n_out + 1) * each;
    tr_detok_t detok;

    if (need > d->text_cap) {
        char *grown = realloc(d->text, need);

        if (grown == NULL) {
            return tr_error_set(d->err, TR_ERR_NOMEM, "", "out of memory");
        }
        d->text = grown;
        d->text_cap = need;
    }
    *len = 0;
    tr_detok_init(&detok, true);
    for (uint32_t i = 0; i < f->n_out; i++) {
        if (!tr_eval_is_end(d->e, f->out[i])) {
            *len += tr_detok_push(&detok, d->e->tokenizer, f->out[i],
                                  d->text + *len, each);
        }
    }
    *len += tr_detok_finish(&detok, d->text + *len, each);
    return TR_OK;
}

static tr_status_t
record(driver_t *d, branch_t *f)
{
    const tr_eval_task_t *task = f->prefix->task;
    tr_eval_record_t r = { .done = true };
    size_t len = 0;
    tr_status_t rc = TR_OK;

    if (tr_kl_first(d, task, f->policy)
        && tr_eval_at(d->run->results, task->first_job, 0)->done) {
        return TR_OK; /* it was there for the others */
    }
    if (f->steps == 0) { /* it ended with its first token */
        take_usage(d, f);
    }
    r.prompt_tokens = f->prompt;
    r.tokens = f->n_out;
    r.reused = f->reused;
    r.kv_ratio = f->bytes / f->full_bytes;
    r.high = f->high / f->steps;
    r.low = f->low / f->steps;
    r.pruned = f->pruned / f->steps;
    r.seconds = f->seconds;
    if (is_text(f)) {
        r.nll = f->nll / f->n_out;
        tr_kl_record(d, f, &r);
    } else {
        rc = detokenize(d, f, &len);
        len = rc == TR_OK ? tr_eval_stopped(task->c, d->text, len) : 0;
        r.right = rc == TR_OK
                  && tr_eval_right(task->c->match,
                                   task->c->turns[f->turn].answer, d->text,
                                   len);
    }
    if (rc == TR_OK) {
        rc = tr_eval_record(d, task->first_job + f->turn, f->policy, &r,
                            is_text(f) ? NULL : d->text, len);
    }
    return rc;
}

/* What the template writes between an answer and the next one: the end of the
 * turn, the user's message, the head of the answer.  Taken from a conversation
 * of one word each, since it does not depend on what came before. */
static tr_status_t
encode_next(driver_t *d, branch_t *f, uint32_t from, uint32_t to)
{
    const json_t *messages = f->prefix->task->c->messages;
    json_t *mini = json_pack("[{s:s,s:s}{s:s,s:s}]", "role", "user", "content",
                             "x", "role", "assistant", "content", "y");
    tr_ids_t head = { 0 }, all = { 0 };
    uint32_t i, lost;
    tr_status_t rc;

    for (i = from; i < to && mini != NULL; i++) {
        json_array_append(mini, json_array_get(messages, i));
    }
    if (mini == NULL) {
        return tr_error_set(d->err, TR_ERR_NOMEM, "", "out of memory");
    }
    rc = tr_eval_encode(d, mini, 1, &head);
    if (rc == TR_OK) {
        rc = tr_eval_encode(d, mini, (uint32_t) json_array_size(mini), &all);
    }
    json_decref(mini);
    for (i = head.len; i < all.len && !tr_eval_is_end(d->e, all.data[i]); i++) {
    }
    if (rc == TR_OK && i == all.len) {
        rc = tr_error_set(d->err, TR_ERR_UNSUPPORTED, "",
                          "--keep-turns: the chat template has no token at the "
                          "end of an answer");
    }
    /* an answer that was cut short still lacks its last token */
    lost = !tr_eval_is_end(d->e, f->out[f->n_out - 1]);
    if (rc == TR_OK) {
        int32_t *ids = realloc(f->next.data, (all.len + 1) * sizeof(*ids));

        if (ids == NULL) {
            rc = tr_error_set(d->err, TR_ERR_NOMEM, "", "out of memory");
        } else {
            ids[0] = f->out[f->n_out - 1];
            memcpy(ids + lost, all.data + i, (all.len - i) * sizeof(*ids));
            f->next.data = ids;
            f->next.len = all.len - i + lost;
            f->next_at = 0;
        }
    }
    free(head.data);
    free(all.data);
    return rc;
}

/* The answers that have no room any more are wrong. */
static tr_status_t
give_up(driver_t *d, branch_t *f, uint32_t turn)
{
    tr_eval_record_t r = { .done = true, .prompt_tokens = f->len };
    tr_status_t rc = TR_OK;

    r.kv_ratio = f->bytes / f->full_bytes;
    r.high = f->high / f->steps;
    r.low = f->low / f->steps;
    r.pruned = f->pruned / f->steps;
    for (; turn < f->prefix->task->n_turns && rc == TR_OK; turn++) {
        rc = tr_eval_record(d, f->prefix->task->first_job + turn, f->policy, &r,
                            NULL, 0);
    }
    tr_branch_end(d, f);
    return rc;
}

static tr_status_t
next_turn(driver_t *d, branch_t *f)
{
    const tr_eval_task_t *task = f->prefix->task;
    uint32_t turn = f->turn + 1;
    tr_status_t rc;

    rc = encode_next(d, f, task->c->turns[f->turn].n_messages + 1,
                     task->c->turns[turn].n_messages);
    if (rc != TR_OK) {
        return rc;
    }
    if (f->len + f->next.len + f->prefix->limit[turn]
        > d->e->x->max_model_len) {
        return give_up(d, f, turn);
    }
    f->prompt = f->len + f->next.len;
    tr_kv_prompt(d->kv, f->slot, f->prompt);
    f->state = BRANCH_PROMPT;
    return tr_branch_start(d, f, turn, f->prefix->limit[turn]);
}

static tr_status_t
finish(driver_t *d, branch_t *f)
{
    tr_status_t rc;

    if (f->leaves) {
        return tr_reuse_again(d, f);
    }
    rc = record(d, f);
    if (rc == TR_OK && d->run->keep_turns
        && f->turn + 1 < f->prefix->task->n_turns) {
        return next_turn(d, f);
    }
    tr_branch_end(d, f);
    return rc;
}

/* Has the answer come to a stop text?  Looked for at every eighth token, since
 * it takes the text of all of them. */
static bool
stopped(driver_t *d, const branch_t *f)
{
    const tr_eval_case_t *c = f->prefix->task->c;
    size_t len;

    return c->n_stops != 0 && f->n_out % 8 == 0
           && detokenize(d, f, &len) == TR_OK
           && tr_eval_stopped(c, d->text, len) != len;
}

/* Has the answer ended? */
static bool
ended(driver_t *d, const branch_t *f)
{
    return f->n_out == f->limit
           || (!is_text(f)
               && (tr_eval_is_end(d->e, f->out[f->n_out - 1])
                   || stopped(d, f)));
}

/* ---- steps -------------------------------------------------------------- */

tr_status_t
tr_branch_advance(driver_t *d, branch_t *f, bool *moved)
{
    tr_status_t rc;

    if (f->state != BRANCH_COMPRESS) {
        return TR_OK;
    }
    rc = tr_kv_compress(d->kv, f->slot, f->len);
    if (rc == TR_AGAIN) {
        return TR_OK;
    }
    if (rc != TR_OK) {
        return tr_error_set(d->err, rc, "",
                            "%.200s cannot compress a prompt "
                            "of %u tokens (%s)",
                            d->e->label[f->policy], f->len,
                            tr_status_info(rc).name);
    }
    *moved = true;
    f->state = BRANCH_DECODE;
    return ended(d, f) ? finish(d, f) : TR_OK;
}

/* Of n tokens of a prompt, those that come before its next stage; 0: what is
 * there finds no room for its own. */
static uint32_t
until_stage(driver_t *d, const branch_t *f, uint32_t n)
{
    uint32_t stage = tr_kv_stages(d->kv, d->e->policy[f->policy]);

    if (stage == 0 || f->prompt <= stage) {
        return n;
    }
    if (tr_kv_stage_due(d->kv, f->slot, f->len)
        && tr_kv_stage(d->kv, f->slot, f->len) != TR_OK) {
        return 0;
    }
    return n < stage - f->len % stage ? n : stage - f->len % stage;
}

static void
plan_prompt(driver_t *d, branch_t *f)
{
    uint32_t left = f->next.len - f->next_at, n = tr_driver_rows(d, left);

    n = n == 0 ? 0 : until_stage(d, f, n);
    if (n == 0 || tr_kv_reserve(d->kv, f->slot, f->len + n) != TR_OK) {
        return;
    }
    tr_driver_add(d,
                  &(tr_batch_item_t){ .kv_slot = f->slot,
                                      .pos = f->len,
                                      .n = n,
                                      .tokens = f->next.data + f->next_at,
                                      .sample = n == left && !is_text(f),
                                      .sampler = &d->greedy,
                                      .out = &f->sampled },
                  f, false);
}

void
tr_branch_plan(driver_t *d, branch_t *f)
{
    tr_batch_item_t item = { .kv_slot = f->slot, .pos = f->len, .n = 1 };

    if (f->state == BRANCH_PROMPT) {
        plan_prompt(d, f);
        return;
    }
    if (f->state != BRANCH_DECODE || tr_driver_rows(d, 1) == 0
        || (is_text(f) && !tr_kl_plan(d, f, &item))
        || tr_kv_reserve(d->kv, f->slot, f->len + 1) != TR_OK) {
        return;
    }
    if (is_text(f)) {
        item.tokens = f->prefix->task->ids + f->len;
        item.scores = &f->sampled;
    } else {
        item.tokens = &f->out[f->n_out - 1];
        item.sample = true;
        item.sampler = &d->greedy;
        item.out = &f->sampled;
    }
    tr_driver_add(d, &item, f, false);
}

tr_status_t
tr_branch_stepped(driver_t *d, branch_t *f, const tr_batch_item_t *item)
{
    f->len += item->n;
    if (f->state == BRANCH_DECODE) { /* a GPU knows only now what it holds */
        take_usage(d, f);
    }
    if (f->state == BRANCH_PROMPT) {
        d->run->state.prompt_tokens += item->n;
        f->next_at += item->n;
        if (item->sample) {
            f->out[f->n_out++] = f->sampled.token;
        }
        if (f->next_at == f->next.len) {
            f->state = BRANCH_COMPRESS;
        }
        return TR_OK;
    }
    d->run->state.tokens++;
    if (is_text(f)) {
        f->nll -= f->sampled.logprob;
        tr_kl_stepped(d, f);
        f->n_out++;
    } else {
        f->out[f->n_out++] = f->sampled.token;
    }
    return ended(d, f) ? finish(d, f) : TR_OK;
}
