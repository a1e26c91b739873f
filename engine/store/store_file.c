/*
 * One file of the store (store.h): its names, written and read.  Every number of
 * a header is held against what the store can have before it is used, and
 * nothing is used before its tag was compared.
 */
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/config/log.h"

/* ---- names -------------------------------------------------------------- */

void
store_names(const tr_store_t *s, const tr_prefix_key_t *key,
            const uint8_t *policy, const int32_t *tokens, uint32_t n,
            uint8_t *out)
{
    uint8_t first[2 * TR_STORE_ID_BYTES + TR_PREFIX_KEY_MAX];
    uint8_t next[TR_STORE_ID_BYTES + 4 * TR_STORE_BLOCK];
    uint32_t i;

    memcpy(first, s->config.identity, TR_STORE_ID_BYTES);
    memcpy(first + TR_STORE_ID_BYTES, policy, TR_STORE_ID_BYTES);
    memcpy(first + 2 * TR_STORE_ID_BYTES, key->bytes, key->len);
    tr_siphash(s->key, first, 2 * TR_STORE_ID_BYTES + key->len, out);
    for (i = 0; i < n / TR_STORE_BLOCK; i++, out += TR_STORE_ID_BYTES) {
        memcpy(next, out, TR_STORE_ID_BYTES);
        memcpy(next + TR_STORE_ID_BYTES, tokens + i * TR_STORE_BLOCK,
               4 * TR_STORE_BLOCK);
        tr_siphash(s->key, next, sizeof(next), out + TR_STORE_ID_BYTES);
    }
}

void
store_name(const uint8_t *hash, char out[STORE_NAME])
{
    for (uint32_t i = 0; i < TR_STORE_ID_BYTES; i++) {
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
    }
}

static const uint8_t *
hash_at(const store_lane_t *lane, uint32_t block)
{
    return lane->hash + (size_t) block * TR_STORE_ID_BYTES;
}

/* ---- writing ------------------------------------------------------------ */

static int
write_all(int fd, const uint8_t *from, size_t n, size_t at)
{
    while (n != 0) {
        ssize_t done = pwrite(fd, from, n, (off_t) at);

        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            errno = done == 0 ? ENOSPC : errno;
            return -1;
        }
        from += done;
        at += (size_t) done;
        n -= (size_t) done;
    }
    return 0;
}

/* All in front of the pages, in lane->head; tags are there. */
static void
make_head(const tr_store_t *s, store_lane_t *lane, size_t bytes)
{
    const tr_store_item_t *item = &lane->item;
    store_header_t h = { .page_bytes = s->config.page_bytes,
                         .piece_pages = s->piece_pages,
                         .n_tokens = item->n_tokens,
                         .n_pages = item->n_pages,
                         .n_counts = s->config.counts,
                         .key_len = item->key.len };
    uint8_t *at = lane->head + sizeof(h);

    memcpy(h.magic, STORE_MAGIC, sizeof(h.magic));
    memcpy(h.number, item->number, sizeof(h.number));
    memcpy(h.key, item->key.bytes, item->key.len);
    memcpy(h.identity, s->config.identity, sizeof(h.identity));
    memcpy(h.policy, item->policy, sizeof(h.policy));
    memcpy(h.name, hash_at(lane, item->n_tokens / TR_STORE_BLOCK),
           sizeof(h.name));
    memcpy(at, item->tokens, 4ull * item->n_tokens);
    at += 4ull * item->n_tokens;
    memcpy(at, item->counts, 4ull * s->config.counts);
    memcpy(lane->head, &h, sizeof(h));
    tr_siphash(s->key, lane->head, bytes, h.tag);
    memcpy(lane->head, &h, sizeof(h));
}

/* A file and nothing else, which could block, or be elsewhere, and not one that
 * is too old; -1: none. */
static int
open_file(const tr_store_t *s, const char *name)
{
    int fd = openat(s->dir, name,
                    O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;

    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        return -1;
    }
    if (fd >= 0 && store_is_old(s, &st)) {
        (void) unlinkat(s->dir, name, 0);
        close(fd);
        return -1;
    }
    return fd;
}

/* The main name of the file that has this name; false: there is none. */
static bool
main_name(const tr_store_t *s, const char *name, uint8_t out[TR_STORE_ID_BYTES],
          uint32_t *tokens)
{
    int fd = open_file(s, name);
    store_header_t h;
    bool read = fd >= 0 && pread(fd, &h, sizeof(h), 0) == sizeof(h);

    if (fd >= 0) {
        close(fd);
    }
    memset(out, 0, TR_STORE_ID_BYTES);
    *tokens = 0;
    if (read) {
        memcpy(out, h.name, sizeof(h.name));
        *tokens = h.n_tokens;
    }
    return fd >= 0;
}

static bool
power_of_two(uint32_t x)
{
    return x != 0 && (x & (x - 1)) == 0;
}

/* `from` also has this name, whatever had it. */
static void
link_over(const tr_store_t *s, const char *from, const char *name)
{
    char link[64];

    snprintf(link, sizeof(link), ".tmp-%016llx", (unsigned long long) s->run);
    (void) unlinkat(s->dir, link, 0);
    if (linkat(s->dir, from, s->dir, link, 0) == 0
        && renameat(s->dir, link, s->dir, name) != 0) {
        (void) unlinkat(s->dir, link, 0);
    }
}

/* The names in front of the last one: free ones a power of two from an end, and
 * those of what this one goes on from. */
static void
add_names(const tr_store_t *s, const store_lane_t *lane, const char *own)
{
    uint32_t last = lane->item.n_tokens / TR_STORE_BLOCK, block, tokens;
    uint8_t theirs[TR_STORE_ID_BYTES];
    char name[STORE_NAME];

    for (block = 1; block < last; block++) {
        bool wanted = power_of_two(block) || power_of_two(last - block);

        store_name(hash_at(lane, block), name);
        if (!main_name(s, name, theirs, &tokens)) {
            /* without it the file is found by fewer lengths, no more */
            if (wanted && linkat(s->dir, own, s->dir, name, 0) != 0) {
                continue;
            }
        } else if (tokens / TR_STORE_BLOCK <= last
                   && memcmp(theirs, hash_at(lane, tokens / TR_STORE_BLOCK),
                             sizeof(theirs))
                          == 0) {
            link_over(s, own, name);
        }
    }
}

static int
write_pieces(tr_store_t *s, store_lane_t *lane, int fd, size_t head)
{
    const tr_store_item_t *item = &lane->item;
    uint8_t *tag = store_tags(s, lane->head, item->n_tokens);
    size_t at = head;

    for (uint32_t i = 0; i < lane->pieces; i++, tag += TR_STORE_ID_BYTES) {
        const uint8_t *piece = lane->piece[store_buffer(s, i)];
        size_t bytes = store_piece_bytes(s, item->n_pages, i);

        if (!store_wait(s, lane, i, true)) {
            errno = 0;
            return -1;
        }
        tr_siphash(s->key, piece, bytes, tag);
        if (write_all(fd, piece, bytes, at) != 0) {
            return -1;
        }
        at += bytes;
        store_hand_over(s, lane, i, false);
    }
    make_head(s, lane, head);
    return write_all(fd, lane->head, head, 0) != 0 || fsync(fd) != 0 ? -1 : 0;
}

int
store_write(tr_store_t *s, store_lane_t *lane)
{
    const tr_store_item_t *item = &lane->item;
    size_t head = store_head_bytes(s, item->n_tokens, item->n_pages);
    char temporary[64], name[STORE_NAME];
    int fd, rc, why;

    memset(lane->head, 0, head);
    store_names(s, &item->key, item->policy, item->tokens, item->n_tokens,
                lane->hash);
    store_name(hash_at(lane, item->n_tokens / TR_STORE_BLOCK), name);
    snprintf(temporary, sizeof(temporary), ".tmp-%016llx-%u",
             (unsigned long long) s->run, s->serial++);
    if (!store_directory_room(
            s, head + (uint64_t) item->n_pages * s->config.page_bytes)) {
        return -1;
    }
    fd = openat(s->dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                0600);
    if (fd < 0) {
        return -1;
    }
    rc = write_pieces(s, lane, fd, head);
    why = errno;
    close(fd);
    if (rc == 0 && renameat(s->dir, temporary, s->dir, name) != 0) {
        rc = -1;
        why = errno;
    }
    if (rc == 0) {
        add_names(s, lane, name);
    } else {
        (void) unlinkat(s->dir, temporary, 0);
    }
    errno = why;
    return rc;
}

/* ---- reading ------------------------------------------------------------ */

static bool
read_all(int fd, uint8_t *out, size_t n, size_t at)
{
    while (n != 0) {
        ssize_t done = pread(fd, out, n, (off_t) at);

        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return false;
        }
        out += done;
        at += (size_t) done;
        n -= (size_t) done;
    }
    return true;
}

typedef enum { HEAD_GOOD, HEAD_DAMAGED, HEAD_LARGE } head_t;

/* Could it be a header of this store's, and is the file as long as it says?
 * LARGE: an engine with more room, or longer sequences, may have written it. */
static head_t
plausible(const tr_store_t *s, const store_header_t *h, int fd)
{
    struct stat st;

    if (memcmp(h->magic, STORE_MAGIC, sizeof(h->magic)) != 0
        || h->page_bytes != s->config.page_bytes
        || h->piece_pages != s->piece_pages || h->n_counts != s->config.counts
        || h->n_tokens < TR_STORE_BLOCK || h->n_pages == 0
        || h->key_len > TR_PREFIX_KEY_MAX || fstat(fd, &st) != 0
        || (uint64_t) st.st_size
               != store_head_bytes(s, h->n_tokens, h->n_pages)
                      + (uint64_t) h->n_pages * h->page_bytes) {
        return HEAD_DAMAGED;
    }
    return h->n_tokens <= s->config.max_len && h->n_pages <= s->config.max_pages
               ? HEAD_GOOD
               : HEAD_LARGE;
}

/* The header and what follows in front of pages, into lane->head. */
static head_t
read_head(const tr_store_t *s, store_lane_t *lane, int fd, store_header_t *h)
{
    static const uint8_t zero[TR_STORE_ID_BYTES];
    uint8_t tag[TR_STORE_ID_BYTES];
    size_t bytes;
    head_t looks;

    if (!read_all(fd, (uint8_t *) h, sizeof(*h), 0)) {
        return HEAD_DAMAGED;
    }
    looks = plausible(s, h, fd);
    if (looks != HEAD_GOOD) {
        return looks;
    }
    bytes = store_head_bytes(s, h->n_tokens, h->n_pages);
    if (!read_all(fd, lane->head, bytes, 0)
        || memcmp(lane->head, h, sizeof(*h)) != 0) {
        return HEAD_DAMAGED;
    }
    memcpy(lane->head + offsetof(store_header_t, tag), zero, sizeof(zero));
    tr_siphash(s->key, lane->head, bytes, tag);
    return memcmp(tag, h->tag, sizeof(tag)) == 0
                   && memcmp(h->identity, s->config.identity,
                             sizeof(h->identity))
                          == 0
               ? HEAD_GOOD
               : HEAD_DAMAGED;
}

/* Whose it is, and its tokens and counts. */
static void
take_head(const tr_store_t *s, store_lane_t *lane, const store_header_t *h)
{
    tr_store_item_t *item = &lane->item;
    const uint8_t *at = lane->head + sizeof(*h);

    memset(&item->key, 0, sizeof(item->key));
    item->key.len = h->key_len;
    memcpy(item->key.bytes, h->key, h->key_len);
    memcpy(item->policy, h->policy, sizeof(h->policy));
    item->n_tokens = h->n_tokens;
    item->n_pages = h->n_pages;
    memcpy(item->number, h->number, sizeof(item->number));
    memcpy(item->tokens, at, 4ull * h->n_tokens);
    memcpy(item->counts, at + 4ull * h->n_tokens, 4ull * s->config.counts);
    lane->pieces = store_pieces(s, h->n_pages);
}

bool
store_read_head(tr_store_t *s, store_lane_t *lane, const char *name,
                const int32_t *tokens, uint32_t block, int *fd)
{
    const tr_store_item_t *item = &lane->item;
    store_header_t h;
    head_t head;

    *fd = open_file(s, name);
    if (*fd < 0) {
        return false;
    }
    head = read_head(s, lane, *fd, &h);
    if (head == HEAD_DAMAGED) {
        atomic_fetch_add(&s->failed, 1);
        (void) unlinkat(s->dir, name, 0);
    } else if (head == HEAD_GOOD && h.key_len == item->key.len
               && memcmp(h.key, item->key.bytes, h.key_len) == 0
               && memcmp(h.policy, item->policy, sizeof(h.policy)) == 0
               && h.n_tokens / TR_STORE_BLOCK >= block
               && memcmp(lane->head + sizeof(h), tokens,
                         4ull * block * TR_STORE_BLOCK)
                      == 0) {
        take_head(s, lane, &h);
        return true;
    }
    close(*fd);
    *fd = -1;
    return false;
}

bool
store_read_piece(tr_store_t *s, const store_lane_t *lane, int fd, uint32_t i,
                 uint8_t *out)
{
    const tr_store_item_t *item = &lane->item;
    size_t at = store_head_bytes(s, item->n_tokens, item->n_pages)
                + (size_t) i * s->piece_pages * s->config.page_bytes;
    size_t bytes = store_piece_bytes(s, item->n_pages, i);
    const uint8_t *want = store_tags(s, lane->head, item->n_tokens)
                          + (size_t) i * TR_STORE_ID_BYTES;
    uint8_t tag[TR_STORE_ID_BYTES];

    if (!read_all(fd, out, bytes, at)) {
        return false;
    }
    tr_siphash(s->key, out, bytes, tag);
    return memcmp(tag, want, sizeof(tag)) == 0;
}
