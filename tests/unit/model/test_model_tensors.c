/*
 * A model's files against its configuration: names behind another word, as models
 * for text and more have them, and tensors that nobody reads.  The files are
 * those of tests/models/llama with another header.
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

#include "engine/model/model_config.h"
#include "engine/model/model_tensors.h"

#define MODEL "tests/models/llama"

static char dir[64], file[128];
static char *bytes; /* of model.safetensors */
static uint64_t size, header;

static int
set_up(void **state)
{
    FILE *f = fopen(MODEL "/model.safetensors", "rb");

    (void) state;
    snprintf(dir, sizeof(dir), "/tmp/tr-tensors-XXXXXX");
    if (mkdtemp(dir) == NULL || f == NULL || fseek(f, 0, SEEK_END) != 0) {
        return -1;
    }
    snprintf(file, sizeof(file), "%s/model.safetensors", dir);
    size = (uint64_t) ftell(f);
    rewind(f);
    bytes = malloc(size);
    if (bytes == NULL || fread(bytes, 1, size, f) != size) {
        return -1;
    }
    fclose(f);
    memcpy(&header, bytes, 8);
    return 0;
}

static int
tear_down(void **state)
{
    (void) state;
    free(bytes);
    unlink(file);
    return rmdir(dir);
}

static json_t *
read_header(void)
{
    json_t *h = json_loadb(bytes + 8, header, 0, NULL);

    assert_non_null(h);
    return h;
}

/* The same data behind another header, which it consumes. */
static void
write_model(json_t *h)
{
    char *text = json_dumps(h, JSON_COMPACT);
    uint64_t len = strlen(text);
    FILE *f = fopen(file, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(&len, 1, 8, f), 8);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fwrite(bytes + 8 + header, 1, size - 8 - header, f),
                     size - 8 - header);
    fclose(f);
    free(text);
    json_decref(h);
}

static tr_status_t
open_model(tr_error_t *err)
{
    tr_model_config_t c;
    tr_safetensors_t *st = NULL;
    tr_weights_cost_t cost;
    tr_status_t rc = tr_model_config_load(MODEL, NULL, &c, err);

    assert_int_equal(rc, TR_OK);
    rc = tr_model_tensors_open(&c, dir, &st, err);
    assert_true((rc == TR_OK) == (st != NULL));
    if (rc == TR_OK) {
        tr_model_tensors_cost(&c, st, &cost);
        assert_string_equal(cost.format, "BF16");
        assert_true(cost.file_bytes > 0
                    && cost.file_bytes <= size - 8 - header);
    }
    tr_safetensors_close(st);
    return rc;
}

static void
accepted(json_t *h)
{
    tr_error_t err = { 0 };

    write_model(h);
    if (open_model(&err) != TR_OK) {
        fail_msg("%s", err.text);
    }
}

static void
refused(json_t *h, const char *param, const char *words)
{
    tr_error_t err = { 0 };

    write_model(h);
    assert_true(open_model(&err) != TR_OK);
    if (strcmp(err.param, param) != 0 || strstr(err.text, words) == NULL) {
        fail_msg("\"%s\" %s, expected \"%s\" %s", err.param, err.text, param,
                 words);
    }
}

/* `word` in front of each name, or behind a first "model.". */
static json_t *
renamed(const char *word, bool behind)
{
    json_t *h = read_header(), *out = json_object(), *v;
    const char *name;

    json_object_foreach (h, name, v) {
        char text[256];

        if (behind && strncmp(name, "model.", 6) == 0) {
            snprintf(text, sizeof(text), "model.%s.%s", word, name + 6);
        } else if (!behind && strcmp(name, "__metadata__") != 0) {
            snprintf(text, sizeof(text), "%s.%s", word, name);
        } else {
            snprintf(text, sizeof(text), "%s", name);
        }
        json_object_set(out, text, v);
    }
    json_decref(h);
    return out;
}

static void
test_names(void **state)
{
    (void) state;
    accepted(read_header());
    accepted(renamed("language_model", false));
    accepted(renamed("language_model", true));
    refused(renamed("transformer", false), "model.embed_tokens.weight",
            "tensor \"model.embed_tokens.weight\" is missing");
}

/* A tensor of no bytes besides those of the model. */
static json_t *
with(const char *name, const char *dtype)
{
    json_t *h = read_header();

    json_object_set_new(h, name,
                        json_pack("{s:s,s:[i],s:[I,I]}", "dtype", dtype,
                                  "shape", 0, "data_offsets", (json_int_t) 0,
                                  (json_int_t) 0));
    return h;
}

static void
test_left_over(void **state)
{
    static const char *const fine[] = {
        "vision_tower.layers.0.weight",
        "model.visual.merger.weight",
        "multi_modal_projector.linear_1.weight",
        "mtp.fc.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.4.mlp.experts.0.up_proj.weight", /* there are four */
    };

    (void) state;
    for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++) {
        accepted(with(fine[i], "BF16"));
    }
    accepted(with("model.layers.0.self_attn.mask", "BOOL"));
    accepted(with("model.position_ids", "I64"));
    refused(with("model.layers.3.self_attn.q_norm.weight", "BF16"),
            "model.layers.3.self_attn.q_norm.weight",
            "model.safetensors: tensor "
            "\"model.layers.3.self_attn.q_norm.weight\" "
            "is not used: llama has no such part");
    refused(with("model.layers.0.mlp.experts.0.up_proj.weight", "BF16"),
            "model.layers.0.mlp.experts.0.up_proj.weight", "is not used");
    refused(with("model.layers.0.mlp.up_proj.weight_scale", "F32"),
            "model.layers.0.mlp.up_proj.weight_scale", "is not used");
    refused(with("model.layers.0.mlp.up_proj.qweight", "I32"),
            "model.layers.0.mlp.up_proj.qweight", "is not used");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_left_over),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
