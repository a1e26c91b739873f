/*
 * safetensors: what is read back, and a table of broken files, each with the
 * words its error must contain.  Files are written into a directory that the
 * test makes and removes.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model/safetensors.h"

static char dir[64];
static const char *const files[] = { "model.safetensors",
                                     "model.safetensors.index.json",
                                     "a.safetensors", "b.safetensors",
                                     "consolidated.safetensors" };

static int
make_dir(void **state)
{
    (void) state;
    snprintf(dir, sizeof(dir), "/tmp/tr-safetensors-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static void
remove_files(void)
{
    char path[128];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        remove(path);
    }
}

static int
remove_dir(void **state)
{
    (void) state;
    remove_files();
    return rmdir(dir);
}

static void
write_file(const char *name, const void *data, size_t n)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* model.safetensors, but as a directory or a pipe. */
static void
make_other(int (*make)(const char *, mode_t))
{
    char path[128];

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(make(path, 0700), 0);
}

/* A file with this header and `n` bytes of data, 0, 1, 2, ...; the length
 * field is that of the header plus `lie`. */
static void
write_tensors(const char *name, const char *header, size_t n, int64_t lie)
{
    static uint8_t buf[8192];
    uint64_t length = (uint64_t) ((int64_t) strlen(header) + lie);

    assert_true(8 + strlen(header) + n <= sizeof(buf));
    memcpy(buf, &length, 8);
    memcpy(buf + 8, header, strlen(header));
    for (size_t i = 0; i < n; i++) {
        buf[8 + strlen(header) + i] = (uint8_t) i;
    }
    write_file(name, buf, 8 + strlen(header) + n);
}

static void
expect_error(const char *what, tr_status_t status, const char *words)
{
    tr_safetensors_t *st = NULL;
    tr_error_t err = { 0 };
    tr_status_t rc = tr_safetensors_open(dir, &st, &err);

    if (rc != status || err.status != status
        || strstr(err.text, words) == NULL) {
        fail_msg("%s: status %d \"%s\", expected %d with \"%s\"", what, rc,
                 err.text, status, words);
    }
    assert_null(st);
    remove_files();
}

#define F32_4 "{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}"

static void
test_read(void **state)
{
    tr_safetensors_t *st;
    tr_error_t err;
    const tr_tensor_t *t;
    float x[4];

    (void) state;
    write_tensors(
        "model.safetensors",
        "{\"__metadata__\":{\"format\":\"pt\"},\"w\":" F32_4
        ",\"h\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[17,23]},"
        "\"f\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[24,26]},"
        "\"e\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[26,26]}}  ",
        26, 0);
    assert_int_equal(tr_safetensors_open(dir, &st, &err), TR_OK);
    assert_int_equal(tr_safetensors_count(st), 4);
    t = tr_safetensors_find(st, "w");
    assert_non_null(t);
    assert_true(t->dtype == TR_F32 && t->n_dims == 2 && t->dims[0] == 2
                && t->dims[1] == 2 && t->size == 16);
    assert_string_equal(t->file, "model.safetensors");
    tr_tensor_read(t, 0, 4, x);
    assert_memory_equal(x, t->data, 16);
    t = tr_safetensors_find(st, "h"); /* at an odd address */
    assert_true(t->dtype == TR_BF16 && t->n_dims == 1 && t->size == 6);
    tr_tensor_read(t, 0, 3, x);
    assert_memory_equal((uint8_t *) x + 2, t->data, 2);
    tr_safetensors_release(t);
    assert_int_equal(((const uint8_t *) t->data)[0], 17); /* read again */
    t = tr_safetensors_find(st, "f");
    assert_true(t->dtype == TR_F16 && t->n_dims == 0 && t->size == 2);
    assert_int_equal(tr_safetensors_find(st, "e")->size, 0);
    assert_null(tr_safetensors_find(st, "x"));
    assert_null(tr_safetensors_find(st, "__metadata__"));
    tr_safetensors_close(st);
    remove_files();
}

#define INDEX(map) "{\"metadata\":{},\"weight_map\":" map "}"

static void
write_index(const char *json)
{
    write_file("model.safetensors.index.json", json, strlen(json));
}

static void
test_shards(void **state)
{
    tr_safetensors_t *st;
    tr_error_t err;

    (void) state;
    write_tensors("a.safetensors", "{\"x\":" F32_4 "}", 16, 0);
    write_tensors("b.safetensors",
                  "{\"y\":" F32_4 ",\"z\":{\"dtype\":\"F32\","
                  "\"shape\":[1],\"data_offsets\":[16,20]}}",
                  20, 0);
    write_index(INDEX("{\"y\":\"b.safetensors\",\"x\":\"a.safetensors\","
                      "\"z\":\"b.safetensors\"}"));
    assert_int_equal(tr_safetensors_open(dir, &st, &err), TR_OK);
    assert_int_equal(tr_safetensors_count(st), 3);
    assert_string_equal(tr_safetensors_find(st, "x")->file, "a.safetensors");
    assert_string_equal(tr_safetensors_find(st, "z")->file, "b.safetensors");
    tr_safetensors_close(st);
    remove_files();
}

#define T(dtype, shape, offsets)                   \
    "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape \
    ",\"data_offsets\":" offsets "}}"

/* A directory that has its weights twice. */
static void
test_bytes(void **state)
{
    static const char other[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[100],"
                                "\"data_offsets\":[0,400]}}";

    (void) state;
    assert_int_equal(tr_safetensors_bytes(dir), 0);
    write_tensors("consolidated.safetensors", other, 400, 0);
    assert_int_equal(tr_safetensors_bytes(dir), 0);
    write_tensors("a.safetensors", "{\"w\":" F32_4 "}", 16, 0);
    write_tensors("b.safetensors", "{\"v\":" F32_4 "}", 16, 0);
    write_index("{\"weight_map\":{\"w\":\"a.safetensors\","
                "\"v\":\"b.safetensors\"}}");
    assert_int_equal(tr_safetensors_bytes(dir), 32);
    write_tensors("model.safetensors", "{\"w\":" F32_4 "}", 16, 0);
    assert_int_equal(tr_safetensors_bytes(dir), 16);
    remove_files();
}

static void
test_broken_files(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        int64_t lie;
        tr_status_t status;
        const char *words;
    } broken[] = {
        /* the header's length */
        { "{}", 0, 1, TR_ERR_FORMAT, "header length 3, expected 2 to 2" },
        { "{}", 0, -2, TR_ERR_FORMAT, "header length 0" },
        { "{}", 0, -1, TR_ERR_FORMAT, "header length 1" },
        { "{}", 0, INT64_MIN, TR_ERR_FORMAT, "header length 92233720" },
        { "{}", 0, -3, TR_ERR_FORMAT, "header length 18446744073709551615" },
        { "{}", 0, 200 << 20, TR_ERR_FORMAT, "header length 209715202" },
        /* its JSON */
        { "[1]", 0, 0, TR_ERR_FORMAT, "not a JSON object" },
        { "{\"w\"", 0, 0, TR_ERR_FORMAT, "not a JSON object" },
        { "{\"\xff\":1}", 0, 0, TR_ERR_FORMAT, "unable to decode byte 0xff" },
        { "{\"w\":" F32_4 ",\"w\":" F32_4 "}", 16, 0, TR_ERR_FORMAT,
          "duplicate" },
        { "{\"w\":" F32_4 "} x", 16, 0, TR_ERR_FORMAT, "end of file" },
        /* one tensor's entry */
        { "{\"w\":7}", 0, 0, TR_ERR_FORMAT, "\"w\" needs dtype" },
        { T("1", "[1]", "[0,4]"), 4, 0, TR_ERR_FORMAT, "needs dtype" },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, 0, TR_ERR_FORMAT,
          "data_offsets" },
        { T("\"F32\"", "[1]", "[0]"), 4, 0, TR_ERR_FORMAT, "two integers" },
        { T("\"F32\"", "[1]", "[0,4.0]"), 4, 0, TR_ERR_FORMAT, "two integers" },
        { T("\"I64\"", "[1]", "[0,9]"), 8, 0, TR_ERR_FORMAT,
          "expected a range within the 8 bytes of data" },
        { T("\"F32\"", "4", "[0,4]"), 4, 0, TR_ERR_FORMAT, "valid shape" },
        { T("\"F32\"", "[-1]", "[0,4]"), 4, 0, TR_ERR_FORMAT, "valid shape" },
        { T("\"F32\"", "[1.0]", "[0,4]"), 4, 0, TR_ERR_FORMAT, "valid shape" },
        { T("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, 0, TR_ERR_FORMAT,
          "at most 8 sizes" },
        { T("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, 0, TR_ERR_FORMAT,
          "valid shape" },
        { T("\"F32\"", "[2305843009213693952,4]", "[0,0]"), 0, 0, TR_ERR_FORMAT,
          "valid shape" },
        { T("\"F32\"", "[9223372036854775808]", "[0,0]"), 0, 0, TR_ERR_FORMAT,
          "big integer" },
        /* where its data lies */
        { T("\"F32\"", "[2,2]", "[0,16]"), 15, 0, TR_ERR_FORMAT,
          "within the 15 bytes" },
        { T("\"F32\"", "[2,2]", "[16,0]"), 16, 0, TR_ERR_FORMAT, "[16, 0]" },
        { T("\"F32\"", "[2,2]", "[-16,0]"), 16, 0, TR_ERR_FORMAT, "[-16, 0]" },
        { T("\"F32\"", "[1]", "[9223372036854775803,9223372036854775807]"), 4,
          0, TR_ERR_FORMAT, "within the 4 bytes" },
        { T("\"F32\"", "[2,2]", "[0,12]"), 16, 0, TR_ERR_FORMAT,
          "has 12 bytes of data, its dtype and shape need 16" },
        { T("\"BF16\"", "[2,2]", "[0,16]"), 16, 0, TR_ERR_FORMAT,
          "shape need 8" },
        { "{\"a\":" F32_4 ",\"b\":{\"dtype\":\"F16\",\"shape\":[1],"
          "\"data_offsets\":[14,16]}}",
          16, 0, TR_ERR_FORMAT, "overlap" },
        { "{\"a\":" F32_4 ",\"b\":" F32_4 "}", 16, 0, TR_ERR_FORMAT,
          "overlap" },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        write_tensors("model.safetensors", broken[i].header, broken[i].data,
                      broken[i].lie);
        expect_error(broken[i].header, broken[i].status, broken[i].words);
    }
    write_file("model.safetensors", "1234567", 7);
    expect_error("short file", TR_ERR_FORMAT, "7 bytes, expected");
    write_file("model.safetensors", "", 0);
    expect_error("empty file", TR_ERR_FORMAT, "0 bytes, expected");
    expect_error("no file", TR_ERR_NOT_FOUND, "neither model.safetensors nor");
    make_other(mkdir);
    expect_error("a directory", TR_ERR_FORMAT, "not a regular file");
    make_other(mkfifo);
    expect_error("a pipe without writer", TR_ERR_FORMAT, "not a regular file");
}

static void
test_broken_indexes(void **state)
{
    static const struct {
        const char *index;
        tr_status_t status;
        const char *words;
    } broken[] = {
        { "{", TR_ERR_FORMAT, "index.json: line 1" },
        { "[]", TR_ERR_FORMAT, "no weight_map" },
        { "{}", TR_ERR_FORMAT, "no weight_map" },
        { INDEX("{}"), TR_ERR_FORMAT, "no weight_map" },
        { INDEX("7"), TR_ERR_FORMAT, "no weight_map" },
        { INDEX("{\"x\":7}"), TR_ERR_FORMAT, "not a file name" },
        { INDEX("{\"x\":\"../a.safetensors\"}"), TR_ERR_FORMAT,
          "without directory" },
        { INDEX("{\"x\":\"\"}"), TR_ERR_FORMAT, "without directory" },
        { INDEX("{\"x\":\"c.safetensors\"}"), TR_ERR_NOT_FOUND,
          "c.safetensors: cannot open" },
        { INDEX("{\"q\":\"a.safetensors\"}"), TR_ERR_FORMAT,
          "\"q\" should be in a.safetensors, which does not hold it" },
        { INDEX("{\"y\":\"a.safetensors\",\"x\":\"b.safetensors\"}"),
          TR_ERR_FORMAT, "does not hold it" },
        { INDEX("{\"x\":\"a.safetensors\",\"x\":\"a.safetensors\"}"),
          TR_ERR_FORMAT, "duplicate" },
    };
    char twice[128];

    (void) state;
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        write_tensors("a.safetensors", "{\"x\":" F32_4 "}", 16, 0);
        write_tensors("b.safetensors", "{\"y\":" F32_4 "}", 16, 0);
        write_index(broken[i].index);
        expect_error(broken[i].index, broken[i].status, broken[i].words);
    }
    snprintf(twice, sizeof(twice),
             INDEX("{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}"));
    write_tensors("a.safetensors", "{\"x\":" F32_4 "}", 16, 0);
    write_tensors("b.safetensors", "{\"x\":" F32_4 "}", 16, 0);
    write_index(twice);
    expect_error("one tensor in two shards", TR_ERR_FORMAT,
                 "\"x\" is both in a.safetensors and in b.safetensors");
}

static void
test_no_directory(void **state)
{
    tr_safetensors_t *st = NULL;
    tr_error_t err;

    (void) state;
    assert_int_equal(tr_safetensors_open("/nonexistent/model", &st, &err),
                     TR_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/model"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_broken_indexes),
        cmocka_unit_test(test_no_directory),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
