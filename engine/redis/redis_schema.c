/*
 * The publisher's commands (redis_schema.h).
 */
#include "redis_schema.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tokenring/channel.h>
#include <tokenring/version.h>

static const char *const state_names[] = { "queued", "prefill", "decode",
                                           "done",   "failed",  "cancelled" };

static const char *const engine_states[] = { "loading", "ready", "draining",
                                             "failed" };

void
tr_redis_schema_init(tr_redis_schema_t *w, const tr_config_t *config,
                     const tr_status_page_t *status, int64_t now_ms)
{
    memset(w, 0, sizeof(*w));
    w->config = config;
    w->status = status;
    w->pid = (long) getpid();
    w->started_ms = now_ms;
    snprintf(w->run, sizeof(w->run), "%016" PRIx64, status->generation);
    if (gethostname(w->host, sizeof(w->host) - 1) != 0) {
        w->host[0] = '\0';
    }
}

void
tr_redis_schema_key(const tr_redis_schema_t *w, tr_redis_command_t *c,
                    const char *kind, const char *name)
{
    tr_redis_format(c, "%s%s:{%s}", w->config->redis_prefix, kind, name);
}

/* ---- epochs ------------------------------------------------------------- */

/* What is written of a request that moves: not when a later engine has it. */
#define FENCE                                         \
    "local e = redis.call('HGET', KEYS[1], 'epoch') " \
    "if e and tonumber(e) > tonumber(ARGV[1]) then "  \
    "return redis.status_reply('FENCED') end "

/* A request was created when the first engine got it. */
static const char fields_script[] = FENCE
    "local c = redis.call('HGET', KEYS[1], 'created') "
    "local r = redis.pcall('HSET', KEYS[1], unpack(ARGV, 2)) "
    "if c then redis.pcall('HSET', KEYS[1], 'created', c) end "
    "return r";

static const char entry_script[] = FENCE
    "local r if ARGV[2] == '1' then "
    "r = redis.pcall('XADD', KEYS[2], ARGV[3], 'r', ARGV[5]) else "
    "r = redis.pcall('XADD', KEYS[2], 'NOMKSTREAM', ARGV[3], 'r', ARGV[5]) end "
    "if type(r) == 'string' then "
    "redis.pcall('PUBLISH', KEYS[3], ARGV[4] .. ARGV[5]) end "
    "return r";

static const char claim_script[] = FENCE
    "redis.call('HSET', KEYS[1], 'epoch', ARGV[1]) "
    "return redis.call('HDEL', KEYS[1], 'finished', 'finish_reason', "
    "'error_status', 'error')";

static void
begin_script(const tr_redis_schema_t *w, tr_redis_command_t *c,
             const char *script, unsigned keys, const tr_outbox_request_t *q)
{
    tr_redis_begin(c, "EVAL");
    tr_redis_text(c, script);
    tr_redis_format(c, "%u", keys);
    tr_redis_schema_key(w, c, "req", q->completion);
    if (keys == 3) {
        tr_redis_schema_key(w, c, "out", q->completion);
        tr_redis_schema_key(w, c, "live", q->completion);
    }
    tr_redis_format(c, "%u", q->epoch);
}

void
tr_redis_schema_claim(const tr_redis_schema_t *w, tr_redis_command_t *c,
                      const tr_outbox_request_t *q)
{
    begin_script(w, c, claim_script, 1, q);
}

/* ---- fields ------------------------------------------------------------- */

static void
field_text(tr_redis_command_t *c, const char *name, const char *value)
{
    if (value[0] != '\0') {
        tr_redis_text(c, name);
        tr_redis_text(c, value);
    }
}

static void
field_number(tr_redis_command_t *c, const char *name, uint64_t value)
{
    tr_redis_text(c, name);
    tr_redis_format(c, "%" PRIu64, value);
}

/* Times: absent while it has not happened. */
static void
field_time(tr_redis_command_t *c, const char *name, int64_t ms)
{
    if (ms != 0) {
        tr_redis_text(c, name);
        tr_redis_format(c, "%" PRId64, ms);
    }
}

static void
field_share(tr_redis_command_t *c, const char *name, double value)
{
    tr_redis_text(c, name);
    tr_redis_format(c, "%.6f", value);
}

static void
field_flag(tr_redis_command_t *c, const char *name, bool set)
{
    if (set) {
        field_text(c, name, "1");
    }
}

/* ---- a tenant ----------------------------------------------------------- */

/* PREFIX + "usage:{TENANT}:DAY": a tenant is the bytes of its hash, as SUBMIT has
 * them. */
static void
usage_key(const tr_redis_schema_t *w, tr_redis_command_t *c,
          const tr_usage_row_t *row)
{
    const uint8_t *b = (const uint8_t *) &row->tenant;
    char day[16];

    tr_usage_day(row->day, day);
    tr_redis_format(c, "%susage:{%02x%02x%02x%02x%02x%02x%02x%02x}:%s",
                    w->config->redis_prefix, b[0], b[1], b[2], b[3], b[4], b[5],
                    b[6], b[7], day);
}

static void
usage_name(const tr_redis_schema_t *w, tr_redis_command_t *c, const char *what)
{
    tr_redis_format(c, "%s/%s/%s", w->config->name, w->run, what);
}

static void
usage_field(const tr_redis_schema_t *w, tr_redis_command_t *c, const char *what,
            uint64_t value)
{
    usage_name(w, c, what);
    tr_redis_format(c, "%" PRIu64, value);
}

void
tr_redis_schema_usage(const tr_redis_schema_t *w, tr_redis_command_t *c,
                      const tr_usage_row_t *row)
{
    tr_redis_begin(c, "HSET");
    usage_key(w, c, row);
    usage_field(w, c, "requests", row->requests);
    usage_field(w, c, "in", row->in);
    usage_field(w, c, "out", row->out);
}

void
tr_redis_schema_used(const tr_redis_schema_t *w, tr_redis_command_t *c,
                     const tr_usage_row_t *row)
{
    tr_redis_begin(c, "HMGET");
    usage_key(w, c, row);
    usage_name(w, c, "requests");
    usage_name(w, c, "in");
    usage_name(w, c, "out");
}

void
tr_redis_schema_usage_expire(const tr_redis_schema_t *w, tr_redis_command_t *c,
                             const tr_usage_row_t *row)
{
    tr_redis_begin(c, "PEXPIRE");
    usage_key(w, c, row);
    tr_redis_format(c, "%" PRIu64, (uint64_t) (TR_USAGE_TTL_US / 1000));
}

/* ---- a request ---------------------------------------------------------- */

static const char *
state_name(const tr_outbox_request_t *q)
{
    return q->detached && q->state < TR_REQUEST_DONE ? "detached"
                                                     : state_names[q->state];
}

static void
identity_fields(const tr_redis_schema_t *w, tr_redis_command_t *c,
                const tr_outbox_request_t *q)
{
    field_text(c, "model", w->config->served_model_name);
    field_text(c, "endpoint", tr_endpoint_info(q->endpoint)->name);
    field_text(c, "request_id", q->request_id);
    field_text(c, "owner", q->owner);
    field_flag(c, "resumable", (q->flags & TR_SUBMIT_RESUMABLE) != 0);
    field_flag(c, "detach", (q->flags & TR_SUBMIT_DETACH) != 0);
    field_number(c, "wire", TR_STORED_VERSION);
    if (q->migrate_s != 0) {
        field_number(c, "migrate", q->migrate_s);
    }
    field_time(c, "created", q->created_ms);
}

static void
cache_fields(tr_redis_command_t *c, const tr_wire_usage_t *kv)
{
    if (kv->full_bytes == 0) {
        return;
    }
    field_number(c, "kv_bytes", kv->bytes);
    field_number(c, "kv_full_bytes", kv->full_bytes);
    field_share(c, "share_high", kv->share_high);
    field_share(c, "share_low", kv->share_low);
    field_share(c, "share_pruned", kv->share_pruned);
    field_number(c, "kv_tokens_full", kv->tokens_full);
    field_number(c, "kv_tokens_high", kv->tokens_high);
    field_number(c, "kv_tokens_low", kv->tokens_low);
    field_number(c, "kv_tokens_pruned", kv->tokens_pruned);
}

static void
final_fields(tr_redis_command_t *c, const tr_outbox_request_t *q)
{
    const tr_event_end_t *end = &q->end;

    field_time(c, "finished", q->finished_ms);
    field_number(c, "completion_tokens", end->completion_tokens);
    field_number(c, "cached_tokens", end->cached_tokens);
    field_number(c, "preemptions", end->preemptions);
    if (end->state == TR_REQUEST_DONE) {
        field_text(c, "finish_reason",
                   end->finish_reason == TR_FINISH_STOP         ? "stop"
                   : end->finish_reason == TR_FINISH_TOOL_CALLS ? "tool_calls"
                                                                : "length");
    }
    cache_fields(c, &end->kv);
    if (end->status != TR_OK) {
        field_text(c, "error_status", tr_status_info(end->status).name);
    }
    field_text(c, "error", end->message);
}

static void
kept_fields(tr_redis_command_t *c, const tr_event_kept_t *kept)
{
    char holder[2 * TR_HOLDER + 1];

    tr_redis_schema_holder(kept->holder, holder);
    tr_redis_text(c, "holder");
    tr_redis_format(c, "%s", holder);
    tr_redis_text(c, "input");
    tr_redis_bytes(c, kept->text, kept->input_len);
    if (kept->ancestors_len != 0) {
        tr_redis_text(c, "ancestors");
        tr_redis_bytes(c, kept->text + kept->input_len, kept->ancestors_len);
    }
}

void
tr_redis_schema_holder(const uint8_t holder[TR_HOLDER],
                       char out[2 * TR_HOLDER + 1])
{
    unsigned i;

    for (i = 0; i < TR_HOLDER; i++) {
        sprintf(out + 2 * i, "%02x", holder[i]);
    }
}

void
tr_redis_schema_fields(const tr_redis_schema_t *w, tr_redis_command_t *c,
                       const tr_outbox_request_t *q, unsigned groups)
{
    if (tr_outbox_moves(q)) {
        begin_script(w, c, fields_script, 1, q);
    } else {
        tr_redis_begin(c, "HSET");
        tr_redis_schema_key(w, c, "req", q->completion);
    }
    field_text(c, "state", state_name(q));
    field_text(c, "engine", w->config->name);
    field_text(c, "run", q->left ? "-" : w->run);
    if (q->epoch != 0) {
        field_number(c, "epoch", q->epoch);
    }
    if (groups & TR_OUTBOX_IDENTITY) {
        identity_fields(w, c, q);
    } else {
        /* evicted or flushed meanwhile, it must not become anybody's */
        field_text(c, "owner", q->owner);
    }
    if (groups & TR_OUTBOX_STATE) {
        field_time(c, "started", q->started_ms);
        field_time(c, "first_token", q->first_token_ms);
        field_flag(c, "gap", q->gap);
    }
    if ((groups & TR_OUTBOX_ACCEPTED) && q->end.choices != 0) {
        field_flag(c, "stream", q->stream);
        field_number(c, "choices", q->end.choices);
        field_number(c, "prompt_tokens", q->end.prompt_tokens);
        field_text(c, "kv_policy", q->policy);
    }
    if (groups & TR_OUTBOX_KEPT) {
        kept_fields(c, &q->answered);
    }
    if (groups & TR_OUTBOX_FINAL) {
        final_fields(c, q);
    } else if (groups & TR_OUTBOX_PROGRESS) {
        field_number(c, "completion_tokens", q->progress.tokens);
        cache_fields(c, &q->progress.kv);
    }
}

void
tr_redis_schema_expire(const tr_redis_schema_t *w, tr_redis_command_t *c,
                       const char *kind, const char *name, uint64_t ttl_us)
{
    tr_redis_begin(c, "PEXPIRE");
    tr_redis_schema_key(w, c, kind, name);
    tr_redis_format(c, "%" PRIu64, ttl_us / 1000);
}

/* A stream that has begun must be there: it is not made anew without its
 * beginning (which would be a hole). */
void
tr_redis_schema_entry(const tr_redis_schema_t *w, tr_redis_command_t *c,
                      const tr_outbox_request_t *q)
{
    const tr_outbox_entry_t *e = q->unacked;

    if (tr_outbox_moves(q)) {
        begin_script(w, c, entry_script, 3, q);
        tr_redis_text(c, e->first == 1 ? "1" : "0");
        tr_redis_format(c, "%u-0", e->last);
        tr_redis_format(c, "%u %u\n", e->first, e->last);
        tr_redis_bytes(c, e->bytes, e->len);
        return;
    }
    tr_redis_begin(c, "XADD");
    tr_redis_schema_key(w, c, "out", q->completion);
    if (e->first != 1) {
        tr_redis_text(c, "NOMKSTREAM");
    }
    tr_redis_format(c, "%u-0", e->last);
    tr_redis_text(c, "r");
    tr_redis_bytes(c, e->bytes, e->len);
}

void
tr_redis_schema_live(const tr_redis_schema_t *w, tr_redis_command_t *c,
                     const tr_outbox_request_t *q, char *scratch)
{
    const tr_outbox_entry_t *e = q->unacked;
    int n = sprintf(scratch, "%u %u\n", e->first, e->last);

    memcpy(scratch + n, e->bytes, e->len);
    tr_redis_begin(c, "PUBLISH");
    tr_redis_schema_key(w, c, "live", q->completion);
    tr_redis_bytes(c, scratch, (size_t) n + e->len);
}

void
tr_redis_schema_latest(const tr_redis_schema_t *w, tr_redis_command_t *c,
                       const tr_outbox_request_t *q)
{
    tr_redis_begin(c, "ZADD");
    tr_redis_schema_key(w, c, "requests", w->config->name);
    tr_redis_format(c, "%" PRId64, q->created_ms);
    tr_redis_text(c, q->completion);
}

/* ---- the engine --------------------------------------------------------- */

static uint64_t
counter(const _Atomic uint64_t *c)
{
    /* C11 forgot the const in atomic_load */
    return atomic_load_explicit((_Atomic uint64_t *) (uintptr_t) c,
                                memory_order_relaxed);
}

/* Reads what the status page says; what cannot be read is as before. */
static void
read_admission(const tr_redis_schema_t *w, tr_status_admission_t *a)
{
    memset(a, 0, sizeof(*a));
    while (tr_status_read(w->status, a) != TR_OK) {
        /* the writer is a thread of this process: it goes on */
    }
}

static void
level_fields(tr_redis_command_t *c, const tr_status_card_t *card)
{
    char names[TR_STATUS_LEVELS * 17], bytes[TR_STATUS_LEVELS * 21];
    size_t n = 0, b = 0;
    uint32_t i;

    names[0] = bytes[0] = '\0';
    for (i = 0; i < card->kv_levels && i < TR_STATUS_LEVELS; i++) {
        const char *blank = i != 0 ? " " : "";

        n += (size_t) snprintf(names + n, sizeof(names) - n, "%s%s", blank,
                               card->level_name[i]);
        b += (size_t) snprintf(bytes + b, sizeof(bytes) - b, "%s%" PRIu64,
                               blank, card->level_token_bytes[i]);
    }
    tr_redis_text(c, "levels");
    tr_redis_format(c, "%s", names);
    tr_redis_text(c, "level_bytes");
    tr_redis_format(c, "%s", bytes);
}

static void
weights_fields(const tr_status_page_t *page, tr_redis_command_t *c)
{
    uint64_t bytes = counter(&page->counters.weights_bytes);
    char format[TR_STATUS_FORMAT];

    if (bytes == 0) {
        return;
    }
    tr_status_weights_format(page, format);
    if (format[0] != '\0') {
        tr_redis_text(c, "weights");
        tr_redis_format(c, "%s", format); /* a copy: ours ends with us */
    }
    field_number(c, "weights_file_bytes",
                 counter(&page->counters.weights_file_bytes));
    field_number(c, "weights_bytes", bytes);
    field_number(c, "parameters", page->card.parameters);
}

/* What does not change while an engine runs. */
static void
card_fields(const tr_redis_schema_t *w, tr_redis_command_t *c)
{
    const tr_status_card_t *card = &w->status->card;

    field_text(c, "run", w->run);
    field_text(c, "model", card->model);
    field_text(c, "backend", card->backend);
    field_text(c, "kv_policy", card->kv_policy);
    field_time(c, "started", w->started_ms);
    field_text(c, "host", w->host);
    field_number(c, "pid", (uint64_t) w->pid);
    field_text(c, "version", TR_VERSION);
    field_number(c, "max_model_len", card->max_model_len);
    field_number(c, "page_bytes", card->kv_page_bytes);
    field_number(c, "pages", card->kv_pages);
    level_fields(c, card);
    field_number(c, "full_token_bytes", card->kv_full_token_bytes);
    weights_fields(w->status, c);
}

void
tr_redis_schema_heartbeat(const tr_redis_schema_t *w, tr_redis_command_t *c,
                          int64_t now_ms)
{
    tr_status_admission_t a;

    read_admission(w, &a);
    tr_redis_begin(c, "HSET");
    tr_redis_schema_key(w, c, "engine", w->config->name);
    field_text(c, "state", engine_states[a.state % 4]);
    field_time(c, "heartbeat", now_ms);
    card_fields(w, c);
}

void
tr_redis_schema_card(const tr_redis_schema_t *w, tr_redis_command_t *c)
{
    tr_redis_begin(c, "HSET");
    tr_redis_schema_key(w, c, "card", w->config->name);
    card_fields(w, c);
}

static void
histogram(tr_redis_command_t *c, const char *name,
          const tr_status_histogram_t *h)
{
    char text[(TR_STATUS_BUCKETS + 1) * 21];
    size_t n = 0;
    unsigned i;

    for (i = 0; i <= TR_STATUS_BUCKETS; i++) {
        n += (size_t) snprintf(text + n, sizeof(text) - n, "%s%" PRIu64,
                               i != 0 ? " " : "", counter(&h->count[i]));
    }
    tr_redis_text(c, name);
    tr_redis_format(c, "%s", text);
}

static void
page_fields(tr_redis_command_t *c, const tr_status_card_t *card,
            const tr_status_admission_t *a, uint64_t cached)
{
    char used[TR_STATUS_LEVELS * 21];
    size_t n = 0;
    uint32_t i;

    used[0] = '\0';
    for (i = 0; i < card->kv_levels && i < TR_STATUS_LEVELS; i++) {
        n += (size_t) snprintf(used + n, sizeof(used) - n, "%s%" PRIu64,
                               i != 0 ? " " : "", a->kv_used_pages[i]);
    }
    field_number(c, "kv_free", a->kv_free_pages);
    tr_redis_text(c, "kv_used");
    tr_redis_format(c, "%s", used);
    field_number(c, "kv_swapped", a->kv_swapped_pages);
    field_number(c, "kv_cached", cached);
    field_number(c, "kv_tokens", a->kv_tokens);
    field_number(c, "kv_full_bytes", a->kv_full_bytes);
}

static void
gpu_fields(tr_redis_command_t *c, const tr_status_counters_t *s)
{
    uint64_t known = counter(&s->gpu_known);

    if (known & TR_STATUS_GPU_USE) {
        field_number(c, "gpu_percent", counter(&s->gpu_use_percent));
    }
    if (known & TR_STATUS_GPU_POWER) {
        field_number(c, "gpu_milliwatts", counter(&s->gpu_milliwatts));
    }
}

void
tr_redis_schema_sample(const tr_redis_schema_t *w, tr_redis_command_t *c,
                       int64_t now_ms)
{
    const tr_status_counters_t *s = &w->status->counters;
    tr_status_admission_t a;

    read_admission(w, &a);
    tr_redis_begin(c, "XADD");
    tr_redis_schema_key(w, c, "metrics", w->config->name);
    tr_redis_text(c, "MAXLEN");
    tr_redis_format(c, "%u", w->config->redis_samples);
    tr_redis_format(c, "%" PRId64 "-0", now_ms);
    field_text(c, "run", w->run);
    field_number(c, "running", a.running);
    field_number(c, "waiting", a.waiting);
    field_number(c, "prompt_tokens", counter(&s->prompt_tokens));
    field_number(c, "generation_tokens", counter(&s->generation_tokens));
    field_number(c, "stop", counter(&s->requests_stop));
    field_number(c, "length", counter(&s->requests_length));
    field_number(c, "aborted", counter(&s->requests_aborted));
    field_number(c, "error", counter(&s->requests_error));
    field_number(c, "preemptions", counter(&s->preemptions));
    field_number(c, "kv_request_bytes", counter(&s->kv_bytes));
    field_number(c, "kv_request_full_bytes",
                 counter(&s->kv_full_bytes_high)
                     + counter(&s->kv_full_bytes_low)
                     + counter(&s->kv_full_bytes_pruned));
    gpu_fields(c, s);
    page_fields(c, &w->status->card, &a, counter(&s->kv_cached_pages));
    field_number(c, "kv_files_bytes", counter(&s->store_bytes));
    field_number(c, "kv_host_bytes", counter(&s->shelf_bytes));
    field_number(c, "kv_guard_warnings", counter(&s->kv_guard_over));
    histogram(c, "ttft", &s->ttft);
    histogram(c, "inter_token", &s->inter_token);
    histogram(c, "e2e", &s->e2e);
    histogram(c, "queue", &s->queue_time);
    histogram(c, "step", &s->step_time);
}
