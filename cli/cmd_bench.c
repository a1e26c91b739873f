/*
 * tokenring bench: a load of streaming requests, and how they fared.
 *
 * Closed loop (--concurrency): so many requests are always in flight.  Open
 * loop (--rate): requests come when the clock says so, Poisson or evenly
 * spaced, whatever the server does; their latencies count from the moment that
 * they were due, so a stalled server cannot hide its queue.  Prompts are random
 * token ids of a drawn length, or lines of a file.  A request is good only if
 * its stream ended as it must, with as many tokens as were asked for.
 *
 * With --steady, a closed loop is measured from the moment on in which all the
 * streams run that can, and then is cut off: what fills an engine is not
 * counted.  --stagger brings that moment nearer: the first requests begin
 * somewhere in their answer, as those of an engine that was full for long.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "cli.h"
#include "client.h"
#include "sampling_options.h"
#include "terminal.h"

#include "engine/base/clock.h"

#define PROMPT_FILE_MAX (256u << 20)

typedef struct request request_t;

struct request {
    uint64_t due_us, first_us, last_us;
    uint32_t tokens, want; /* want 0: as many as the model likes */
    bool counted;          /* not a warm-up request */
    request_t *next, **at; /* of those in flight */
};

static struct {
    tr_target_t target;
    tr_sampling_options_t sampling;
    int64_t concurrency, requests, warmup;
    double rate, duration;
    const char *arrivals, *prompt_tokens, *output_tokens, *prompt_file, *out;
    bool eos, chat, stagger;

    tr_length_t prompt_length, output_length;
    tr_rng_t rng;
    char *text; /* of the prompt file */
    const char **lines;
    size_t n_lines;
    tr_client_t *client;
    tr_bench_result_t result;
    int64_t sent, ended; /* without warm-up */
    uint64_t end_us, streamed;
    uint32_t streams;  /* have had their first token, and not their last */
    uint64_t drawn_us; /* last progress line */
    request_t *in_flight;
} g = { .sampling = { .seed = 1 },
        .prompt_tokens = "128",
        .output_tokens = "128",
        .arrivals = "poisson" };

static tr_option_t options[] = {
    TR_TARGET_OPTIONS(g.target),
    { "Load", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false },
    { "concurrency", 'c', TR_OPTION_INT, &g.concurrency, "N",
      "closed loop: N requests in flight (default 1)", 1, 65536, NULL, false },
    { "rate", 'r', TR_OPTION_NUMBER, &g.rate, "R",
      "open loop: R requests a second", 1e-3, 1e5, NULL, false },
    { "arrivals", 0, TR_OPTION_TEXT, &g.arrivals, "KIND",
      "--rate: poisson (default) or constant", 0, 0, NULL, false },
    { "requests", 'N', TR_OPTION_INT, &g.requests, "N",
      "number of requests (default 100, or --duration)", 1, 1e9, NULL, false },
    { "duration", 'd', TR_OPTION_NUMBER, &g.duration, "SECONDS",
      "send for this long, then wait for the answers", 0.1, 86400, NULL,
      false },
    { "steady", 0, TR_OPTION_NUMBER, &g.result.steady.seconds, "SECONDS",
      "closed loop: measure for this long with all streams running", 0.1, 86400,
      NULL, false },
    { "stagger", 0, TR_OPTION_FLAG, &g.stagger, NULL,
      "closed loop: the first requests start part-way through their answers", 0,
      0, NULL, false },
    { "warmup", 'w', TR_OPTION_INT, &g.warmup, "N",
      "requests sent first and not counted", 0, 1e6, NULL, false },
    { "Requests", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false },
    { "prompt-tokens", 'P', TR_OPTION_TEXT, &g.prompt_tokens, "LENGTH",
      "random prompts: N, A:B or normal:MEAN:DEV (default 128)", 0, 0, NULL,
      false },
    { "prompt-file", 'f', TR_OPTION_TEXT, &g.prompt_file, "FILE",
      "prompts from the lines of a file, in turn", 0, 0, NULL, false },
    { "chat", 0, TR_OPTION_FLAG, &g.chat, NULL,
      "--prompt-file: as chat messages, not completions", 0, 0, NULL, false },
    { "output-tokens", 'O', TR_OPTION_TEXT, &g.output_tokens, "LENGTH",
      "answers: N, A:B or normal:MEAN:DEV (default 128)", 0, 0, NULL, false },
    { "eos", 0, TR_OPTION_FLAG, &g.eos, NULL, "let the model stop earlier", 0,
      0, NULL, false },
    { "Output", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false },
    { "json", 0, TR_OPTION_TEXT, &g.out, "OUT",
      "write the results as JSON to this file, - for standard output", 0, 0,
      NULL, false },
    TR_SAMPLING_OPTIONS(g.sampling),
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

const tr_command_t tr_bench_command = {
    "tokenring bench [options] -m DIR | --engine SOCKET | --url URL",
    "Sends streaming requests and measures time to first token, time per\n"
    "output token, inter-token latency, the whole answer, and throughput.",
    "  tokenring bench --url http://127.0.0.1:8080 -c 16 -N 200\n"
    "  tokenring bench -e build/run/engine.sock --rate 5 -d 30 -P 64:512 "
    "-O normal:64:16\n"
    "  tokenring bench -m models/pocket -c 4 --json bench.json",
    options
};

/* ---- requests ----------------------------------------------------------- */

/* Random ids: from a range that every vocabulary of the field has, above the
 * special tokens and single bytes that open most of them. */
static json_t *
random_prompt(uint32_t n)
{
    json_t *ids = json_array();
    uint32_t i;

    for (i = 0; i < n; i++) {
        json_array_append_new(
            ids, json_integer((json_int_t) (300 + tr_rng_next(&g.rng) % 700)));
    }
    return ids;
}

static json_t *
request_body(request_t *r)
{
    json_t *body = json_object(), *prompt;
    uint32_t age = 0;

    tr_options_to_json(options, body);
    r->want = tr_length_draw(&g.output_length, &g.rng);
    if (g.stagger && r->counted && g.sent < g.concurrency) {
        age = (uint32_t) (tr_stagger((uint64_t) g.sent) * (r->want - 1));
        r->want -= age;
    }
    json_object_set_new(body, "max_tokens", json_integer(r->want));
    if (!g.eos) {
        json_object_set_new(body, "ignore_eos", json_true());
    } else {
        r->want = 0;
    }
    if (g.n_lines == 0) {
        prompt = random_prompt(age + tr_length_draw(&g.prompt_length, &g.rng));
    } else {
        prompt = json_string(g.lines[(size_t) g.sent % g.n_lines]);
    }
    if (g.chat) {
        json_object_set_new(body, "messages",
                            json_pack("[{s:s, s:o}]", "role", "user", "content",
                                      prompt));
    } else {
        json_object_set_new(body, "prompt", prompt);
    }
    return body;
}

static request_t *
request_new(uint64_t due_us, bool counted)
{
    request_t *r = calloc(1, sizeof(*r));

    if (r == NULL) {
        return NULL;
    }
    r->due_us = due_us;
    r->counted = counted;
    r->next = g.in_flight;
    r->at = &g.in_flight;
    if (r->next != NULL) {
        r->next->at = &r->next;
    }
    g.in_flight = r;
    return r;
}

static void
request_free(request_t *r)
{
    *r->at = r->next;
    if (r->next != NULL) {
        r->next->at = r->at;
    }
    free(r);
}

static void
on_text(void *user, unsigned kind, const char *text, size_t len,
        uint32_t tokens)
{
    request_t *r = user;
    uint64_t now = tr_now_us();

    (void) kind;
    (void) text;
    (void) len;
    if (tokens == 0) {
        return;
    }
    if (r->first_us == 0) {
        r->first_us = now;
        g.streams++;
    } else if (r->counted) {
        tr_times_add(&g.result.inter_token, now - r->last_us);
    }
    r->last_us = now;
    r->tokens += tokens;
    g.streamed += tokens;
}

static void
on_done(void *user, const tr_call_result_t *result)
{
    request_t *r = user;
    uint64_t now = tr_now_us();
    uint32_t tokens = result->has_usage ? result->completion_tokens : r->tokens;
    char message[200];

    g.streams -= r->first_us != 0;
    if (!r->counted) {
        request_free(r);
        return;
    }
    g.ended++;
    g.end_us = now;
    if (!result->ok) {
        tr_bench_error(&g.result, result->kind, result->message);
    } else if (r->want != 0 && result->has_usage && tokens != r->want
               && g.sampling.stop.n == 0) {
        snprintf(message, sizeof(message), "%u tokens came, %u were asked for",
                 tokens, r->want);
        tr_bench_error(&g.result, "wrong_length", message);
    } else {
        g.result.good++;
        g.result.prompt_tokens += result->prompt_tokens;
        g.result.output_tokens += tokens;
        if (result->has_kv) {
            g.result.kv_known++;
            g.result.kv_bytes += result->kv_bytes;
            g.result.kv_full_bytes += result->kv_full_bytes;
        }
        tr_times_add(&g.result.e2e, now - r->due_us);
        if (r->first_us != 0) {
            tr_times_add(&g.result.ttft, r->first_us - r->due_us);
        }
        if (tokens > 1 && r->first_us != 0) {
            tr_times_add(&g.result.tpot,
                         (r->last_us - r->first_us) / (tokens - 1));
        }
    }
    request_free(r);
}

static const tr_call_events_t events = { on_text, on_done };

/* Sends one request.  TR_AGAIN: not now; other failures are counted. */
static tr_status_t
send_one(uint64_t due_us, bool counted)
{
    request_t *r = request_new(due_us, counted);
    tr_call_result_t result = { 0 };
    tr_error_t err = { 0 };
    tr_rng_t before = g.rng;
    tr_status_t rc;
    json_t *body;

    if (r == NULL) {
        return TR_ERR_NOMEM;
    }
    body = request_body(r);
    rc = tr_client_submit(g.client,
                          g.chat ? TR_ENDPOINT_CHAT : TR_ENDPOINT_COMPLETIONS,
                          body, r, NULL, &err);
    json_decref(body);
    if (rc == TR_AGAIN) {
        g.rng = before; /* the same request comes again */
        request_free(r);
        return rc;
    }
    g.sent += counted;
    if (rc != TR_OK) {
        snprintf(result.kind, sizeof(result.kind), "submit");
        snprintf(result.message, sizeof(result.message), "%s", err.text);
        on_done(r, &result);
    }
    return rc;
}

/* ---- the loop ----------------------------------------------------------- */

static void
progress(uint64_t now, bool last)
{
    double s = (double) (now - g.result.begin_us) / 1e6;

    if (!isatty(STDERR_FILENO) || (!last && now - g.drawn_us < 200000)) {
        return;
    }
    g.drawn_us = now;
    fprintf(stderr, "\r\033[K%lld", (long long) g.ended);
    if (g.requests != 0) {
        fprintf(stderr, " of %lld", (long long) g.requests);
    }
    fprintf(stderr,
            " requests, %u in flight, %.1f s, %.1f tokens/s, %llu "
            "errors%s",
            g.client->in_flight, s, s > 0 ? (double) g.streamed / s : 0,
            (unsigned long long) g.result.bad, last ? "\r\033[K" : "");
}

static bool
sending(uint64_t now)
{
    return !tr_interrupted() && (g.requests == 0 || g.sent < g.requests)
           && (g.duration <= 0
               || now < g.result.begin_us + (uint64_t) (g.duration * 1e6));
}

static uint64_t
next_gap_us(void)
{
    double gap = strcmp(g.arrivals, "constant") == 0
                     ? 1
                     : tr_rng_exponential(&g.rng);

    return (uint64_t) (gap / g.rate * 1e6);
}

static int
run_warmup(tr_error_t *err)
{
    int64_t i;

    for (i = 0; i < g.warmup && !tr_interrupted(); i++) {
        if (send_one(tr_now_us(), false) != TR_OK) {
            break;
        }
        while (g.client->in_flight != 0 && !tr_interrupted()) {
            if (tr_client_run(g.client, 100, err) != TR_OK) {
                return -1;
            }
        }
    }
    return 0;
}

/* Sends what is due and waits for news; 0, or -1: the client broke. */
static int
run_load(tr_error_t *err)
{
    uint64_t now = g.result.begin_us = tr_now_us(), due = now;
    tr_status_t rc;

    g.streamed = 0;
    g.end_us = now;
    if (g.rate > 0) {
        due += next_gap_us();
    }
    for (;;) {
        int wait_ms = 100;

        rc = TR_OK;
        while (rc != TR_AGAIN && sending(now)
               && (g.rate > 0 ? due <= now
                              : g.client->in_flight < g.concurrency)) {
            rc = send_one(g.rate > 0 ? due : now, true);
            if (rc != TR_AGAIN && g.rate > 0) {
                due += next_gap_us();
            }
            if (rc != TR_OK) {
                break; /* let the client run between failures */
            }
        }
        if ((!sending(now) && g.client->in_flight == 0)
            || tr_steady_tell(&g.result.steady, now, g.streams, g.streamed)) {
            return 0;
        }
        if (g.rate > 0 && sending(now)) {
            wait_ms = due > now ? (int) ((due - now) / 1000) : 0;
            wait_ms = rc == TR_AGAIN ? 1 : wait_ms < 100 ? wait_ms : 100;
        }
        if (tr_client_run(g.client, wait_ms, err) != TR_OK
            || tr_interrupted() > 1) {
            return tr_interrupted() > 1 ? 0 : -1;
        }
        now = tr_now_us();
        progress(now, false);
    }
}

/* ---- before and after --------------------------------------------------- */

static int
read_prompts(void)
{
    char why[300], *at;
    size_t len, i;

    g.text = tr_read_file(g.prompt_file, PROMPT_FILE_MAX, &len, why,
                          sizeof(why));
    if (g.text == NULL) {
        fprintf(stderr, "tokenring bench: %s\n", why);
        return -1;
    }
    for (i = 0; i < len; i++) {
        g.n_lines += g.text[i] == '\n';
    }
    g.lines = calloc(g.n_lines + 1, sizeof(*g.lines));
    g.n_lines = 0;
    for (at = strtok(g.text, "\n"); at != NULL && g.lines != NULL;
         at = strtok(NULL, "\n")) {
        g.lines[g.n_lines++] = at;
    }
    if (g.n_lines == 0) {
        fprintf(stderr, "tokenring bench: %s has no lines\n", g.prompt_file);
        return -1;
    }
    return 0;
}

static int
write_json(void)
{
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:f, s:I, s:s, s:s, s:I}", "model", g.client->model,
        "where", g.client->where, "loop", g.rate > 0 ? g.arrivals : "closed",
        "rate", g.rate, "concurrency",
        (json_int_t) (g.rate > 0 ? 0 : g.concurrency), "prompt",
        g.prompt_file != NULL ? g.prompt_file : g.prompt_tokens, "output",
        g.output_tokens, "seed", (json_int_t) g.sampling.seed);
    int rc = -1;

    tr_bench_json(&g.result, root);
    if (strcmp(g.out, "-") == 0) {
        rc = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(7));
        putchar('\n');
    } else {
        rc = json_dump_file(root, g.out,
                            JSON_INDENT(1) | JSON_REAL_PRECISION(7));
    }
    json_decref(root);
    if (rc != 0) {
        fprintf(stderr, "tokenring bench: cannot write %s: %s\n", g.out,
                strerror(errno));
    }
    return rc;
}

static int
check_options(void)
{
    int rc = tr_target_check(&g.target, &tr_bench_command);

    if (rc != 0) {
        return rc;
    }
    if (g.rate > 0 && g.concurrency > 0) {
        return tr_usage_error(&tr_bench_command,
                              "give --concurrency (closed loop) or "
                              "--rate (open loop), not both");
    }
    if (strcmp(g.arrivals, "poisson") != 0
        && strcmp(g.arrivals, "constant") != 0) {
        return tr_usage_error(&tr_bench_command,
                              "--arrivals \"%s\": expected poisson "
                              "or constant",
                              g.arrivals);
    }
    if (!tr_length_parse(g.prompt_tokens, &g.prompt_length)) {
        return tr_usage_error(&tr_bench_command,
                              "--prompt-tokens \"%s\": expected N, "
                              "A:B or normal:MEAN:DEV",
                              g.prompt_tokens);
    }
    if (!tr_length_parse(g.output_tokens, &g.output_length)) {
        return tr_usage_error(&tr_bench_command,
                              "--output-tokens \"%s\": expected N, "
                              "A:B or normal:MEAN:DEV",
                              g.output_tokens);
    }
    if ((g.stagger || g.result.steady.seconds > 0) && g.rate > 0) {
        return tr_usage_error(&tr_bench_command,
                              "--steady and --stagger are for a "
                              "closed loop, not for --rate");
    }
    if (g.stagger && (g.prompt_file != NULL || g.eos)) {
        return tr_usage_error(&tr_bench_command,
                              "--stagger is for random prompts with "
                              "answers of a given length");
    }
    if (g.chat && g.prompt_file == NULL) {
        return tr_usage_error(&tr_bench_command, "--chat needs the texts of a "
                                                 "--prompt-file");
    }
    g.concurrency = g.concurrency > 0 ? g.concurrency : 1;
    if (g.requests == 0 && g.duration <= 0 && g.result.steady.seconds <= 0) {
        g.requests = 100;
    }
    /* one --seed for the arrivals, the lengths and the sampler */
    g.rng.state = (uint64_t) g.sampling.seed;
    return 0;
}

int
tr_cmd_bench(int argc, char **argv)
{
    tr_error_t err = { 0 };
    int rc;

    if (tr_options_only(&tr_bench_command, argc, argv, &rc) != 0
        || (rc = check_options()) != 0) {
        return rc;
    }
    if (g.prompt_file != NULL && read_prompts() != 0) {
        return 1;
    }
    tr_interrupt_catch();
    if (tr_client_open(&g.target, &events, &g.client, &err) != TR_OK) {
        fprintf(stderr, "tokenring bench: %s\n", err.text);
        return 1;
    }
    rc = run_warmup(&err) != 0 || run_load(&err) != 0;
    progress(tr_now_us(), true);
    if (rc != 0) {
        fprintf(stderr, "tokenring bench: %s\n", err.text);
    }
    g.result.seconds = (double) (g.end_us - g.result.begin_us) / 1e6;
    if (g.out == NULL || strcmp(g.out, "-") != 0) {
        tr_bench_print(&g.result);
    }
    if (g.out != NULL && write_json() != 0) {
        rc = 1;
    }
    rc = rc != 0 || g.result.bad != 0
         || (g.result.steady.seconds > 0 && g.result.steady.end_us == 0);
    tr_client_close(g.client);
    while (g.in_flight != NULL) { /* a steady load ends under way */
        request_free(g.in_flight);
    }
    tr_bench_free(&g.result);
    free(g.lines);
    free(g.text);
    return rc;
}
