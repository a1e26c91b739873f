/*
 * The loop of the eval driver (eval_run.h): begins prefixes, lets prefixes and
 * branches fill a batch, runs it, hands the results back.
 */
#include "eval_run.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/config/log.h"

#include "eval_internal.h"
#include "cli/terminal.h"

uint32_t
tr_driver_rows(const driver_t *d, uint32_t n)
{
    uint32_t left = d->max_rows - d->rows;

    return d->n_items == d->max_items ? 0 : n < left ? n : left;
}

void
tr_driver_add(driver_t *d, const tr_batch_item_t *item, void *owner,
              bool is_prefix)
{
    d->items[d->n_items] = *item;
    d->owners[d->n_items] = owner;
    d->is_prefix[d->n_items++] = is_prefix;
    d->rows += item->n;
}

tr_status_t
tr_eval_record(driver_t *d, uint32_t job, uint32_t policy,
               const tr_eval_record_t *record, const char *reply,
               size_t reply_len)
{
    d->run->state.done += !tr_eval_at(d->run->results, job, policy)->done;
    return tr_eval_results_set(d->run->results, job, policy, record, reply,
                               reply_len, d->err);
}

/* ---- what to begin ------------------------------------------------------ */

/* Policies that weigh the last queries apart share a prefix with others that
 * weigh as many; those that do not, with any. */
static void
group_policies(driver_t *d)
{
    const tr_eval_engine_t *e = d->e;
    uint32_t common = 0, p, k;

    for (p = 0; p < e->n_policies; p++) {
        if (e->running[p] && e->policy[p]->observe != 0 && common == 0) {
            common = e->policy[p]->observe;
        }
    }
    for (p = 0; p < e->n_policies; p++) {
        d->group[p] = e->policy[p]->observe != 0 ? e->policy[p]->observe
                                                 : common;
        for (k = 0; k < d->n_groups && d->groups[k] != d->group[p]; k++) {
        }
        if (e->running[p] && k == d->n_groups) {
            d->groups[d->n_groups++] = d->group[p];
        }
    }
}

static const tr_eval_task_t *sorting;

/* Tokens that a task will take, about; long answers count for more, since they
 * come one by one. */
static uint64_t
work_of(const tr_eval_task_t *t)
{
    uint64_t n = 0;

    if (t->c == NULL) {
        return t->n_prompt + 8ull * (t->n_ids - t->n_prompt);
    }
    for (uint32_t i = 0; i < t->c->n_turns; i++) {
        n += t->c->turns[i].reply ? strlen(t->c->turns[i].reply) : 0;
    }
    return n;
}

static int
by_work(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *) a, j = *(const uint32_t *) b;
    uint64_t x = work_of(&sorting[i]), y = work_of(&sorting[j]);

    return x != y ? (x < y) - (x > y) : (i > j) - (i < j);
}

/* Begins tasks until enough prompts are under way. */
static tr_status_t
begin_prefixes(driver_t *d)
{
    uint32_t waiting = 0, i;
    tr_status_t rc = TR_OK;

    for (i = 0; i < d->n_prefixes; i++) {
        waiting += d->prefixes[i].open
                   && d->prefixes[i].turn < d->prefixes[i].task->n_turns;
    }
    for (i = 0; i < d->n_prefixes && rc == TR_OK && waiting < PREFIXES; i++) {
        prefix_t *t = &d->prefixes[i];

        while (!t->open && rc == TR_OK && d->next_task < d->run->n_tasks) {
            rc = tr_prefix_begin(d, t, &d->run->tasks[d->order[d->next_task]],
                                 d->groups[d->next_group]);
            waiting += t->open;
            if (++d->next_group == d->n_groups) {
                d->next_group = 0;
                d->next_task++;
            }
        }
    }
    return rc;
}

/* Everything that needs no step. */
static tr_status_t
advance(driver_t *d, bool *moved)
{
    tr_status_t rc = begin_prefixes(d);

    for (uint32_t i = 0; i < d->n_prefixes && rc == TR_OK; i++) {
        prefix_t *t = &d->prefixes[i];

        if (!t->open) {
            continue;
        }
        rc = tr_prefix_advance(d, t, moved);
        if (rc == TR_OK && t->turn == t->task->n_turns && t->n_branches == 0) {
            tr_prefix_end(d, t);
            *moved = true;
        }
    }
    for (uint32_t i = 0; i < d->n_branches && rc == TR_OK; i++) {
        rc = tr_branch_advance(d, &d->branches[i], moved);
    }
    return rc;
}

/* ---- a step ------------------------------------------------------------- */

static void
plan_branches(driver_t *d, bool decode, bool prompts, uint32_t policy)
{
    for (uint32_t i = 0; i < d->n_branches; i++) {
        branch_t *f = &d->branches[i];

        if (f->state == BRANCH_DECODE
                ? decode && (policy == UINT32_MAX || f->policy == policy)
                : f->state == BRANCH_PROMPT && prompts) {
            tr_branch_plan(d, f);
        }
    }
}

static void
plan_prefixes(driver_t *d)
{
    for (uint32_t i = 0; i < d->n_prefixes; i++) {
        if (d->prefixes[i].open) {
            tr_prefix_plan(d, &d->prefixes[i]);
        }
    }
}

/* One policy's answers, or prompts, in turn; so that time can be told apart. */
static void
plan_separate(driver_t *d)
{
    d->prompts_last = !d->prompts_last;
    if (d->prompts_last) {
        plan_branches(d, false, true, UINT32_MAX);
        plan_prefixes(d);
    }
    for (uint32_t i = 0; i < d->e->n_policies && d->n_items == 0; i++) {
        d->turn_of = (d->turn_of + 1) % d->e->n_policies;
        plan_branches(d, true, false, d->turn_of);
    }
    if (d->n_items == 0) {
        plan_branches(d, false, true, UINT32_MAX);
        plan_prefixes(d);
    }
}

static void
plan(driver_t *d)
{
    d->n_items = d->rows = 0;
    if (d->run->separate) {
        plan_separate(d);
        return;
    }
    plan_branches(d, true, false, UINT32_MAX);
    plan_branches(d, false, true, UINT32_MAX);
    plan_prefixes(d);
}

static tr_status_t
hand_back(driver_t *d, double seconds)
{
    tr_status_t rc = TR_OK;

    for (uint32_t i = 0; i < d->n_items && rc == TR_OK; i++) {
        const tr_batch_item_t *item = &d->items[i];
        branch_t *f = d->is_prefix[i] ? NULL : d->owners[i];

        if (item->status == TR_AGAIN) {
            continue; /* a GPU had no page for it; nothing happened */
        }
        if (item->status != TR_OK) {
            return tr_error_set(d->err, item->status, "",
                                "%.200s: the model gave no number at position "
                                "%u (%s)",
                                f ? d->e->label[f->policy] : "a prompt",
                                item->pos, tr_status_info(item->status).name);
        }
        if (f == NULL) {
            rc = tr_prefix_stepped(d, d->owners[i], item);
        } else {
            if (d->run->separate && f->state == BRANCH_DECODE) {
                f->seconds += seconds / d->n_items;
            }
            rc = tr_branch_stepped(d, f, item);
        }
    }
    return rc;
}

static tr_status_t
step(driver_t *d)
{
    tr_batch_t batch = { d->items, d->n_items, d->rows };
    uint64_t from = tr_now_us();
    tr_status_t rc = tr_executor_run(d->e->x, &batch);

    if (rc != TR_OK) {
        return tr_error_set(d->err, rc, "", "a step failed (%s)",
                            tr_status_info(rc).name);
    }
    return hand_back(d, (double) (tr_now_us() - from) / 1e6);
}

static bool
idle(const driver_t *d)
{
    for (uint32_t i = 0; i < d->n_prefixes; i++) {
        if (d->prefixes[i].open) {
            return false;
        }
    }
    return d->next_task == d->run->n_tasks;
}

static tr_status_t
loop(driver_t *d)
{
    tr_eval_run_t *run = d->run;
    uint64_t last = tr_now_us(), shown = 0;
    tr_status_t rc = TR_OK;

    while (rc == TR_OK && !tr_interrupted()) {
        bool moved = false;
        uint64_t now = tr_now_us();

        run->state.seconds += (double) (now - last) / 1e6;
        last = now;
        if (run->progress != NULL && now - shown > 500000) {
            run->progress(&run->state, false);
            shown = now;
        }
        rc = advance(d, &moved);
        if (rc == TR_OK && idle(d)) {
            break;
        }
        plan(d);
        /* also without rows, while a GPU has not answered for the cache */
        if (rc == TR_OK && (d->n_items != 0 || !tr_kv_settled(d->kv))) {
            rc = step(d);
        } else if (rc == TR_OK && !moved) {
            rc = tr_error_set(d->err, TR_ERR_INVALID, "kv_memory",
                              "the answers under way need more than the KV "
                              "cache has: give more with --kv-memory, or a "
                              "smaller --batch");
        }
    }
    if (run->progress != NULL) {
        run->progress(&run->state, true);
    }
    if (rc == TR_OK && tr_interrupted()) {
        rc = tr_error_set(d->err, TR_ERR_CLOSED, "", "interrupted");
    }
    return rc;
}

/* ---- begin and end ------------------------------------------------------ */

static tr_status_t
take_memory(driver_t *d)
{
    uint32_t n = d->run->n_tasks;

    d->n_branches = d->e->batch;
    d->n_prefixes = d->n_branches + PREFIXES;
    d->max_items = d->e->config.max_num_seqs;
    d->max_rows = d->e->config.max_batch_tokens;
    d->order = calloc(n + 1, sizeof(*d->order));
    d->prefixes = calloc(d->n_prefixes, sizeof(*d->prefixes));
    d->branches = calloc(d->n_branches, sizeof(*d->branches));
    d->items = calloc(d->max_items, sizeof(*d->items));
    d->owners = calloc(d->max_items, sizeof(*d->owners));
    d->is_prefix = calloc(d->max_items, sizeof(*d->is_prefix));
    if (!d->order || !d->prefixes || !d->branches || !d->items || !d->owners
        || !d->is_prefix) {
        return tr_error_set(d->err, TR_ERR_NOMEM, "", "out of memory");
    }
    for (uint32_t i = 0; i < d->n_prefixes; i++) {
        d->prefixes[i].base = d->prefixes[i].prompt = NO_SLOT;
    }
    for (uint32_t i = 0; i < n; i++) {
        d->order[i] = i;
    }
    sorting = d->run->tasks;
    qsort(d->order, n, sizeof(*d->order), by_work);
    return TR_OK;
}

static void
driver_free(driver_t *d)
{
    for (uint32_t i = 0; d->branches != NULL && i < d->n_branches; i++) {
        tr_branch_end(d, &d->branches[i]);
        free(d->branches[i].out);
        free(d->branches[i].logits);
    }
    for (uint32_t i = 0; d->prefixes != NULL && i < d->n_prefixes; i++) {
        if (d->prefixes[i].open) {
            tr_prefix_end(d, &d->prefixes[i]);
        }
    }
    free(d->order);
    free(d->prefixes);
    free(d->branches);
    free(d->items);
    free(d->owners);
    free(d->is_prefix);
    free(d->text);
}

tr_status_t
tr_eval_run(tr_eval_run_t *run, tr_error_t *err)
{
    driver_t d = { .run = run,
                   .e = run->engine,
                   .kv = run->engine->x->kv,
                   .err = err,
                   .pages = tr_kv_pages(run->engine->x->kv),
                   .params = { .top_p = 1,
                               .repetition_penalty = 1,
                               .max_tokens = UINT32_MAX,
                               .logprobs = -1 } };
    tr_status_t rc;

    tr_sampler_init(&d.greedy, &d.params, 0, d.e->x->vocab, NULL, NULL, 0, NULL,
                    0);
    group_policies(&d);
    rc = take_memory(&d);
    if (rc == TR_OK) {
        rc = loop(&d);
    }
    driver_free(&d);
    if (rc == TR_OK && !tr_kv_sound(run->engine->x->kv)) {
        rc = tr_error_set(err, TR_ERR_INTERNAL, "",
                          "the KV cache lost pages during the evaluation");
    }
    return rc;
}
