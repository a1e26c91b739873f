/*
 * The step loop's thread (loop.h): its turns, requests and commands, and what
 * other threads call.
 */
#include "loop_internal.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/crash.h"

/* How often pauses and full response writers are looked at while there is
 * work. */
#define TR_LOOP_CHECK_US 250000

/* How long, at the end, the last records may wait for room. */
#define TR_LOOP_FLUSH_US 500000

/* ---- requests and commands ---------------------------------------------- */

static void
tr_loop_command(tr_loop_t *l, tr_request_t *r, uint64_t now)
{
    r->commands = atomic_load_explicit(&r->control, memory_order_acquire);
    if ((r->commands & TR_CONTROL_ABORT) != 0) {
        r->error.status = TR_OK;
        tr_loop_end(l, r);
    } else if ((r->commands & TR_CONTROL_CANCEL) != 0) {
        tr_error_set(&r->error, TR_ERR_CANCELLED, "", "%s", TR_CANCELLED);
        tr_loop_end(l, r);
    } else if (tr_request_spent(r)) {
        tr_loop_cut(l, r, now);
    } else if ((r->commands & TR_CONTROL_PAUSE) == 0) {
        r->paused_since_us = 0;
    } else if (r->paused_since_us == 0) {
        r->paused_since_us = now;
    }
}

static void
tr_loop_take(tr_loop_t *l, uint64_t now)
{
    tr_request_t *r, *next, *in_order = NULL;

    if (atomic_load_explicit(&l->incoming, memory_order_relaxed) == NULL) {
        return;
    }
    for (r = atomic_exchange(&l->incoming, NULL); r != NULL; r = next) {
        next = r->next;
        r->next = in_order;
        in_order = r;
    }
    for (r = in_order; r != NULL; r = next) {
        next = r->next;
        tr_request_append(&l->requests, r);
        l->n_requests++;
        l->n_quiet += tr_loop_quiet(r);
        l->n_masked += tr_loop_constrained(r);
        tr_scheduler_add(&l->scheduler, r);
        tr_loop_command(l, r, now); /* it may have come before the request */
    }
}

static void
tr_loop_commands(tr_loop_t *l, uint64_t now)
{
    tr_request_t *r, *next;

    for (r = l->requests.first; r != NULL; r = next) {
        next = r->next;
        tr_loop_command(l, r, now);
    }
}

/* Ends what was paused, or could not write, for too long. */
static void
tr_loop_check(tr_loop_t *l, uint64_t now)
{
    tr_request_t *r, *next;

    for (r = l->requests.first; r != NULL; r = next) {
        tr_response_writer_t *o = r->writer;

        next = r->next;
        if (r->paused_since_us != 0) {
            if (now - r->paused_since_us >= l->paused_timeout_us) {
                tr_loop_fail(l, r, TR_ERR_TIMEOUT,
                             "the client read nothing for too long");
            }
        } else if (o->full_since_us != 0
                   && now - o->full_since_us >= l->stall_timeout_us
                   && !tr_request_detached(r)) {
            /* full_since is looked at only when somebody wants to write */
            if (tr_response_writer_has_room(o, tr_sequence_rows(r->sequences),
                                            r->params.logprobs >= 0)) {
                o->full_since_us = 0;
            } else {
                tr_loop_fail(l, r, TR_ERR_TIMEOUT,
                             "the channel took no output for too long");
            }
        }
    }
    l->next_check_us = now + l->check_us;
}

/* Its client has a part of the answer, from engines before, or its name, under
 * which its output is kept, and no other engine may go on with it: who waits for
 * a first step has it here, or not. */
static bool
tr_loop_bound(const tr_request_t *r)
{
    return (r->migrations != 0 || (r->submit_flags & TR_SUBMIT_DETACH) != 0)
           && ((r->submit_flags & TR_SUBMIT_IDS) == 0 || tr_request_stays(r));
}

/* Refuses who still waits for a first step. */
static void
tr_loop_refuse(tr_loop_t *l)
{
    tr_request_t *r, *next;

    for (r = l->requests.first; r != NULL; r = next) {
        next = r->next;
        if (r->scheduled_us == 0 && !tr_loop_bound(r)) {
            tr_error_set(&r->error, TR_ERR_DRAINING, "", "%s",
                         "The engine is shutting down");
            tr_loop_end(l, r);
        }
    }
}

/* Ends r, if another engine may go on with it: its worker keeps tokens, unless
 * it has said that it could not, or the client has left. */
static bool
tr_loop_give_up(tr_loop_t *l, tr_request_t *r)
{
    if ((r->submit_flags & TR_SUBMIT_IDS) == 0 || tr_request_stays(r)) {
        return false;
    }
    tr_error_set(&r->error, TR_ERR_MOVED, "", "%s",
                 "The engine is handing its requests over to other engines");
    tr_loop_end(l, r);
    return true;
}

static void
tr_loop_move_all(tr_loop_t *l)
{
    tr_request_t *r, *next;

    for (r = l->requests.first; r != NULL; r = next) {
        next = r->next;
        (void) tr_loop_give_up(l, r);
    }
}

/* ---- prefixes ----------------------------------------------------------- */

/* Those that nobody used for too long go, also while nothing else happens. */
static void
tr_loop_expire(tr_loop_t *l, uint64_t now)
{
    tr_kv_cache_t *kv = l->executor->kv;
    tr_prefix_stats_t p;
    tr_shelf_stats_t shelf;

    if (l->cache_ttl_us == 0 || now < l->next_expiry_us) {
        return;
    }
    tr_kv_time(kv, now);
    tr_kv_expire(kv, now > l->cache_ttl_us ? now - l->cache_ttl_us : 0);
    tr_kv_shelf_expire(kv, now > l->cache_ttl_us ? now - l->cache_ttl_us : 0);
    tr_kv_prefixes(kv, &p);
    tr_kv_shelf_stats(kv, &shelf);
    l->next_expiry_us = p.nodes + shelf.items == 0
                            ? 0
                            : now + l->cache_ttl_us / 16 + 1000;
}

/* What files have, and what became of them. */
static void
tr_loop_show_store(tr_loop_t *l)
{
    tr_status_counters_t *c = l->counters;
    tr_store_stats_t s;

    tr_kv_store_stats(l->executor->kv, &s);
    atomic_store_explicit(&c->store_stored, s.stored, memory_order_relaxed);
    atomic_store_explicit(&c->store_loaded, s.loaded, memory_order_relaxed);
    atomic_store_explicit(&c->store_tokens, s.loaded_tokens,
                          memory_order_relaxed);
    atomic_store_explicit(&c->store_failed, s.failed, memory_order_relaxed);
    atomic_store_explicit(&c->store_skipped, s.skipped, memory_order_relaxed);
    atomic_store_explicit(&c->store_files, s.files, memory_order_relaxed);
    atomic_store_explicit(&c->store_bytes, s.bytes, memory_order_relaxed);
}

/* The same of host memory. */
static void
tr_loop_show_shelf(tr_loop_t *l)
{
    tr_status_counters_t *c = l->counters;
    tr_shelf_stats_t s;

    tr_kv_shelf_stats(l->executor->kv, &s);
    atomic_store_explicit(&c->shelf_stored, s.stored, memory_order_relaxed);
    atomic_store_explicit(&c->shelf_loaded, s.loaded, memory_order_relaxed);
    atomic_store_explicit(&c->shelf_tokens, s.loaded_tokens,
                          memory_order_relaxed);
    atomic_store_explicit(&c->shelf_evicted, s.evicted, memory_order_relaxed);
    atomic_store_explicit(&c->shelf_skipped, s.skipped, memory_order_relaxed);
    atomic_store_explicit(&c->shelf_items, s.items, memory_order_relaxed);
    atomic_store_explicit(&c->shelf_bytes, s.bytes, memory_order_relaxed);
}

/* What the scheduler counted in a turn, and what is kept now. */
static void
tr_loop_count_prefixes(tr_loop_t *l, const tr_scheduler_counts_t *before)
{
    const tr_scheduler_counts_t *now = &l->scheduler.counts;
    tr_status_counters_t *c = l->counters;
    tr_prefix_stats_t p;
    tr_kv_totals_t t;

    tr_loop_count(&c->prefill_tokens, now->prefilled - before->prefilled);
    tr_loop_count(&c->prefix_queries, now->finds - before->finds);
    tr_loop_count(&c->prefix_hits, now->hits - before->hits);
    tr_loop_count(&c->prefix_tokens, now->reused - before->reused);
    tr_loop_count(&c->prefix_cuts, now->cuts - before->cuts);
    tr_kv_prefixes(l->executor->kv, &p);
    tr_kv_totals(l->executor->kv, &t);
    tr_loop_show_store(l);
    tr_loop_show_shelf(l);
    atomic_store_explicit(&c->prefix_evicted, p.evicted, memory_order_relaxed);
    atomic_store_explicit(&c->prefix_expired, p.expired, memory_order_relaxed);
    atomic_store_explicit(&c->prefix_blocks, p.nodes, memory_order_relaxed);
    atomic_store_explicit(&c->kv_cached_pages, t.cached_pages,
                          memory_order_relaxed);
}

/* ---- the guard ---------------------------------------------------------- */

static void
tr_loop_millionths(_Atomic uint64_t *counter, double share)
{
    atomic_store_explicit(counter, (uint64_t) (share * 1e6 + 0.5),
                          memory_order_relaxed);
}

/* What compression did to the prompts that were compared. */
static void
tr_loop_show_guard(tr_loop_t *l)
{
    tr_status_counters_t *c = l->counters;
    tr_kv_guard_state_t s;

    if (l->executor->guard == NULL) {
        return;
    }
    tr_kv_guard_state(l->executor->guard, &s);
    if (s.prompts
        == atomic_load_explicit(&c->kv_guard_prompts, memory_order_relaxed)) {
        return;
    }
    atomic_store_explicit(&c->kv_guard_over, s.over, memory_order_relaxed);
    tr_loop_millionths(&c->kv_guard_keys, s.error.keys);
    tr_loop_millionths(&c->kv_guard_values, s.error.values);
    tr_loop_millionths(&c->kv_guard_keys_bound, TR_KV_GUARD_KEYS);
    tr_loop_millionths(&c->kv_guard_values_bound, TR_KV_GUARD_VALUES);
    atomic_store_explicit(&c->kv_guard_prompts, s.prompts,
                          memory_order_relaxed);
}

/* ---- turns -------------------------------------------------------------- */

void
tr_loop_publish_snapshot(tr_loop_t *l)
{
    const tr_kv_cache_t *kv = l->executor->kv;
    uint32_t queued = atomic_load_explicit(&l->queued, memory_order_relaxed);
    uint32_t running = l->scheduler.n_running_requests;
    tr_kv_totals_t totals;
    tr_status_admission_t a;
    uint32_t i;

    tr_kv_totals(kv, &totals);
    a = (tr_status_admission_t){
        .running = running,
        .waiting = l->n_requests > running ? l->n_requests - running : 0,
        .queue_free = l->max_queue > queued ? l->max_queue - queued : 0,
        .last_step_us = l->last_step_us,
        .step = l->step,
        .kv_free_pages = tr_kv_pages(kv), /* less what is held, below */
        .kv_tokens = totals.tokens,
        .kv_full_bytes = totals.full_bytes,
        .kv_swapped_pages = totals.swapped_pages
    };
    for (i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        a.kv_used_pages[l->level_of[i]] += totals.pages[i];
        a.kv_free_pages -= totals.pages[i];
    }
    a.state = TR_ENGINE_READY;
    if (a.running != l->snapshot.running || a.waiting != l->snapshot.waiting) {
        l->news = true; /* workers choose an engine by these */
    }
    pthread_mutex_lock(&l->snapshot_lock);
    l->snapshot = a;
    pthread_mutex_unlock(&l->snapshot_lock);
}

static void
tr_loop_give_beat(tr_loop_t *l)
{
    uint64_t asked = atomic_load_explicit(&l->asked, memory_order_acquire);

    if (asked != atomic_load_explicit(&l->beat, memory_order_relaxed)) {
        atomic_store_explicit(&l->beat, asked, memory_order_release);
        l->news = true;
    }
}

/* Everything that may change who runs, then who does. */
static void
tr_loop_compose(tr_loop_t *l, uint64_t now)
{
    tr_loop_give_beat(l);
    if (atomic_exchange_explicit(&l->woken, 0, memory_order_acquire) != 0
        || l->cutting) {
        l->cutting = false;
        tr_loop_commands(l, now);
    }
    tr_loop_take(l, now);
    if (atomic_load_explicit(&l->draining, memory_order_acquire) != 0) {
        tr_loop_refuse(l);
    }
    if (atomic_load_explicit(&l->moving, memory_order_acquire) != 0) {
        tr_loop_move_all(l);
    }
    if (now >= l->next_check_us) {
        tr_loop_check(l, now);
    }
    tr_loop_retry(l);
    tr_loop_expire(l, now);
    tr_scheduler_compose(&l->scheduler, now);
}

/* Submits what was composed and completes what is not to be under way any more:
 * all, if nothing was.  Where neither is to do, the cache may have an answer to
 * give.  Returns whether anything was done. */
static bool
tr_loop_step(tr_loop_t *l, uint64_t now)
{
    tr_scheduler_t *s = &l->scheduler;
    uint32_t ahead = 0;
    bool busy = false, submitted = false;

    if (s->n_chunks != 0
        || (s->n_in_flight == 0 && !l->lost
            && !tr_kv_settled(l->executor->kv))) {
        submitted = tr_loop_submit_batch(l, now);
        ahead = s->n_chunks != 0 ? l->ahead : 0;
        busy = true;
    } else if (s->n_in_flight != 0) {
        tr_loop_show(l); /* it may take a while */
        tr_loop_tell_front(l);
    }
    for (; s->n_in_flight > ahead; busy = true) {
        tr_loop_complete_batch(l);
    }
    if (submitted && s->n_in_flight != 0) {
        tr_loop_sample_batch(l);
    }
    return busy;
}

/* One turn.  False: nothing was done and nothing can be before the next due
 * time, a wake, or the next check. */
static bool
tr_loop_turn(tr_loop_t *l)
{
    tr_scheduler_t *s = &l->scheduler;
    uint64_t now = tr_now_us(), changes = s->changes;
    uint64_t preemptions = s->preemptions, swaps = s->swaps,
             recomputations = s->recomputations;
    tr_scheduler_counts_t counts = s->counts;
    bool busy = false;

    busy = tr_kv_store_turn(l->executor->kv);
    tr_loop_compose(l, now);
    if (s->hopeless != NULL) {
        tr_loop_fail(l, s->hopeless->request, s->why,
                     s->why == TR_ERR_CONTEXT_LENGTH
                         ? "the KV cache has no room for this request, even "
                           "alone"
                         : "the KV cache could not be compressed");
        busy = true;
    }
    busy |= tr_loop_step(l, now);
    if (l->n_quiet != 0) {
        busy |= tr_loop_echo(l, now);
    }
    busy |= s->changes != changes;
    tr_loop_count(&l->counters->preemptions, s->preemptions - preemptions);
    tr_loop_count(&l->counters->kv_swaps, s->swaps - swaps);
    tr_loop_count(&l->counters->kv_recomputations,
                  s->recomputations - recomputations);
    tr_loop_count_prefixes(l, &counts);
    tr_loop_show_guard(l);
    tr_loop_show(l);
    l->last_step_us = tr_now_us(); /* also of a turn without a batch */
    tr_kv_computed(l->executor->kv, s->counts.prefilled - counts.prefilled,
                   l->last_step_us - now);
    tr_loop_publish_snapshot(l);
    tr_loop_tell_front(l);
    return busy;
}

static bool
tr_loop_called(tr_loop_t *l)
{
    return atomic_load(&l->woken) != 0 || atomic_load(&l->incoming) != NULL
           || atomic_load(&l->stop) != 0;
}

/* Until something happens: a wake, the time when a sequence is due, the next
 * look at old prefixes, or, with requests inside that can do nothing, the next
 * check. */
static void
tr_loop_sleep(tr_loop_t *l)
{
    struct pollfd pfd = { .fd = l->wake_fd, .events = POLLIN };
    uint64_t until = l->scheduler.next_due_us, now, ignored;
    struct timespec ts, *timeout = NULL;
    int n = -1;

    if (l->requests.first != NULL && (until == 0 || l->next_check_us < until)) {
        until = l->next_check_us;
    }
    if (l->next_expiry_us != 0 && (until == 0 || l->next_expiry_us < until)) {
        until = l->next_expiry_us;
    }
    atomic_store(&l->asleep, 1);
    while (n == -1 && !tr_loop_called(l)) {
        if (until != 0) {
            now = tr_now_us();
            now = until > now ? until - now : 0;
            ts.tv_sec = (time_t) (now / 1000000u);
            ts.tv_nsec = (long) (now % 1000000u) * 1000;
            timeout = &ts;
        }
        n = ppoll(&pfd, 1, timeout, NULL);
        if (n == -1) {
            tr_bell_interrupted(&l->emit.bell);
        }
    }
    if (n > 0) {
        (void) !read(l->wake_fd, &ignored, sizeof(ignored));
    }
    atomic_store(&l->asleep, 0);
}

/* Ends what is inside.  The last records have a while to find room; then their
 * requests go back without. */
static void
tr_loop_end_all(tr_loop_t *l)
{
    uint64_t begun = tr_now_us();
    tr_request_t *r, *next;

    tr_loop_take(l, begun);
    for (r = l->requests.first; r != NULL; r = next) {
        next = r->next;
        if (!tr_loop_give_up(l, r)) {
            tr_error_set(&r->error, TR_ERR_DRAINING, "", "%s",
                         "the engine is stopping");
            tr_loop_end(l, r);
        }
    }
    while (l->scheduler.n_in_flight != 0) { /* nobody wants it any more */
        tr_loop_complete_batch(l);
    }
    for (;;) {
        tr_loop_retry(l);
        tr_loop_show(l);
        if (l->ending.first == NULL
            || tr_now_us() - begun >= TR_LOOP_FLUSH_US) {
            break;
        }
        poll(NULL, 0, 1);
    }
    while ((r = l->ending.first) != NULL) {
        tr_request_unlink(&l->ending, r);
        tr_loop_forget(l, r);
    }
    tr_loop_show(l);
}

static void *
tr_loop_main(void *arg)
{
    tr_loop_t *l = arg;

    pthread_setname_np(pthread_self(), "tr-loop");
    tr_crash_stack();
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0); /* due times are meant exactly */
    tr_response_writer_open_bell(&l->emit.bell);
    while (atomic_load_explicit(&l->stop, memory_order_acquire) == 0) {
        if (!tr_loop_turn(l)) {
            tr_loop_sleep(l);
        }
    }
    tr_loop_end_all(l);
    tr_kv_store_close(l->executor->kv);
    tr_bell_close(&l->emit.bell);
    return NULL;
}

/* ---- what other threads call -------------------------------------------- */

static void
tr_loop_free(tr_loop_t *l)
{
    uint32_t i;

    if (l->wake_fd >= 0) {
        close(l->wake_fd);
    }
    pthread_mutex_destroy(&l->snapshot_lock);
    tr_scheduler_free(&l->scheduler);
    for (i = 0; i < TR_BATCHES_IN_FLIGHT; i++) {
        free(l->in_flight[i].items);
        free(l->in_flight[i].sampled);
        free(l->in_flight[i].refused);
    }
    tr_loop_free_masks(l);
    free(l);
}

static bool
tr_loop_take_batches(tr_loop_t *l, uint32_t chunks)
{
    uint32_t i;

    for (i = 0; i < TR_BATCHES_IN_FLIGHT; i++) {
        tr_loop_batch_t *f = &l->in_flight[i];

        f->items = calloc(chunks, sizeof(*f->items));
        f->sampled = calloc(chunks, sizeof(*f->sampled));
        f->refused = calloc(chunks, sizeof(*f->refused));
        if (f->items == NULL || f->sampled == NULL || f->refused == NULL) {
            return false;
        }
    }
    return true;
}

static uint64_t
tr_loop_check_interval(const tr_loop_t *l)
{
    uint64_t us = l->stall_timeout_us < l->paused_timeout_us
                      ? l->stall_timeout_us
                      : l->paused_timeout_us;

    us /= 4;
    us = us < 1000 ? 1000 : us;
    return us < TR_LOOP_CHECK_US ? us : TR_LOOP_CHECK_US;
}

static void
tr_loop_wake_up(void *arg)
{
    tr_loop_wake(arg);
}

/* What the loop takes from its settings and its executor; and its memory.  What
 * it has when this fails is tr_loop_free's. */
static tr_status_t
tr_loop_init(tr_loop_t *l, const tr_config_t *config, tr_executor_t *executor)
{
    l->executor = executor;
    l->max_queue = config->max_queue;
    l->stall_timeout_us = config->channel_stall_timeout_us;
    l->paused_timeout_us = config->paused_timeout_us;
    l->cache_ttl_us = config->cache_ttl_us;
    l->check_us = tr_loop_check_interval(l);
    l->ahead = executor->ahead < TR_BATCHES_IN_FLIGHT
                   ? executor->ahead
                   : TR_BATCHES_IN_FLIGHT - 1;
    pthread_mutex_init(&l->snapshot_lock, NULL);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (tr_scheduler_init(&l->scheduler, executor->kv, config->max_num_seqs,
                          config->max_batch_tokens, config->prefill_kv_fraction)
            != TR_OK
        || l->wake_fd < 0 || !tr_loop_take_batches(l, config->max_num_seqs)
        || !tr_loop_take_masks(l, config->max_num_seqs)) {
        return TR_ERR_NOMEM;
    }
    l->scheduler.long_from = executor->long_from;
    l->scheduler.inputs = executor->inputs;
    l->scheduler.fair = strcmp(config->scheduling, "fifo") != 0;
    l->scheduler.replay_decode = strcmp(config->replay, "decode") == 0;
    return TR_OK;
}

tr_status_t
tr_loop_start(const tr_config_t *config, tr_executor_t *executor,
              const tr_tokenizer_t *tokenizer, tr_status_counters_t *counters,
              int frontend_fd, tr_loop_t **out, tr_error_t *err)
{
    char name[TR_STATUS_LEVELS][16];
    uint64_t bytes[TR_STATUS_LEVELS];
    tr_loop_t *l;
    int e;

    *out = NULL;
    if (tr_tokenizer_max_token_bytes(tokenizer)
        > TR_RESPONSE_WRITER_TOKEN_BYTES) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                            "the tokenizer has a token of %u bytes, at most %u"
                            " are supported",
                            tr_tokenizer_max_token_bytes(tokenizer),
                            TR_RESPONSE_WRITER_TOKEN_BYTES);
    }
    l = calloc(1, sizeof(*l));
    if (l == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "no memory for the loop");
    }
    l->counters = counters;
    l->frontend_fd = frontend_fd;
    l->emit.tokenizer = tokenizer;
    if (tr_loop_init(l, config, executor) != TR_OK) {
        tr_loop_free(l);
        return tr_error_set(err, TR_ERR_NOMEM, "max_num_seqs",
                            "no memory or descriptors for a loop of %u"
                            " sequences",
                            config->max_num_seqs);
    }
    tr_executor_levels(executor, l->level_of, name, bytes);
    tr_loop_publish_snapshot(l);
    tr_kv_store_wakes(executor->kv, tr_loop_wake_up, l);
    e = pthread_create(&l->thread, NULL, tr_loop_main, l);
    if (e != 0) {
        tr_loop_free(l);
        return tr_error_set(err, TR_ERR_NOMEM, "",
                            "cannot start the step"
                            " loop's thread: %s",
                            strerror(e));
    }
    *out = l;
    return TR_OK;
}

static void
tr_loop_ring(tr_loop_t *l)
{
    const uint64_t one = 1;

    if (atomic_load(&l->asleep) != 0 && atomic_exchange(&l->asleep, 0) != 0) {
        (void) !write(l->wake_fd, &one, sizeof(one));
    }
}

tr_status_t
tr_loop_reserve(tr_loop_t *l, const tr_request_t *r)
{
    uint32_t i;

    for (i = 0; i < r->n_sequences; i++) {
        if (r->sequences[i].cap > l->executor->max_model_len) {
            return TR_ERR_CONTEXT_LENGTH;
        }
    }
    if (!tr_scheduler_fits(l->executor->kv, r)) {
        return TR_ERR_CONTEXT_LENGTH;
    }
    if (atomic_load(&l->queued) >= l->max_queue) {
        return TR_ERR_QUEUE_FULL;
    }
    atomic_fetch_add(&l->queued, 1);
    atomic_fetch_add(&l->outstanding, 1);
    return TR_OK;
}

void
tr_loop_submit(tr_loop_t *l, tr_request_t *r)
{
    r->next = atomic_load_explicit(&l->incoming, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&l->incoming, &r->next, r)) {
    }
    tr_loop_ring(l);
}

tr_request_t *
tr_loop_over(tr_loop_t *l)
{
    if (atomic_load_explicit(&l->over, memory_order_relaxed) == NULL) {
        return NULL;
    }
    return atomic_exchange(&l->over, NULL);
}

tr_request_t *
tr_loop_over_now(tr_loop_t *l)
{
    while (atomic_load(&l->showing) != 0) {
        sched_yield();
    }
    return tr_loop_over(l);
}

void
tr_loop_wake(tr_loop_t *l)
{
    atomic_store(&l->woken, 1);
    tr_loop_ring(l);
}

uint64_t
tr_loop_ask(tr_loop_t *l)
{
    uint64_t asked = atomic_fetch_add(&l->asked, 1) + 1;

    tr_loop_wake(l);
    return asked;
}

uint64_t
tr_loop_beat(const tr_loop_t *l)
{
    return atomic_load_explicit(&l->beat, memory_order_acquire);
}

void
tr_loop_drain(tr_loop_t *l)
{
    atomic_store(&l->draining, 1);
    tr_loop_wake(l);
}

void
tr_loop_move(tr_loop_t *l, bool on)
{
    atomic_store(&l->moving, on);
    tr_loop_wake(l);
}

void
tr_loop_snapshot(tr_loop_t *l, tr_status_admission_t *out)
{
    pthread_mutex_lock(&l->snapshot_lock);
    *out = l->snapshot;
    pthread_mutex_unlock(&l->snapshot_lock);
}

uint32_t
tr_loop_outstanding(tr_loop_t *l)
{
    return atomic_load(&l->outstanding);
}

uint32_t
tr_loop_queued(tr_loop_t *l)
{
    return atomic_load(&l->queued);
}

tr_request_t *
tr_loop_stop(tr_loop_t *l)
{
    tr_request_t *over;

    atomic_store(&l->stop, 1);
    tr_loop_wake(l);
    pthread_join(l->thread, NULL);
    over = tr_loop_over(l);
    tr_loop_free(l);
    return over;
}
