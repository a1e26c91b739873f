/*
 * The configuration: what is read, from file and command line, and what every
 * mistake is answered with.  The table at the end is the list of bad
 * configurations, each with the message a user sees.
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

#include "engine/config/config.h"
#include "engine/config/redis_address.h"
#include "engine/config/log.h"

/* Writes text (len bytes) to a file and reads it as a configuration. */
static tr_status_t
read_text(tr_config_t *c, const char *text, size_t len, tr_error_t *err)
{
    char path[] = "/tmp/tr_config_XXXXXX";
    int fd = mkstemp(path);
    tr_status_t rc;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), (ssize_t) len);
    close(fd);
    tr_config_defaults(c);
    memset(err, 0, sizeof(*err));
    rc = tr_config_file(c, path, err);
    unlink(path);
    if (rc == TR_OK) {
        rc = tr_config_finish(c, err);
    }
    return rc;
}

static void
test_defaults(void **state)
{
    tr_config_t c;

    (void) state;
    memset(&c, 0xff, sizeof(c));
    tr_config_defaults(&c);
    assert_string_equal(c.name, "main");
    assert_string_equal(c.backend, "cpu");
    assert_int_equal(c.socket_mode, 0660);
    assert_int_equal(c.max_body, 16u << 20);
    assert_int_equal(c.channel_ring, 4u << 20);
    assert_int_equal(c.channel_stall_timeout_us, 30000000);
    assert_int_equal(c.paused_timeout_us, 300000000);
    assert_int_equal(c.log_level, TR_LEVEL_NOTICE);
    assert_int_equal(c.n_allow_uids, 0);
    assert_true(c.null_rate == 50.0);
    assert_false(c.null_stagger);
}

static void
test_file(void **state)
{
    static const char text[] =
        "\xef\xbb\xbf# a comment behind a byte order mark\n"
        "\n"
        "   \t \n"
        "model /srv/models/llama-3.1-8b/   # with a comment\r\n"
        "name east\n"
        "kv_memory 512M\n"
        "socket_mode 600\n"
        "channel_stall_timeout 1500ms\n"
        "paused_timeout 2m\n"
        "drain_timeout 0\n"
        "allow_uids 33, 1000 65534\n"
        "null_stagger on\n"
        "null_rate 12.5\n"
        "log_level debug\n"
        "log \"/var/log/a #1 \\\"x\\\".log\" # quoted\n"
        "pid \"\"\n"
        "dummy_seed 18446744073709551615"; /* no newline at the end */
    tr_config_t c;
    tr_error_t err;

    (void) state;
    assert_int_equal(read_text(&c, text, sizeof(text) - 1, &err), TR_OK);
    assert_string_equal(c.model, "/srv/models/llama-3.1-8b/");
    assert_string_equal(c.served_model_name, "llama-3.1-8b");
    assert_string_equal(c.socket, "/run/tokenring/east.sock");
    assert_int_equal(c.kv_memory, 512u << 20);
    assert_int_equal(c.socket_mode, 0600);
    assert_int_equal(c.channel_stall_timeout_us, 1500000);
    assert_int_equal(c.paused_timeout_us, 120000000);
    assert_int_equal(c.drain_timeout_us, 0);
    assert_int_equal(c.n_allow_uids, 3);
    assert_int_equal(c.allow_uids[0], 33);
    assert_int_equal(c.allow_uids[2], 65534);
    assert_true(c.null_stagger);
    assert_true(c.null_rate == 12.5);
    assert_int_equal(c.log_level, TR_LEVEL_DEBUG);
    assert_string_equal(c.log, "/var/log/a #1 \"x\".log");
    assert_string_equal(c.pid, "");
    assert_true(c.dummy_seed == UINT64_MAX);
}

/* Memory that depends on the backend is known when all was read. */
static void
test_memory(void **state)
{
    static const struct {
        const char *backend, *kv, *swap;
        uint64_t want_kv, want_swap;
    } cases[] = {
        { "cpu", NULL, NULL, 256u << 20, 256u << 20 },
        { "null", "auto", NULL, 256u << 20, 256u << 20 },
        { "cpu", "1g", "2g", 1u << 30, 2ull << 30 },
        { "cuda", NULL, NULL, 0, 4ull << 30 },
        { "cuda", "auto", "0", 0, 0 },
        { "cuda", "8g", NULL, 8ull << 30, 8ull << 30 },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_config_t c;
        tr_error_t err;

        tr_config_defaults(&c);
        assert_true(c.gpu_memory_utilization == 0.9 && c.device == 0);
        assert_int_equal(tr_config_set(&c, "", "model", "m", &err), TR_OK);
        assert_int_equal(tr_config_set(&c, "", "backend", cases[i].backend,
                                       &err),
                         TR_OK);
        if (cases[i].kv != NULL) {
            assert_int_equal(tr_config_set(&c, "", "kv_memory", cases[i].kv,
                                           &err),
                             TR_OK);
        }
        if (cases[i].swap != NULL) {
            assert_int_equal(tr_config_set(&c, "", "swap_memory", cases[i].swap,
                                           &err),
                             TR_OK);
        }
        assert_int_equal(tr_config_finish(&c, &err), TR_OK);
        assert_int_equal(c.kv_memory, cases[i].want_kv);
        assert_int_equal(c.swap_memory, cases[i].want_swap);
    }
}

/* A tier below the pool is of use where that is a GPU's. */
static void
test_cache_memory(void **state)
{
    static const char *const backends[] = { "cpu", "null", "cuda" };

    (void) state;
    for (size_t i = 0; i < 3; i++) {
        tr_config_t c;
        tr_error_t err;

        tr_config_defaults(&c);
        assert_int_equal(c.cache_memory, 0);
        assert_int_equal(tr_config_set(&c, "", "model", "m", &err), TR_OK);
        assert_int_equal(tr_config_set(&c, "", "backend", backends[i], &err),
                         TR_OK);
        assert_int_equal(tr_config_set(&c, "", "cache_memory", "1g", &err),
                         TR_OK);
        if (i == 2) {
            assert_int_equal(tr_config_finish(&c, &err), TR_OK);
            continue;
        }
        assert_int_equal(tr_config_finish(&c, &err), TR_ERR_UNSUPPORTED);
        assert_string_equal(err.param, "cache_memory");
        assert_non_null(strstr(err.text, backends[i]));
    }
}

/* The shipped file says that its values are the defaults, but for the policy. */
static void
test_shipped_file(void **state)
{
    tr_config_t shipped, defaults;
    tr_error_t err;

    (void) state;
    tr_config_defaults(&shipped);
    tr_config_defaults(&defaults);
    if (tr_config_file(&shipped, "conf/engine.conf", &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    assert_true(shipped.model[0] != '\0');
    memset(shipped.model, 0, sizeof(shipped.model));
    assert_string_equal(shipped.kv_policy, "diffkv");
    assert_string_equal(shipped.kv_policies, "full uniform");
    memcpy(shipped.kv_policy, defaults.kv_policy, sizeof(shipped.kv_policy));
    memset(shipped.kv_policies, 0, sizeof(shipped.kv_policies));
    assert_memory_equal(&shipped, &defaults, offsetof(tr_config_t, place));
}

/* What comes later wins, in another file or in none, and an error of later names
 * the place where its value was read. */
static void
test_places(void **state)
{
    char path[] = "/tmp/tr_config_XXXXXX", text[600], want[64];
    int fd = mkstemp(path);
    tr_config_t c;
    tr_error_t err;

    (void) state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "model m\nname x\nthreads 2\n", 25), 25);
    close(fd);
    tr_config_defaults(&c);
    assert_int_equal(tr_config_file(&c, path, &err), TR_OK);
    assert_int_equal(tr_config_file(&c, path, &err), TR_OK);
    snprintf(want, sizeof(want), "%s:2: name", path);
    tr_error_set(&err, TR_ERR_INVALID, "name", "name is bad");
    tr_config_locate(&c, &err);
    assert_memory_equal(err.text, want, strlen(want));
    assert_string_equal(err.param, "name");

    assert_int_equal(tr_config_set(&c, "", "name", "y", &err), TR_OK);
    tr_error_set(&err, TR_ERR_INVALID, "name", "name is bad");
    tr_config_locate(&c, &err);
    assert_string_equal(err.text, "name is bad");
    tr_error_set(&err, TR_ERR_INVALID, "hidden_size", "no setting");
    tr_config_locate(&c, &err);
    assert_string_equal(err.text, "no setting");

    memset(text, 'x', sizeof(text) - 1); /* longer than an error may be */
    text[sizeof(text) - 1] = '\0';
    tr_error_set(&err, TR_ERR_INVALID, "threads", "%s", text);
    tr_config_locate(&c, &err);
    snprintf(want, sizeof(want), "%s:3: xxx", path);
    assert_memory_equal(err.text, want, strlen(want));
    unlink(path);
}

static void
test_command_line(void **state)
{
    tr_config_t c;
    tr_error_t err;

    (void) state;
    tr_config_defaults(&c);
    assert_int_equal(tr_config_set(&c, "command line", "threads", "3", &err),
                     TR_OK);
    assert_int_equal(c.threads, 3);
    assert_int_equal(tr_config_set(&c, "command line", "threads", "x", &err),
                     TR_ERR_INVALID);
    assert_string_equal(err.param, "threads");
    assert_string_equal(err.text, "command line: threads \"x\": expected a "
                                  "whole number from 0 to 1024");
    assert_int_equal(c.threads, 3); /* a bad value changes nothing */
}

typedef struct {
    const char *text;    /* of the file */
    const char *message; /* after the file's path */
} bad_t;

#define WITH(line) "model m\n" line "\n"

static const bad_t bad[] = {
    { WITH("kv_memroy 1g"), ":2: unknown setting \"kv_memroy\", did you mean "
                            "\"kv_memory\"?" },
    { WITH("Threads 1"), ":2: unknown setting \"Threads\", did you mean "
                         "\"threads\"?" },
    { WITH("listen 8080"), ":2: unknown setting \"listen\"; --help lists all" },
    { WITH("frobnicate"), ":2: unknown setting \"frobnicate\"; --help lists "
                          "all" },
    { WITH("threads"), ":2: threads has no value; write \"\" for an empty "
                       "one" },
    { WITH("threads # 4"), ":2: threads has no value" },
    { WITH("threads -1"), ":2: threads \"-1\": expected a whole number from 0 "
                          "to 1024" },
    { WITH("threads 1025"), ":2: threads \"1025\": expected a whole" },
    { WITH("threads 2.5"), ":2: threads \"2.5\": expected a whole number" },
    { WITH("threads 1 2"), ":2: threads \"1 2\": expected a whole number" },
    { WITH("threads 0x10"), ":2: threads \"0x10\": expected a whole" },
    { WITH("threads \"\""), ":2: threads \"\": expected a whole number" },
    { WITH("threads 99999999999999999999"), "expected a whole number" },
    { WITH("tokenizer_threads 0"), "tokenizer_threads \"0\": expected a whole "
                                   "number from 1 to 64" },
    { WITH("kv_memory 256x"), "kv_memory \"256x\": expected a size from 1m to "
                              "16t" },
    { WITH("kv_memory 256 m"), "kv_memory \"256 m\": expected a size" },
    { WITH("kv_memory 1k"), "kv_memory \"1k\": expected a size from 1m" },
    { WITH("kv_memory m"), "kv_memory \"m\": expected a size" },
    { WITH("kv_memory 17t"), "kv_memory \"17t\": expected a size" },
    { WITH("kv_memory 99999999999g"), "kv_memory \"99999999999g\": expected" },
    { WITH("max_body 2g"), "max_body \"2g\": expected a size from 1k to 1g" },
    { WITH("channel_ring 100k"), "channel_ring \"100k\": expected a power of "
                                 "two from 64k to 64m" },
    { WITH("channel_ring 1k"),
      "channel_ring \"1k\": expected a power of two from 64k to "
      "64m" },
    { WITH("socket_mode 0888"), "socket_mode \"0888\": expected an octal file "
                                "mode from 0000 to 0777" },
    { WITH("socket_mode 7777"), "socket_mode \"7777\": expected an octal" },
    { WITH("paused_timeout 5 minutes"), "paused_timeout \"5 minutes\": "
                                        "expected a duration from 100ms to "
                                        "24h" },
    { WITH("channel_stall_timeout 1ms"), "channel_stall_timeout \"1ms\": "
                                         "expected a duration from 100ms" },
    { WITH("drain_timeout -3s"), "drain_timeout \"-3s\": expected a duration "
                                 "from 0s to 24h" },
    { WITH("null_rate 0"), "null_rate \"0\": expected a number above 0" },
    { WITH("null_rate nan"), "null_rate \"nan\": expected a number above 0" },
    { WITH("null_rate inf"), "null_rate \"inf\": expected a number above 0" },
    { WITH("null_rate fast"), "null_rate \"fast\": expected a number" },
    { WITH("null_stagger maybe"), "null_stagger \"maybe\": expected yes or "
                                  "no" },
    { WITH("backend metal"),
      "backend \"metal\": expected one of: cpu cuda null" },
    { WITH("backend cp"), "backend \"cp\": expected one of: cpu cuda null" },
    { WITH("backend \"cpu null\""), "backend \"cpu null\": expected one of" },
    { WITH("load_format gguf"), "load_format \"gguf\": expected one of: auto "
                                "copy dummy" },
    { WITH("chat_template jinja"), "chat_template \"jinja\": expected one of: "
                                   "auto llama3 chatml llama2 mistral none" },
    { WITH("log_level loud"), "log_level \"loud\": expected one of: error warn "
                              "notice info debug" },
    { WITH("log \"\""), "log \"\": expected a text of 1 to 511 bytes" },
    { WITH("name \"\""), "name \"\": expected a text of 1 to 127 bytes" },
    { WITH("name a/b"), "name \"a/b\" must not contain any of" },
    { WITH("log \"/var/log/x"), ":2: log: the quoted value does not end with "
                                "a quote" },
    { WITH("kv_memory = 1g"), ":2: there is no `=` between a setting and its "
                              "value; write `kv_memory 1g`, or" },
    { WITH("kv_memory =1g"), "write `kv_memory 1g`" },
    { WITH("kv_memory= 1g"), "write `kv_memory 1g`" },
    { WITH("kv_memory=1g"), "write `kv_memory 1g`" },
    { WITH("kv_memory=1g;"), "write `kv_memory 1g`" },
    { WITH("kv_memory 1g;"), ":2: there is no `;` at the end of a line; write "
                             "`kv_memory 1g`" },
    { WITH("log /var/log/a;  # x"), "write `log /var/log/a`, or the value in "
                                    "quotes if that is part of it" },
    { WITH("redis_password = sesame"), "write `redis_password ...`" },
    { WITH("redis = host"), "write `redis host`" },
    { WITH("log \"a\";"),
      ":2: log: the quoted value does not end with a quote, "
      "or something follows it" },
    { WITH("threads 1\n\nthreads 2"),
      ":4: threads is already set in line 2; keep" },
    { WITH("threads 2\nthreads 2"), ":3: threads is already set in line 2" },
    { WITH("model y"), ":2: model is already set in line 1" },
    { WITH("log \"a\" b"), ":2: log: the quoted value does not end" },
    { WITH("allow_uids www-data"), "allow_uids \"www-data\": expected up to 32 "
                                   "user numbers separated by commas" },
    { WITH("allow_uids 4294967295"), "allow_uids \"4294967295\": expected" },
    { WITH("dummy_seed -1"), "dummy_seed \"-1\": expected a whole number from "
                             "0 to 18446744073709551615" },
    { WITH("dummy_seed 18446744073709551616"), "dummy_seed "
                                               "\"18446744073709551616\"" },
    { WITH("max_batch_tokens 128"), "max_batch_tokens 128 is below "
                                    "max_num_seqs 256" },
    { WITH("socket /tmp/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
      "has 114 bytes; a Unix socket path can have 107" },
    { WITH("socket 127.0.0.1:8000"),
      "socket \"127.0.0.1:8000\": expected a path" },
    { WITH("socket [::1]:8000"), "socket \"[::1]:8000\": expected a path" },
    { WITH("socket unix:/run/x.sock"),
      "socket \"unix:/run/x.sock\": expected a "
      "path, as in" },
    { WITH("redis host:0"), "redis \"host:0\": expected HOST, HOST:PORT" },
    { WITH("redis host:65536"), "redis \"host:65536\": expected" },
    { WITH("redis host:12x"), "redis \"host:12x\": expected" },
    { WITH("redis :6379"), "redis \":6379\": expected" },
    { WITH("redis [::1"), "redis \"[::1\": expected" },
    { WITH("redis redis://host"), "redis \"redis://host\": expected" },
    { WITH("redis user@host"), "redis \"user@host\": expected" },
    { WITH("redis unix:"), "redis \"unix:\": expected" },
    { WITH("redis h\nredis_prefix {x}"), "redis_prefix \"{x}\": expected no" },
    { WITH("redis h\nredis_prefix \"a b\""), "redis_prefix \"a b\"" },
    { WITH("redis h\nredis_user me"), "redis_user \"me\" has no" },
    { WITH("redis_flush 0"),
      "redis_flush \"0\": expected a duration from 1ms" },
    { WITH("redis_request_ttl 9s"),
      "redis_request_ttl \"9s\": expected a duration from 10s" },
    { WITH("redis_output_ttl 9999ms"),
      "redis_output_ttl \"9999ms\": expected a duration from 10s" },
    { WITH("redis h\nredis_tls_name x"), "without `redis_tls yes`" },
    { WITH("redis_buffer 1k"), "redis_buffer \"1k\": expected a size from 1m" },
    { WITH("backend null\nkv_policy auto"),
      "kv_policy auto: backend null does not measure policies; expected the "
      "name of one" },
    { WITH("load_format dummy\nkv_policy auto"),
      "kv_policy auto: load_format dummy" },
    { WITH("kv_guard 0"), "kv_guard is \"0\", expected auto, off, or a number "
                          "of prompts from 1 to 1000000" },
    { WITH("kv_guard -1"), "kv_guard is \"-1\"" },
    { WITH("kv_guard 1000001"), "kv_guard is \"1000001\"" },
    { WITH("kv_guard 8x"), "kv_guard is \"8x\"" },
    { WITH("backend null\nkv_guard 8"), "kv_guard 8: backend null compares no "
                                        "prompts; expected auto or off" },
    { "threads 1\n", "no model: give a Hugging Face directory with --model "
                     "DIR or `model DIR` in the configuration" },
    { WITH("reasoning_effort_budgets low"),
      "reasoning_effort_budgets \"low\"" },
    { WITH("reasoning_effort_budgets low=1 none=0"),
      "reasoning_effort_budgets \"low=1 none=0\": expected EFFORT=TOKENS" },
    { WITH("reasoning_effort_budgets low=4294967296"), "EFFORT=TOKENS" },
    { WITH("reasoning_effort_budgets low=-1"), "EFFORT=TOKENS" },
    { WITH("reasoning_effort_budgets low=1x"), "EFFORT=TOKENS" },
    { WITH("redis_response_ttl 9s"),
      "redis_response_ttl \"9s\": expected a duration from 10s" },
    { "model /\n", "set served_model_name" },
    { WITH("served_model_name a b a"), "\"a\" is listed twice" },
    { WITH("served_model_name \" \""), "expected a name, not spaces alone" },
    { WITH("served_model_name "
           "a23456789012345678901234567890123456789012345678901234567890abc "
           "b23456789012345678901234567890123456789012345678901234567890abc"),
      "more than 126 bytes together" },
    { "model ..\n", "cannot make a model name of \"..\"" },
};

static void
test_served_names(void **state)
{
    static const char text[] = "model /m\nserved_model_name  llama  gpt-4\n";
    tr_config_t c;
    tr_error_t err;

    (void) state;
    assert_int_equal(read_text(&c, text, sizeof(text) - 1, &err), TR_OK);
    assert_string_equal(c.served_model_name, "llama");
    assert_memory_equal(c.served_names, "llama\0gpt-4\0", 13);
}

static void
test_budgets(void **state)
{
    static const char text[] = " low=0  high=4294967295 max=7";

    (void) state;
    assert_int_equal(tr_config_effort_budget(text, "low"), 0);
    assert_int_equal(tr_config_effort_budget(text, "high"), UINT32_MAX);
    assert_int_equal(tr_config_effort_budget(text, "max"), 7);
    assert_int_equal(tr_config_effort_budget(text, "medium"), -1);
    assert_int_equal(tr_config_effort_budget(text, "hig"), -1);
    assert_int_equal(tr_config_effort_budget(text, ""), -1);
    assert_int_equal(tr_config_effort_budget("", "low"), -1);
    assert_int_equal(tr_config_effort_budget(NULL, "low"), -1);
}

static void
test_bad(void **state)
{
    size_t i;

    (void) state;
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tr_config_t c;
        tr_error_t err;
        tr_status_t rc = read_text(&c, bad[i].text, strlen(bad[i].text), &err);

        if (rc != TR_ERR_INVALID || err.status != rc
            || strstr(err.text, bad[i].message) == NULL) {
            fail_msg("%s\n  got %d \"%s\"\n  expected \"%s\"", bad[i].text, rc,
                     err.text, bad[i].message);
        }
    }
}

static void
test_bad_file(void **state)
{
    static char text[5000];
    tr_config_t c;
    tr_error_t err;

    (void) state;
    tr_config_defaults(&c);
    assert_int_equal(tr_config_file(&c, "/nonexistent/engine.conf", &err),
                     TR_ERR_IO);
    assert_string_equal(err.text, "cannot open configuration /nonexistent/"
                                  "engine.conf: No such file or directory");
    assert_int_equal(tr_config_file(&c, "/", &err), TR_ERR_IO);
    assert_string_equal(err.text,
                        "cannot read configuration /: Is a directory");

    assert_int_equal(read_text(&c, "model m\nname a\0b\n", 17, &err),
                     TR_ERR_INVALID);
    assert_non_null(strstr(err.text, ":2: a NUL byte"));
    memset(text, 'x', sizeof(text));
    assert_int_equal(read_text(&c, text, sizeof(text), &err), TR_ERR_INVALID);
    assert_non_null(strstr(err.text, ":1: line is longer than 4095 bytes"));
    memcpy(text, "model ", 6);
    assert_int_equal(read_text(&c, text, 4000, &err), TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "expected a text of up to 511 bytes"));
}

/* The first line of a file; what is wrong about it never shows it. */
static void
test_password(void **state)
{
    static char text[1200];
    char path[] = "/tmp/tr_password_XXXXXX";
    int fd = mkstemp(path);
    tr_config_t c;
    tr_error_t err;

    (void) state;
    assert_true(fd >= 0);
    snprintf(text, sizeof(text),
             "model m\nredis h\nredis_user me\nredis_password_file %s\n", path);
    assert_int_equal(read_text(&c, text, strlen(text), &err), TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "in its first line"));
    assert_int_equal(write(fd, "open sesame\r\nx\n", 15), 15);
    assert_int_equal(read_text(&c, text, strlen(text), &err), TR_OK);
    assert_string_equal(c.redis_password, "open sesame");
    unlink(path);
    assert_int_equal(read_text(&c, text, strlen(text), &err), TR_ERR_IO);
    close(fd);

    memcpy(text, "model m\nredis_password ", 23);
    memset(text + 23, 's', 600);
    text[623] = '\0';
    assert_int_equal(read_text(&c, text, strlen(text), &err), TR_ERR_INVALID);
    assert_null(strstr(err.text, "sss"));
    assert_non_null(strstr(err.text, "redis_password"));
}

static void
test_redis_addresses(void **state)
{
    tr_redis_address_t a;

    (void) state;
    assert_true(tr_redis_parse_address("redis.example.com", &a));
    assert_string_equal(a.host, "redis.example.com");
    assert_int_equal(a.port, 6379);
    assert_true(tr_redis_parse_address("10.0.0.1:7000", &a));
    assert_string_equal(a.host, "10.0.0.1");
    assert_int_equal(a.port, 7000);
    assert_true(tr_redis_parse_address("[::1]:7000", &a));
    assert_string_equal(a.host, "::1");
    assert_int_equal(a.port, 7000);
    assert_true(tr_redis_parse_address("[fe80::1]", &a));
    assert_int_equal(a.port, 6379);
    assert_true(tr_redis_parse_address("unix:/run/redis/redis.sock", &a));
    assert_string_equal(a.host, "/run/redis/redis.sock");
    assert_int_equal(a.port, 0);
}

/* An error made of its own former text, cut at a whole character. */
static void
test_error_set(void **state)
{
    tr_error_t err;
    char longer[600];
    size_t i;

    (void) state;
    assert_int_equal(tr_error_set(&err, TR_ERR_IO, "a", "no %s", "file"),
                     TR_ERR_IO);
    tr_error_set(&err, TR_ERR_INVALID, err.param, "x: %s", err.text);
    assert_string_equal(err.text, "x: no file");
    assert_string_equal(err.param, "a");
    for (i = 0; i + 3 < sizeof(longer); i += 3) {
        memcpy(longer + i, "\xe2\x82\xac", 3); /* the euro sign */
    }
    longer[i] = '\0';
    tr_error_set(&err, TR_ERR_INVALID, NULL, "%s", longer);
    assert_int_equal(strlen(err.text) % 3, 0);
    assert_true(strlen(err.text) >= TR_ERROR_TEXT - 4);
    assert_string_equal(err.param, "");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_cache_memory),
        cmocka_unit_test(test_shipped_file),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_served_names),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_bad_file),
        cmocka_unit_test(test_password),
        cmocka_unit_test(test_redis_addresses),
        cmocka_unit_test(test_error_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
