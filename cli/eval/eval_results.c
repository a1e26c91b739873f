/*
 * Records and the file that they are resumed from (eval_results.h).
 */
#include "eval_results.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "engine/config/log.h"

#define REPLY_BYTES_MAX 8192u

tr_status_t
tr_eval_results_init(tr_eval_results_t *r, uint32_t n_jobs, uint32_t n_policies,
                     tr_error_t *err)
{
    size_t cells = (size_t) n_jobs * n_policies;

    *r = (tr_eval_results_t){ .n_jobs = n_jobs, .n_policies = n_policies };
    r->jobs = calloc(n_jobs, sizeof(*r->jobs));
    r->policies = calloc(n_policies, sizeof(*r->policies));
    r->records = calloc(cells, sizeof(*r->records));
    r->keys = calloc(cells, sizeof(*r->keys));
    if (!r->jobs || !r->policies || !r->records || !r->keys) {
        tr_eval_results_free(r);
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory: %zu results",
                            cells);
    }
    return TR_OK;
}

void
tr_eval_results_free(tr_eval_results_t *r)
{
    if (r->file != NULL) {
        fclose(r->file);
    }
    free(r->jobs);
    free(r->policies);
    free(r->records);
    free(r->keys);
    *r = (tr_eval_results_t){ 0 };
}

/* ---- reading back ------------------------------------------------------- */

typedef struct {
    uint64_t key;
    uint32_t cell;
} found_t;

static int
by_key(const void *a, const void *b)
{
    uint64_t x = ((const found_t *) a)->key, y = ((const found_t *) b)->key;

    return (x > y) - (x < y);
}

static found_t *
index_keys(const tr_eval_results_t *r)
{
    uint32_t n = r->n_jobs * r->n_policies;
    found_t *index = calloc(n + 1, sizeof(*index));

    for (uint32_t i = 0; i < n && index != NULL; i++) {
        index[i] = (found_t){ r->keys[i], i };
    }
    if (index != NULL) {
        qsort(index, n, sizeof(*index), by_key);
    }
    return index;
}

/* A number that a record must have, from 0 on. */
static bool
number(const json_t *line, const char *name, double *out)
{
    const json_t *v = json_object_get(line, name);

    *out = json_number_value(v);
    return json_is_number(v) && isfinite(*out) && *out >= 0;
}

/* One number a part; false when they are there, but wrong. */
static bool
read_parts(const json_t *line, const char *name, double *out)
{
    const json_t *all = json_object_get(line, name);

    for (uint32_t i = 0; i < TR_EVAL_PARTS && all != NULL; i++) {
        const json_t *v = json_array_get(all, i);

        out[i] = json_number_value(v);
        if (!json_is_number(v) || !isfinite(out[i])) {
            return false;
        }
    }
    return all == NULL || json_array_size(all) == TR_EVAL_PARTS;
}

static json_t *
parts_json(const double *x)
{
    json_t *all = json_array();

    for (uint32_t i = 0; i < TR_EVAL_PARTS; i++) {
        json_array_append_new(all, json_real(x[i]));
    }
    return all;
}

static bool
read_record(const json_t *line, tr_eval_record_t *out)
{
    const json_t *right = json_object_get(line, "right");
    double prompt, tokens, reused;

    *out = (tr_eval_record_t){ .done = true };
    if (!json_is_boolean(right) || !number(line, "prompt_tokens", &prompt)
        || !number(line, "tokens", &tokens)
        || !number(line, "kv_ratio", &out->kv_ratio)
        || !number(line, "high", &out->high) || !number(line, "low", &out->low)
        || !number(line, "pruned", &out->pruned)
        || !number(line, "seconds", &out->seconds)
        || !number(line, "nll", &out->nll)
        || !read_parts(line, "nll_by", out->nll_by)
        || !read_parts(line, "kl_by", out->kl_by) || prompt > UINT32_MAX
        || tokens > UINT32_MAX) {
        return false;
    }
    out->right = json_is_true(right);
    out->skipped = json_is_true(json_object_get(line, "skipped"));
    if (number(line, "reused", &reused) && reused <= prompt) {
        out->reused = (uint32_t) reused;
    }
    out->prompt_tokens = (uint32_t) prompt;
    out->tokens = (uint32_t) tokens;
    return true;
}

/* One line of the file; false when it is no record. */
static bool
take_line(tr_eval_results_t *r, const found_t *index, const char *text,
          size_t len, uint32_t *found)
{
    json_t *line = json_loadb(text, len, 0, NULL);
    const char *key = json_string_value(json_object_get(line, "key"));
    uint32_t n = r->n_jobs * r->n_policies, i = 0, end = n;
    tr_eval_record_t record;
    uint64_t k;
    char *rest;
    bool ok;

    ok = key != NULL && strlen(key) == 16 && read_record(line, &record);
    k = ok ? strtoull(key, &rest, 16) : 0;
    ok = ok && *rest == '\0';
    while (ok && i < end) { /* the first of this key */
        uint32_t middle = i + (end - i) / 2;

        if (index[middle].key < k) {
            i = middle + 1;
        } else {
            end = middle;
        }
    }
    /* the same policy or case may be there twice */
    for (; ok && i < n && index[i].key == k; i++) {
        *found += !r->records[index[i].cell].done;
        r->records[index[i].cell] = record;
    }
    json_decref(line);
    return ok;
}

static tr_status_t
take_file(tr_eval_results_t *r, const char *path, uint32_t *found,
          tr_error_t *err)
{
    found_t *index = index_keys(r);
    char *text = NULL;
    size_t cap = 0, line = 0;
    off_t good = 0;
    ssize_t len;
    tr_status_t rc = TR_OK;

    while (rc == TR_OK && index != NULL
           && (len = getline(&text, &cap, r->file)) > 0) {
        line++;
        if (text[len - 1] != '\n') {
            break; /* torn */
        }
        if (!take_line(r, index, text, (size_t) len, found)) {
            rc = tr_error_set(err, TR_ERR_INVALID, "resume",
                              "%.200s:%zu: this is not a result of tokenring "
                              "eval, expected a line that --resume wrote",
                              path, line);
        }
        good = ftello(r->file);
    }
    free(text);
    if (index == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    free(index);
    if (rc == TR_OK
        && (ferror(r->file) || ftruncate(fileno(r->file), good) != 0
            || fseeko(r->file, good, SEEK_SET) != 0)) {
        rc = tr_error_set(err, TR_ERR_IO, "resume", "cannot read %.200s: %s",
                          path, strerror(errno));
    }
    return rc;
}

tr_status_t
tr_eval_results_resume(tr_eval_results_t *r, const char *path, uint32_t *found,
                       tr_error_t *err)
{
    *found = 0;
    r->file = fopen(path, "a+e");
    if (r->file == NULL) {
        return tr_error_set(err, TR_ERR_IO, "resume", "cannot open %.200s: %s",
                            path, strerror(errno));
    }
    rewind(r->file);
    return take_file(r, path, found, err);
}

/* ---- writing ------------------------------------------------------------ */

tr_status_t
tr_eval_results_set(tr_eval_results_t *r, uint32_t job, uint32_t policy,
                    const tr_eval_record_t *record, const char *reply,
                    size_t reply_len, tr_error_t *err)
{
    const tr_eval_job_t *j = &r->jobs[job];
    char key[20];
    json_t *line;
    int rc;

    *tr_eval_at(r, job, policy) = *record;
    tr_eval_at(r, job, policy)->done = true;
    if (r->file == NULL) {
        return TR_OK;
    }
    snprintf(key, sizeof(key), "%016" PRIx64,
             r->keys[(size_t) job * r->n_policies + policy]);
    line = json_pack("{s:s, s:s, s:I, s:I, s:I, s:s, s:b, s:I, s:I, s:f, s:f, "
                     "s:f, s:f, s:f, s:f, s:I}",
                     "key", key, "family", j->family, "difficulty",
                     (json_int_t) j->difficulty, "case",
                     (json_int_t) j->case_index, "turn", (json_int_t) j->turn,
                     "policy", r->policies[policy], "right", record->right,
                     "prompt_tokens", (json_int_t) record->prompt_tokens,
                     "tokens", (json_int_t) record->tokens, "kv_ratio",
                     record->kv_ratio, "high", record->high, "low", record->low,
                     "pruned", record->pruned, "seconds", record->seconds,
                     "nll", record->nll, "reused", (json_int_t) record->reused);
    if (line != NULL && record->skipped) {
        json_object_set_new(line, "skipped", json_true());
    }
    if (line != NULL && j->kl && !record->skipped) {
        json_object_set_new(line, "nll_by", parts_json(record->nll_by));
        json_object_set_new(line, "kl_by", parts_json(record->kl_by));
    }
    if (line != NULL && reply != NULL) { /* of two runs, were they alike? */
        snprintf(key, sizeof(key), "%016" PRIx64,
                 tr_fnv1a_64(TR_FNV1A_64, reply, reply_len));
        json_object_set_new(line, "text", json_string(key));
    }
    if (line != NULL && reply != NULL && !record->right) {
        reply_len = reply_len < REPLY_BYTES_MAX ? reply_len : REPLY_BYTES_MAX;
        /* a character that the bound cuts makes no string: then without */
        json_object_set_new(line, "reply", json_stringn(reply, reply_len));
    }
    rc = line == NULL
             ? -1
             : json_dumpf(line, r->file, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(line);
    if (rc != 0 || fputc('\n', r->file) == EOF || fflush(r->file) != 0) {
        return tr_error_set(err, TR_ERR_IO, "resume",
                            "cannot write a result: %s", strerror(errno));
    }
    return TR_OK;
}
