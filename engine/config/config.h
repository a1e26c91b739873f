/*
 * The engine's settings: a file in the manner of redis.conf (`key value`, one a
 * line, # comments), each key also as --key value; what comes later wins.
 * One table in config.c declares every setting: name, type, bounds, default,
 * and the sentence that --help prints.  Sizes take k, m, g (powers of 1024),
 * durations ms, s, m.  An unknown key or a bad value is an error that names
 * file, line, value and what was expected; so is a key that stands twice in a
 * file.
 *
 * Below, comments say what a value means here; defaults are in the table, and
 * docs/engine.md says what a setting is for.
 */
#ifndef TR_CONFIG_H
#define TR_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tokenring/error.h>

#define TR_CONFIG_PATH 512
#define TR_CONFIG_UIDS 32
#define TR_CONFIG_SETTINGS 128 /* at most */

/* Where the value of a setting was read; file NULL: not in a file. */
typedef struct {
    const char *file; /* borrowed */
    unsigned line;
} tr_config_place_t;

typedef struct {
    char name[128];              /* of the engine, in logs and metrics */
    char model[TR_CONFIG_PATH];  /* Hugging Face directory */
    char served_model_name[128]; /* "" until finish: from model, or the first */
    char served_names[128];  /* by finish: all, each ended by a NUL, to an empty
                             * one */
    char load_format[16];    /* auto | copy | dummy */
    char backend[16];        /* cpu | cuda | null */
    char ignore_config[512]; /* keys of config.json to ignore */
    char generation_config[16];  /* vllm | openai */
    char chat_template[32];      /* auto | llama3 | chatml | ... */
    char effort_budgets[256];    /* as EFFORT=TOKENS, separated by blanks */
    char reasoning_end[1024];    /* tr_dialect_end_thoughts; empty: the mark */
    char tool_dialect[32];       /* auto | hermes | ... | none (dialect.h) */
    char embedding_pooling[8];   /* auto | last | mean | none (embedding.h) */
    char socket[TR_CONFIG_PATH]; /* Unix socket path */
    uint32_t socket_mode;        /* permission bits of socket */
    uint32_t allow_uids[TR_CONFIG_UIDS]; /* empty: all that can connect */
    uint32_t n_allow_uids;

    char cuda_library[TR_CONFIG_PATH]; /* "": beside the engine */
    uint32_t device;                   /* ordinal of the GPU */
    double gpu_memory_utilization;     /* share of its memory that we may use */
    uint64_t gpu_memory_wait_us;       /* for what a killed one still holds */
    uint64_t gpu_left; /* no setting: bytes that a killed engine had of it */
    char dtype[8];     /* auto | bf16 | f16 */
    bool cuda_fused_products; /* small_gemm may be used */
    char weights_format[8];   /* auto | expand */
    char cpu_weights[8];      /* auto | int8 | int4 */
    char cuda_activations[8]; /* auto | 16 | 8 */
    bool cuda_trial;          /* kernels without tests on a GPU may be used */

    uint32_t threads;           /* compute threads, 0: all cores */
    uint32_t tokenizer_threads; /* request parsers */
    uint32_t grammar_threads;   /* compilers of grammars */
    uint64_t kv_memory;         /* bytes of the page pool; 0: by
                                 * gpu_memory_utilization */
    char kv_policy[256];        /* a policy (kv_policy.h), default full */
    char kv_policies[1024];     /* those that requests may choose besides */
    bool kv_request_alpha;      /* requests may set thresholds */
    char kv_reuse[8];           /* auto | yes | no */
    uint64_t cache_ttl_us;      /* of a prefix, after its last use; 0: none */
    uint64_t cache_memory;      /* pinned host memory with prefixes; 0: none */
    char cache_dir[TR_CONFIG_PATH]; /* of files with prefixes; "": none */
    uint64_t cache_disk;            /* bytes of these, at most */
    char kv_guard[16];              /* auto | off | a number of prompts */
    uint32_t kv_guard_every;    /* finish: of these one is compared; 0: none */
    bool kv_measures;           /* no setting: an engine that is opened to
                                 * measure policies (executor_cuda_choose.c) */
    char kv_centre[8];          /* auto | off */
    char kv_rotate[8];          /* auto | off | k | v | kv */
    bool kv_equalise;           /* outlier channels, at load; default yes */
    double prefill_kv_fraction; /* of the pool, for prompts */
    char prefill_level[8];      /* at which they stand: tr_kv_policy_prefill */
    uint32_t prefill_stage;     /* no setting: tests have shorter stages; 0:
                                 * TR_KV_STAGE */
    uint64_t swap_memory;       /* bytes for preempted sequences */
    uint64_t swap_piece;        /* no setting: tests move fewer bytes before a
                                 * batch; 0: TR_KV_PIECE */
    bool swap_recompute;        /* they come back by rows (kv_inputs.h) */
    uint32_t max_model_len;     /* 0: the model's */
    uint32_t max_num_seqs;      /* sequences that run at once */
    uint32_t max_batch_tokens;  /* tokens of one step */
    char scheduling[8];         /* fair | fifo */
    char replay[8];             /* prefill | decode */
    uint32_t max_choices;       /* n * prompts of a request */
    uint32_t max_queue;         /* requests that may wait */
    uint64_t max_body;          /* bytes of one request body */
    uint32_t channel_ring;      /* most bytes of a ring, a power of two */
    uint64_t channel_stall_timeout_us; /* a worker that takes no answers */
    uint64_t paused_timeout_us;        /* a request whose client is slow */
    uint64_t drain_timeout_us;         /* after SIGTERM */
    uint64_t exit_idle_us;             /* without a connection; 0: never */

    char redis[TR_CONFIG_PATH]; /* unix:PATH, HOST, HOST:PORT, or "" */
    char redis_user[128];       /* "": the default user */
    char redis_password[512];   /* "": none; finish reads the file */
    char redis_password_file[TR_CONFIG_PATH];
    uint32_t redis_db;     /* number of the database */
    char redis_prefix[64]; /* of all keys */
    bool redis_tls;
    char redis_tls_ca[TR_CONFIG_PATH]; /* "": the system's */
    char redis_tls_cert[TR_CONFIG_PATH], redis_tls_key[TR_CONFIG_PATH];
    char redis_tls_name[256]; /* of its certificate, "": the host */
    bool redis_tls_verify;
    uint64_t redis_request_ttl_us;  /* a state, after its last change */
    uint64_t redis_output_ttl_us;   /* output, after its last change */
    bool redis_responses;           /* responses are kept, and their input */
    uint64_t redis_response_ttl_us; /* after their last use */
    uint32_t redis_recent;          /* length of the list of requests */
    uint32_t redis_samples;         /* samples of metrics, one a second */
    uint64_t redis_buffer;          /* bytes that may wait for Redis */
    uint64_t redis_flush_us;        /* between two pipelines */
    uint64_t redis_timeout_us;      /* for a reply */

    double null_rate;                 /* backend null: tokens/s of a stream */
    bool null_stagger;                /* spread streams over the interval */
    char null_script[TR_CONFIG_PATH]; /* answers (null_script.h), or "" */
    char null_trace[TR_CONFIG_PATH];  /* emission times (null_trace.h), or "" */
    uint64_t dummy_seed;              /* load_format dummy */

    char log[TR_CONFIG_PATH]; /* file, or "stderr" */
    int log_level;            /* enum tr_log_level */
    char pid[TR_CONFIG_PATH]; /* "": none is written */
    bool core_dumps;          /* and debuggers of the same user */

    tr_config_place_t place[TR_CONFIG_SETTINGS]; /* by row; the last member */
} tr_config_t;

void tr_config_defaults(tr_config_t *c);
/* path is borrowed as long as c is used, for messages. */
tr_status_t tr_config_file(tr_config_t *c, const char *path, tr_error_t *err);
/* One setting; `where` prefixes the error ("engine.conf:12", "--threads"). */
tr_status_t tr_config_set(tr_config_t *c, const char *where, const char *key,
                          const char *value, tr_error_t *err);
/* An error that is found later, by tr_config_finish or while the engine starts,
 * names a setting as its param: puts before it the file and line that set it. */
void tr_config_locate(const tr_config_t *c, tr_error_t *err);
/* Cross-checks and derived defaults, after all was read. */
tr_status_t tr_config_finish(tr_config_t *c, tr_error_t *err);

/* The number of tokens that `budgets` (effort_budgets, or NULL) gives an effort;
 * -1: it has no such effort. */
int64_t tr_config_effort_budget(const char *budgets, const char *effort);
/* Prints the table of settings with defaults and one sentence each. */
void tr_config_help(void);
/* The same as entries of a manual page. */
void tr_config_man(FILE *f);

#endif
