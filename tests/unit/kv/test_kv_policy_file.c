/*
 * The policy file beside a model: whom it answers for, what is wrong with a bad
 * one, and that what is written is read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/kv/policy/kv_policy_file.h"

#define SHAPE "\"layers\":4,\"kv_heads\":2,\"head_dim\":64"
#define GOOD(spec) "{\"kv_policy\":\"" spec "\"," SHAPE "}"

static char dir[] = "/tmp/tr_policy_XXXXXX";
static char path[64];

static int
setup(void **state)
{
    (void) state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/" TR_KV_POLICY_FILE, dir);
    return 0;
}

static int
teardown(void **state)
{
    (void) state;
    unlink(path);
    return rmdir(dir);
}

static void
put(const char *text, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static tr_status_t
open_policy(const char *spec, tr_kv_policy_t **p, tr_kv_source_t *source,
            tr_error_t *err)
{
    return tr_kv_policy_open(dir, spec, 4, 2, 64, p, source, err);
}

/* Where the settings of `spec` come from, and a part of what they are. */
static void
expect(const char *spec, tr_kv_source_t from, const char *part)
{
    tr_kv_policy_t *p;
    tr_kv_source_t source;
    tr_error_t err = { 0 };

    if (open_policy(spec, &p, &source, &err) != TR_OK) {
        fail_msg("%s: %s", spec, err.text);
    }
    assert_int_equal(source, from);
    if (strstr(p->spec, part) == NULL) {
        fail_msg("%s: %s has no %s", spec, p->spec, part);
    }
    tr_kv_policy_free(p);
}

static void
test_whom_it_answers_for(void **state)
{
    const char *text = GOOD("diffkv:alpha_high=12,window=128");

    (void) state;
    unlink(path);
    expect("diffkv", TR_KV_FROM_DEFAULTS, "alpha_high=9,alpha_low=0,");
    put(text, strlen(text));
    expect("diffkv", TR_KV_FROM_FILE, "window=128");
    expect("diffkv", TR_KV_FROM_FILE, "alpha_high=12,alpha_low=0,");
    /* settings that are given are all there are */
    expect("diffkv:window=32", TR_KV_FROM_SETTINGS, "alpha_high=9,");
    expect("full", TR_KV_FROM_SETTINGS, "full");
    expect("snapkv", TR_KV_FROM_DEFAULTS, "budget=1024");
    text = GOOD("snapkv:budget=0.3");
    put(text, strlen(text));
    expect("snapkv", TR_KV_FROM_FILE, "budget=0.3");
    expect("diffkv", TR_KV_FROM_DEFAULTS, "alpha_high=9,");
}

static void
test_who_should_calibrate(void **state)
{
    tr_kv_policy_t *p;
    tr_error_t err = { 0 };

    (void) state;
    assert_int_equal(tr_kv_policy_create("diffkv", 4, 2, 64, &p, &err), TR_OK);
    assert_true(tr_kv_policy_uncalibrated(p, TR_KV_FROM_DEFAULTS));
    assert_false(tr_kv_policy_uncalibrated(p, TR_KV_FROM_FILE));
    assert_false(tr_kv_policy_uncalibrated(p, TR_KV_FROM_SETTINGS));
    tr_kv_policy_free(p);
    assert_int_equal(tr_kv_policy_create("uniform", 4, 2, 64, &p, &err), TR_OK);
    assert_false(tr_kv_policy_uncalibrated(p, TR_KV_FROM_DEFAULTS));
    tr_kv_policy_free(p);
}

static void
refused(const char *spec, const char *says)
{
    tr_kv_policy_t *p = (void *) 1;
    tr_kv_source_t source;
    tr_error_t err = { 0 };

    assert_int_not_equal(open_policy(spec, &p, &source, &err), TR_OK);
    assert_null(p);
    assert_string_equal(err.param, "kv_policy");
    if (strncmp(err.text, path, strlen(path)) != 0
        || strstr(err.text, says) == NULL) {
        fail_msg("\"%s\" does not begin with %s or has no \"%s\"", err.text,
                 path, says);
    }
}

static void
test_mistakes(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "", ":1:0: " },
        { "{", ":1:1: " },
        { "{\n \"kv_policy\": ?", ":2:15: " },
        { "[]", ": expected a JSON object" },
        { "{" SHAPE "}", "\"kv_policy\" is missing, expected a policy with" },
        { "{\"kv_policy\":5," SHAPE "}", "\"kv_policy\" is 5, expected" },
        { GOOD("diffkv"), "is \"diffkv\", expected a policy with settings" },
        { GOOD("diffkv:alpha_file=/etc/passwd"),
          "expected no alpha_file: a model's file names no other files" },
        { GOOD("diffkv:alpha_high=5000"), ": KV policy diffkv: alpha_high=5000:"
                                          " expected a number from 0 to 1000" },
        { GOOD("diffkv:alpha_hihg=5"), "no setting \"alpha_hihg\": known are" },
        { "{\"kv_policy\":\"diffkv:window=32\",\"kv_heads\":2,\"head_dim\":64}",
          "\"layers\" is missing, expected 4 as the model has" },
        { "{\"kv_policy\":\"diffkv:window=32\",\"layers\":32,\"kv_heads\":2,"
          "\"head_dim\":64}",
          "\"layers\" is 32, expected 4 as the model has; a file made for"
          " another model does not fit: remove it, or run tokenring "
          "calibrate" },
        { "{\"kv_policy\":\"diffkv:window=32\",\"layers\":4,\"kv_heads\":2.0,"
          "\"head_dim\":64}",
          "\"kv_heads\" is 2.0, expected 2 as" },
        { "{\"kv_policy\":\"diffkv:window=32\",\"layers\":4,\"kv_heads\":2,"
          "\"head_dim\":18446744073709551616}",
          "too big" },
        { "{\"kv_policies\":1," SHAPE "}",
          "unknown key \"kv_policies\": known are kv_policy, layers" },
        { "{\"kv_policy\":\"diffkv:window=32\",\"calibrated\":3," SHAPE "}",
          "\"calibrated\" is 3, expected an object" },
        { "{\"layers\":4,\"layers\":4}", "duplicate" },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put(bad[i].text, strlen(bad[i].text));
        refused("diffkv", bad[i].says);
    }
    /* nobody asks it, so nobody minds */
    expect("diffkv:window=32", TR_KV_FROM_SETTINGS, "window=32");
    expect("full", TR_KV_FROM_SETTINGS, "full");
}

static void
test_hostile(void **state)
{
    size_t n = 65536;
    char *text = malloc(n + 1);

    (void) state;
    assert_non_null(text);
    memset(text, '[', n + 1);
    put(text, n + 1);
    refused("diffkv", "65537 bytes, expected at most 65536");
    put(text, n); /* deeper than any parser likes */
    refused("diffkv", ":1:");
    memset(text, ' ', n);
    memcpy(text, GOOD("diffkv:alpha_high=3"),
           strlen(GOOD("diffkv:alpha_high=3")));
    put(text, n);
    expect("diffkv", TR_KV_FROM_FILE, "alpha_high=3");
    free(text);
    put("{\"kv_policy\":\"\0\"}", 17);
    refused("diffkv", ":1:");

    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    refused("diffkv", ": expected a regular file"); /* and does not wait */
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    refused("diffkv", ": expected a regular file");
    rmdir(path);
    assert_int_equal(symlink(path, path), 0);
    refused("diffkv", ": cannot open: ");
    unlink(path);
}

static void
test_what_is_written_is_read(void **state)
{
    json_t *how = json_pack("{s:i}", "cases", 1800);
    tr_error_t err = { 0 };
    json_t *root;

    (void) state;
    put("old", 3);
    assert_int_equal(tr_kv_policy_file_write(dir, "diffkv:alpha_high=8", 4, 2,
                                             64, how, &err),
                     TR_OK);
    expect("diffkv", TR_KV_FROM_FILE, "alpha_high=8,");
    root = json_load_file(path, 0, NULL);
    assert_int_equal(json_integer_value(
                         json_object_get(json_object_get(root, "calibrated"),
                                         "cases")),
                     1800);
    json_decref(root);

    assert_int_equal(tr_kv_policy_file_write(dir, "diffkv:alpha_file=x", 4, 2,
                                             64, how, &err),
                     TR_ERR_INVALID);
    assert_int_equal(tr_kv_policy_file_write("/no/such", "diffkv:window=3", 4,
                                             2, 64, how, &err),
                     TR_ERR_IO);
    assert_non_null(strstr(err.text, "/no/such/kv_policy.json: cannot write"));
    expect("diffkv", TR_KV_FROM_FILE, "alpha_high=8,");
    json_decref(how);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whom_it_answers_for),
        cmocka_unit_test(test_who_should_calibrate),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_what_is_written_is_read),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
