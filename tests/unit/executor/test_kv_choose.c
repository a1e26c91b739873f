/*
 * kv_policy auto on the shipped model: what is taken, and that the size of
 * batches does not matter; the model's own text, and texts that cannot be
 * measured on; sequences that are too short; a comparison that fails.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/config/log.h"
#include "engine/executor/executor.h"
#include "engine/model/cpu/model.h"
#include "kernels/kernels.h"

#define POCKET "models/pocket"

static tr_config_t
settings(const char *model)
{
    tr_config_t c;

    tr_config_defaults(&c);
    snprintf(c.model, sizeof(c.model), "%s", model);
    snprintf(c.kv_policy, sizeof(c.kv_policy), "auto");
    c.threads = 2;
    c.kv_memory = 32u << 20;
    return c;
}

/* The model's files, linked from a directory of their own. */
static void
link_model(char *dir)
{
    char here[PATH_MAX], from[2 * PATH_MAX], to[2 * PATH_MAX];
    struct dirent *e;
    DIR *d = opendir(POCKET);

    assert_non_null(d);
    assert_non_null(mkdtemp(dir));
    assert_non_null(getcwd(here, sizeof(here)));
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] != '.') {
            snprintf(from, sizeof(from), "%s/" POCKET "/%s", here, e->d_name);
            snprintf(to, sizeof(to), "%s/%s", dir, e->d_name);
            assert_int_equal(symlink(from, to), 0);
        }
    }
    closedir(d);
}

static void
unlink_model(const char *dir)
{
    char path[2 * PATH_MAX];
    struct dirent *e;
    DIR *d = opendir(dir);

    while ((e = readdir(d)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        unlink(path);
    }
    closedir(d);
    rmdir(dir);
}

/* A calibration text: `text` so many times. */
static void
write_text(const char *dir, const char *text, size_t times)
{
    char path[PATH_MAX];
    FILE *f;

    snprintf(path, sizeof(path), "%s/" TR_KV_CHOOSE_FILE, dir);
    f = fopen(path, "w");
    assert_non_null(f);
    while (times-- > 0) {
        fputs(text, f);
    }
    assert_int_equal(fclose(f), 0);
}

static void
test_pocket(void **state)
{
    tr_config_t c = settings(POCKET);
    tr_kv_choice_t small, large;
    tr_error_t err;
    tr_executor_t *e;

    (void) state;
    assert_int_equal(tr_executor_choose(&c, &large, &err), TR_OK);
    assert_string_equal(large.spec, "diffkv");
    assert_non_null(strstr(large.why, "the built-in text"));
    assert_non_null(strstr(large.why, "uniform:levels=4/2"));
    c.max_batch_tokens = c.max_num_seqs = 50;
    assert_int_equal(tr_executor_choose(&c, &small, &err), TR_OK);
    assert_string_equal(small.why, large.why);

    assert_int_equal(tr_executor_open(&c, &e, &err), TR_OK);
    assert_string_equal(e->policies[0].policy->name, "diffkv");
    assert_int_equal(e->policies[0].source, TR_KV_FROM_FILE);
    assert_string_equal(tr_executor_policy_name(&e->policies[0]), "diffkv");
    e->free(e);
}

static void
test_text(void **state)
{
    static const struct {
        const char *text;
        size_t times;
        const char *error; /* NULL: it is taken */
    } texts[] = {
        { "A fox met an owl. ", 2000, NULL },
        { "A fox met an owl. ", 2, "expected 256 or more" },
        { "", 1, "expected 256 or more" },
        { "A fox met an owl. ", 100000, "has more than 1048576 bytes" },
        { "A fox \xff ", 200, "kv_policy auto: " TR_KV_CHOOSE_FILE ": " },
    };
    char dir[] = "/tmp/tr_choose_XXXXXX";
    tr_config_t c;

    (void) state;
    link_model(dir);
    c = settings(dir);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        tr_kv_choice_t got;
        tr_error_t err;
        tr_status_t rc;

        write_text(dir, texts[i].text, texts[i].times);
        rc = tr_executor_choose(&c, &got, &err);
        if (texts[i].error == NULL) {
            assert_int_equal(rc, TR_OK);
            assert_non_null(
                strstr(got.why, "2048 tokens of " TR_KV_CHOOSE_FILE));
        } else {
            assert_int_equal(rc, TR_ERR_INVALID);
            assert_non_null(strstr(err.text, texts[i].error));
        }
    }
    unlink_model(dir);
}

/* The model with layers that see `window` tokens. */
static void
slide(const char *dir, unsigned window)
{
    char path[PATH_MAX], text[4096], *type;
    FILE *f = fopen(POCKET "/config.json", "r");
    size_t n;

    assert_non_null(f);
    n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    type = strstr(text, "\"llama\"");
    assert_non_null(type);
    snprintf(path, sizeof(path), "%s/config.json", dir);
    assert_int_equal(unlink(path), 0);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%.*s\"mistral\", \"sliding_window\": %u%s", (int) (type - text),
            text, window, type + strlen("\"llama\""));
    assert_int_equal(fclose(f), 0);
}

/* What makes sequences too short is named. */
static void
test_short(void **state)
{
    char dir[] = "/tmp/tr_choose_XXXXXX";
    tr_config_t c = settings(POCKET);
    tr_kv_choice_t got;
    tr_executor_t *e;
    tr_error_t err;

    (void) state;
    c.max_model_len = 128;
    assert_int_equal(tr_executor_choose(&c, &got, &err), TR_ERR_INVALID);
    assert_string_equal(err.text,
                        "kv_policy auto: max_model_len allows sequences of 128"
                        " tokens, expected 256 or more, to measure on");
    c.max_model_len = 0;
    c.kv_memory = 512u << 10;
    assert_int_equal(tr_executor_choose(&c, &got, &err), TR_ERR_INVALID);
    assert_non_null(
        strstr(err.text, "auto: kv_memory allows sequences of 129"));

    /* a sliding window does not, whatever the policy */
    link_model(dir);
    slide(dir, 200);
    c = settings(dir);
    c.max_model_len = 512;
    snprintf(c.kv_policy, sizeof(c.kv_policy), "diffkv");
    assert_int_equal(tr_executor_open(&c, &e, &err), TR_OK);
    assert_int_equal(e->max_model_len, 512);
    e->free(e);
    unlink_model(dir);
}

static int
no_compare(const tr_stream_t *s, const tr_kv_view_t *kv,
           const tr_kv_compress_t *c, const tr_kv_compare_t *q, void *work)
{
    (void) s;
    (void) kv;
    (void) c;
    (void) q;
    (void) work;
    return TR_KERNEL_BADARG;
}

/* What was not compared is not taken for exact. */
static void
test_not_compared(void **state)
{
    tr_kernels_t kernels = *tr_kernels_cpu(NULL);
    tr_config_t c = settings(POCKET);
    tr_model_options_t options = { .dir = POCKET,
                                   .ignore_config = "",
                                   .load_format = "auto",
                                   .kernels = &kernels,
                                   .threads = 2,
                                   .max_rows = 256,
                                   .max_seqs = 1 };
    tr_kv_choice_t got;
    tr_model_t *m;
    tr_error_t err;

    (void) state;
    assert_int_equal(tr_model_open(&options, &m, &err), TR_OK);
    assert_int_equal(tr_kv_choose(m, &c, &got, &err), TR_OK);
    kernels.kv_compare = no_compare;
    assert_int_equal(tr_kv_choose(m, &c, &got, &err), TR_ERR_INTERNAL);
    assert_non_null(strstr(err.text, "cannot compress and compare"));
    tr_model_free(m);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pocket),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_short),
        cmocka_unit_test(test_not_compared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
