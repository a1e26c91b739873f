/*
 * What can fail on a GPU, over the software device (tests/soft), each in a
 * process of its own: every allocation once, a refused launch, a kernel's
 * fault, a device that goes away.  Opening then fails with a message; a batch
 * fails, and either the next is right, or the executor says once that all is
 * lost and refuses everything.  Nothing hangs, and what is freed is freed once.
 */
#include "tests/unit/fixtures/executor_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/fixtures/device_library.h"
#include "engine/config/log.h"

#define POCKET "models/pocket"
#define SEQS 4u
#define TEXT 512u
#define VOCAB_MOST 4096u

typedef enum {
    WENT_WELL,
    NOT_OPENED, /* with a message */
    RECOVERED,  /* a batch failed, the next ones were right */
    LOST,       /* and said so */
    BROKEN      /* anything else */
} outcome_t;

typedef struct {
    outcome_t outcome;
    char text[TEXT];
} report_t;

static void
count_lost(void *arg, const char *why)
{
    (void) why;
    ++*(int *) arg;
}

static void
say(report_t *r, outcome_t outcome, const char *text)
{
    r->outcome = outcome;
    snprintf(r->text, sizeof(r->text), "%s", text);
}

/* One prompt and five tokens, every second with a mask that comes late and lets
 * all come.  TR_OK, or how a batch failed. */
static tr_status_t
generate(tr_executor_t *e, int32_t out[5])
{
    static const int32_t prompt[] = { 0,  2, 3213, 3,    872, 3013,
                                      11, 4, 2,    3217, 3,   872 };
    static uint32_t all[VOCAB_MOST / 32];
    tr_sampling_params_t params = gen_greedy();
    tr_sampler_t sampler;
    tr_sampled_t sampled;
    int32_t slot = tr_kv_open(e->kv, NULL);
    tr_status_t rc = TR_OK;

    assert_true(e->vocab <= VOCAB_MOST);
    memset(all, 0xff, sizeof(all));
    tr_sampler_init(&sampler, &params, 1, e->vocab, NULL, NULL, 0, prompt, 12);
    tr_kv_prompt(e->kv, slot, 12);
    for (uint32_t i = 0; i < 5 && rc == TR_OK; i++) {
        tr_batch_item_t item = { .kv_slot = slot,
                                 .pos = i == 0 ? 0 : 11 + i,
                                 .n = i == 0 ? 12 : 1,
                                 .tokens = i == 0 ? prompt : &out[i - 1],
                                 .sample = true,
                                 .sampler = &sampler,
                                 .number = i,
                                 .late = i % 2 != 0,
                                 .mask = i % 2 != 0 ? all : NULL,
                                 .out = &sampled };
        tr_batch_t batch = { &item, 1, item.n };

        tr_kv_reserve(e->kv, slot, item.pos + item.n);
        rc = tr_executor_run(e, &batch);
        rc = rc == TR_OK ? item.status : rc;
        out[i] = sampled.token;
    }
    tr_kv_close(e->kv, slot);
    return rc;
}

static void
child(const char *fail, report_t *r)
{
    tr_executor_t *e = NULL;
    tr_config_t c;
    tr_error_t err = { .text = "" };
    int32_t good[5] = { 3013, 0, 0, 0, 0 }, out[5];
    int lost = 0, failures = 0;

    setenv("TOKENRING_SOFT_FAIL", fail, 1);
    setenv("TOKENRING_SOFT_SEED", "0", 1);
    tr_log_open("/dev/null", TR_LEVEL_ERROR);
    tr_config_defaults(&c);
    snprintf(c.model, sizeof(c.model), "%s", POCKET);
    snprintf(c.backend, sizeof(c.backend), "cuda");
    snprintf(c.cuda_library, sizeof(c.cuda_library), "%s", soft_library());
    snprintf(c.kv_policy, sizeof(c.kv_policy),
             "diffkv:alpha_high=1,alpha_low=0.02");
    c.max_num_seqs = SEQS;
    c.max_batch_tokens = 32;
    c.max_model_len = 64;
    c.kv_memory = 16u << 20;
    tr_config_finish(&c, &err);
    c.swap_memory = 1u << 20;
    if (tr_executor_cuda_open(&c, &e, &err) != TR_OK) {
        say(r, e == NULL && err.text[0] != '\0' ? NOT_OPENED : BROKEN,
            err.text);
        return;
    }
    e->lost = count_lost;
    e->lost_arg = &lost;
    for (int i = 0; i < 12; i++) {
        bool gone = lost != 0;
        tr_status_t rc = generate(e, out);

        if (rc != TR_OK) {
            failures++;
            if (gone && rc != TR_ERR_LOST) {
                say(r, BROKEN, "a lost device fails as another error");
                return;
            }
        } else if (lost != 0 || out[0] != good[0]
                   || (good[1] != 0 && memcmp(out, good, sizeof(out)) != 0)) {
            say(r, BROKEN, "wrong tokens after a failure");
            return;
        } else {
            memcpy(good, out, sizeof(out));
        }
    }
    say(r,
        lost > 1 || (lost == 0 && failures > 1) ? BROKEN
        : lost == 1                             ? LOST
        : failures == 1                         ? RECOVERED
                                                : WENT_WELL,
        failures != 0 ? "batches failed" : "");
    e->free(e);
}

/* Runs it in a process of its own. */
static report_t
with_failure(const char *what, uint32_t n)
{
    report_t r = { BROKEN, "the process ended" };
    char fail[64];
    int fd[2], status;
    pid_t pid;

    snprintf(fail, sizeof(fail), "%s:%u", what, n);
    assert_int_equal(pipe(fd), 0);
    fflush(stdout);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        child(fail, &r);
        _exit(write(fd[1], &r, sizeof(r)) == (ssize_t) sizeof(r) ? 0 : 1);
    }
    close(fd[1]);
    if (read(fd[0], &r, sizeof(r)) != (ssize_t) sizeof(r)) {
        r = (report_t){ BROKEN, "the process ended" };
    }
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (r.outcome == BROKEN || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fail_msg("%s: %s (status %d)", fail, r.text, status);
    }
    return r;
}

/* The N-th allocation fails, for all N that opening has. */
static void
test_memory(void **state)
{
    static const char *const kinds[] = { "alloc", "pin" };

    (void) state;
    for (int k = 0; k < 2; k++) {
        uint32_t n = 1;

        for (;; n++) {
            report_t r = with_failure(kinds[k], n);

            if (r.outcome == WENT_WELL) {
                break;
            }
            assert_int_equal(r.outcome, NOT_OPENED);
            if (strstr(r.text, "memory") == NULL) {
                fail_msg("%s:%u: \"%s\" does not speak of memory", kinds[k], n,
                         r.text);
            }
        }
        print_message("%u places where %s can fail\n", n - 1, kinds[k]);
        assert_true(n > 3);
    }
}

static void
test_faults(void **state)
{
    static const char *const kinds[] = { "launch", "kernel", "lost" };
    uint64_t rng = rng_seed();
    uint32_t count[BROKEN + 1] = { 0 };

    (void) state;
    for (int i = 0; i < 30; i++) {
        const char *kind = kinds[i % 3];
        uint32_t n = 1 + rng_below(&rng, i < 15 ? 2000 : 20000);
        report_t r = with_failure(kind, n);

        count[r.outcome]++;
        /* after a fault nothing runs any more */
        assert_true(strcmp(kind, "launch") == 0 || r.outcome != RECOVERED);
    }
    print_message("%u went well, %u not opened, %u recovered, %u lost\n",
                  count[WENT_WELL], count[NOT_OPENED], count[RECOVERED],
                  count[LOST]);
    assert_true(count[LOST] > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_faults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
