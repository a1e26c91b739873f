/*
 * The driver of `tokenring eval` on the shipped model: a branch answers as one
 * sequence alone does that is prefilled, compressed and decoded under the same
 * policy, with whatever others it shared a prompt and batches, and is said to
 * take the memory that this sequence takes in an engine of that policy; kept
 * turns, texts and answers behind a cached prefix, likewise.
 *
 * The cases expect something that the model never says, because the results
 * file keeps the text of wrong answers.
 */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/eval/eval_report.h"
#include "cli/eval/eval_session.h"

#define POCKET "models/pocket"
#define TOKENS 24u

static const char *const words =
    "acorn, zebra, piano, camel, maple, lizard, copper, tunnel, basket, "
    "violet, harvest, comet, pepper, mirror, saddle, oyster, glacier, fiddle, "
    "donkey, cradle, summit, thimble, quartz, robin, lagoon, ember";

static const char *const specs[] = {
    "full",
    "diffkv:alpha_high=1,alpha_low=0.1,window=16",
    "diffkv:alpha_high=2,alpha_low=0.3,window=16,observe=8",
    "uniform:levels=4/2",
    "snapkv:budget=16",
    "kivi",
    "h2o:budget=0.5",
    "quest:budget=16,from=0",
    "diffkv:alpha_high=1,alpha_low=0.1,window=16,sinks=40"
};

#define N_SPECS (sizeof(specs) / sizeof(specs[0]))

/* ---- cases -------------------------------------------------------------- */

static json_t *
message(const char *role, const char *before, const char *text)
{
    char *content = malloc(strlen(before) + strlen(text) + 1);
    json_t *m;

    sprintf(content, "%s%s", before, text);
    m = json_pack("{s:s, s:s}", "role", role, "content", content);
    free(content);
    return m;
}

/* Three cases by turns and alone, in a file; the conversation is the first. */
static void
write_cases(char *path)
{
    FILE *f;
    int fd;
    json_t *one;

    strcpy(path, "/tmp/tr-test-eval.XXXXXX");
    fd = mkstemp(path);
    f = fdopen(fd, "w");
    assert_non_null(f);
    one = json_pack("{s:s, s:i, s:b, s:[o, o, o, o, o], s:s}", "family", "talk",
                    "max_tokens", (int) TOKENS, "turns", 1, "messages",
                    message("user", "Repeat this list: ", words),
                    message("assistant", "", "that it will not say"),
                    message("user",
                            "Reverse these words: ", "olive, yarn, plum"),
                    message("assistant", "", "nor that"),
                    message("user", "What is 34 + 57?", ""), "expected", "zzz");
    assert_int_equal(json_dumpf(one, f, JSON_COMPACT), 0);
    json_decref(one);
    for (int i = 0; i < 3; i++) {
        one = json_pack("{s:s, s:i, s:[o], s:s}", "family", "alone",
                        "max_tokens", (int) TOKENS + i, "messages",
                        message("user",
                                i == 0   ? "Sort this list from A to Z: "
                                : i == 1 ? "Repeat this list backwards: "
                                         : "What is 48 + 391?",
                                i == 2 ? "" : words),
                        "expected", "zzz");
        fputc('\n', f);
        assert_int_equal(json_dumpf(one, f, JSON_COMPACT), 0);
        json_decref(one);
    }
    fputc('\n', f);
    fclose(f);
}

static tr_eval_options_t
options(const char *path, const char *resume)
{
    tr_eval_options_t o = TR_EVAL_DEFAULTS;

    o.dir = POCKET;
    o.cases.item[o.cases.n++] = path;
    o.resume = resume;
    o.kv_memory = "64m";
    o.threads = 2;
    o.batch = 12;
    return o;
}

static void
run(tr_eval_session_t *s, const tr_eval_options_t *o, uint32_t n)
{
    tr_error_t err;

    *s = (tr_eval_session_t){ 0 };
    if (tr_eval_session_run(s, o, specs, n, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    for (uint32_t i = 0; i < s->results.n_jobs; i++) {
        for (uint32_t p = 0; p < n; p++) {
            const tr_eval_record_t *r = tr_eval_at(&s->results, i, p);

            assert_true(r->done && !r->right && !r->skipped);
            assert_true(r->kv_ratio > 0 && r->kv_ratio < 60);
            assert_true(fabs(r->high + r->low + r->pruned - 1) < 1e-5);
        }
    }
}

/* The reply that the results file has for a case, turn and policy. */
static char *
reply_of(const char *path, uint32_t c, uint32_t turn, const char *spec)
{
    FILE *f = fopen(path, "r");
    char *line = NULL, *found = NULL;
    size_t cap = 0;

    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        const char *reply = json_string_value(json_object_get(o, "reply"));

        if (json_integer_value(json_object_get(o, "case")) == c
            && json_integer_value(json_object_get(o, "turn")) == turn
            && strcmp(json_string_value(json_object_get(o, "policy")), spec)
                   == 0) {
            assert_non_null(reply);
            free(found);
            found = strdup(reply);
        }
        json_decref(o);
    }
    free(line);
    fclose(f);
    assert_non_null(found);
    return found;
}

/* ---- one sequence alone -------------------------------------------------- */

/* What is asked of it next, and what it has answered. */
typedef struct {
    tr_eval_engine_t *e;
    int32_t slot;
    uint32_t pos; /* tokens that are cached */
    tr_ids_t ids; /* its prompt; then the answer, too */
    char text[100000];
    uint32_t n_out;           /* tokens of the text */
    double bytes, full_bytes; /* summed over decode steps */
    double high, low, pruned, steps;
} alone_t;

static const tr_sampling_params_t greedy = {
    .top_p = 1, .repetition_penalty = 1, .max_tokens = 1000, .logprobs = -1
};

static void
step(tr_eval_engine_t *e, tr_batch_item_t *item)
{
    tr_batch_t batch = { item, 1, item->n };

    assert_int_equal(tr_kv_reserve(e->x->kv, item->kv_slot,
                                   item->pos + item->n),
                     TR_OK);
    assert_int_equal(tr_executor_run(e->x, &batch), TR_OK);
    assert_int_equal(item->status, TR_OK);
}

static void
remember(alone_t *a, int32_t token)
{
    if (a->ids.len == a->ids.cap) {
        a->ids.cap = 2 * a->ids.cap + 16;
        a->ids.data = realloc(a->ids.data, a->ids.cap * sizeof(int32_t));
        assert_non_null(a->ids.data);
    }
    a->ids.data[a->ids.len++] = token;
}

/* As the engine itself counts, whose pages are of this policy alone. */
static void
take_usage(alone_t *a)
{
    tr_kv_usage_t u;

    tr_kv_usage(a->e->x->kv, a->slot, &u);
    a->bytes += (double) u.bytes;
    a->full_bytes += (double) u.full_bytes;
    a->high += u.share_high;
    a->low += u.share_low;
    a->pruned += u.share_pruned;
    a->steps++;
}

/* Computes what of a->ids is not cached yet, in chunks of another size than the
 * driver's, and compresses. */
static void
prefill(alone_t *a, const tr_sampler_t *sampler, tr_sampled_t *out)
{
    tr_kv_prompt(a->e->x->kv, a->slot, a->ids.len);
    while (a->pos < a->ids.len) {
        uint32_t left = a->ids.len - a->pos, chunk = left < 37 ? left : 37;
        tr_batch_item_t item = { .kv_slot = a->slot,
                                 .pos = a->pos,
                                 .n = chunk,
                                 .tokens = a->ids.data + a->pos,
                                 .sample = chunk == left,
                                 .sampler = sampler,
                                 .out = out };

        step(a->e, &item);
        a->pos += chunk;
    }
    assert_int_equal(tr_kv_compress(a->e->x->kv, a->slot, a->pos), TR_OK);
}

/* Answers the prompt a->ids; a->pos tokens of it are cached. */
static void
answer(alone_t *a, uint32_t limit)
{
    tr_eval_engine_t *e = a->e;
    tr_sampler_t sampler;
    tr_sampled_t out;
    tr_detok_t detok;
    uint32_t n = 0;
    size_t len = 0;

    a->bytes = a->full_bytes = a->high = a->low = a->pruned = a->steps = 0;
    a->n_out = 0;
    tr_sampler_init(&sampler, &greedy, 0, e->x->vocab, NULL, NULL, 0, NULL, 0);
    prefill(a, &sampler, &out);
    tr_detok_init(&detok, true);
    while (!tr_eval_is_end(e, out.token)) {
        int32_t token = out.token;
        tr_batch_item_t item = { .kv_slot = a->slot,
                                 .pos = a->pos,
                                 .n = 1,
                                 .tokens = &token,
                                 .sample = true,
                                 .sampler = &sampler,
                                 .out = &out };

        remember(a, token);
        a->n_out++;
        len += tr_detok_push(&detok, e->tokenizer, token, a->text + len, 1000);
        if (++n == limit) {
            break;
        }
        step(e, &item);
        a->pos++;
        take_usage(a);
    }
    if (a->steps == 0) {
        take_usage(a);
    }
    len += tr_detok_finish(&detok, a->text + len, 1000);
    a->text[len] = '\0';
}

static void
encode(tr_eval_engine_t *e, const json_t *messages, uint32_t n, tr_ids_t *out)
{
    tr_chat_input_t in = { .messages = messages, .n = n };
    tr_error_t err;

    out->len = 0;
    assert_int_equal(tr_chat_template_encode(&e->chat, e->tokenizer, e->scratch,
                                             &in, out, &err),
                     TR_OK);
}

/* What stands between the answer to `turn` and the next one: from the end of
 * the reference answer on, which the history has in its place. */
static void
add_next(alone_t *a, const tr_eval_case_t *c, uint32_t turn)
{
    tr_ids_t ids = { 0 };
    uint32_t i;

    encode(a->e, c->messages, c->turns[turn].n_messages, &ids);
    i = ids.len;
    encode(a->e, c->messages, c->turns[turn + 1].n_messages, &ids);
    while (i < ids.len && !tr_eval_is_end(a->e, ids.data[i])) {
        i++;
    }
    assert_true(i < ids.len);
    for (; i < ids.len; i++) {
        remember(a, ids.data[i]);
    }
    free(ids.data);
}

static bool
near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (1 + fabs(b));
}

/* Is this what the session has for a turn? */
static void
check_turn(const alone_t *a, tr_eval_session_t *s, const char *path, uint32_t c,
           uint32_t turn, uint32_t p)
{
    const tr_eval_record_t *r = tr_eval_at(&s->results,
                                           s->tasks[c].first_job + turn, p);
    const char *label = s->engine.label[p];
    char *reply = reply_of(path, c, turn, s->engine.policy[p]->spec);

    if (strcmp(a->text, reply) != 0) {
        fail_msg("case %u turn %u %s: \"%s\", alone \"%s\"", c, turn, label,
                 reply, a->text);
    }
    free(reply);
    if (!near(r->kv_ratio, a->bytes / a->full_bytes)
        || !near(r->high, a->high / a->steps)
        || !near(r->low, a->low / a->steps)
        || !near(r->pruned, a->pruned / a->steps)) {
        fail_msg("case %u turn %u %s: ratio %.9f, shares %.9f %.9f %.9f, alone "
                 "%.9f, %.9f %.9f %.9f",
                 c, turn, label, r->kv_ratio, r->high, r->low, r->pruned,
                 a->bytes / a->full_bytes, a->high / a->steps,
                 a->low / a->steps, a->pruned / a->steps);
    }
}

typedef enum {
    FRESH, /* each turn is a prompt, the reference answers its history */
    OWN,   /* likewise, with the sequence's own answers */
    KEPT   /* one cache through all turns */
} history_t;

static void
compare_case(tr_eval_session_t *s, const char *path, uint32_t c, uint32_t p,
             history_t history)
{
    static alone_t a;
    const tr_eval_case_t *one = &s->cases.items[c];
    json_t *messages = json_deep_copy(one->messages);
    tr_kv_cache_t *kv = s->engine.x->kv;

    a = (alone_t){ .e = &s->engine, .slot = -1 };
    for (uint32_t t = 0; t < one->n_turns; t++) {
        if (history == KEPT && t > 0) {
            add_next(&a, one, t - 1);
        } else {
            encode(&s->engine, messages, one->turns[t].n_messages, &a.ids);
            a.slot = tr_kv_open(kv, s->engine.policy[p]);
            a.pos = 0;
        }
        answer(&a, one->max_tokens);
        check_turn(&a, s, path, c, t, p);
        if (history != KEPT || t + 1 == one->n_turns) {
            tr_kv_close(kv, a.slot);
        }
        if (history == OWN && t + 1 < one->n_turns) {
            json_object_set_new(json_array_get(messages,
                                               one->turns[t].n_messages),
                                "content", json_string(a.text));
        }
    }
    json_decref(messages);
    free(a.ids.data);
}

/* Compares all of a session's answers with those of sequences alone. */
static void
compare(tr_eval_session_t *s, const char *path, uint32_t n, history_t history)
{
    bool wanted[TR_EVAL_POLICIES_MAX];
    tr_error_t err;

    for (uint32_t p = 0; p < n; p++) {
        memset(wanted, 0, sizeof(wanted));
        wanted[p] = true;
        assert_int_equal(tr_eval_engine_start(&s->engine, wanted, &err), TR_OK);
        for (uint32_t c = 0; c < s->cases.n; c++) {
            compare_case(s, path, c, p, history);
        }
        assert_true(tr_kv_sound(s->engine.x->kv));
        tr_eval_engine_stop(&s->engine);
    }
}

/* ---- tests -------------------------------------------------------------- */

static void
test_a_branch_answers_as_a_sequence_alone(void **state)
{
    char cases[40], results[48];
    tr_eval_session_t s;
    tr_eval_options_t o;

    (void) state;
    write_cases(cases);
    snprintf(results, sizeof(results), "%s.r", cases);
    o = options(cases, results);
    run(&s, &o, N_SPECS);
    assert_int_equal(s.results.n_jobs, 6);
    compare(&s, results, N_SPECS, FRESH);
    tr_eval_session_close(&s);

    run(&s, &o, N_SPECS); /* all is there: nothing runs */
    assert_int_equal(s.found, 6 * N_SPECS);
    assert_int_equal(s.spent.tokens, 0);
    tr_eval_session_close(&s);
    unlink(cases);
    unlink(results);
}

static void
test_kept_turns_are_one_cache(void **state)
{
    char cases[40], results[48];
    tr_eval_session_t s;
    tr_eval_options_t o;

    (void) state;
    write_cases(cases);
    snprintf(results, sizeof(results), "%s.r", cases);
    o = options(cases, results);
    o.keep_turns = true;
    o.separate = true;
    run(&s, &o, N_SPECS);
    compare(&s, results, 1, OWN);
    compare(&s, results, N_SPECS, KEPT);
    for (uint32_t i = 0; i < s.results.n_jobs; i++) {
        assert_true(tr_eval_at(&s.results, i, 1)->seconds > 0);
    }
    tr_eval_session_close(&s);
    unlink(cases);
    unlink(results);
}

/* ---- behind a cached prefix --------------------------------------------- */

static const char *const reused_specs[] = {
    "full", "uniform:levels=4/2", "diffkv:alpha_high=2,alpha_low=0,window=16"
};

#define N_REUSED (sizeof(reused_specs) / sizeof(reused_specs[0]))

/* Two questions about one text, and one about nothing. */
static void
write_questions(char *path)
{
    static const char *const questions[] = { "Name the third word.",
                                             "Repeat this list backwards.",
                                             NULL };
    FILE *f;
    int fd;

    strcpy(path, "/tmp/tr-test-eval.XXXXXX");
    fd = mkstemp(path);
    f = fdopen(fd, "w");
    assert_non_null(f);
    for (int i = 0; i < 3; i++) {
        char text[1000];
        json_t *one;

        if (questions[i] != NULL) {
            snprintf(text, sizeof(text), "%s\n%s\n%s\n\n%s", words, words,
                     words, questions[i]);
        } else {
            snprintf(text, sizeof(text), "What is 34 + 57?");
        }
        one = json_pack("{s:s, s:i, s:[o], s:s}", "family", "asked",
                        "max_tokens", (int) TOKENS, "messages",
                        message("user", text, ""), "expected", "zzz");
        assert_int_equal(json_dumpf(one, f, JSON_COMPACT), 0);
        json_decref(one);
        fputc('\n', f);
    }
    fclose(f);
}

/* a->slot, just opened, begins with what is kept of a->ids. */
static void
adopt(alone_t *a, uint32_t p)
{
    static const tr_prefix_key_t key = { 3, "me" };
    tr_kv_cache_t *kv = a->e->x->kv;
    tr_kv_found_t found;

    tr_kv_find(kv, a->e->policy[p], &key, a->ids.data,
               a->ids.len != 0 ? a->ids.len - 1 : 0, &found);
    a->pos = found.tokens;
    assert_int_equal(tr_kv_adopt(kv, a->slot, &key, &found), TR_OK);
}

/* What case c says under policy p, behind what `first` left there; regenerate:
 * from the middle of that. */
static void
compare_reused(tr_eval_session_t *s, const char *path, uint32_t c, uint32_t p,
               uint32_t first, bool regenerate)
{
    static alone_t a, b;
    const tr_eval_case_t *cases = s->cases.items;
    tr_eval_record_t *r = tr_eval_at(&s->results, s->tasks[c].first_job, p);
    tr_kv_cache_t *kv = s->engine.x->kv;
    uint32_t n;
    char *reply;

    a = (alone_t){ .e = &s->engine };
    b = (alone_t){ .e = &s->engine };
    a.slot = tr_kv_open(kv, s->engine.policy[p]);
    adopt(&a, p);
    encode(&s->engine, cases[first].messages, 1, &a.ids);
    n = a.ids.len;
    answer(&a, TOKENS);
    tr_kv_keep(kv, a.slot, a.ids.data, a.pos, true);
    tr_kv_close(kv, a.slot);

    b.slot = tr_kv_open(kv, s->engine.policy[p]);
    encode(&s->engine, cases[c].messages, 1, &b.ids);
    if (regenerate) { /* an end token counts */
        uint32_t half = (a.n_out + (a.n_out < TOKENS)) / 2;

        for (uint32_t i = 0; i < half; i++) {
            remember(&b, a.ids.data[n + i]);
        }
    }
    adopt(&b, p);
    assert_int_equal(r->reused, b.pos);
    assert_true(b.pos >= 32);
    n = b.ids.len - n;
    answer(&b, regenerate ? TOKENS - n : TOKENS);
    tr_kv_close(kv, b.slot);
    reply = reply_of(path, c, 0, s->engine.spec[p]);
    n = (uint32_t) strlen(reply);
    if (strlen(b.text) > n || strcmp(reply + n - strlen(b.text), b.text) != 0
        || (!regenerate && strlen(b.text) != n)) {
        fail_msg("case %u %s: \"%s\", alone \"%s\"", c, s->engine.label[p],
                 reply, b.text);
    }
    assert_true(near(r->kv_ratio, b.bytes / b.full_bytes));
    free(reply);
    free(a.ids.data);
    free(b.ids.data);
    tr_kv_expire(kv, UINT64_MAX);
}

static void
answers_behind_a_prefix(bool regenerate)
{
    char cases[40], results[48];
    bool wanted[TR_EVAL_POLICIES_MAX] = { false };
    tr_eval_session_t s = { 0 };
    tr_eval_options_t o;
    tr_error_t err;

    write_questions(cases);
    snprintf(results, sizeof(results), "%s.r", cases);
    o = options(cases, results);
    o.shared_prefix = !regenerate;
    o.regenerate = regenerate;
    if (tr_eval_session_run(&s, &o, reused_specs, N_REUSED, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(s.results.n_policies, 2 * N_REUSED);
    for (uint32_t p = 0; p < 2 * N_REUSED; p += 2) {
        assert_int_equal(tr_eval_at(&s.results, 0, p)->reused, 0);
        assert_true(regenerate
                    || tr_eval_at(&s.results, 2, p + 1)->reused == 0);
        memset(wanted, 0, sizeof(wanted));
        wanted[p + 1] = true;
        assert_int_equal(tr_eval_engine_start(&s.engine, wanted, &err), TR_OK);
        compare_reused(&s, results, 0, p + 1, regenerate ? 0 : 1, regenerate);
        compare_reused(&s, results, 1, p + 1, regenerate ? 1 : 0, regenerate);
        assert_true(tr_kv_sound(s.engine.x->kv));
        tr_eval_engine_stop(&s.engine);
    }
    for (uint32_t c = 0; c < 3; c++) { /* full: nothing is lost */
        char *plain = reply_of(results, c, 0, s.engine.spec[0]);
        char *behind = reply_of(results, c, 0, s.engine.spec[1]);

        assert_string_equal(plain, behind);
        free(plain);
        free(behind);
    }
    tr_eval_session_close(&s);
    unlink(cases);
    unlink(results);
}

static void
test_a_shared_prefix_is_what_another_question_left(void **state)
{
    (void) state;
    answers_behind_a_prefix(false);
}

static void
test_an_answer_goes_on_from_its_cached_middle(void **state)
{
    (void) state;
    answers_behind_a_prefix(true);
}

static void
test_what_forgets_has_no_prefix(void **state)
{
    static const char *const forgets[] = { "full", "h2o:budget=0.5" };
    char cases[40];
    tr_eval_session_t s = { 0 };
    tr_eval_options_t o;
    tr_error_t err;

    (void) state;
    write_questions(cases);
    o = options(cases, NULL);
    o.regenerate = true;
    assert_int_equal(tr_eval_session_run(&s, &o, forgets, 2, &err),
                     TR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "h2o"));
    tr_eval_session_close(&s);
    unlink(cases);
}

static void
test_a_small_cache_serves_one_after_another_or_says_so(void **state)
{
    char cases[40];
    tr_eval_session_t s = { 0 };
    tr_eval_options_t o;
    tr_error_t err;

    (void) state;
    write_cases(cases);
    o = options(cases, NULL);
    o.kv_memory = "4m";
    run(&s, &o, 4);
    tr_eval_session_close(&s);
    o.kv_memory = "1m";
    assert_int_equal(tr_eval_session_run(&s, &o, specs, 4, &err),
                     TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "kv"));
    tr_eval_session_close(&s);
    unlink(cases);
}

/* Of full, by the likelihoods of one long prompt. */
static double
nll_alone(tr_eval_session_t *s, const tr_ids_t *ids, uint32_t prefix)
{
    tr_sampled_t *scores = calloc(ids->len, sizeof(*scores));
    int32_t slot = tr_kv_open(s->engine.x->kv, s->engine.policy[0]);
    tr_batch_item_t item = { .kv_slot = slot,
                             .n = ids->len - 1,
                             .tokens = ids->data,
                             .scores = scores };
    double sum = 0;

    step(&s->engine, &item);
    for (uint32_t i = prefix; i + 1 < ids->len; i++) {
        assert_int_equal(scores[i].token, ids->data[i + 1]);
        sum -= scores[i].logprob;
    }
    tr_kv_close(s->engine.x->kv, slot);
    free(scores);
    return sum / (ids->len - prefix - 1);
}

static void
test_a_text_is_scored_token_by_token(void **state)
{
    char path[] = "/tmp/tr-test-text.XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    bool wanted[TR_EVAL_POLICIES_MAX] = { true };
    tr_eval_options_t o = options(NULL, NULL);
    tr_eval_session_t s;
    tr_eval_text_t t;
    tr_error_t err;

    (void) state;
    for (int i = 0; i < 40; i++) {
        fprintf(f, "The %s key opens locker %d. It was quiet on Monday.\n",
                i % 2 ? "brass" : "blue", 1000 + i * 37);
    }
    fclose(f);
    o.cases.n = 0;
    o.text = path;
    o.window = 128;
    o.prefix = 100;
    o.windows = 3;
    s = (tr_eval_session_t){ 0 };
    if (tr_eval_session_run(&s, &o, specs, 3, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(s.results.n_jobs, 3);
    assert_int_equal(tr_eval_engine_start(&s.engine, wanted, &err), TR_OK);
    for (uint32_t i = 0; i < 3; i++) {
        double alone = nll_alone(&s, &s.windows[i], 100);
        double nll = tr_eval_at(&s.results, i, 0)->nll;

        if (!(fabs(nll - alone) <= 1e-9 * (1 + alone))) {
            fail_msg("window %u: %.9f, alone %.9f", i, nll, alone);
        }
        assert_int_equal(tr_eval_at(&s.results, i, 0)->tokens, 27);
    }
    tr_eval_text(&s.results, 1, &t);
    assert_true(t.n == 3 && isfinite(t.perplexity) && t.perplexity > 1);
    tr_eval_session_close(&s);
    unlink(path);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_branch_answers_as_a_sequence_alone),
        cmocka_unit_test(test_kept_turns_are_one_cache),
        cmocka_unit_test(
            test_a_small_cache_serves_one_after_another_or_says_so),
        cmocka_unit_test(test_a_text_is_scored_token_by_token),
        cmocka_unit_test(test_a_shared_prefix_is_what_another_question_left),
        cmocka_unit_test(test_an_answer_goes_on_from_its_cached_middle),
        cmocka_unit_test(test_what_forgets_has_no_prefix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
