/*
 * The store's threads, and what the step loop calls (store.h).
 *
 * A lane has some buffers of a piece.  Each belongs to one side, by its flag, and
 * a semaphore says that something changed for the thread whose buffer it is; the
 * step loop is woken the same way.  The lane's state says to whom the rest
 * belongs.
 */
#include "store_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/config/log.h"

/* How often the directory is looked through for what is too old, at least. */
#define EXPIRY_US 60000000u

static void
wake(tr_store_t *s)
{
    if (s->wake != NULL) {
        s->wake(s->arg);
    }
}

static void
set_state(tr_store_t *s, store_lane_t *lane, int state)
{
    atomic_store_explicit(&lane->state, state, memory_order_release);
    wake(s);
}

static int
state_of(const store_lane_t *lane)
{
    return atomic_load_explicit(&lane->state, memory_order_acquire);
}

static void
wait_for(sem_t *sem)
{
    while (sem_wait(sem) != 0 && errno == EINTR) {
    }
}

static void
wait_for_work(store_lane_t *lane)
{
    wait_for(&lane->thread[0].work);
}

/* Something has changed for all of them. */
static void
wake_threads(store_lane_t *lane)
{
    for (uint32_t i = 0; i < lane->threads; i++) {
        sem_post(&lane->thread[i].work);
    }
}

bool
store_wait(tr_store_t *s, store_lane_t *lane, uint32_t i, bool full)
{
    while (atomic_load_explicit(&lane->full[store_buffer(s, i)],
                                memory_order_acquire)
           != full) {
        if (atomic_load(&lane->stop) || atomic_load(&s->closing)
            || atomic_load(&lane->bad)) {
            return false;
        }
        wait_for(&lane->thread[i % lane->threads].work);
    }
    return true;
}

void
store_hand_over(tr_store_t *s, store_lane_t *lane, uint32_t i, bool full)
{
    atomic_store_explicit(&lane->full[store_buffer(s, i)], full,
                          memory_order_release);
    wake(s);
}

/* ---- the writer --------------------------------------------------------- */

static void
put_one(tr_store_t *s, store_lane_t *lane)
{
    if (store_write(s, lane) == 0) {
        atomic_fetch_add(&s->stored, 1);
        s->complained = false;
        return;
    }
    if (errno == 0) { /* stopped */
        return;
    }
    atomic_fetch_add(&s->failed, 1);
    if (!s->complained) {
        tr_log(TR_LEVEL_WARN,
               "a prefix of %u tokens could not be stored, and further ones"
               " may not be: %s",
               lane->item.n_tokens,
               errno == STORE_TOO_LARGE ? "it is larger than cache_disk"
                                        : strerror(errno));
        s->complained = true;
    }
}

/* Where files have a TTL, they go though nobody writes or reads. */
static void
wait_or_expire(tr_store_t *s, store_lane_t *lane)
{
    uint64_t us = s->config.ttl_us / 16 + 1000;
    struct timespec until;

    if (s->config.ttl_us == 0) {
        wait_for_work(lane);
        return;
    }
    us = us < EXPIRY_US ? us : EXPIRY_US;
    clock_gettime(CLOCK_MONOTONIC, &until);
    us += (uint64_t) until.tv_nsec / 1000u;
    until.tv_sec += (time_t) (us / 1000000u);
    until.tv_nsec = (long) (us % 1000000u) * 1000;
    while (sem_clockwait(&lane->thread[0].work, CLOCK_MONOTONIC, &until) != 0) {
        if (errno == ETIMEDOUT) {
            (void) store_directory_room(s, 0);
            return;
        }
    }
}

static void *
put_main(void *arg)
{
    store_lane_t *lane = ((store_thread_t *) arg)->lane;
    tr_store_t *s = lane->store;

    pthread_setname_np(pthread_self(), "tr-store-put");
    (void) store_directory_room(s, 0);
    while (!atomic_load(&s->closing)) {
        if (state_of(lane) == TR_STORE_LOADING) {
            put_one(s, lane);
            set_state(s, lane, TR_STORE_IDLE);
        } else {
            wait_or_expire(s, lane);
        }
    }
    return NULL;
}

/* ---- the reader --------------------------------------------------------- */

/* The longest item that shares more than lane->from. */
static int
look(tr_store_t *s, store_lane_t *lane)
{
    tr_store_item_t *item = &lane->item;
    uint32_t n = item->n_tokens, block;
    int32_t *tokens = malloc(4ull * n);
    int fd = -1;

    if (tokens == NULL) {
        return -1;
    }
    memcpy(tokens, item->tokens, 4ull * n);
    store_names(s, &item->key, item->policy, tokens, n, lane->hash);
    for (block = n / TR_STORE_BLOCK;
         fd < 0 && block * TR_STORE_BLOCK > lane->from; block--) {
        char name[STORE_NAME];

        store_name(lane->hash + (size_t) block * TR_STORE_ID_BYTES, name);
        (void) store_read_head(s, lane, name, tokens, block, &fd);
    }
    free(tokens);
    return fd;
}

/* The thread's pieces, as far as they are wanted.  Who takes the last piece may
 * ask for something else at once: behind it all of the lane is the step
 * loop's. */
static void
read_pieces(tr_store_t *s, store_thread_t *t)
{
    store_lane_t *lane = t->lane;
    uint32_t pieces = lane->pieces, each = lane->threads, i;

    for (i = t->number; i < pieces && store_wait(s, lane, i, false);
         i += each) {
        if (!store_read_piece(s, lane, lane->fd, i,
                              lane->piece[store_buffer(s, i)])) {
            atomic_store(&lane->bad, true);
            wake_threads(lane);
            return;
        }
        if (atomic_fetch_sub(&lane->left, 1) == 1) {
            atomic_fetch_add(&s->loaded, 1);
            atomic_fetch_add(&s->loaded_tokens, lane->item.n_tokens);
            (void) futimens(lane->fd, NULL); /* it was used */
        }
        store_hand_over(s, lane, i, true);
    }
}

/* With the others, which rest again when this returns. */
static int
load(tr_store_t *s, store_lane_t *lane, int fd)
{
    uint32_t others = lane->pieces < lane->threads ? lane->pieces
                                                   : lane->threads;

    lane->fd = fd;
    atomic_store(&lane->left, lane->pieces);
    for (uint32_t i = 1; i < others; i++) {
        sem_post(&lane->thread[i].go);
    }
    read_pieces(s, &lane->thread[0]);
    for (uint32_t i = 1; i < others; i++) {
        wait_for(&lane->rested);
    }
    return atomic_load(&lane->bad)         ? TR_STORE_FAILED
           : atomic_load(&lane->left) == 0 ? TR_STORE_DONE
                                           : TR_STORE_IDLE;
}

static void *
read_main(void *arg)
{
    store_thread_t *t = arg;
    tr_store_t *s = t->lane->store;

    pthread_setname_np(pthread_self(), "tr-store-read");
    for (;;) {
        wait_for(&t->go);
        if (!atomic_load(&s->closing)) {
            read_pieces(s, t);
        }
        sem_post(&t->lane->rested);
        if (atomic_load(&s->closing)) {
            return NULL;
        }
    }
}

/* All names of a damaged file, as far as they follow from its tokens. */
static void
remove_file(tr_store_t *s, const store_lane_t *lane, int fd)
{
    const tr_store_item_t *item = &lane->item;
    char name[STORE_NAME];
    struct stat bad, st;

    store_names(s, &item->key, item->policy, item->tokens, item->n_tokens,
                lane->hash);
    for (uint32_t i = 1; i <= item->n_tokens / TR_STORE_BLOCK; i++) {
        store_name(lane->hash + (size_t) i * TR_STORE_ID_BYTES, name);
        if (fstat(fd, &bad) == 0
            && fstatat(s->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0
            && bad.st_ino == st.st_ino) {
            (void) unlinkat(s->dir, name, 0);
        }
    }
}

static void
get_one(tr_store_t *s, store_lane_t *lane)
{
    int fd = look(s, lane), state;

    if (fd < 0) {
        set_state(s, lane, TR_STORE_NONE);
        return;
    }
    set_state(s, lane, TR_STORE_FOUND);
    while (state_of(lane) == TR_STORE_FOUND && !atomic_load(&lane->stop)
           && !atomic_load(&s->closing)) {
        wait_for_work(lane);
    }
    state = atomic_load(&lane->stop) ? TR_STORE_IDLE : load(s, lane, fd);
    if (state == TR_STORE_FAILED) {
        atomic_fetch_add(&s->failed, 1);
        remove_file(s, lane, fd);
        tr_log(TR_LEVEL_WARN,
               "a stored prefix of %u tokens was damaged, and is removed: it "
               "is computed again",
               lane->item.n_tokens);
    }
    close(fd);
    if (state != TR_STORE_DONE) {
        set_state(s, lane, state);
    } else { /* the step loop has pieces yet to take: it says when all is over */
        wake(s);
    }
}

static void *
get_main(void *arg)
{
    store_lane_t *lane = ((store_thread_t *) arg)->lane;
    tr_store_t *s = lane->store;

    pthread_setname_np(pthread_self(), "tr-store-get");
    while (!atomic_load(&s->closing)) {
        int loading = TR_STORE_LOADING;

        if (state_of(lane) == TR_STORE_LOOKING) {
            get_one(s, lane);
        } else if (atomic_load(&lane->stop)
                   && atomic_compare_exchange_strong(&lane->state, &loading,
                                                     TR_STORE_IDLE)) {
            wake(s); /* stopped with pieces not taken */
        } else {
            wait_for_work(lane);
        }
    }
    return NULL;
}

/* ---- open and close ----------------------------------------------------- */

/* The lane's pieces, in memory of the caller's from there on (NULL: our own). */
static bool
make_pieces(const tr_store_t *s, store_lane_t *lane, uint8_t *memory)
{
    size_t bytes = tr_store_piece_bytes(s->config.page_bytes);

    for (uint32_t i = 0; i < s->config.buffers; i++) {
        lane->piece[i] = memory != NULL ? memory + i * bytes : malloc(bytes);
        if (lane->piece[i] == NULL) {
            return false;
        }
    }
    return true;
}

static bool
make_lane(tr_store_t *s, store_lane_t *lane, uint8_t *memory, uint32_t threads)
{
    const tr_store_config_t *c = &s->config;

    lane->store = s;
    lane->threads = threads;
    sem_init(&lane->rested, 0, 0);
    for (uint32_t i = 0; i < threads; i++) {
        lane->thread[i].lane = lane;
        lane->thread[i].number = i;
        sem_init(&lane->thread[i].work, 0, 0);
        sem_init(&lane->thread[i].go, 0, 0);
    }
    lane->item.tokens = malloc(4ull * c->max_len);
    lane->item.counts = calloc(c->counts + 1, 4);
    lane->head = malloc(s->head_size);
    lane->hash = malloc(((size_t) c->max_len / TR_STORE_BLOCK + 1)
                        * TR_STORE_ID_BYTES);
    return lane->item.tokens != NULL && lane->item.counts != NULL
           && lane->head != NULL && lane->hash != NULL
           && make_pieces(s, lane, memory);
}

static void
free_lane(const tr_store_t *s, store_lane_t *lane)
{
    wake_threads(lane);
    for (uint32_t i = 1; i < lane->threads; i++) {
        sem_post(&lane->thread[i].go);
    }
    for (uint32_t i = 0; i < lane->threads; i++) {
        if (lane->thread[i].started) {
            pthread_join(lane->thread[i].thread, NULL);
        }
    }
    for (uint32_t i = 0; i < lane->threads; i++) {
        sem_destroy(&lane->thread[i].work);
        sem_destroy(&lane->thread[i].go);
    }
    if (lane->store != NULL) {
        sem_destroy(&lane->rested);
    }
    free(lane->item.tokens);
    free(lane->item.counts);
    for (uint32_t i = 0; i < TR_STORE_BUFFERS_MAX; i++) {
        free(s->config.memory == NULL ? lane->piece[i] : NULL);
    }
    free(lane->head);
    free(lane->hash);
}

/* The first thread, and the others, which read. */
static bool
start_lane(store_lane_t *lane, void *(*first)(void *arg))
{
    bool good = true;

    for (uint32_t i = 0; i < lane->threads && good; i++) {
        store_thread_t *t = &lane->thread[i];

        good = pthread_create(&t->thread, NULL, i == 0 ? first : read_main, t)
               == 0;
        t->started = good;
    }
    return good;
}

tr_status_t
tr_store_open(const tr_store_config_t *config, tr_store_t **out,
              tr_error_t *err)
{
    tr_store_t *s = calloc(1, sizeof(*s));
    uint8_t *memory = config->memory;
    size_t one = config->buffers * tr_store_piece_bytes(config->page_bytes);
    tr_status_t rc;

    *out = NULL;
    assert(config->buffers >= 2 && config->buffers <= TR_STORE_BUFFERS_MAX
           && config->readers >= 1 && config->readers <= TR_STORE_READERS_MAX
           && config->buffers % config->readers == 0);
    if (s == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "cache_dir", "no memory");
    }
    s->config = *config;
    s->dir = -1;
    s->piece_pages = tr_store_piece_pages(config->page_bytes);
    s->head_size = store_head_bytes(s, config->max_len, config->max_pages);
    rc = store_directory_open(s, err);
    s->config.dir = NULL; /* the caller's */
    if (rc == TR_OK
        && (!make_lane(s, &s->put, memory, 1)
            || !make_lane(s, &s->get, memory != NULL ? memory + one : NULL,
                          config->readers))) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "cache_dir", "no memory");
    }
    if (rc == TR_OK) {
        if (!start_lane(&s->put, put_main) || !start_lane(&s->get, get_main)) {
            rc = tr_error_set(err, TR_ERR_NOMEM, "cache_dir",
                              "cannot start the store's threads");
        }
    }
    if (rc != TR_OK) {
        tr_store_close(s);
        return rc;
    }
    *out = s;
    return TR_OK;
}

void
tr_store_close(tr_store_t *s)
{
    if (s == NULL) {
        return;
    }
    atomic_store(&s->closing, true);
    free_lane(s, &s->put);
    free_lane(s, &s->get);
    if (s->dir >= 0) {
        close(s->dir);
    }
    free(s);
}

void
tr_store_wakes(tr_store_t *s, void (*wake_loop)(void *arg), void *arg)
{
    s->wake = wake_loop;
    s->arg = arg;
}

uint32_t
tr_store_piece_pages(uint32_t page_bytes)
{
    return page_bytes < STORE_PIECE ? STORE_PIECE / page_bytes : 1;
}

size_t
tr_store_piece_bytes(uint32_t page_bytes)
{
    return (size_t) tr_store_piece_pages(page_bytes) * page_bytes;
}

/* ---- the step loop ------------------------------------------------------ */

static void
begin(store_lane_t *lane, int state)
{
    lane->begun = lane->at = 0;
    atomic_store(&lane->stop, false);
    atomic_store(&lane->bad, false);
    for (uint32_t i = 0; i < TR_STORE_BUFFERS_MAX; i++) {
        atomic_store(&lane->full[i], false);
    }
    atomic_store_explicit(&lane->state, state, memory_order_release);
    sem_post(&lane->thread[0].work);
}

static void
stop(store_lane_t *lane)
{
    atomic_store(&lane->stop, true);
    wake_threads(lane);
}

bool
tr_store_put_idle(const tr_store_t *s)
{
    return state_of(&s->put) == TR_STORE_IDLE;
}

tr_store_item_t *
tr_store_put(tr_store_t *s)
{
    return tr_store_put_idle(s) ? &s->put.item : NULL;
}

void
tr_store_put_go(tr_store_t *s)
{
    s->put.pieces = store_pieces(s, s->put.item.n_pages);
    begin(&s->put, TR_STORE_LOADING);
}

/* The lane's next piece, if that is the step loop's: it is full, or is not. */
static uint8_t *
next_piece(const tr_store_t *s, store_lane_t *lane, bool full)
{
    uint32_t at = store_buffer(s, lane->begun);

    if (state_of(lane) != TR_STORE_LOADING || lane->begun >= lane->pieces
        || lane->begun - lane->at == s->config.buffers
        || atomic_load_explicit(&lane->full[at], memory_order_acquire)
               != full) {
        return NULL;
    }
    lane->begun++;
    return lane->piece[at];
}

/* The oldest that it was given is the thread's again. */
static void
pass_on(const tr_store_t *s, store_lane_t *lane, bool full)
{
    assert(lane->at < lane->begun);
    atomic_store_explicit(&lane->full[store_buffer(s, lane->at)], full,
                          memory_order_release);
    sem_post(&lane->thread[lane->at % lane->threads].work);
    lane->at++;
}

uint8_t *
tr_store_put_room(tr_store_t *s)
{
    return next_piece(s, &s->put, false);
}

void
tr_store_put_full(tr_store_t *s)
{
    pass_on(s, &s->put, true);
}

void
tr_store_put_stop(tr_store_t *s)
{
    stop(&s->put);
}

bool
tr_store_get(tr_store_t *s, const tr_prefix_key_t *key,
             const uint8_t policy[TR_STORE_ID_BYTES], const int32_t *tokens,
             uint32_t n, uint32_t from)
{
    tr_store_item_t *item = &s->get.item;

    if (state_of(&s->get) != TR_STORE_IDLE) {
        return false;
    }
    item->key = *key;
    memcpy(item->policy, policy, sizeof(item->policy));
    item->n_tokens = n < s->config.max_len ? n : s->config.max_len;
    memcpy(item->tokens, tokens, 4ull * item->n_tokens);
    s->get.from = from;
    begin(&s->get, TR_STORE_LOOKING);
    return true;
}

tr_store_get_t
tr_store_get_state(const tr_store_t *s)
{
    const store_lane_t *lane = &s->get;
    int state = state_of(lane);

    /* the last piece was taken */
    return state == TR_STORE_LOADING && lane->at == lane->pieces
               ? TR_STORE_DONE
               : (tr_store_get_t) state;
}

const tr_store_item_t *
tr_store_got(const tr_store_t *s)
{
    return &s->get.item;
}

void
tr_store_get_go(tr_store_t *s)
{
    atomic_store_explicit(&s->get.state, TR_STORE_LOADING,
                          memory_order_release);
    sem_post(&s->get.thread[0].work);
}

const uint8_t *
tr_store_get_piece(tr_store_t *s)
{
    return next_piece(s, &s->get, true);
}

void
tr_store_get_taken(tr_store_t *s)
{
    pass_on(s, &s->get, false);
}

void
tr_store_get_over(tr_store_t *s)
{
    atomic_store_explicit(&s->get.state, TR_STORE_IDLE, memory_order_release);
}

void
tr_store_get_stop(tr_store_t *s)
{
    stop(&s->get);
}

/* ---- figures ------------------------------------------------------------ */

void
tr_store_stats(const tr_store_t *s, tr_store_stats_t *out)
{
    *out = (tr_store_stats_t){ .stored = atomic_load(&s->stored),
                               .loaded = atomic_load(&s->loaded),
                               .loaded_tokens = atomic_load(&s->loaded_tokens),
                               .failed = atomic_load(&s->failed),
                               .skipped = atomic_load(&s->skipped),
                               .files = atomic_load(&s->files),
                               .bytes = atomic_load(&s->bytes) };
}

void
tr_store_skip(tr_store_t *s)
{
    atomic_fetch_add(&s->skipped, 1);
}
