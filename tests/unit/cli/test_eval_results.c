/*
 * Results of `tokenring eval`: what was written is found again by its key and by
 * nothing else, a torn line is cut off, a file that is none of ours is refused;
 * summaries, the table, JSON and the plot say what the records say.
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

#define JOBS 8u

static const char *const labels[] = { "full", "diffkv:alpha_high=1", "a<b&c" };

/* Two families of two difficulties, two conversations each. */
static void
fill(tr_eval_results_t *r)
{
    tr_error_t err;

    assert_int_equal(tr_eval_results_init(r, JOBS, 3, &err), TR_OK);
    for (uint32_t i = 0; i < JOBS; i++) {
        r->jobs[i] = (tr_eval_job_t){ .family = i < 4 ? "copy" : "multi",
                                      .difficulty = i % 4 < 2 ? 4 : 1,
                                      .case_index = i / 2,
                                      .turn = i % 2 };
        for (uint32_t p = 0; p < 3; p++) {
            r->keys[i * 3 + p] = 1000 + i * 3 + p;
        }
    }
    for (uint32_t p = 0; p < 3; p++) {
        r->policies[p] = labels[p];
    }
}

static tr_eval_record_t
sample(uint32_t job, uint32_t policy)
{
    return (tr_eval_record_t){
        .done = true,
        .right = policy == 0 || job != 1,
        .prompt_tokens = 10 + job,
        .tokens = 5,
        .kv_ratio = policy == 0 ? 1.0 : 0.25 + 0.01 * job,
        .high = 0.5,
        .low = 0.25,
        .pruned = 0.25,
        .seconds = policy == 1 ? 0.5 : 0,
    };
}

static void
set_all(tr_eval_results_t *r, uint32_t policies)
{
    tr_error_t err;

    for (uint32_t i = 0; i < JOBS; i++) {
        for (uint32_t p = 0; p < policies; p++) {
            tr_eval_record_t one = sample(i, p);

            assert_int_equal(tr_eval_results_set(r, i, p, &one, "wrong \"x\"",
                                                 9, &err),
                             TR_OK);
        }
    }
}

static void
temp(char *path)
{
    int fd;

    strcpy(path, "/tmp/tr-test-results.XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
}

static void
test_results_are_found_again(void **state)
{
    tr_eval_results_t r;
    tr_error_t err;
    uint32_t found;
    char path[40];

    (void) state;
    temp(path);
    fill(&r);
    assert_int_equal(tr_eval_results_resume(&r, path, &found, &err), TR_OK);
    assert_int_equal(found, 0);
    set_all(&r, 2);
    tr_eval_results_free(&r);

    fill(&r);
    r.keys[0] = 77; /* of another model, say */
    assert_int_equal(tr_eval_results_resume(&r, path, &found, &err), TR_OK);
    assert_int_equal(found, 2 * JOBS - 1);
    assert_false(tr_eval_at(&r, 0, 0)->done);
    assert_true(tr_eval_at(&r, 0, 1)->done);
    assert_false(tr_eval_at(&r, 0, 2)->done);
    for (uint32_t i = 1; i < JOBS; i++) {
        for (uint32_t p = 0; p < 2; p++) {
            tr_eval_record_t want = sample(i, p), *got = tr_eval_at(&r, i, p);

            assert_true(got->done);
            assert_int_equal(got->right, want.right);
            assert_int_equal(got->prompt_tokens, want.prompt_tokens);
            assert_int_equal(got->tokens, want.tokens);
            assert_true(fabs(got->kv_ratio - want.kv_ratio) < 1e-8);
            assert_true(fabs(got->seconds - want.seconds) < 1e-8);
        }
    }
    tr_eval_results_free(&r);
    unlink(path);
}

/* Two runs are compared by it: equal texts have one hash, others another. */
static void
test_replies_have_a_hash(void **state)
{
    static const char *const reply[3] = { "yes", "yes", "no" };
    char path[40], text[3][20], line[1024];
    tr_eval_results_t r;
    tr_error_t err;
    uint32_t found;
    FILE *f;

    (void) state;
    temp(path);
    fill(&r);
    assert_int_equal(tr_eval_results_resume(&r, path, &found, &err), TR_OK);
    for (uint32_t i = 0; i < 3; i++) {
        tr_eval_record_t one = sample(i, 0);

        assert_int_equal(tr_eval_results_set(&r, i, 0, &one, reply[i],
                                             strlen(reply[i]), &err),
                         TR_OK);
    }
    tr_eval_results_free(&r);
    f = fopen(path, "r");
    for (uint32_t i = 0; i < 3; i++) {
        const char *at;

        assert_non_null(fgets(line, sizeof(line), f));
        at = strstr(line, "\"text\":\"");
        assert_non_null(at);
        assert_int_equal(sscanf(at + 8, "%16[0-9a-f]\"", text[i]), 1);
    }
    fclose(f);
    assert_string_equal(text[0], text[1]);
    assert_string_not_equal(text[0], text[2]);
    unlink(path);
}

static void
test_a_torn_line_is_cut_off(void **state)
{
    tr_eval_results_t r;
    tr_error_t err;
    uint32_t found;
    char path[40];
    FILE *f;

    (void) state;
    temp(path);
    fill(&r);
    assert_int_equal(tr_eval_results_resume(&r, path, &found, &err), TR_OK);
    set_all(&r, 1);
    tr_eval_results_free(&r);
    f = fopen(path, "a");
    fprintf(f, "{\"key\":\"00000000000");
    fclose(f);

    fill(&r);
    assert_int_equal(tr_eval_results_resume(&r, path, &found, &err), TR_OK);
    assert_int_equal(found, JOBS);
    set_all(&r, 2); /* goes on behind what was good */
    tr_eval_results_free(&r);

    fill(&r);
    assert_int_equal(tr_eval_results_resume(&r, path, &found, &err), TR_OK);
    assert_int_equal(found, 2 * JOBS);
    tr_eval_results_free(&r);
    unlink(path);
}

static void
test_a_file_of_something_else_is_refused(void **state)
{
    static const char *const bad[] = {
        "hello\n",
        "{}\n",
        "[]\n",
        "{\"key\":\"0000000000000001\",\"right\":true}\n",
        "{\"key\":\"zz00000000000001\",\"right\":true,\"prompt_tokens\":1,"
        "\"tokens\":1,\"kv_ratio\":1,\"high\":1,\"low\":0,\"pruned\":0,"
        "\"seconds\":0,\"nll\":0}\n",
        "{\"key\":\"0000000000000001\",\"right\":true,\"prompt_tokens\":1,"
        "\"tokens\":-1,\"kv_ratio\":1,\"high\":1,\"low\":0,\"pruned\":0,"
        "\"seconds\":0,\"nll\":0}\n"
    };

    (void) state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tr_eval_results_t r;
        tr_error_t err;
        uint32_t found;
        char path[40], place[64];
        FILE *f;

        temp(path);
        f = fopen(path, "w");
        fputs(bad[i], f);
        fclose(f);
        fill(&r);
        assert_int_equal(tr_eval_results_resume(&r, path, &found, &err),
                         TR_ERR_INVALID);
        snprintf(place, sizeof(place), "%s:1:", path);
        assert_non_null(strstr(err.text, place));
        tr_eval_results_free(&r);
        unlink(path);
    }
}

static void
test_summaries_count_turns_and_weigh_families_alike(void **state)
{
    tr_eval_results_t r;
    tr_eval_family_t families[TR_EVAL_FAMILIES];
    tr_eval_cell_t c;

    (void) state;
    fill(&r);
    set_all(&r, 3);
    tr_eval_at(&r, 5, 0)->skipped = tr_eval_at(&r, 5, 1)->skipped = true;
    tr_eval_at(&r, 6, 1)->done = false;
    assert_int_equal(tr_eval_families(&r, families), 2);
    assert_string_equal(families[1].name, "multi");
    assert_int_equal(families[0].n_difficulties, 2);
    assert_int_equal(families[0].difficulty[0], 1);
    assert_int_equal(families[0].difficulty[1], 4);

    tr_eval_summary(&r, 1, "copy", 0, &c);
    assert_int_equal(c.n, 4);
    assert_true(fabs(c.accuracy - 0.75) < 1e-12);
    assert_true(fabs(c.diff.diff + 0.25) < 1e-12);
    assert_true(c.diff.low < -0.25 && c.diff.high > -0.25);
    assert_true(fabs(c.kv_ratio - 0.265) < 1e-12);
    assert_true(fabs(c.tokens_per_s - 10) < 1e-9);
    tr_eval_summary(&r, 1, "copy", 4, &c);
    assert_int_equal(c.n, 2);
    assert_true(fabs(c.accuracy - 0.5) < 1e-12);
    tr_eval_summary(&r, 1, "multi", 0, &c);
    assert_int_equal(c.n, 2);
    assert_int_equal(c.skipped, 1);
    tr_eval_summary(&r, 1, "story", 0, &c);
    assert_true(isnan(c.accuracy) && isnan(c.kv_ratio) && isnan(c.diff.diff));
    tr_eval_overall(&r, 1, &c);
    assert_true(fabs(c.accuracy - 0.875) < 1e-12); /* of 0.75 and 1 */
    assert_int_equal(c.n, 6);
    tr_eval_overall(&r, 0, &c);
    assert_true(c.accuracy == 1 && isnan(c.tokens_per_s));
    tr_eval_results_free(&r);
}

static void
test_perplexity_is_of_the_mean_and_paired(void **state)
{
    tr_eval_results_t r;
    tr_eval_family_t families[TR_EVAL_FAMILIES];
    tr_eval_text_t t;

    (void) state;
    fill(&r);
    for (uint32_t i = 0; i < JOBS; i++) {
        r.jobs[i].text = true;
        for (uint32_t p = 0; p < 2; p++) {
            *tr_eval_at(&r, i, p) = (tr_eval_record_t){
                .done = true, .nll = i * 0.5 + (p ? 0.1 : 0), .kv_ratio = 0.5
            };
        }
    }
    assert_int_equal(tr_eval_families(&r, families), 0);
    tr_eval_text(&r, 1, &t);
    assert_int_equal(t.n, JOBS);
    assert_true(fabs(t.perplexity - exp(1.85)) < 1e-9);
    assert_true(fabs(t.ratio - exp(0.1)) < 1e-9);
    /* the same in every window: no spread */
    assert_true(fabs(t.ratio_low - t.ratio) < 1e-9);
    assert_true(fabs(t.ratio_high - t.ratio) < 1e-9);
    tr_eval_results_free(&r);
}

/* The first point of a policy in a plot: where it is, and what it says. */
static void
point_of(const char *svg, const char *label, double at[2], double says[2])
{
    char name[64];
    const char *title, *circle = svg;

    snprintf(name, sizeof(name), "<title>%s: ", label);
    title = strstr(svg, name);
    assert_non_null(title);
    for (const char *next = svg; next != NULL && next < title;
         next = strstr(next + 1, "<circle ")) {
        circle = next;
    }
    assert_int_equal(sscanf(strstr(circle, "cx="), "cx=\"%lf\" cy=\"%lf\"",
                            &at[0], &at[1]),
                     2);
    assert_int_equal(sscanf(title + strlen(name), "%lf%% right at %lf",
                            &says[0], &says[1]),
                     2);
}

/* Memory to the right, right answers upwards. */
static void
check_points(const char *svg)
{
    double full[2], full_says[2], other[2], other_says[2];

    point_of(svg, labels[0], full, full_says);
    point_of(svg, labels[1], other, other_says);
    assert_true(full_says[0] == 100 && full_says[1] == 1);
    assert_true(other_says[0] == 87.5 && other_says[1] == 0.285);
    assert_true(other[0] < full[0] && other[1] > full[1]);
}

static void
test_json_and_plot_hold_what_the_records_say(void **state)
{
    tr_eval_results_t r;
    json_t *root = json_object(), *one;
    char *text = NULL;
    size_t size = 0;
    FILE *f;

    (void) state;
    fill(&r);
    set_all(&r, 2); /* the third policy has nothing */
    tr_eval_json(&r, labels, root);
    assert_int_equal(json_array_size(json_object_get(root, "policies")), 3);
    one = json_array_get(json_object_get(root, "policies"), 1);
    assert_string_equal(json_string_value(json_object_get(one, "policy")),
                        labels[1]);
    one = json_object_get(json_object_get(one, "families"), "copy");
    assert_true(json_real_value(json_object_get(one, "accuracy")) == 0.75);
    one = json_object_get(json_object_get(one, "difficulties"), "4");
    assert_true(json_real_value(json_object_get(one, "accuracy")) == 0.5);
    assert_int_equal(json_integer_value(json_object_get(one, "n")), 2);
    one = json_array_get(json_object_get(root, "policies"), 2);
    assert_true(json_is_null(json_object_get(one, "accuracy")));
    json_decref(root);

    f = open_memstream(&text, &size);
    tr_eval_plot(&r, labels, "A <title> & more", f);
    fclose(f);
    assert_non_null(strstr(text, "A &lt;title&gt; &amp; more"));
    check_points(text);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "http://www.w3.org/1999"));
    assert_non_null(strstr(text, "</svg>"));
    free(text);

    f = open_memstream(&text, &size);
    tr_eval_print(&r, labels, f);
    fclose(f);
    assert_non_null(strstr(text, "-25.00 ["));
    free(text);
    tr_eval_results_free(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_are_found_again),
        cmocka_unit_test(test_replies_have_a_hash),
        cmocka_unit_test(test_a_torn_line_is_cut_off),
        cmocka_unit_test(test_a_file_of_something_else_is_refused),
        cmocka_unit_test(test_summaries_count_turns_and_weigh_families_alike),
        cmocka_unit_test(test_perplexity_is_of_the_mean_and_paired),
        cmocka_unit_test(test_json_and_plot_hold_what_the_records_say),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
