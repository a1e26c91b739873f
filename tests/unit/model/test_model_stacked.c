/*
 * Experts in one tensor: the tiny model with experts, whose file has a tensor for
 * each, is written again with those of some layers in one.  It opens as the same
 * model, bit by bit; another shape or type is refused with the tensor's name.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/config/log.h"
#include "engine/model/model_config.h"
#include "engine/model/model_tensors.h"

#define MODEL "tests/models/qwen3_moe"

static char dir[64], file[128];
static tr_model_config_t config;
static tr_safetensors_t *plain;

static int
set_up(void **state)
{
    tr_error_t err;

    (void) state;
    snprintf(dir, sizeof(dir), "/tmp/tr-stacked-XXXXXX");
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    snprintf(file, sizeof(file), "%s/model.safetensors", dir);
    return tr_model_config_load(MODEL, NULL, &config, &err) != TR_OK
           || tr_model_tensors_open(&config, MODEL, &plain, &err) != TR_OK;
}

static int
tear_down(void **state)
{
    (void) state;
    tr_safetensors_close(plain);
    unlink(file);
    return rmdir(dir);
}

/* A file that is being written: its header, and its data. */
typedef struct {
    json_t *header;
    FILE *data;
    uint64_t at;
} writer_t;

static void
put_header(writer_t *w, const char *name, const char *dtype, uint32_t n_dims,
           const uint64_t *dims, uint64_t bytes)
{
    json_t *shape = json_array();

    for (uint32_t i = 0; i < n_dims; i++) {
        json_array_append_new(shape, json_integer((json_int_t) dims[i]));
    }
    json_object_set_new(w->header, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype,
                                  "shape", shape, "data_offsets",
                                  (json_int_t) w->at,
                                  (json_int_t) (w->at + bytes)));
    w->at += bytes;
}

static void
put_data(writer_t *w, const tr_tensor_t *t)
{
    assert_int_equal(fwrite(t->data, 1, t->size, w->data), t->size);
}

static const tr_tensor_t *
expert(uint32_t layer, uint32_t e, const char *part)
{
    char name[128];
    const tr_tensor_t *t;

    snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.%s.weight",
             layer, e, part);
    t = tr_safetensors_find(plain, name);
    assert_non_null(t);
    return t;
}

/* The experts of a layer; dims, type: as the header is to have them of the first
 * tensor, or NULL. */
static void
put_stacked(writer_t *w, uint32_t layer, const uint64_t *dims, const char *type)
{
    const uint32_t n = config.recipe.moe.route.experts;
    const uint64_t f = config.recipe.moe.width, h = config.recipe.hidden;
    const uint64_t gate_up[3] = { n, 2 * f, h }, down[3] = { n, h, f };
    char name[128];

    snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.gate_up_proj",
             layer);
    put_header(w, name, type != NULL ? type : "BF16", 3,
               dims != NULL ? dims : gate_up, n * 2 * f * h * 2);
    for (uint32_t e = 0; e < n; e++) {
        put_data(w, expert(layer, e, "gate_proj"));
        put_data(w, expert(layer, e, "up_proj"));
    }
    snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.down_proj",
             layer);
    put_header(w, name, "BF16", 3, down, n * h * f * 2);
    for (uint32_t e = 0; e < n; e++) {
        put_data(w, expert(layer, e, "down_proj"));
    }
}

/* Layers of `layers` (bits) have theirs in one. */
static void
write_stacked(uint32_t layers, const uint64_t *dims, const char *type)
{
    char *data = NULL, *header;
    size_t size = 0;
    writer_t w = { json_object(), open_memstream(&data, &size), 0 };
    uint64_t len;
    FILE *f;

    for (uint32_t i = 0; i < tr_safetensors_count(plain); i++) {
        const tr_tensor_t *t = tr_safetensors_at(plain, i);
        uint32_t layer = 0;
        bool in_expert = strstr(t->name, ".experts.") != NULL
                         && sscanf(t->name, "model.layers.%u.", &layer) == 1;

        if (!in_expert || !(layers >> layer & 1)) {
            put_header(&w, t->name, t->dtype == TR_F32 ? "F32" : "BF16",
                       t->n_dims, t->dims, t->size);
            put_data(&w, t);
        }
    }
    for (uint32_t l = 0; l < config.recipe.layers; l++) {
        if (layers >> l & 1) {
            put_stacked(&w, l, dims, type);
        }
    }
    fclose(w.data);
    header = json_dumps(w.header, JSON_COMPACT);
    len = strlen(header);
    f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&len, 1, 8, f), 8);
    assert_int_equal(fwrite(header, 1, len, f), len);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
    json_decref(w.header);
    free(header);
    free(data);
}

/* Layers that have experts. */
static uint32_t
sparse(void)
{
    uint32_t bits = 0;

    for (uint32_t l = 0; l < config.recipe.layers; l++) {
        bits |= config.recipe.layer[l].experts ? 1u << l : 0;
    }
    return bits;
}

static void
test_same_weights(void **state)
{
    const uint32_t all = sparse(), kinds[] = { all, all & (all - 1) };

    (void) state;
    assert_int_not_equal(all, 0);
    assert_int_not_equal(kinds[1], 0); /* both kinds in one file */
    for (size_t i = 0; i < 2; i++) {
        tr_safetensors_t *st;
        tr_model_tensor_t t;
        uint32_t at = 0;
        tr_error_t err;

        write_stacked(kinds[i], NULL, NULL);
        if (tr_model_tensors_open(&config, dir, &st, &err) != TR_OK) {
            fail_msg("%s", err.text);
        }
        while (tr_model_tensor_next(&config, &at, &t)) {
            const tr_tensor_t *want = tr_model_tensor_named(plain, t.name);
            const tr_tensor_t *got = tr_model_tensor_named(st, t.name);

            assert_non_null(got);
            assert_int_equal(got->n_dims, want->n_dims);
            assert_int_equal(got->size, want->size);
            if (memcmp(got->data, want->data, want->size) != 0) {
                fail_msg("%s", t.name);
            }
        }
        tr_safetensors_close(st);
    }
}

static void
refused(const uint64_t *dims, const char *type, tr_status_t status,
        const char *said)
{
    tr_safetensors_t *st;
    tr_error_t err;

    write_stacked(sparse(), dims, type);
    assert_int_equal(tr_model_tensors_open(&config, dir, &st, &err), status);
    if (strstr(err.text, "experts.gate_up_proj") == NULL
        || strstr(err.text, said) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, said);
    }
}

static void
test_refused(void **state)
{
    const uint64_t n = config.recipe.moe.route.experts;
    const uint64_t f = config.recipe.moe.width, h = config.recipe.hidden;
    const uint64_t swapped[3] = { n, h, 2 * f }, halves[3] = { 2 * n, f, h };

    (void) state;
    refused(swapped, NULL, TR_ERR_FORMAT, "config.json says [8, 32, 64]");
    refused(halves, NULL, TR_ERR_FORMAT, "[16, 16, 64]");
    refused(NULL, "I16", TR_ERR_UNSUPPORTED, "dtype \"I16\"");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_weights),
        cmocka_unit_test(test_refused),
    };

    tr_log_open("stderr", TR_LEVEL_WARN);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
