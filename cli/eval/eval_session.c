/*
 * One run, from cases and policies to results (eval_session.h).
 */
#include "eval_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "engine/config/log.h"

#include "cli/terminal.h"

#define TEXT_BYTES_MAX ((size_t) 1 << 30)

/* ---- cases and texts ---------------------------------------------------- */

tr_status_t
tr_eval_session_cases(const tr_eval_options_t *o, tr_eval_cases_t *cases,
                      tr_error_t *err)
{
    tr_status_t rc = TR_OK;

    for (unsigned i = 0; i < o->cases.n && rc == TR_OK; i++) {
        rc = tr_eval_cases_read(cases, o->cases.item[i], err);
    }
    if (rc == TR_OK) {
        tr_eval_cases_select(cases, (size_t) o->limit, o->families.item,
                             o->families.n);
        if (cases->n == 0 && o->cases.n != 0) {
            rc = tr_error_set(err, TR_ERR_INVALID, "family",
                              "the case files have no family \"%.100s\"",
                              o->families.item[0]);
        }
    }
    return rc;
}

/* Cuts the text's tokens into windows, each after what the tokenizer puts before
 * a text (BOS). */
static tr_status_t
cut_windows(tr_eval_session_t *s, const tr_eval_options_t *o,
            const tr_ids_t *head, const tr_ids_t *ids, tr_error_t *err)
{
    uint32_t size = (uint32_t) o->window, body, at;
    uint32_t least = o->min_windows > 1 ? o->min_windows : 1;

    size = size < s->engine.max_len ? size : s->engine.max_len;
    s->prefix = o->prefix ? (uint32_t) o->prefix : size / 2;
    if (s->prefix <= head->len || s->prefix + 2 > size) {
        return tr_error_set(err, TR_ERR_INVALID, "prefix",
                            "--prefix %u of a window of %u tokens: expected a "
                            "number from %u to %u",
                            s->prefix, size, head->len + 1, size - 2);
    }
    body = size - head->len;
    s->windows = calloc(ids->len / body + 1, sizeof(*s->windows));
    for (at = 0; s->windows != NULL && at + body <= ids->len
                 && (o->windows == 0 || s->n_windows < o->windows);
         at += body) {
        int32_t *data = malloc(size * sizeof(*data));

        if (data == NULL) {
            break;
        }
        if (head->len != 0) {
            memcpy(data, head->data, head->len * sizeof(*data));
        }
        memcpy(data + head->len, ids->data + at, body * sizeof(*data));
        s->windows[s->n_windows++] = (tr_ids_t){ data, size, size };
    }
    if (s->n_windows < least) {
        return tr_error_set(err, TR_ERR_INVALID, "text",
                            "%.200s has %u tokens, expected at least the %llu "
                            "of %u windows (--window)",
                            o->text, ids->len,
                            (unsigned long long) body * least, least);
    }
    return TR_OK;
}

static tr_status_t
read_text(tr_eval_session_t *s, const tr_eval_options_t *o, tr_error_t *err)
{
    tr_eval_engine_t *e = &s->engine;
    tr_ids_t head = { 0 }, ids = { 0 };
    char why[300], *text;
    tr_status_t rc;
    size_t len;

    text = tr_read_file(o->text, TEXT_BYTES_MAX, &len, why, sizeof(why));
    if (text == NULL) {
        return tr_error_set(err, TR_ERR_IO, "perplexity", "%s", why);
    }
    rc = tr_tokenizer_encode(e->tokenizer, e->scratch, "", 0, TR_ENCODE_SPECIAL,
                             &head, err);
    if (rc == TR_OK) {
        rc = tr_tokenizer_encode(e->tokenizer, e->scratch, text, len, 0, &ids,
                                 err);
    }
    if (rc == TR_OK) {
        rc = cut_windows(s, o, &head, &ids, err);
    }
    free(text);
    free(head.data);
    free(ids.data);
    return rc;
}

/* ---- jobs --------------------------------------------------------------- */

static tr_status_t
make_tasks(tr_eval_session_t *s, tr_error_t *err)
{
    uint32_t jobs = 0;

    s->tasks = calloc(s->cases.n + s->n_windows + 1, sizeof(*s->tasks));
    if (s->tasks == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    for (size_t i = 0; i < s->cases.n; i++) {
        const tr_eval_case_t *c = &s->cases.items[i];

        s->tasks[s->n_tasks++] = (tr_eval_task_t){
            .c = c,
            .neighbour = { i > 0 ? c - 1 : NULL,
                           i + 1 < s->cases.n ? c + 1 : NULL },
            .first_job = jobs,
            .n_turns = c->n_turns
        };
        jobs += c->n_turns;
    }
    for (uint32_t i = 0; i < s->n_windows; i++) {
        s->tasks[s->n_tasks++] = (tr_eval_task_t){ .ids = s->windows[i].data,
                                                   .n_ids = s->windows[i].len,
                                                   .n_prompt = s->prefix,
                                                   .first_job = jobs++,
                                                   .n_turns = 1 };
    }
    return tr_eval_results_init(&s->results, jobs, s->engine.n_policies, err);
}

static uint64_t
hash_policy(uint64_t hash, const tr_kv_policy_t *p)
{
    hash = tr_fnv1a_64(hash, p->spec, strlen(p->spec));
    if (p->alpha_of != NULL) { /* a file's contents, which may change */
        hash = tr_fnv1a_64(hash, p->alpha_of,
                           2 * sizeof(double) * p->layers_of * p->kv_heads_of);
    }
    return hash;
}

/* What makes an answer of a policy whose prefixes are reused another one. */
static uint64_t
hash_reuse(uint64_t hash, const tr_eval_options_t *o, const tr_eval_task_t *t)
{
    if (o->regenerate) {
        return tr_fnv1a_64(hash, "regenerate", 10);
    }
    hash = tr_fnv1a_64(hash, "shared", 6);
    for (int i = 0; i < 2; i++) {
        if (t->neighbour[i] != NULL) {
            hash = tr_fnv1a_64(hash, &t->neighbour[i]->hash, sizeof(uint64_t));
        }
    }
    return hash;
}

/* Keys of one task's jobs. */
static void
hash_task(tr_eval_session_t *s, const tr_eval_options_t *o, uint32_t index)
{
    const tr_eval_task_t *t = &s->tasks[index];
    tr_eval_results_t *r = &s->results;

    for (uint32_t turn = 0; turn < t->n_turns; turn++) {
        uint32_t job = t->first_job + turn;
        uint64_t how[4] = { turn, (uint64_t) o->max_tokens,
                            o->keep_turns && t->n_turns > 1,
                            s->engine.max_len };
        uint64_t hash = tr_fnv1a_64(TR_FNV1A_64, how, sizeof(how));

        hash = tr_fnv1a_64(hash, &s->engine.model_hash, sizeof(uint64_t));
        if (t->c != NULL) {
            hash = tr_fnv1a_64(hash, &t->c->hash, sizeof(t->c->hash));
        } else {
            hash = tr_fnv1a_64(hash, &t->n_prompt, sizeof(t->n_prompt));
            hash = tr_fnv1a_64(hash, t->ids, t->n_ids * sizeof(*t->ids));
        }
        if (t->c == NULL && o->kl) { /* what it is compared with */
            hash = tr_fnv1a_64(hash, "kl", 2);
            hash = hash_policy(hash, s->engine.policy[0]);
        }
        r->jobs[job] = (tr_eval_job_t){
            .family = t->c != NULL ? t->c->family : "text",
            .difficulty = t->c != NULL ? t->c->difficulty : 0,
            .case_index = index,
            .turn = turn,
            .text = t->c == NULL,
            .kl = t->c == NULL && o->kl,
            .from = t->n_prompt,
            .to = t->n_ids - (t->c == NULL),
        };
        for (uint32_t p = 0; p < r->n_policies; p++) {
            r->keys[(size_t) job * r->n_policies + p] = hash_policy(
                s->engine.reused[p] ? hash_reuse(hash, o, t) : hash,
                s->engine.policy[p]);
        }
    }
}

static tr_status_t
prepare(tr_eval_session_t *s, const tr_eval_options_t *o, tr_error_t *err)
{
    tr_status_t rc = tr_eval_session_cases(o, &s->cases, err);

    if (rc == TR_OK && o->text != NULL) {
        rc = read_text(s, o, err);
    }
    if (rc == TR_OK) {
        rc = make_tasks(s, err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        hash_task(s, o, i);
    }
    for (uint32_t p = 0; p < s->results.n_policies; p++) {
        s->results.policies[p] = s->engine.spec[p];
    }
    return o->resume == NULL
               ? TR_OK
               : tr_eval_results_resume(&s->results, o->resume, &s->found, err);
}

/* ---- running ------------------------------------------------------------ */

/* A line that is drawn again and again; every ten seconds a new one where
 * nobody watches. */
static void
progress(const tr_eval_progress_t *p, bool last)
{
    static double said;
    bool tty = isatty(STDERR_FILENO);
    double left = p->done != 0 && p->done < p->total
                      ? p->seconds / p->done * (p->total - p->done)
                      : 0;

    if (!tty && p->seconds - said < 10 && p->seconds >= said && !last) {
        return;
    }
    said = p->seconds;
    fprintf(stderr,
            "%s%u of %u answers, %.0f prompt and %.0f answer tokens/s, %.0f s, "
            "%.0f s left%s",
            tty ? "\r\033[K" : "", p->done, p->total,
            p->seconds > 0 ? (double) p->prompt_tokens / p->seconds : 0,
            p->seconds > 0 ? (double) p->tokens / p->seconds : 0, p->seconds,
            left,
            !tty   ? "\n"
            : last ? "\r\033[K"
                   : "");
}

/* Which policies have something to do; how much in all. */
static uint32_t
pending(const tr_eval_session_t *s, bool *wanted)
{
    const tr_eval_results_t *r = &s->results;
    uint32_t n = 0;

    for (uint32_t p = 0; p < r->n_policies; p++) {
        wanted[p] = false;
        for (uint32_t i = 0; i < r->n_jobs; i++) {
            wanted[p] = wanted[p] || !tr_eval_at(r, i, p)->done;
            n += !tr_eval_at(r, i, p)->done;
        }
    }
    return n;
}

/* As many times as it takes until every policy was in a cache. */
static tr_status_t
run_all(tr_eval_session_t *s, const tr_eval_options_t *o, tr_error_t *err)
{
    bool wanted[TR_EVAL_POLICIES_MAX];
    tr_eval_run_t run = { .engine = &s->engine,
                          .results = &s->results,
                          .tasks = s->tasks,
                          .n_tasks = s->n_tasks,
                          .keep_turns = o->keep_turns,
                          .reuse = o->shared_prefix ? TR_EVAL_SHARED
                                   : o->regenerate  ? TR_EVAL_REGENERATE
                                                    : TR_EVAL_NO_REUSE,
                          .separate = o->separate,
                          .kl = o->kl,
                          .max_tokens = (uint32_t) o->max_tokens,
                          .progress = progress };
    tr_status_t rc = TR_OK;

    run.state.total = pending(s, wanted);
    while (rc == TR_OK && pending(s, wanted) != 0) {
        wanted[0] = wanted[0] || o->kl; /* the others are compared with it */
        rc = tr_eval_engine_start(&s->engine, wanted, err);
        if (rc == TR_OK) {
            rc = tr_eval_run(&run, err);
        }
        tr_eval_engine_stop(&s->engine);
    }
    s->spent = run.state;
    return rc;
}

tr_status_t
tr_eval_session_run(tr_eval_session_t *s, const tr_eval_options_t *o,
                    const char *const *specs, uint32_t n, tr_error_t *err)
{
    tr_eval_engine_options_t options = { .dir = o->dir,
                                         .set = &o->set,
                                         .kv_memory = o->kv_memory,
                                         .threads = o->threads,
                                         .batch = o->batch,
                                         .reuse = o->shared_prefix
                                                  || o->regenerate,
                                         .verbose = o->verbose };
    tr_status_t rc = tr_eval_engine_open(&options, specs, n, &s->engine, err);

    if (rc == TR_OK) {
        rc = prepare(s, o, err);
    }
    if (rc == TR_OK && s->found != 0) {
        fprintf(stderr, "%u of %zu answers are in %s\n", s->found,
                (size_t) s->results.n_jobs * s->results.n_policies, o->resume);
    }
    return rc == TR_OK ? run_all(s, o, err) : rc;
}

void
tr_eval_session_close(tr_eval_session_t *s)
{
    for (uint32_t i = 0; i < s->n_windows; i++) {
        free(s->windows[i].data);
    }
    free(s->windows);
    free(s->tasks);
    tr_eval_results_free(&s->results);
    tr_eval_cases_free(&s->cases);
    tr_eval_engine_close(&s->engine);
    *s = (tr_eval_session_t){ 0 };
}
