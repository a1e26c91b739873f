/*
 * What people take for a model directory, and what they are told; and files in
 * one that are not what their names say.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model/model_directory.h"
#include "engine/model/model_tensors.h"
#include "engine/model/safetensors.h"

#define LFS                                        \
    "version https://git-lfs.github.com/spec/v1\n" \
    "oid sha256:0123\nsize 4123\n"

static char dir[64];

static int
make_dir(void **state)
{
    (void) state;
    snprintf(dir, sizeof(dir), "/tmp/tr-directory-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int
remove_dir(void **state)
{
    char command[128];

    (void) state;
    snprintf(command, sizeof(command), "rm -r %s", dir);
    return system(command);
}

static void
write_file(const char *name, const void *text, size_t n)
{
    char path[200];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (text == NULL) {
        unlink(path);
        return;
    }
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static void
expect(const char *path, bool weights, tr_status_t status, const char *words)
{
    tr_error_t err = { 0 };

    assert_int_equal(tr_model_directory_check(path, weights, &err), status);
    if (strstr(err.text, words) == NULL) {
        fail_msg("%s: \"%s\" has no \"%s\"", path, err.text, words);
    }
}

static void
test_no_directory(void **state)
{
    char path[200];

    (void) state;
    expect("meta-llama/Llama-3.1-8B", true, TR_ERR_NOT_FOUND,
           "looks like the id of a model on a hub: download it first");
    expect("/nowhere/at/all", true, TR_ERR_NOT_FOUND, "cannot open");
    expect("./nowhere/x", true, TR_ERR_NOT_FOUND, "cannot open");
    write_file("x.gguf", "GGUF", 4);
    snprintf(path, sizeof(path), "%s/x.gguf", dir);
    expect(path, true, TR_ERR_UNSUPPORTED, "a GGUF file, which is not");
    write_file("x.gguf", NULL, 0);
}

static void
test_other_weights(void **state)
{
    (void) state;
    write_file("config.json", "{}", 2);
    expect(dir, true, TR_OK, "");
    write_file("model-q4.gguf", "GGUF", 4);
    expect(dir, true, TR_ERR_UNSUPPORTED, "GGUF (model-q4.gguf)");
    expect(dir, false, TR_OK, "");
    write_file("model-q4.gguf", NULL, 0);
    write_file("pytorch_model.bin", "PK", 2);
    expect(dir, true, TR_ERR_UNSUPPORTED,
           "PyTorch writes them (pytorch_model.bin)");
    write_file("model.safetensors", "x", 1);
    expect(dir, true, TR_OK, ""); /* beside what we read, they do not matter */
    write_file("pytorch_model.bin", NULL, 0);
    write_file("model.safetensors", NULL, 0);
}

static void
test_pointers(void **state)
{
    tr_safetensors_t *st = NULL;
    tr_error_t err = { 0 };

    (void) state;
    write_file("config.json", "{}", 2);
    write_file("model.safetensors", LFS, sizeof(LFS) - 1);
    expect(dir, true, TR_ERR_FORMAT,
           "model.safetensors: a pointer of git-lfs, not the file itself");
    assert_int_equal(tr_safetensors_open(dir, &st, &err), TR_ERR_FORMAT);
    assert_non_null(strstr(err.text, "run `git lfs pull`"));
    write_file("model.safetensors", NULL, 0);
    write_file("tokenizer.json", LFS, sizeof(LFS) - 1);
    expect(dir, false, TR_ERR_FORMAT, "tokenizer.json: a pointer of git-lfs");
    write_file("tokenizer.json", NULL, 0);
}

/* A tensor of a dtype that we do not read stops nobody who does not need it. */
static void
test_other_dtype(void **state)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],"
                                 "\"data_offsets\":[0,8]},"
                                 "\"b\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],"
                                 "\"data_offsets\":[8,10]}}";
    uint64_t length = sizeof(header) - 1;
    char file[8 + sizeof(header) - 1 + 10] = { 0 };
    tr_model_tensor_t tensor = { .part = TR_PART_MATRICES, .rows = 2 };
    const tr_tensor_t *found = NULL;
    tr_safetensors_t *st = NULL;
    tr_error_t err = { 0 };

    (void) state;
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    write_file("model.safetensors", file, sizeof(file));
    assert_int_equal(tr_safetensors_open(dir, &st, &err), TR_OK);
    assert_int_equal(tr_safetensors_count(st), 2);
    snprintf(tensor.name, sizeof(tensor.name), "a");
    assert_int_equal(tr_model_tensor_find(st, &tensor, &found, &err), TR_OK);
    snprintf(tensor.name, sizeof(tensor.name), "b");
    assert_int_equal(tr_model_tensor_find(st, &tensor, &found, &err),
                     TR_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "model.safetensors: tensor \"b\" has dtype "
                                  "\"F8_E4M3\", expected F32, F16 or BF16");
    tr_safetensors_close(st);
    write_file("model.safetensors", NULL, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_directory),
        cmocka_unit_test(test_other_weights),
        cmocka_unit_test(test_pointers),
        cmocka_unit_test(test_other_dtype),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
