/*
 * tokenring stats: what a running engine does, read from its status page.
 *
 * It attaches as one more ring client and from then on only reads shared
 * memory: the engine is not asked and not disturbed.  On a terminal the picture
 * is redrawn in place; elsewhere every interval gives one line, or one JSON
 * object with --json.  Latencies are percentiles of the page's histograms over
 * the last interval (over the engine's life with --once).  With --tenants it is
 * NGINX that is asked (stats_tenants.c).
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "client.h"
#include "options.h"
#include "ring_client.h"
#include "stats.h"
#include "stats_tenants.h"
#include "terminal.h"

#include "engine/base/clock.h"

static const char *const histogram_names[TR_STATS_HISTOGRAMS] = {
    "ttft", "inter_token", "e2e", "queue", "step"
};

static const char *const histogram_titles[TR_STATS_HISTOGRAMS] = {
    "first token", "inter-token", "whole answer", "queue", "step"
};

static struct {
    const char *engine;
    double interval;
    const char *url;
    tr_option_list_t headers;
    bool once, json, tenants;
    tr_ring_client_t *client;
    tr_status_card_t card;
    bool redraw;
    unsigned width; /* of the terminal, 0: none */
} g = { .interval = 1, .url = "http://127.0.0.1:8080" };

static tr_option_t options[] = {
    { "engine", 'e', TR_OPTION_TEXT, &g.engine, "SOCKET",
      "the engine's socket, or its name (default main)", 0, 0, NULL, false },
    { "interval", 'i', TR_OPTION_NUMBER, &g.interval, "SECONDS",
      "between two updates (default 1)", 0.05, 3600, NULL, false },
    { "once", '1', TR_OPTION_FLAG, &g.once, NULL,
      "print once, with figures since the engine started", 0, 0, NULL, false },
    { "json", 0, TR_OPTION_FLAG, &g.json, NULL, "JSON, one object a line", 0, 0,
      NULL, false },
    { "tenants", 't', TR_OPTION_FLAG, &g.tenants, NULL,
      "what each tenant has used, as NGINX counts it", 0, 0, NULL, false },
    { "url", 'u', TR_OPTION_TEXT, &g.url, "URL",
      "--tenants: of NGINX (default http://127.0.0.1:8080), or of its metrics",
      0, 0, NULL, false },
    { "header", 0, TR_OPTION_LIST, &g.headers, "LINE",
      "--tenants: HTTP header to send, may be repeated", 0, 0, NULL, false },
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

const tr_command_t tr_stats_command = {
    "tokenring stats [options] [--engine SOCKET | --tenants]",
    "Shows what a running engine does: model, load, speed, latencies, KV\n"
    "cache.  It reads the engine's status page and costs the engine nothing.\n"
    "With --tenants, what each tenant has used: requests, those refused, "
    "tokens.",
    "  tokenring stats --engine build/run/engine.sock\n"
    "  tokenring stats -e /run/tokenring/main.sock --once --json\n"
    "  tokenring stats --tenants --once",
    options
};

/* ---- numbers ------------------------------------------------------------ */

static const char *
state_name(uint32_t state)
{
    static const char *const names[] = { "loading", "ready", "draining",
                                         "failed" };

    return state < 4 ? names[state] : "unknown";
}

static double
rate(uint64_t from, uint64_t to, double seconds)
{
    return seconds > 0 ? (double) (to - from) / seconds : 0;
}

/* ---- pictures ----------------------------------------------------------- */

/* " 1.5 ms" in a unit that fits. */
static const char *
duration(double ms, char *buf, size_t size)
{
    if (ms < 0) {
        snprintf(buf, size, "-");
    } else if (ms < 1) {
        snprintf(buf, size, "%.0f us", ms * 1e3);
    } else if (ms < 1000) {
        snprintf(buf, size, ms < 10 ? "%.1f ms" : "%.0f ms", ms);
    } else {
        snprintf(buf, size, "%.2f s", ms / 1e3);
    }
    return buf;
}

static void
draw_bar(FILE *f, double share)
{
    int width = g.width == 0 || g.width >= 100 ? 40 : g.width >= 70 ? 20 : 8;
    int full = (int) (share * width + 0.5), i;

    fputc('[', f);
    for (i = 0; i < width; i++) {
        fputc(i < full ? '#' : '.', f);
    }
    fputc(']', f);
}

static void
draw_latencies(FILE *f, const tr_stats_sample_t *a, const tr_stats_sample_t *b)
{
    static const double points[] = { 0.5, 0.9, 0.99 };
    char buf[32];
    int cell = g.width != 0 && g.width < 60 ? 8 : 10;
    unsigned i, k;

    fprintf(f, "%-14s %*s %*s %*s %*s\n", "latency", cell, "p50", cell, "p90",
            cell, "p99", cell, "count");
    for (i = 0; i < TR_STATS_HISTOGRAMS; i++) {
        tr_stats_histogram_t h;

        tr_stats_difference(a != NULL ? &a->histogram[i] : NULL,
                            &b->histogram[i], &h);
        fprintf(f, "  %-12s", histogram_titles[i]);
        for (k = 0; k < 3; k++) {
            fprintf(f, " %*s", cell,
                    duration(tr_stats_percentile(&h, points[k]), buf,
                             sizeof(buf)));
        }
        fprintf(f, " %*llu\n", cell, (unsigned long long) tr_stats_total(&h));
    }
}

#define MIB 1048576.0

static double
share_of(uint64_t part, uint64_t whole)
{
    return whole != 0 ? (double) part / (double) whole : 0;
}

/* Bytes of the pages in use. */
static double
used_bytes(const tr_stats_sample_t *b)
{
    uint64_t n = 0;
    unsigned i;

    for (i = 0; i < g.card.kv_levels; i++) {
        n += b->now.kv_used_pages[i];
    }
    return (double) n * (double) g.card.kv_page_bytes;
}

/* What is kept of prompts and answers for those that begin alike. */
static void
draw_prefixes(FILE *f, const tr_stats_sample_t *b)
{
    if (b->prefix_queries == 0) {
        return;
    }
    fprintf(f, "  %-12s", "prefixes");
    draw_bar(f, share_of(b->cached_pages, g.card.kv_pages));
    fprintf(f, " %llu pages not in use; evicted %llu blocks\n",
            (unsigned long long) b->cached_pages,
            (unsigned long long) b->prefix_evicted);
    fprintf(f, "  %-12s%.1f%% of prompts found %llu tokens; computed %llu\n",
            "reuse", 100 * share_of(b->prefix_hits, b->prefix_queries),
            (unsigned long long) b->prefix_tokens,
            (unsigned long long) b->prefilled);
    if (b->shelf_stored != 0) {
        fprintf(f,
                "  %-12s%llu prefixes with %.1f MiB; %llu written, %llu came"
                " back with %llu tokens, %llu evicted\n",
                "host memory", (unsigned long long) b->shelf_items,
                (double) b->shelf_bytes / (1 << 20),
                (unsigned long long) b->shelf_stored,
                (unsigned long long) b->shelf_loaded,
                (unsigned long long) b->shelf_tokens,
                (unsigned long long) b->shelf_evicted);
    }
    if (b->store_files == 0 && b->store_stored == 0) {
        return;
    }
    fprintf(f,
            "  %-12s%llu files with %.1f MiB; %llu written, %llu came back with"
            " %llu tokens, %llu failed\n",
            "files", (unsigned long long) b->store_files,
            (double) b->store_bytes / (1 << 20),
            (unsigned long long) b->store_stored,
            (unsigned long long) b->store_loaded,
            (unsigned long long) b->store_tokens,
            (unsigned long long) b->store_failed);
}

/* Does the model suit its policies? */
static void
draw_guard(FILE *f, const tr_stats_sample_t *b)
{
    if (b->guard_prompts == 0) {
        return;
    }
    fprintf(f,
            "  %-12s%s: attention moves by %.1f%% with compressed keys, %.1f%%"
            " with values\n",
            "guard", b->guard_over ? "LOSES ANSWERS" : "suits the model",
            (double) b->guard_keys / 1e4, (double) b->guard_values / 1e4);
}

/* Pages by level, each against the whole pool; then the same tokens at 16 bits,
 * and what became of those of requests that ended. */
static void
draw_cache(FILE *f, const tr_stats_sample_t *b)
{
    double full = (double) b->now.kv_full_bytes, used = used_bytes(b);
    double page = (double) g.card.kv_page_bytes;
    uint64_t ended = b->kv_high + b->kv_low + b->kv_pruned;
    unsigned i;

    fprintf(f, "\nKV cache %s\n", g.card.kv_policy);
    fprintf(f, "  %-12s", "in use");
    draw_bar(f,
             share_of((uint64_t) used, g.card.kv_pages * g.card.kv_page_bytes));
    fprintf(f, " %.1f of %.1f MiB, %llu tokens\n", used / MIB,
            (double) g.card.kv_pages * page / MIB,
            (unsigned long long) b->now.kv_tokens);
    for (i = 0; i < g.card.kv_levels; i++) {
        uint64_t n = b->now.kv_used_pages[i];

        fprintf(f, "  %-12s", g.card.level_name[i]);
        draw_bar(f, share_of(n, g.card.kv_pages));
        fprintf(f, " %llu pages, %llu bytes a token\n", (unsigned long long) n,
                (unsigned long long) g.card.level_token_bytes[i]);
    }
    fprintf(f, "  %-12s%.1f MiB for the same tokens", "at 16 bits", full / MIB);
    if (full > 0) {
        fprintf(f, ": %.1f%% of it is taken",
                100 * (used + (double) b->now.kv_swapped_pages * page) / full);
    }
    fprintf(f, "\n  %-12s%llu pages   swaps %llu   recomputed %llu\n",
            "swapped", (unsigned long long) b->now.kv_swapped_pages,
            (unsigned long long) b->swaps,
            (unsigned long long) b->recomputations);
    draw_guard(f, b);
    draw_prefixes(f, b);
    if (ended != 0) {
        fprintf(f,
                "  %-12s%.1f%% of 16 bits; tokens high %.1f%%, low %.1f%%, "
                "pruned %.1f%%\n",
                "ended", 100 * share_of(b->kv_bytes, ended),
                100 * share_of(b->kv_high, ended),
                100 * share_of(b->kv_low, ended),
                100 * share_of(b->kv_pruned, ended));
    }
}

static void
draw_all(FILE *f, const tr_stats_sample_t *a, const tr_stats_sample_t *b)
{
    double s = (double) (b->at_us - a->at_us) / 1e6;

    fprintf(f, "%s on %s (%s), %s, %.1f M parameters, context %u\n",
            g.card.model, g.card.engine, g.card.backend,
            state_name(b->now.state), (double) g.card.parameters / 1e6,
            g.card.max_model_len);
    fprintf(f,
            "running %u  waiting %u  free in queue %u  channels %llu  "
            "step %llu\n\n",
            b->now.running, b->now.waiting, b->now.queue_free,
            (unsigned long long) b->channels, (unsigned long long) b->now.step);
    fprintf(f, "tokens/s       generated %.1f   prompt %.1f\n",
            rate(a->generation_tokens, b->generation_tokens, s),
            rate(a->prompt_tokens, b->prompt_tokens, s));
    fprintf(f, "since start    generated %llu   prompt %llu\n",
            (unsigned long long) b->generation_tokens,
            (unsigned long long) b->prompt_tokens);
    fprintf(f,
            "requests       stop %llu   length %llu   aborted %llu   "
            "error %llu   preempted %llu\n\n",
            (unsigned long long) b->stop, (unsigned long long) b->length,
            (unsigned long long) b->aborted, (unsigned long long) b->error,
            (unsigned long long) b->preemptions);
    draw_latencies(f, a, b);
    draw_cache(f, b);
}

/* How much of a line goes into this row: up to the last blank or comma that
 * fits, or all that does. */
static size_t
row_of(const char *line, size_t n, size_t room)
{
    size_t at = room;

    if (n <= room) {
        return n;
    }
    while (at > 1 && line[at] != ' ' && line[at - 1] != ',') {
        at--;
    }
    return at > 1 ? at : room;
}

/* One line, in as many rows as it takes: a row that the terminal broke would
 * spoil what is drawn over it. */
static void
draw_line(const char *line, size_t n)
{
    const char *clear = g.redraw ? "\033[K" : "";
    size_t indent = 0;

    do {
        size_t row = g.width == 0 ? n : row_of(line, n, g.width - indent);

        printf("%*s%.*s%s\n", (int) indent, "", (int) row, line, clear);
        while (row < n && line[row] == ' ') {
            row++;
        }
        line += row;
        n -= row;
        indent = 4;
    } while (n != 0);
}

/* The whole picture; on a terminal over the one before. */
static void
draw(const tr_stats_sample_t *a, const tr_stats_sample_t *b)
{
    char *text = NULL, *line, *end;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    if (f == NULL) {
        return;
    }
    g.width = tr_terminal_width(stdout);
    draw_all(f, a, b);
    fclose(f);
    fputs(g.redraw ? "\033[H" : "", stdout);
    for (line = text; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        draw_line(line, (size_t) (end - line));
    }
    fputs(g.redraw ? "\033[J" : "", stdout);
    fflush(stdout);
    free(text);
}

static void
print_line(const tr_stats_sample_t *a, const tr_stats_sample_t *b)
{
    double s = a != NULL ? (double) (b->at_us - a->at_us) / 1e6
                         : (double) (time(NULL) - g.card.created);
    tr_stats_histogram_t ttft, inter;
    char p[4][32];

    tr_stats_difference(a != NULL ? &a->histogram[TR_STATS_TTFT] : NULL,
                        &b->histogram[TR_STATS_TTFT], &ttft);
    tr_stats_difference(a != NULL ? &a->histogram[TR_STATS_INTER_TOKEN] : NULL,
                        &b->histogram[TR_STATS_INTER_TOKEN], &inter);
    printf("%s %s running=%u waiting=%u tokens_per_s=%.1f prompt_per_s=%.1f "
           "ttft_p50=%s ttft_p99=%s inter_token_p50=%s inter_token_p99=%s "
           "kv=%.1f%% kv_of_fp16=%.1f%%\n",
           g.card.model, state_name(b->now.state), b->now.running,
           b->now.waiting,
           rate(a != NULL ? a->generation_tokens : 0, b->generation_tokens, s),
           rate(a != NULL ? a->prompt_tokens : 0, b->prompt_tokens, s),
           duration(tr_stats_percentile(&ttft, 0.5), p[0], sizeof(p[0])),
           duration(tr_stats_percentile(&ttft, 0.99), p[1], sizeof(p[1])),
           duration(tr_stats_percentile(&inter, 0.5), p[2], sizeof(p[2])),
           duration(tr_stats_percentile(&inter, 0.99), p[3], sizeof(p[3])),
           g.card.kv_pages == 0 ? 0.0
                                : 100.0
                                      - 100.0 * (double) b->now.kv_free_pages
                                            / (double) g.card.kv_pages,
           b->now.kv_full_bytes == 0
               ? 0.0
               : 100 * used_bytes(b) / (double) b->now.kv_full_bytes);
    fflush(stdout);
}

static json_t *
json_latencies(const tr_stats_sample_t *a, const tr_stats_sample_t *b)
{
    static const struct {
        const char *name;
        double p;
    } points[] = { { "p50", 0.5 }, { "p90", 0.9 }, { "p99", 0.99 } };
    json_t *all = json_object();
    unsigned i, k;

    for (i = 0; i < TR_STATS_HISTOGRAMS; i++) {
        json_t *one = json_object();
        tr_stats_histogram_t h;
        uint64_t n;

        tr_stats_difference(a != NULL ? &a->histogram[i] : NULL,
                            &b->histogram[i], &h);
        n = tr_stats_total(&h);
        json_object_set_new(one, "count", json_integer((json_int_t) n));
        for (k = 0; k < 3; k++) {
            json_object_set_new(one, points[k].name,
                                n == 0
                                    ? json_null()
                                    : json_real(
                                        tr_stats_percentile(&h, points[k].p)));
        }
        json_object_set_new(one, "mean",
                            n == 0 ? json_null()
                                   : json_real((double) h.sum_us / 1e3
                                               / (double) n));
        json_object_set_new(all, histogram_names[i], one);
    }
    return all;
}

static json_t *
json_cache(const tr_stats_sample_t *b)
{
    json_t *levels = json_object();
    uint64_t ended = b->kv_high + b->kv_low + b->kv_pruned;
    unsigned i;

    for (i = 0; i < g.card.kv_levels; i++) {
        json_object_set_new(
            levels, g.card.level_name[i],
            json_pack("{s:I, s:I}", "pages",
                      (json_int_t) b->now.kv_used_pages[i], "token_bytes",
                      (json_int_t) g.card.level_token_bytes[i]));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I,"
                     " s:{s:I, s:I, s:f, s:f, s:f}}",
                     "policy", g.card.kv_policy, "pages",
                     (json_int_t) g.card.kv_pages, "free_pages",
                     (json_int_t) b->now.kv_free_pages, "page_bytes",
                     (json_int_t) g.card.kv_page_bytes, "tokens",
                     (json_int_t) b->now.kv_tokens, "used_bytes",
                     (json_int_t) used_bytes(b), "fp16_bytes",
                     (json_int_t) b->now.kv_full_bytes, "swapped_pages",
                     (json_int_t) b->now.kv_swapped_pages, "levels", levels,
                     "swaps", (json_int_t) b->swaps, "recomputations",
                     (json_int_t) b->recomputations, "ended", "bytes",
                     (json_int_t) b->kv_bytes, "fp16_bytes", (json_int_t) ended,
                     "share_high", share_of(b->kv_high, ended), "share_low",
                     share_of(b->kv_low, ended), "share_pruned",
                     share_of(b->kv_pruned, ended));
}

static void
print_json(const tr_stats_sample_t *a, const tr_stats_sample_t *b)
{
    double s = a != NULL ? (double) (b->at_us - a->at_us) / 1e6
                         : (double) (time(NULL) - g.card.created);
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:f, s:i, s:i, s:i, s:I, s:I, s:I, s:f, s:f}",
        "model", g.card.model, "engine", g.card.engine, "backend",
        g.card.backend, "state", state_name(b->now.state), "seconds", s,
        "running", (int) b->now.running, "waiting", (int) b->now.waiting,
        "queue_free", (int) b->now.queue_free, "step", (json_int_t) b->now.step,
        "generation_tokens", (json_int_t) b->generation_tokens, "prompt_tokens",
        (json_int_t) b->prompt_tokens, "generation_tokens_per_s",
        rate(a != NULL ? a->generation_tokens : 0, b->generation_tokens, s),
        "prompt_tokens_per_s",
        rate(a != NULL ? a->prompt_tokens : 0, b->prompt_tokens, s));

    json_object_set_new(root, "requests",
                        json_pack("{s:I, s:I, s:I, s:I}", "stop",
                                  (json_int_t) b->stop, "length",
                                  (json_int_t) b->length, "aborted",
                                  (json_int_t) b->aborted, "error",
                                  (json_int_t) b->error));
    json_object_set_new(root, "preemptions",
                        json_integer((json_int_t) b->preemptions));
    json_object_set_new(root, "latency_ms", json_latencies(a, b));
    json_object_set_new(root, "kv", json_cache(b));
    json_object_set_new(root, "prefix_files",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "files",
                                  (json_int_t) b->store_files, "bytes",
                                  (json_int_t) b->store_bytes, "written",
                                  (json_int_t) b->store_stored, "read",
                                  (json_int_t) b->store_loaded, "tokens",
                                  (json_int_t) b->store_tokens, "failed",
                                  (json_int_t) b->store_failed));
    json_object_set_new(root, "prefix_host",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "prefixes",
                                  (json_int_t) b->shelf_items, "bytes",
                                  (json_int_t) b->shelf_bytes, "written",
                                  (json_int_t) b->shelf_stored, "read",
                                  (json_int_t) b->shelf_loaded, "tokens",
                                  (json_int_t) b->shelf_tokens, "evicted",
                                  (json_int_t) b->shelf_evicted));
    json_object_set_new(root, "prefixes",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
                                  "queries", (json_int_t) b->prefix_queries,
                                  "hits", (json_int_t) b->prefix_hits, "tokens",
                                  (json_int_t) b->prefix_tokens, "cuts",
                                  (json_int_t) b->prefix_cuts, "computed",
                                  (json_int_t) b->prefilled, "blocks",
                                  (json_int_t) b->prefix_blocks,
                                  "evicted_blocks",
                                  (json_int_t) b->prefix_evicted,
                                  "cached_pages",
                                  (json_int_t) b->cached_pages));
    json_object_set_new(root, "guard",
                        json_pack("{s:I, s:I, s:f, s:f}", "prompts",
                                  (json_int_t) b->guard_prompts, "warnings",
                                  (json_int_t) b->guard_over, "keys",
                                  (double) b->guard_keys / 1e6, "values",
                                  (double) b->guard_values / 1e6));
    json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7));
    putchar('\n');
    fflush(stdout);
    json_decref(root);
}

static void
show(const tr_stats_sample_t *a, const tr_stats_sample_t *b)
{
    if (g.json) {
        print_json(a, b);
    } else if (g.redraw) {
        draw(a, b);
    } else {
        print_line(a, b);
    }
}

/* Looks again and again until Ctrl-C or the engine's end. */
static int
watch(void)
{
    tr_error_t err = { 0 };
    tr_ring_event_t event;
    tr_stats_sample_t a, b;
    uint64_t next = tr_now_us();
    tr_status_t rc = TR_AGAIN;

    tr_stats_take(g.client, &a);
    if (g.redraw) {
        printf("\033[2J");
        draw(&a, &a);
    }
    while (!tr_interrupted() && !ferror(stdout)) {
        next += (uint64_t) (g.interval * 1e6);
        while (rc == TR_AGAIN && tr_now_us() < next && !tr_interrupted()) {
            /* no records come; the poll notices the engine's hang-up */
            uint64_t left = (next - tr_now_us()) / 1000 + 1;

            rc = tr_ring_client_poll(g.client, left < 200 ? (int) left : 200,
                                     &event, &err);
        }
        if (rc != TR_AGAIN) {
            fprintf(stderr, "tokenring stats: %s\n", err.text);
            return 1;
        }
        if (!tr_interrupted()) {
            tr_stats_take(g.client, &b);
            show(&a, &b);
            a = b;
        }
    }
    return 0;
}

int
tr_cmd_stats(int argc, char **argv)
{
    tr_ring_client_options_t small = { 64, 4096, 4096 };
    tr_error_t err = { 0 };
    tr_stats_sample_t sample, birth = { 0 };
    char path[TR_SOCKET_BYTES];
    const char *given;
    int rc;

    if (tr_options_only(&tr_stats_command, argc, argv, &rc) != 0) {
        return rc;
    }
    if (g.tenants) {
        return tr_stats_tenants(&(tr_stats_tenants_t){
            g.url, &g.headers, g.interval, g.once, g.json });
    }
    given = g.engine;
    g.engine = tr_engine_socket(given, path);
    if (g.engine == NULL || (given == NULL && access(g.engine, F_OK) != 0)) {
        return tr_usage_error(&tr_stats_command,
                              "which engine? there is none at %s: "
                              "give --engine SOCKET",
                              g.engine != NULL ? g.engine : "that name");
    }
    if (tr_ring_client_connect(g.engine, &small, 5000, &g.client, &err)
        != TR_OK) {
        fprintf(stderr, "tokenring stats: %s\n", err.text);
        return 1;
    }
    tr_status_card_copy(tr_ring_client_status(g.client), &g.card);
    g.redraw = !g.json && !g.once && isatty(STDOUT_FILENO);
    tr_interrupt_catch();
    if (g.once) {
        tr_stats_take(g.client, &sample);
        if (g.json) {
            print_json(NULL, &sample);
        } else {
            /* as against the engine's birth */
            birth.at_us = sample.at_us
                          - (uint64_t) (time(NULL) - g.card.created) * 1000000;
            draw(&birth, &sample);
        }
        rc = 0;
    } else {
        rc = watch();
    }
    tr_ring_client_close(g.client);
    return rc;
}
