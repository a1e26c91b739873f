/*
 * Weights of 16 bits that stay in their file (engine/model/cpu/model_weights.c):
 * every family and models/pocket answer with the bits that they have when all
 * weights are copied; what does not fit is copied; and a file that is made shorter
 * under the model's feet is named, before it is loaded and after.
 */
#include "tests/unit/fixtures/golden_fixture.h"
#include "tests/unit/fixtures/model_fixture.h"

#include <signal.h>
#include <sys/wait.h>

#include "engine/base/crash.h"
#include "engine/base/mapped_file.h"
#include "engine/config/log.h"
#include "include/tokenring/channel_inline.h"
#include "engine/model/safetensors.h"
#include "kernels/kernels.h"

#define POCKET "models/pocket"

static char dir[64]; /* of a model that is cut */

static tr_model_options_t
options_of(const char *from, const char *isa, bool mapped)
{
    return (tr_model_options_t){ .dir = from,
                                 .load_format = "auto",
                                 .mapped = mapped,
                                 .equalise = true,
                                 .kernels = tr_kernels_cpu(isa),
                                 .threads = 2 };
}

/* The logits of a prompt's last row, then of a token behind it; returns the bytes
 * that are mapped. */
static uint64_t
answer(const char *from, const char *isa, bool mapped, const int32_t *ids,
       uint32_t n, float *logits)
{
    uint64_t bytes;
    uint32_t vocab;
    int32_t slot;
    fixture_t f;

    fixture_open_options(&f, options_of(from, isa, mapped), GOLDEN_LEN);
    vocab = f.model->config.recipe.vocab;
    bytes = f.model->mapped;
    slot = tr_kv_open(f.kv, NULL);
    fixture_step(&f, &(fixture_item_t){ slot, 0, n - 1, ids }, 1, logits);
    fixture_step(&f, &(fixture_item_t){ slot, n - 1, 1, ids + n - 1 }, 1,
                 logits + vocab);
    assert_true((f.model->files != NULL) == (bytes != 0));
    fixture_close(&f);
    return bytes;
}

static uint32_t mapped_models;

static bool
one_model(const char *name)
{
    static const char *const isas[] = { "c", "avx2", "avx512" };
    static float copied[2 * GOLDEN_VOCAB], mapped[2 * GOLDEN_VOCAB];
    golden_t prompts[GOLDEN_PROMPTS];
    char from[300];
    json_t *root;

    snprintf(from, sizeof(from), MODELS "/%s", name);
    root = golden_load(from, prompts);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        const golden_t *p = &prompts[0]; /* shorter than any table's */

        if (tr_kernels_cpu(isas[i]) == NULL) {
            continue;
        }
        assert_int_equal(answer(from, isas[i], false, p->ids, p->n, copied), 0);
        mapped_models += answer(from, isas[i], true, p->ids, p->n, mapped) != 0;
        if (memcmp(copied, mapped, sizeof(copied)) != 0) {
            fail_msg("%s, %s: other bits where weights are mapped", name,
                     isas[i]);
        }
    }
    json_decref(root);
    return true;
}

static void
test_families(void **state)
{
    (void) state;
    golden_models(one_model, 10);
    assert_true(mapped_models >= 10);
}

/* Nearly all of a model whose sides are those of real ones. */
static void
test_pocket(void **state)
{
    int32_t ids[20];
    float *copied, *mapped;
    tr_model_config_t c;
    tr_error_t err;
    uint64_t bytes;

    (void) state;
    assert_int_equal(tr_model_config_load(POCKET, NULL, &c, &err), TR_OK);
    copied = malloc(2 * c.recipe.vocab * sizeof(float));
    mapped = malloc(2 * c.recipe.vocab * sizeof(float));
    for (uint32_t i = 0; i < 20; i++) {
        ids[i] = (int32_t) (i * 37);
    }
    answer(POCKET, NULL, false, ids, 20, copied);
    bytes = answer(POCKET, NULL, true, ids, 20, mapped);
    assert_memory_equal(copied, mapped, 2 * c.recipe.vocab * sizeof(float));
    if (bytes < tr_recipe_parameters(&c.recipe) * 2 * 9 / 10) {
        fail_msg("%llu bytes are mapped of %llu parameters",
                 (unsigned long long) bytes,
                 (unsigned long long) tr_recipe_parameters(&c.recipe));
    }
    free(copied);
    free(mapped);
}

/* ---- cut files ------------------------------------------------------------- */

static void
copy_file(const char *name)
{
    char from[200], to[200], block[4096];
    FILE *in, *out;
    size_t n;

    snprintf(from, sizeof(from), MODELS "/llama/%s", name);
    snprintf(to, sizeof(to), "%s/%s", dir, name);
    in = fopen(from, "r");
    out = fopen(to, "w");
    assert_true(in != NULL && out != NULL);
    while ((n = fread(block, 1, sizeof(block), in)) > 0) {
        assert_int_equal(fwrite(block, 1, n, out), n);
    }
    fclose(in);
    fclose(out);
}

static int
make_dir(void **state)
{
    (void) state;
    snprintf(dir, sizeof(dir), "/tmp/tr-mapped-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int
remove_dir(void **state)
{
    static const char *const names[] = { "config.json", "model.safetensors",
                                         "log" };
    char path[100];

    (void) state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        unlink(path);
    }
    return rmdir(dir);
}

static void
cut(void)
{
    char path[100];

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(truncate(path, 4096), 0);
}

/* Between opening and loading. */
static void
test_cut_before(void **state)
{
    const tr_tensor_t *t;
    tr_safetensors_t *st;
    tr_error_t err = { 0 };

    (void) state;
    copy_file("config.json");
    copy_file("model.safetensors");
    assert_int_equal(tr_safetensors_open(dir, &st, &err), TR_OK);
    t = tr_safetensors_find(st, "model.embed_tokens.weight");
    assert_non_null(t);
    assert_int_equal(tr_safetensors_keep(t, &err), TR_OK);
    assert_non_null(tr_mapped_file_at(t->data));
    assert_string_equal(tr_mapped_file_at(t->data)->name, "model.safetensors");
    assert_null(tr_mapped_file_at(&st));
    cut();
    assert_int_equal(tr_safetensors_keep(t, &err), TR_ERR_IO);
    assert_non_null(strstr(err.text, "model.embed_tokens.weight\" cannot be "
                                     "read: the file is shorter than it was"));
    tr_safetensors_close(st);
    assert_null(tr_mapped_file_at(t));
}

static void
step_on_cut_file(tr_status_page_t *page)
{
    static float logits[GOLDEN_VOCAB];
    static const int32_t ids[3] = { 3, 1, 4 };
    char log[100];
    fixture_t f;

    snprintf(log, sizeof(log), "%s/log", dir);
    tr_log_open(log, TR_LEVEL_ERROR);
    signal(SIGBUS, SIG_DFL); /* in place of cmocka's */
    tr_crash_tell(&page->counters.crashed);
    fixture_open_options(&f, options_of(dir, NULL, true), GOLDEN_LEN);
    cut();
    fixture_step(&f, &(fixture_item_t){ tr_kv_open(f.kv, NULL), 0, 3, ids }, 1,
                 logits);
    _exit(0);
}

/* While it is used: the process ends, the log says by what, and nobody's request
 * is blamed. */
static void
test_cut_after(void **state)
{
    tr_status_page_t *page;
    char path[100], line[500] = "";
    int fd, status;
    pid_t child;
    FILE *f;

    (void) state;
    copy_file("config.json");
    copy_file("model.safetensors");
    assert_int_equal(tr_status_create(1, &page, &fd), TR_OK);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        step_on_cut_file(page);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    assert_int_equal(atomic_load(&page->counters.crashed), 0);
    snprintf(path, sizeof(path), "%s/log", dir);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    fclose(f);
    assert_non_null(strstr(line, " error weights lost file=model.safetensors "
                                 "why=\"it was made shorter"));
    close(fd);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_pocket),
        cmocka_unit_test(test_cut_before),
        cmocka_unit_test(test_cut_after),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
