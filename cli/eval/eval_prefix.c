/*
 * Shared prefixes: the prompts of a task, computed once for all policies
 * (eval_run.h).
 *
 * The base goes through the turns.  Where policies count a prompt's last
 * queries apart, a turn that is not the last one has a slot of its own: a branch
 * of the base from before those queries, since a base that went through them
 * would have counted them for the next turn, too.
 */
#include "eval_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

bool
tr_eval_wanted(const driver_t *d, const tr_eval_task_t *task, uint32_t turn,
               uint32_t policy, uint32_t group)
{
    const tr_eval_results_t *r = d->run->results;

    if (!d->e->running[policy]) {
        return false;
    }
    if (tr_kl_first(d, task, policy) && tr_kl_wanted(d, task, group)) {
        return true; /* of every group */
    }
    if (d->group[policy] != group) {
        return false;
    }
    if (!d->run->keep_turns) {
        return !tr_eval_at(r, task->first_job + turn, policy)->done;
    }
    /* one cache through all turns: all of them, or none */
    for (uint32_t i = 0; i < task->n_turns; i++) {
        if (!tr_eval_at(r, task->first_job + i, policy)->done) {
            return turn == 0;
        }
    }
    return false;
}

static bool
turn_wanted(const driver_t *d, const prefix_t *t, uint32_t turn)
{
    for (uint32_t p = 0; p < d->e->n_policies; p++) {
        if (tr_eval_wanted(d, t->task, turn, p, t->group)) {
            return true;
        }
    }
    return false;
}

/* ---- prompts ------------------------------------------------------------ */

tr_status_t
tr_eval_encode(driver_t *d, const json_t *messages, uint32_t n, tr_ids_t *out)
{
    tr_chat_input_t in = { .messages = messages, .n = n };

    out->len = 0;
    return tr_chat_template_encode(&d->e->chat, d->e->tokenizer, d->e->scratch,
                                   &in, out, d->err);
}

tr_status_t
tr_eval_encode_turn(driver_t *d, const tr_eval_case_t *c, uint32_t turn,
                    tr_ids_t *out)
{
    if (c->prompt == NULL) {
        return tr_eval_encode(d, c->messages, c->turns[turn].n_messages, out);
    }
    out->len = 0;
    return tr_tokenizer_encode(d->e->tokenizer, d->e->scratch, c->prompt,
                               strlen(c->prompt), TR_ENCODE_SPECIAL, out,
                               d->err);
}

/* Longest answer: a quarter longer than the reference (models/pocket/
 * evaluate.py has the same bound), or what the case or the user says. */
static tr_status_t
bound_answer(driver_t *d, const tr_eval_case_t *c, const tr_eval_turn_t *turn,
             uint32_t *out)
{
    tr_ids_t ids = { 0 };
    tr_status_t rc;

    *out = c->max_tokens ? c->max_tokens : d->run->max_tokens;
    if (turn->reply == NULL || c->max_tokens != 0) {
        return TR_OK;
    }
    rc = tr_tokenizer_encode(d->e->tokenizer, d->e->scratch, turn->reply,
                             strlen(turn->reply), 0, &ids, d->err);
    *out = ids.len + 1 + (ids.len + 1) / 4 + 8;
    free(ids.data);
    return rc;
}

static tr_status_t
encode_case(driver_t *d, prefix_t *t)
{
    const tr_eval_case_t *c = t->task->c;
    tr_ids_t ids = { 0 };
    tr_status_t rc;

    rc = tr_eval_encode_turn(d, c, c->n_turns - 1, &t->ids);
    for (uint32_t i = 0; i < c->n_turns && rc == TR_OK; i++) {
        rc = tr_eval_encode_turn(d, c, i, &ids);
        if (rc == TR_OK
            && (ids.len > t->ids.len
                || memcmp(ids.data, t->ids.data, ids.len * sizeof(int32_t))
                       != 0)) {
            rc = tr_error_set(d->err, TR_ERR_UNSUPPORTED, "",
                              "the chat template writes earlier turns "
                              "differently when later ones follow: such a "
                              "model cannot be evaluated turn by turn");
        }
        t->len[i] = ids.len;
        if (rc == TR_OK) {
            rc = bound_answer(d, c, &c->turns[i], &t->limit[i]);
        }
    }
    free(ids.data);
    return rc == TR_OK ? tr_reuse_choose(d, t) : rc;
}

static tr_status_t
encode(driver_t *d, prefix_t *t)
{
    const tr_eval_task_t *task = t->task;
    uint32_t longest = d->e->x->max_model_len;
    tr_status_t rc = TR_OK;

    t->len = calloc(task->n_turns, sizeof(*t->len));
    t->limit = calloc(task->n_turns, sizeof(*t->limit));
    t->fits = calloc(task->n_turns, sizeof(*t->fits));
    if (t->len == NULL || t->limit == NULL || t->fits == NULL) {
        return tr_error_set(d->err, TR_ERR_NOMEM, "", "out of memory");
    }
    if (task->c != NULL) {
        rc = encode_case(d, t);
    } else {
        t->len[0] = task->n_prompt;
        t->limit[0] = task->n_ids - task->n_prompt - 1;
        t->ids.data = malloc(task->n_prompt * sizeof(int32_t));
        if (t->ids.data == NULL) {
            return tr_error_set(d->err, TR_ERR_NOMEM, "", "out of memory");
        }
        memcpy(t->ids.data, task->ids, task->n_prompt * sizeof(int32_t));
        t->ids.len = task->n_prompt;
    }
    for (uint32_t i = 0; i < task->n_turns && rc == TR_OK; i++) {
        t->fits[i] = t->len[i] + t->limit[i] <= longest;
    }
    return rc;
}

/* A turn that is longer than the model is no answer of any policy. */
static tr_status_t
skip_turns(driver_t *d, prefix_t *t)
{
    tr_eval_record_t record = { .done = true, .skipped = true };
    tr_status_t rc = TR_OK;
    bool all = d->run->keep_turns && !t->fits[t->task->n_turns - 1];

    for (uint32_t i = 0; i < t->task->n_turns; i++) {
        for (uint32_t p = 0; p < d->e->n_policies && rc == TR_OK; p++) {
            /* asked for turn 0: with keep_turns a case goes as a whole */
            if ((t->fits[i] && !all)
                || !tr_eval_wanted(d, t->task, d->run->keep_turns ? 0 : i, p,
                                   t->group)) {
                continue;
            }
            record.prompt_tokens = t->len[i];
            rc = tr_eval_record(d, t->task->first_job + i, p, &record, NULL, 0);
        }
    }
    return rc;
}

/* ---- begin and end ------------------------------------------------------ */

/* The policy of the prefix's slots: one that keeps the scores which the group
 * needs. */
static const tr_kv_policy_t *
prefix_policy(const driver_t *d, uint32_t group)
{
    const tr_kv_policy_t *best = NULL;

    for (uint32_t p = 0; p < d->e->n_policies; p++) {
        const tr_kv_policy_t *one = d->e->policy[p];

        if (d->e->running[p] && d->group[p] == group
            && (best == NULL || (one->scored && !best->scored)
                || (one->scored && one->observe > best->observe))) {
            best = one;
        }
    }
    return best;
}

static uint32_t
next_turn(const driver_t *d, const prefix_t *t, uint32_t from)
{
    while (from < t->task->n_turns && !turn_wanted(d, t, from)) {
        from++;
    }
    return from;
}

/* Does this turn have a slot apart from the base? */
static bool
apart(const prefix_t *t)
{
    return t->group != 0 && t->turn != t->last_turn;
}

/* Pages are set aside so that one branch of every prefix has room, whatever else
 * runs: nothing waits for a prefix that waits for room. */
static tr_status_t
take_slot(driver_t *d, prefix_t *t)
{
    const tr_kv_policy_t *policy = prefix_policy(d, t->group);
    uint32_t len = t->len[t->last_turn];
    uint64_t charge = tr_kv_pages_for(d->kv, policy, len);
    uint64_t branch = t->branch_charge;
    uint64_t whole = (uint64_t) d->e->layers * d->e->kv_heads
                     * (len / tr_kv_plan(d->kv)->layout[0].tokens + 1);

    charge = charge > whole ? charge : whole; /* it has no stages */
    charge *= apart(t) ? 2 : 1;
    for (uint32_t i = 0; i < d->n_prefixes; i++) {
        const prefix_t *other = &d->prefixes[i];

        if (other->base >= 0 && other->branch_charge > branch) {
            branch = other->branch_charge;
        }
    }
    if (charge + branch > d->pages) {
        return tr_error_set(d->err, TR_ERR_INVALID, "kv_memory",
                            "the KV cache has %llu pages, a prompt of %u "
                            "tokens and one answer need %llu: give more with "
                            "--kv-memory",
                            (unsigned long long) d->pages, len,
                            (unsigned long long) (charge + branch));
    }
    if (d->charged + charge + branch > d->pages) {
        return TR_AGAIN;
    }
    t->base = tr_kv_open(d->kv, policy);
    if (t->base < 0) {
        return TR_AGAIN;
    }
    tr_kv_prompt(d->kv, t->base, len);
    t->charge = charge;
    d->charged += charge;
    return TR_OK;
}

/* What the dearest of its branches is charged. */
static void
charge_branches(driver_t *d, prefix_t *t)
{
    uint32_t longest = 0;

    for (uint32_t i = 0; i < t->task->n_turns; i++) {
        if (t->other.len != 0 && t->other.len + t->limit[i] > longest) {
            longest = t->other.len + t->limit[i];
        }
        if (t->len[i] + t->limit[i] > longest && t->fits[i]) {
            longest = t->len[i] + t->limit[i];
        }
    }
    t->longest = longest;
    for (uint32_t p = 0; p < d->e->n_policies; p++) {
        uint64_t n = d->e->running[p]
                             && (d->group[p] == t->group
                                 || tr_kl_first(d, t->task, p))
                         ? tr_branch_charge(d, p, longest)
                         : 0;

        t->branch_charge = n > t->branch_charge ? n : t->branch_charge;
    }
}

tr_status_t
tr_prefix_begin(driver_t *d, prefix_t *t, const tr_eval_task_t *task,
                uint32_t group)
{
    tr_status_t rc;

    *t = (prefix_t){ .open = true,
                     .task = task,
                     .group = group,
                     .base = NO_SLOT,
                     .prompt = NO_SLOT };
    t->turn = next_turn(d, t, 0);
    if (t->turn == task->n_turns) {
        t->open = false;
        return TR_OK;
    }
    rc = encode(d, t);
    if (rc == TR_OK) {
        rc = skip_turns(d, t);
    }
    if (rc == TR_OK) {
        t->turn = next_turn(d, t, 0);
        for (uint32_t i = 0; i < task->n_turns; i++) {
            t->last_turn = turn_wanted(d, t, i) ? i : t->last_turn;
        }
    }
    if (rc == TR_OK) {
        charge_branches(d, t);
    }
    if (rc != TR_OK || t->turn == task->n_turns) {
        tr_prefix_end(d, t);
    }
    return rc;
}

static void
close_slots(driver_t *d, prefix_t *t)
{
    if (t->prompt >= 0 && t->prompt != t->base) {
        tr_kv_close(d->kv, t->prompt);
    }
    if (t->base >= 0) {
        tr_kv_close(d->kv, t->base);
    }
    t->base = t->prompt = NO_SLOT;
    d->charged -= t->charge;
    t->charge = 0;
}

void
tr_prefix_end(driver_t *d, prefix_t *t)
{
    close_slots(d, t);
    free(t->ids.data);
    free(t->other.data);
    free(t->len);
    free(t->limit);
    free(t->fits);
    free(t->reference);
    *t = (prefix_t){ .base = NO_SLOT, .prompt = NO_SLOT };
}

/* ---- steps -------------------------------------------------------------- */

/* Where the base stops for this turn. */
static uint32_t
base_target(const prefix_t *t)
{
    uint32_t len = t->len[t->turn];

    return !apart(t) ? len : len > t->group ? len - t->group : 0;
}

/* The base is where this turn's prompt leaves it. */
static tr_status_t
begin_prompt(driver_t *d, prefix_t *t)
{
    tr_status_t rc = TR_OK;

    if (!apart(t)) {
        t->prompt = t->base;
        t->prompt_len = t->base_len;
        return TR_OK;
    }
    t->prompt = tr_kv_open(d->kv, prefix_policy(d, t->group));
    if (t->prompt < 0) {
        return TR_AGAIN;
    }
    if (t->base_len > 0) {
        rc = tr_kv_fork(d->kv, t->base, t->prompt, t->base_len);
    }
    if (rc != TR_OK) {
        tr_kv_close(d->kv, t->prompt);
        t->prompt = NO_SLOT;
        return rc;
    }
    tr_kv_prompt(d->kv, t->prompt, t->len[t->turn]);
    t->prompt_len = t->base_len;
    return TR_OK;
}

static void
end_turn(driver_t *d, prefix_t *t)
{
    t->turn = d->run->keep_turns ? t->task->n_turns
                                 : next_turn(d, t, t->turn + 1);
    t->sampled = false;
    t->next_policy = 0;
    if (t->turn == t->task->n_turns) {
        close_slots(d, t);
        return;
    }
    if (t->prompt != t->base) {
        tr_kv_close(d->kv, t->prompt);
    }
    t->prompt = NO_SLOT;
}

tr_status_t
tr_prefix_advance(driver_t *d, prefix_t *t, bool *moved)
{
    tr_status_t rc;

    if (t->turn == t->task->n_turns) {
        return TR_OK; /* its branches are on their way */
    }
    if (t->base < 0) {
        rc = take_slot(d, t);
        if (rc != TR_OK) {
            return rc == TR_AGAIN ? TR_OK : rc;
        }
        *moved = true;
    }
    if (t->prompt < 0 && t->base_len == base_target(t)
        && begin_prompt(d, t) == TR_OK) {
        *moved = true;
    }
    while (t->sampled && t->next_policy < d->e->n_policies) {
        if (tr_eval_wanted(d, t->task, t->turn, t->next_policy, t->group)) {
            rc = tr_branch_begin(d, t, t->next_policy);
            if (rc == TR_AGAIN) {
                return TR_OK;
            }
            if (rc != TR_OK) {
                return rc;
            }
            *moved = true;
        }
        t->next_policy++;
    }
    if (t->sampled) {
        end_turn(d, t);
        *moved = true;
    }
    return TR_OK;
}

void
tr_prefix_plan(driver_t *d, prefix_t *t)
{
    bool own = t->prompt >= 0 && t->prompt != t->base;
    uint32_t at = own ? t->prompt_len : t->base_len, end, n;

    if (t->turn == t->task->n_turns || t->base < 0 || t->sampled) {
        return;
    }
    end = own ? t->len[t->turn] : base_target(t);
    n = tr_driver_rows(d, end - at);
    if (n == 0
        || tr_kv_reserve(d->kv, own ? t->prompt : t->base, at + n) != TR_OK) {
        return;
    }
    tr_driver_add(d,
                  &(tr_batch_item_t){ .kv_slot = own ? t->prompt : t->base,
                                      .pos = at,
                                      .n = n,
                                      .tokens = t->ids.data + at,
                                      .sample = at + n == t->len[t->turn],
                                      .sampler = &d->greedy,
                                      .out = &t->first },
                  t, true);
}

tr_status_t
tr_prefix_stepped(driver_t *d, prefix_t *t, const tr_batch_item_t *item)
{
    d->run->state.prompt_tokens += item->n;
    if (item->kv_slot == t->base) {
        t->base_len += item->n;
    } else {
        t->prompt_len += item->n;
    }
    if (item->sample) {
        t->sampled = true;
        t->prompt = item->kv_slot;
        t->prompt_len = t->len[t->turn];
    }
    return TR_OK;
}
