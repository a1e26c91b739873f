/*
 * The settings (config.h).  The table below declares each of them once: name,
 * type, bounds, default, and the sentence that --help prints.  The file parser,
 * the command line and the help all walk this table; to add a setting, add a
 * field to tr_config_t and a row here.  Defaults are written as a user would
 * write them and go through the same parser.
 */
#include "config.h"

#include "config_internal.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tokenring/ring.h>

#include "help_text.h"
#include "log.h"
#include "troff.h"

typedef enum {
    KIND_TEXT,     /* char[] */
    KIND_CHOICE,   /* char[], one of `choices` */
    KIND_NUMBER,   /* uint32_t */
    KIND_SIZE,     /* uint64_t bytes, k m g t; with choices: or the name of
                    * another size, TR_CONFIG_AS_OTHER at first */
    KIND_POWER,    /* uint32_t bytes, a power of two */
    KIND_DURATION, /* uint64_t microseconds */
    KIND_MODE,     /* uint32_t, octal */
    KIND_BOOL,     /* bool, yes or no */
    KIND_RATE,     /* double */
    KIND_SHARE,    /* double, above 0, at most 1 */
    KIND_SEED,     /* uint64_t */
    KIND_UIDS,     /* uint32_t[TR_CONFIG_UIDS] with its count */
    KIND_LEVEL     /* int, enum tr_log_level */
} setting_kind_t;

typedef struct {
    const char *key;
    setting_kind_t kind;
    size_t offset, size;
    const char *initial;
    uint64_t min, max;   /* of the stored value; texts: 1 may not be empty */
    const char *choices; /* separated by blanks */
    const char *help;
} setting_t;

#define AT(field) \
    offsetof(tr_config_t, field), sizeof(((tr_config_t *) 0)->field)
#define K(n) ((uint64_t) (n) << 10)
#define M(n) ((uint64_t) (n) << 20)
#define G(n) ((uint64_t) (n) << 30)
#define MS(n) ((uint64_t) (n) *1000)
#define S(n) ((uint64_t) (n) *1000000)

static const setting_t settings[] = {
    { "name", KIND_TEXT, AT(name), "main", 1, 0, NULL,
      "name of this engine, in logs and metrics" },
    { "model", KIND_TEXT, AT(model), "", 0, 0, NULL,
      "Hugging Face model directory; required" },
    { "served_model_name", KIND_TEXT, AT(served_model_name), "", 0, 0, NULL,
      "model name in the API, or several; empty: the last part of model" },
    { "load_format", KIND_CHOICE, AT(load_format), "auto", 0, 0,
      "auto copy dummy",
      "auto reads the weights (backend cpu: 16-bit ones stay in the mapped "
      "files where possible); copy copies them all into memory; dummy makes"
      " random ones, for benchmarks" },
    { "backend", KIND_CHOICE, AT(backend), "cpu", 0, 0, "cpu cuda null",
      "cpu, cuda (a GPU), or null, which computes nothing and emits tokens at "
      "null_rate" },
    { "ignore_config", KIND_TEXT, AT(ignore_config), "", 0, 0, NULL,
      "keys of the model's config.json, separated by spaces, to accept "
      "although the engine does not know them; empty: none" },
    { "generation_config", KIND_CHOICE, AT(generation_config), "vllm", 0, 0,
      "vllm openai",
      "default sampling parameters: vllm, those of the model's "
      "generation_config.json; openai, temperature 1" },
    { "chat_template", KIND_CHOICE, AT(chat_template), "auto", 0, 0,
      "auto llama3 chatml llama2 mistral none",
      "chat template; auto uses the model's own" },
    { "reasoning_effort_budgets", KIND_TEXT, AT(effort_budgets), "", 0, 0, NULL,
      "reasoning tokens for a reasoning_effort that the chat template does "
      "not use, as low=1024 high=16384; empty: such efforts are refused" },
    { "reasoning_end", KIND_TEXT, AT(reasoning_end), "", 0, 0, NULL,
      "text that the model is made to write when its reasoning budget is "
      "spent; it must end with the mark that closes reasoning; \\n is a "
      "line feed; empty: the mark alone" },
    { "tool_dialect", KIND_TEXT, AT(tool_dialect), "auto", 0, 0, NULL,
      "how the model writes tool calls: auto detects it from the chat "
      "template; or a dialect's name (docs/tools.md); none: requests with "
      "tools are refused" },
    { "embedding_pooling", KIND_CHOICE, AT(embedding_pooling), "auto", 0, 0,
      "auto last mean none",
      "how embeddings are made: last, the last token's; mean, the mean of "
      "all; auto reads 1_Pooling/config.json; none refuses them" },
    { "socket", KIND_TEXT, AT(socket), "", 0, 0, NULL,
      "Unix socket for NGINX; empty: /run/tokenring/NAME.sock" },
    { "socket_mode", KIND_MODE, AT(socket_mode), "0660", 0, 0777, NULL,
      "file mode of the socket, octal" },
    { "allow_uids", KIND_UIDS, AT(allow_uids), "", 0, 0, NULL,
      "users (numeric ids) that may connect; empty: all that socket_mode "
      "allows" },

    { "cuda_library", KIND_TEXT, AT(cuda_library), "", 0, 0, NULL,
      "backend cuda: path of libtokenring_cuda.so; empty: beside the "
      "engine, in ../lib/tokenring, or on the system's library path" },
    { "device", KIND_NUMBER, AT(device), "0", 0, 1023, NULL,
      "backend cuda: index of the GPU, as CUDA counts them" },
    { "gpu_memory_utilization", KIND_SHARE, AT(gpu_memory_utilization), "0.9",
      0, 0, NULL,
      "backend cuda: share of the GPU's memory that may be in use; the KV "
      "page pool gets what weights and workspaces leave, unless kv_memory "
      "is given" },
    { "gpu_memory_wait", KIND_DURATION, AT(gpu_memory_wait_us), "60s", 0,
      S(3600), NULL,
      "backend cuda: how long to wait at start for GPU memory that others "
      "hold, such as an engine that was killed; then the engine takes what "
      "there is" },
    { "dtype", KIND_CHOICE, AT(dtype), "auto", 0, 0, "auto bf16 f16",
      "backend cuda: type of the weights; auto: as in the files, but f16 "
      "for 32-bit ones" },

    { "weights_format", KIND_CHOICE, AT(weights_format), "auto", 0, 0,
      "auto expand",
      "quantised weights: auto keeps them packed where there are kernels "
      "for that; expand converts them to 16 bits at load" },
    { "cpu_weights", KIND_CHOICE, AT(cpu_weights), "auto", 0, 0,
      "auto int8 int4",
      "backend cpu: int8 or int4 quantises 16- and 32-bit weights at load, "
      "in groups of 32 (embedding and head always to 8 bits); auto keeps "
      "what is in the files" },
    { "cuda_activations", KIND_CHOICE, AT(cuda_activations), "auto", 0, 0,
      "auto 16 8",
      "backend cuda: bits of the rows that FP8 weights multiply in steps of "
      "more than 128 rows: 8 rounds them to FP8, which is faster and less "
      "exact; auto: 8 for checkpoints that were made for it" },
    { "cuda_trial", KIND_BOOL, AT(cuda_trial), "no", 0, 0, NULL,
      "backend cuda: take kernels that have not passed their tests on a GPU "
      "yet, or were not faster in all: few rows of packed weights multiplied "
      "by warps, products beside experts that begin early" },
    { "cuda_fused_products", KIND_BOOL, AT(cuda_fused_products), "yes", 0, 0,
      NULL,
      "backend cuda: run small-batch matrix products as one kernel where "
      "that is faster; no on a GPU shared with other processes, since its "
      "blocks wait for each other" },

    { "threads", KIND_NUMBER, AT(threads), "0", 0, 1024, NULL,
      "compute threads; 0: one per core" },
    { "tokenizer_threads", KIND_NUMBER, AT(tokenizer_threads), "2", 1, 64, NULL,
      "threads that parse and tokenise requests; if several, one takes no "
      "body above 256 KiB" },
    { "grammar_threads", KIND_NUMBER, AT(grammar_threads), "1", 1, 16, NULL,
      "threads that compile the schemas and grammars of requests" },
    { "kv_memory", KIND_SIZE, AT(kv_memory), "auto", M(1), G(16384), "auto",
      "memory of the KV page pool, allocated at start; auto: 256m, or with "
      "backend cuda what gpu_memory_utilization leaves" },
    { "swap_memory", KIND_SIZE, AT(swap_memory), "kv_memory", 0, G(16384),
      "kv_memory",
      "memory for compressed sequences that are preempted, allocated only "
      "as it is used; 0: none, they are recomputed" },
    { "swap_recompute", KIND_BOOL, AT(swap_recompute), "no", 0, 0, NULL,
      "kv_policy full: keep in swap_memory the row of each token and layer"
      " from which keys and values are computed, and compute a preempted"
      " sequence of these; only for models whose rows are smaller than keys and"
      " values" },
    { "prefill_kv_fraction", KIND_SHARE, AT(prefill_kv_fraction), "0.5", 0, 0,
      NULL,
      "share of the KV page pool that prompts may take before they are "
      "compressed; a single prompt may take all of it" },
    { "prefill_level", KIND_TEXT, AT(prefill_level), "16/16", 3, 0, NULL,
      "bits of the keys and values of a prompt that is being computed, but "
      "for its last 512 tokens or less: the best level of the KV policy, as "
      "8/4, or 16/16" },
    { "kv_policy", KIND_TEXT, AT(kv_policy), "full", 1, 0, NULL,
      "what the KV cache keeps, and how precisely, as "
      "NAME:SETTING=VALUE,SETTING=VALUE; full: everything at 16 bits; auto:"
      " the cheapest policy that suits the model, measured at start" },
    { "kv_policies", KIND_TEXT, AT(kv_policies), "", 0, 0, NULL,
      "other policies that requests may choose with kv_policy, separated by"
      " spaces; empty: none" },
    { "kv_request_alpha", KIND_BOOL, AT(kv_request_alpha), "no", 0, 0, NULL,
      "whether requests may set thresholds with kv_alpha_high, kv_alpha_low" },
    { "kv_reuse", KIND_CHOICE, AT(kv_reuse), "auto", 0, 0, "auto yes no",
      "whether requests that begin alike share the cached prefix; auto: "
      "where the KV policy allows it; yes: the same, but the engine does "
      "not start if no policy does" },
    { "cache_ttl", KIND_DURATION, AT(cache_ttl_us), "0", 0, S(31536000), NULL,
      "how long a prefix is kept after its last use; 0: until its memory is"
      " needed" },
    { "cache_memory", KIND_SIZE, AT(cache_memory), "0", 0, G(16384), NULL,
      "backend cuda: pinned host memory where prefixes are also kept when the "
      "GPU has no room for them; 0: none" },
    { "cache_dir", KIND_TEXT, AT(cache_dir), "", 0, 0, NULL,
      "directory, of mode 0700, where prefixes are also kept in files, so that "
      "conversations survive a restart; empty: none" },
    { "cache_disk", KIND_SIZE, AT(cache_disk), "10g", M(1), G(1048576), NULL,
      "most bytes these files may take; the least recently used are deleted" },
    { "kv_centre", KIND_CHOICE, AT(kv_centre), "auto", 0, 0, "auto off",
      "whether a fixed vector per head, known from the model's key biases, "
      "is subtracted from keys: the same results up to rounding, and "
      "smaller quantisation errors; auto: where a policy compresses" },
    { "kv_equalise", KIND_BOOL, AT(kv_equalise), "yes", 0, 0, NULL,
      "whether outlier channels of keys and values are scaled down at load,"
      " by powers of two, and the weights that read them scaled up: the "
      "same results, and smaller quantisation errors" },
    { "kv_guard", KIND_TEXT, AT(kv_guard), "auto", 1, 0, NULL,
      "one prompt in this many is compared before and after compression, to"
      " see whether the model suits its KV policy: a number, off, or auto "
      "(64; with backend null off)" },
    { "kv_rotate", KIND_CHOICE, AT(kv_rotate), "auto", 0, 0, "auto off k v kv",
      "whether a fixed rotation mixes the channels of each head, of keys "
      "(k), values (v) or both: the same results up to rounding, and "
      "smaller quantisation errors where single channels are large; auto: "
      "kv where a policy compresses and the head size is a power of two, k "
      "where weights stay packed" },
    { "max_model_len", KIND_NUMBER, AT(max_model_len), "0", 0, 1u << 24, NULL,
      "longest prompt plus output in tokens; 0: the model's" },
    { "max_num_seqs", KIND_NUMBER, AT(max_num_seqs), "256", 1, 4096, NULL,
      "most sequences that run at the same time" },
    { "max_batch_tokens", KIND_NUMBER, AT(max_batch_tokens), "512", 1, 65536,
      NULL, "most tokens in one step; at least max_num_seqs" },
    { "scheduling", KIND_CHOICE, AT(scheduling), "fair", 0, 0, "fair fifo",
      "who runs next: fair, the tenant served least so far; fifo, the "
      "request that came first" },
    { "replay", KIND_CHOICE, AT(replay), "prefill", 0, 0, "prefill decode",
      "how a request that moves here from another engine is recomputed "
      "where a policy compresses: prefill, its tokens at once; decode, one "
      "by one as they were generated, which is slower and gives the same "
      "answer on the CPU" },
    { "max_choices", KIND_NUMBER, AT(max_choices), "128", 1, 4096, NULL,
      "largest n of a request, and largest number of prompts times n" },
    { "max_queue", KIND_NUMBER, AT(max_queue), "1024", 1, 1u << 20, NULL,
      "most requests that may wait; more are refused with 429" },
    { "max_body", KIND_SIZE, AT(max_body), "16m", K(1), G(1), NULL,
      "largest request body" },
    { "channel_ring", KIND_POWER, AT(channel_ring), "4m", K(64), TR_RING_MAX,
      NULL, "largest size of each ring shared with a worker" },
    { "channel_stall_timeout", KIND_DURATION, AT(channel_stall_timeout_us),
      "30s", MS(100), S(86400), NULL,
      "requests of a worker that has taken no output for this long are ended" },
    { "paused_timeout", KIND_DURATION, AT(paused_timeout_us), "5m", MS(100),
      S(86400), NULL,
      "a request that its worker has paused for this long is ended" },
    { "drain_timeout", KIND_DURATION, AT(drain_timeout_us), "30s", 0, S(86400),
      NULL, "time for running requests to finish after SIGTERM" },
    { "exit_idle", KIND_DURATION, AT(exit_idle_us), "0", 0, S(31536000), NULL,
      "the process ends when nobody has been connected for this long, for "
      "engines started on demand; 0: never" },

    { "redis", KIND_TEXT, AT(redis), "", 0, 0, NULL,
      "Redis server for the state of requests and the engine's figures, as "
      "HOST, HOST:PORT or unix:PATH; empty: none" },
    { "redis_user", KIND_TEXT, AT(redis_user), "", 0, 0, NULL,
      "Redis user; empty: default" },
    { "redis_password", KIND_TEXT, AT(redis_password), "", 0, 0, NULL,
      "its password; empty: none" },
    { "redis_password_file", KIND_TEXT, AT(redis_password_file), "", 0, 0, NULL,
      "file whose first line is the password; empty: none" },
    { "redis_db", KIND_NUMBER, AT(redis_db), "0", 0, 1u << 20, NULL,
      "number of the database" },
    { "redis_prefix", KIND_TEXT, AT(redis_prefix), "tr:", 0, 0, NULL,
      "prefix of all keys" },
    { "redis_tls", KIND_BOOL, AT(redis_tls), "no", 0, 0, NULL,
      "whether to use TLS" },
    { "redis_tls_ca", KIND_TEXT, AT(redis_tls_ca), "", 0, 0, NULL,
      "file of trusted certificates; empty: the system's" },
    { "redis_tls_cert", KIND_TEXT, AT(redis_tls_cert), "", 0, 0, NULL,
      "our certificate; empty: none" },
    { "redis_tls_key", KIND_TEXT, AT(redis_tls_key), "", 0, 0, NULL,
      "its key" },
    { "redis_tls_name", KIND_TEXT, AT(redis_tls_name), "", 0, 0, NULL,
      "name that its certificate must be valid for; empty: the host of redis" },
    { "redis_tls_verify", KIND_BOOL, AT(redis_tls_verify), "yes", 0, 0, NULL,
      "whether its certificate and name are verified; no is for testing only" },
    { "redis_request_ttl", KIND_DURATION, AT(redis_request_ttl_us), "24h",
      S(10), S(31536000), NULL,
      "how long the state of a request is kept after its last change" },
    { "redis_output_ttl", KIND_DURATION, AT(redis_output_ttl_us), "1h", S(10),
      S(31536000), NULL, "how long the output of a resumable request is kept" },
    { "redis_responses", KIND_BOOL, AT(redis_responses), "yes", 0, 0, NULL,
      "whether responses of /v1/responses are kept with their input, unless a "
      "request says store: false" },
    { "redis_response_ttl", KIND_DURATION, AT(redis_response_ttl_us), "720h",
      S(10), S(31536000), NULL,
      "how long a response is kept after it was last continued" },
    { "redis_recent", KIND_NUMBER, AT(redis_recent), "1000", 1, 1u << 20, NULL,
      "how many of the latest requests are listed" },
    { "redis_samples", KIND_NUMBER, AT(redis_samples), "3600", 1, 1u << 20,
      NULL, "how many samples of the engine's figures are kept, one a second" },
    { "redis_buffer", KIND_SIZE, AT(redis_buffer), "32m", M(1), G(64), NULL,
      "memory for what waits while Redis is slow or unreachable" },
    { "redis_flush", KIND_DURATION, AT(redis_flush_us), "50ms", MS(1), S(1),
      NULL, "time between two pipelines of commands" },
    { "redis_timeout", KIND_DURATION, AT(redis_timeout_us), "2s", MS(50),
      S(600), NULL,
      "without a reply for this long, Redis counts as unreachable" },

    { "null_rate", KIND_RATE, AT(null_rate), "50", 0, 0, NULL,
      "backend null: tokens per second of each stream" },
    { "null_stagger", KIND_BOOL, AT(null_stagger), "no", 0, 0, NULL,
      "backend null: spread the streams over the interval" },
    { "null_script", KIND_TEXT, AT(null_script), "", 0, 0, NULL,
      "backend null: file of answers, one a line as token ids, which "
      "sequences give in turn; empty: none" },
    { "null_trace", KIND_TEXT, AT(null_trace), "", 0, 0, NULL,
      "backend null: file that receives the time of every emission, for "
      "benchmarks; empty: none" },
    { "dummy_seed", KIND_SEED, AT(dummy_seed), "0", 0, 0, NULL,
      "load_format dummy: seed of the random weights" },

    { "log", KIND_TEXT, AT(log), "stderr", 1, 0, NULL,
      "log file, reopened on SIGUSR1, or stderr" },
    { "log_level", KIND_LEVEL, AT(log_level), "notice", 0, 0,
      "error warn notice info debug", "lowest level that is logged" },
    { "pid", KIND_TEXT, AT(pid), "", 0, 0, NULL,
      "file for the process id; empty: none" },
    { "core_dumps", KIND_BOOL, AT(core_dumps), "no", 0, 0, NULL,
      "whether a crash may leave a core, and processes of the same user may"
      " attach a debugger; both expose prompts and answers" },
};

#define N_SETTINGS (sizeof(settings) / sizeof(settings[0]))

_Static_assert(N_SETTINGS <= TR_CONFIG_SETTINGS, "a place for each");

/* ---- values ------------------------------------------------------------- */

/* Decimal digits and nothing else, without overflow. */
static bool
parse_digits(const char *s, size_t n, unsigned base, uint64_t *out)
{
    uint64_t v = 0;
    size_t i;

    if (n == 0) {
        return false;
    }
    for (i = 0; i < n; i++) {
        unsigned digit = (unsigned) (unsigned char) s[i] - '0';

        if (digit >= base || v > (UINT64_MAX - digit) / base) {
            return false;
        }
        v = v * base + digit;
    }
    *out = v;
    return true;
}

typedef struct {
    const char *suffix;
    uint64_t factor;
} unit_t;

static const unit_t size_units[] = { { "", 1 },        { "k", K(1) },
                                     { "m", M(1) },    { "g", G(1) },
                                     { "t", G(1024) }, { NULL, 0 } };

static const unit_t duration_units[] = { { "s", S(1) },  { "ms", MS(1) },
                                         { "m", S(60) }, { "h", S(3600) },
                                         { "", S(1) },   { NULL, 0 } };

static bool
parse_with_unit(const char *s, const unit_t *units, uint64_t *out)
{
    size_t n = strspn(s, "0123456789");
    const unit_t *u;

    if (!parse_digits(s, n, 10, out)) {
        return false;
    }
    for (u = units; u->suffix != NULL; u++) {
        if (strcasecmp(s + n, u->suffix) == 0) {
            if (*out > UINT64_MAX / u->factor) {
                return false;
            }
            *out *= u->factor;
            return true;
        }
    }
    return false;
}

/* Index of value among choices, -1 when absent. */
static int
choice_index(const char *choices, const char *value)
{
    size_t n = strlen(value), len;
    const char *at = choices;
    int i;

    for (i = 0; *at != '\0'; i++) {
        len = strcspn(at, " ");
        if (len == n && memcmp(at, value, n) == 0) {
            return i;
        }
        at += len;
        at += strspn(at, " ");
    }
    return -1;
}

static bool
parse_bool(const char *s, bool *out)
{
    *out = strcmp(s, "yes") == 0 || strcmp(s, "on") == 0
           || strcmp(s, "true") == 0;
    return *out || strcmp(s, "no") == 0 || strcmp(s, "off") == 0
           || strcmp(s, "false") == 0;
}

/* Above 0 and at most max. */
static bool
parse_real(const char *s, double max, double *out)
{
    char *end;

    errno = 0;
    *out = strtod(s, &end);
    return end != s && *end == '\0' && errno == 0 && *out > 0 && *out <= max;
}

/* "33,1000": numbers separated by commas or blanks. */
static bool
parse_uids(const char *s, uint32_t *uids, uint32_t *n)
{
    *n = 0;
    for (;;) {
        uint64_t v;
        size_t len;

        s += strspn(s, ", \t");
        if (*s == '\0') {
            return true;
        }
        len = strcspn(s, ", \t");
        if (*n == TR_CONFIG_UIDS || !parse_digits(s, len, 10, &v)
            || v >= UINT32_MAX) {
            return false;
        }
        uids[(*n)++] = (uint32_t) v;
        s += len;
    }
}

/* The inverse of parse_with_unit, for messages and help. */
static const char *
with_unit(uint64_t v, const unit_t *units, char *buf, size_t size)
{
    const unit_t *best = NULL, *u;

    for (u = units; u->suffix != NULL; u++) {
        if (u->factor <= v && v % u->factor == 0
            && (best == NULL || u->factor > best->factor)) {
            best = u;
        }
    }
    snprintf(buf, size, "%llu%s",
             (unsigned long long) (best ? v / best->factor : v),
             best ? best->suffix : "");
    return buf;
}

/* What a value of this setting should look like. */
static const char *
expectation(const setting_t *s, char *out, size_t size)
{
    char lo[32], hi[32];

    switch (s->kind) {
    case KIND_TEXT:
        snprintf(out, size, "a text of %s%zu bytes",
                 s->min ? "1 to " : "up to ", s->size - 1);
        break;
    case KIND_CHOICE:
    case KIND_LEVEL:
        snprintf(out, size, "one of: %s", s->choices);
        break;
    case KIND_NUMBER:
        snprintf(out, size, "a whole number from %llu to %llu",
                 (unsigned long long) s->min, (unsigned long long) s->max);
        break;
    case KIND_SIZE:
    case KIND_POWER:
        snprintf(out, size, "%s from %s to %s%s%s",
                 s->kind == KIND_SIZE ? "a size" : "a power of two",
                 with_unit(s->min, size_units, lo, sizeof(lo)),
                 with_unit(s->max, size_units, hi, sizeof(hi)),
                 s->choices != NULL ? ", or " : "",
                 s->choices != NULL ? s->choices : "");
        break;
    case KIND_DURATION:
        snprintf(out, size, "a duration from %s to %s",
                 s->min ? with_unit(s->min, duration_units, lo, sizeof(lo))
                        : "0s",
                 with_unit(s->max, duration_units, hi, sizeof(hi)));
        break;
    case KIND_MODE:
        snprintf(out, size, "an octal file mode from 0000 to 0777");
        break;
    case KIND_BOOL:
        snprintf(out, size, "yes or no");
        break;
    case KIND_RATE:
        snprintf(out, size, "a number above 0 and up to 1000000");
        break;
    case KIND_SHARE:
        snprintf(out, size, "a number above 0 and up to 1");
        break;
    case KIND_SEED:
        snprintf(out, size, "a whole number from 0 to 18446744073709551615");
        break;
    case KIND_UIDS:
        snprintf(out, size, "up to %d user numbers separated by commas",
                 TR_CONFIG_UIDS);
        break;
    }
    return out;
}

/* A number with its unit, if it is within the setting's bounds. */
static bool
parse_number(const setting_t *s, const char *value, uint64_t *v)
{
    bool good;

    switch (s->kind) {
    case KIND_NUMBER:
        good = parse_digits(value, strlen(value), 10, v);
        break;
    case KIND_MODE:
        good = parse_digits(value, strlen(value), 8, v);
        break;
    case KIND_SIZE:
        good = parse_with_unit(value, size_units, v);
        break;
    case KIND_POWER:
        good = parse_with_unit(value, size_units, v) && (*v & (*v - 1)) == 0;
        break;
    case KIND_DURATION:
        good = parse_with_unit(value, duration_units, v);
        break;
    default:
        return false;
    }
    return good && *v >= s->min && *v <= s->max;
}

static bool
store_number(void *field, const setting_t *s, const char *value)
{
    uint64_t v = TR_CONFIG_AS_OTHER;
    bool other = s->choices != NULL && strcmp(value, s->choices) == 0;
    uint32_t v32;

    if (!other && !parse_number(s, value, &v)) {
        return false;
    }
    v32 = (uint32_t) v;
    memcpy(field, s->size == sizeof(v32) ? (void *) &v32 : (void *) &v,
           s->size);
    return true;
}

/* Parses value into the field; false when it is not what is expected. */
static bool
store(tr_config_t *c, const setting_t *s, const char *value)
{
    void *field = (char *) c + s->offset;
    uint64_t v;
    uint32_t list[TR_CONFIG_UIDS], n;
    bool b;
    double d;

    switch (s->kind) {
    case KIND_TEXT:
    case KIND_CHOICE:
        if (strlen(value) >= s->size || (s->min && value[0] == '\0')
            || (s->kind == KIND_CHOICE
                && choice_index(s->choices, value) < 0)) {
            return false;
        }
        snprintf(field, s->size, "%s", value);
        return true;
    case KIND_SEED:
        if (!parse_digits(value, strlen(value), 10, &v)) {
            return false;
        }
        memcpy(field, &v, sizeof(v));
        return true;
    case KIND_BOOL:
        if (!parse_bool(value, &b)) {
            return false;
        }
        memcpy(field, &b, sizeof(b));
        return true;
    case KIND_RATE:
    case KIND_SHARE:
        if (!parse_real(value, s->kind == KIND_RATE ? 1e6 : 1, &d)) {
            return false;
        }
        memcpy(field, &d, sizeof(d));
        return true;
    case KIND_UIDS:
        if (!parse_uids(value, list, &n)) {
            return false;
        }
        memcpy(c->allow_uids, list, n * sizeof(list[0]));
        c->n_allow_uids = n;
        return true;
    case KIND_LEVEL:
        c->log_level = choice_index(s->choices, value);
        return c->log_level >= 0;
    default:
        return store_number(field, s, value);
    }
}

/* ---- keys --------------------------------------------------------------- */

/* Edit distance, for keys (short) only. */
static unsigned
distance(const char *a, const char *b)
{
    unsigned row[64];
    size_t na = strlen(a), nb = strlen(b), i, j;

    if (na >= 64 || nb >= 64) {
        return 64;
    }
    for (j = 0; j <= nb; j++) {
        row[j] = (unsigned) j;
    }
    for (i = 1; i <= na; i++) {
        unsigned diagonal = row[0], up;

        row[0] = (unsigned) i;
        for (j = 1; j <= nb; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);

            up = row[j];
            if (up + 1 < best) {
                best = up + 1;
            }
            if (row[j - 1] + 1 < best) {
                best = row[j - 1] + 1;
            }
            diagonal = up;
            row[j] = best;
        }
    }
    return row[nb];
}

static const setting_t *
find(const char *key)
{
    size_t i;

    for (i = 0; i < N_SETTINGS; i++) {
        if (strcmp(settings[i].key, key) == 0) {
            return &settings[i];
        }
    }
    return NULL;
}

int
tr_config_index(const char *key)
{
    const setting_t *s = find(key);

    return s != NULL ? (int) (s - settings) : -1;
}

const char *
tr_config_key(int index)
{
    return settings[index].key;
}

void
tr_config_locate(const tr_config_t *c, tr_error_t *err)
{
    int at = tr_config_index(err->param);

    if (at >= 0 && c->place[at].file != NULL) {
        tr_error_set(err, err->status, err->param, "%.256s:%u: %s",
                     c->place[at].file, c->place[at].line, err->text);
    }
}

static tr_status_t
unknown_key(const char *where, const char *key, tr_error_t *err)
{
    const char *close = NULL;
    unsigned best = strlen(key) < 6 ? 2 : 3; /* closer than this */
    size_t i;

    for (i = 0; i < N_SETTINGS; i++) {
        unsigned d = distance(key, settings[i].key);

        if (d < best) {
            best = d;
            close = settings[i].key;
        }
    }
    if (close != NULL) {
        return tr_error_set(err, TR_ERR_INVALID, key,
                            "%s: unknown setting "
                            "\"%.64s\", did you mean \"%s\"?",
                            where, key, close);
    }
    return tr_error_set(err, TR_ERR_INVALID, key,
                        "%s: unknown setting "
                        "\"%.64s\"; --help lists all",
                        where, key);
}

tr_status_t
tr_config_set(tr_config_t *c, const char *where, const char *key,
              const char *value, tr_error_t *err)
{
    const setting_t *s = find(key);
    char expected[160];

    if (s == NULL) {
        return unknown_key(where, key, err);
    }
    if (!store(c, s, value)) {
        if (strcmp(key, "redis_password") == 0) {
            value = "..."; /* not to be repeated */
        }
        return tr_error_set(err, TR_ERR_INVALID, key,
                            "%s: %s \"%.128s\": "
                            "expected %s",
                            where, key, value,
                            expectation(s, expected, sizeof(expected)));
    }
    c->place[s - settings]
        .file = NULL; /* unless the reader of a file says so */
    return TR_OK;
}

void
tr_config_defaults(tr_config_t *c)
{
    size_t i;

    memset(c, 0, sizeof(*c));
    for (i = 0; i < N_SETTINGS; i++) {
        if (!store(c, &settings[i], settings[i].initial)) {
            /* a row of the table contradicts itself: no configuration that a
             * user writes leads here */
            fprintf(stderr, "tokenring: default of %s is out of bounds\n",
                    settings[i].key);
            abort();
        }
    }
}

void
tr_config_help(void)
{
    char expected[160];
    size_t i;

    for (i = 0; i < N_SETTINGS; i++) {
        const setting_t *s = &settings[i];

        printf("  --%s  (default: %s)\n      ", s->key,
               s->initial[0] ? s->initial : "empty");
        tr_help_text(stdout, 6, s->help);
        printf("      %s\n", expectation(s, expected, sizeof(expected)));
    }
}

void
tr_config_man(FILE *f)
{
    char expected[160], text[640];

    for (size_t i = 0; i < N_SETTINGS; i++) {
        const setting_t *s = &settings[i];

        snprintf(text, sizeof(text), "%s (default: %s; %s)", s->help,
                 s->initial[0] ? s->initial : "empty",
                 expectation(s, expected, sizeof(expected)));
        tr_troff_entry(f, s->key, NULL, text);
    }
}
