/*
 * What the files of the store share: store.c has its threads and what the step
 * loop calls, store_file.c one file, store_directory.c the directory.
 */
#ifndef TR_STORE_INTERNAL_H
#define TR_STORE_INTERNAL_H

#include "store.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "engine/base/siphash.h"

#define STORE_MAGIC "TRKV002\n"
#define STORE_ALIGN 4096u
#define STORE_PIECE (1u << 20)
#define STORE_TOO_LARGE (-1) /* an errno of our own: larger than the limit */
#define STORE_NAME (2 * TR_STORE_ID_BYTES + 1)

/* A file's beginning, in the machine's (little-endian) order.  Behind it:
 * tokens, counts, tags of pieces (16 bytes each). */
typedef struct {
    char magic[8];
    uint32_t page_bytes, piece_pages;
    uint32_t n_tokens, n_pages, n_counts;
    uint32_t number[TR_STORE_NUMBERS];
    uint32_t key_len;
    uint8_t key[TR_PREFIX_KEY_MAX];
    uint8_t identity[TR_STORE_ID_BYTES];
    uint8_t policy[TR_STORE_ID_BYTES];
    uint8_t name[TR_STORE_ID_BYTES]; /* h(n_tokens / 64) */
    uint8_t tag[TR_STORE_ID_BYTES];  /* of the header, this being zero, and of
                                      * all that follows in front of pages */
} store_header_t;

_Static_assert(sizeof(store_header_t) == 8 + 9 * 4 + 160 + 64, "no padding");

struct store_lane;

/* A thread of a lane.  Piece i is that of thread i % threads, and so is the
 * buffer that it is in. */
typedef struct {
    struct store_lane *lane;
    uint32_t number;
    pthread_t thread;
    bool started;
    sem_t work; /* something has changed for it */
    sem_t go;   /* but for the first: there are pieces to read */
} store_thread_t;

/* Its threads, and what they and the step loop hand to each other.  The first has
 * the lane's jobs; the others read pieces of one when it says so. */
typedef struct store_lane {
    struct tr_store *store;
    store_thread_t thread[TR_STORE_READERS_MAX];
    uint32_t threads;
    sem_t rested;          /* one of the others is done with its pieces */
    int fd;                /* of the file that is read */
    _Atomic bool bad;      /* a piece was damaged */
    _Atomic uint32_t left; /* pieces that are yet to be read */
    _Atomic int state;
    _Atomic bool stop; /* the job is not wanted any more */
    tr_store_item_t item;
    uint8_t *piece[TR_STORE_BUFFERS_MAX]; /* [config.buffers] */
    _Atomic bool full[TR_STORE_BUFFERS_MAX];
    uint32_t pieces; /* of the item */
    uint32_t begun;  /* those that the step loop was given, */
    uint32_t at;     /* and those that it is done with */
    uint8_t *head;   /* [head_size] header to pages */
    uint8_t *hash;   /* [max_len / 64 + 1][16] names of the tokens */
    uint32_t from;   /* get: more than that */
} store_lane_t;

struct tr_store {
    tr_store_config_t config;
    int dir; /* descriptor */
    uint8_t key[TR_SIPHASH_BYTES];
    uint32_t piece_pages;
    size_t head_size;
    _Atomic bool closing;
    bool complained; /* writer: of what it could not write */
    uint64_t run;    /* random, and */
    uint32_t serial; /* writer: of temporary names */
    void (*wake)(void *arg);
    void *arg;
    store_lane_t put, get;
    _Atomic uint64_t stored, loaded, loaded_tokens, failed, skipped, files,
        bytes;
};

static inline uint32_t
store_pieces(const tr_store_t *s, uint32_t pages)
{
    return (pages + s->piece_pages - 1) / s->piece_pages;
}

/* Where the lane's piece i is. */
static inline uint32_t
store_buffer(const tr_store_t *s, uint32_t i)
{
    return i % s->config.buffers;
}

/* Bytes of an item's piece i. */
static inline size_t
store_piece_bytes(const tr_store_t *s, uint32_t pages, uint32_t i)
{
    uint32_t left = pages - i * s->piece_pages;

    return (size_t) (left < s->piece_pages ? left : s->piece_pages)
           * s->config.page_bytes;
}

/* Where pages begin. */
static inline size_t
store_head_bytes(const tr_store_t *s, uint32_t tokens, uint32_t pages)
{
    size_t n = sizeof(store_header_t) + 4ull * tokens + 4ull * s->config.counts
               + 16ull * store_pieces(s, pages);

    return (n + STORE_ALIGN - 1) / STORE_ALIGN * STORE_ALIGN;
}

static inline uint8_t *
store_tags(const tr_store_t *s, uint8_t *head, uint32_t tokens)
{
    return head + sizeof(store_header_t) + 4ull * tokens
           + 4ull * s->config.counts;
}

/* ---- store_file.c */

/* h(0) .. h(n / 64) of these tokens into out. */
void store_names(const tr_store_t *s, const tr_prefix_key_t *key,
                 const uint8_t *policy, const int32_t *tokens, uint32_t n,
                 uint8_t *out);
void store_name(const uint8_t *hash, char out[STORE_NAME]);

/* Writes the lane's item as its pieces come; -1: it could not (errno, or
 * STORE_TOO_LARGE), or was stopped (0). */
int store_write(tr_store_t *s, store_lane_t *lane);
/* Reads the beginning of a file: lane->item is filled from it.  *fd is open.
 * False: there is none that shares more than lane->from of the n tokens in
 * `tokens`, blocks of them being named by the file's name. */
bool store_read_head(tr_store_t *s, store_lane_t *lane, const char *name,
                     const int32_t *tokens, uint32_t block, int *fd);
/* The lane's item's i-th piece; false: it is damaged. */
bool store_read_piece(tr_store_t *s, const store_lane_t *lane, int fd,
                      uint32_t i, uint8_t *out);

/* ---- store_directory.c */

tr_status_t store_directory_open(tr_store_t *s, tr_error_t *err);
/* Files go until `more` bytes have room; also what a kill left behind, and what
 * was not used for the TTL.  False: errno. */
bool store_directory_room(tr_store_t *s, uint64_t more);
/* Was the file not used for the TTL? */
bool store_is_old(const tr_store_t *s, const struct stat *st);

/* ---- store.c */

/* The thread waits until the lane's piece i is full, or empty.  False: the job
 * is not wanted any more. */
bool store_wait(tr_store_t *s, store_lane_t *lane, uint32_t i, bool full);
/* The thread is done with it. */
void store_hand_over(tr_store_t *s, store_lane_t *lane, uint32_t i, bool full);

#endif
