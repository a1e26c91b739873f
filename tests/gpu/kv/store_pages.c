/*
 * Pages on their way to files and from them, on a GPU alone.  See store_ops.h.
 */
#include "store_ops.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#define TABLE 200u
#define MOST 60u

/* What both launches work on: any entries of a table that has any pages, each
 * once, some that are none, in any order. */
typedef struct {
    int32_t table[TABLE];
    uint32_t *ref; /* pinned */
    uint32_t n;
    void *table_there, *flat;
    uint8_t *was, *is, *bytes; /* the pool; [n] pages */
} pages_t;

static void
choose(const fixture_t *b, pages_t *x)
{
    uint32_t left = b->pages, page;

    for (uint32_t i = 0; i < TABLE; i++) {
        x->table[i] = random_below(2) != 0 ? -1 : (int32_t) b->pages;
    }
    x->n = 1 + random_below(MOST);
    for (uint32_t i = 0, at = random_below(TABLE); i < x->n; i++) {
        x->ref[i] = at; /* 7 and TABLE have no divisor in common */
        at = (at + 7) % TABLE;
    }
    page = random_below(b->pages);
    for (uint32_t i = 0; i < x->n && left > 0; i++) {
        uint32_t ahead = 1 + random_below(left / x->n + 1);

        if (ahead > left) {
            break;
        }
        left -= ahead;
        page = (page + ahead) % b->pages;
        if (random_below(8) != 0) {
            x->table[x->ref[i]] = (int32_t) page;
        }
    }
}

static bool
is_page(const fixture_t *b, const pages_t *x, uint32_t i)
{
    int32_t page = x->table[x->ref[i]];

    return page >= 0 && (uint32_t) page < b->pages;
}

static bool
run(fixture_t *b, const pages_t *x, bool out)
{
    const tr_cuda_kv_pages_t a = { .table = x->table_there,
                                   .ref = x->ref,
                                   .n = x->n,
                                   .pages = b->pages,
                                   .flat = x->flat,
                                   .out = out };

    if (tr_cuda_kv_pages(&b->side->stream, &b->other, &a) != 0) {
        return store_say(tr_cuda_reason());
    }
    cuda_ok(cudaDeviceSynchronize(), "pages");
    return true;
}

/* Those that are none leave their place as it was. */
static bool
check_out(fixture_t *b, pages_t *x)
{
    size_t bytes = b->host.page_bytes;
    bool ok;

    memset(x->bytes, 0x5a, x->n * bytes);
    fixture_put(x->flat, x->bytes, x->n * bytes);
    ok = run(b, x, true);
    fixture_get(x->bytes, x->flat, x->n * bytes);
    for (uint32_t i = 0; i < x->n && ok; i++) {
        const uint8_t *got = x->bytes + i * bytes;

        if (is_page(b, x, i)) {
            ok = memcmp(got, x->was + x->table[x->ref[i]] * bytes, bytes) == 0;
        } else {
            ok = got[0] == 0x5a && memcmp(got, got + 1, bytes - 1) == 0;
        }
    }
    return ok ? true : store_say("pages that went out are wrong");
}

static bool
check_in(fixture_t *b, pages_t *x, size_t pool)
{
    size_t bytes = b->host.page_bytes;
    bool ok;

    for (size_t i = 0; i < x->n * bytes; i++) {
        x->bytes[i] = (uint8_t) random_below(256);
    }
    fixture_put(x->flat, x->bytes, x->n * bytes);
    ok = run(b, x, false);
    fixture_get(x->is, b->other.pool, pool);
    fixture_put(b->other.pool, x->was, pool);
    for (uint32_t i = 0; i < x->n; i++) {
        if (is_page(b, x, i)) {
            memcpy(x->was + x->table[x->ref[i]] * bytes, x->bytes + i * bytes,
                   bytes);
        }
    }
    ok = ok && memcmp(x->is, x->was, pool) == 0;
    return ok ? true : store_say("pages that came in are wrong, or others are");
}

bool
store_pages(fixture_t *b)
{
    size_t bytes = b->host.page_bytes, pool = b->pages * bytes;
    pages_t x = { .n = 0 };
    bool ok;

    cuda_ok(cudaHostAlloc((void **) &x.ref, MOST * sizeof(*x.ref), 0),
            "host memory");
    choose(b, &x);
    x.table_there = fixture_room(sizeof(x.table));
    x.flat = fixture_room(x.n * bytes);
    x.was = malloc(pool);
    x.is = malloc(pool);
    x.bytes = malloc(x.n * bytes);
    fixture_put(x.table_there, x.table, sizeof(x.table));
    fixture_get(x.was, b->other.pool, pool);
    ok = check_out(b, &x) && check_in(b, &x, pool);
    store_checks++;
    cuda_ok(cudaFreeHost(x.ref), "host memory");
    fixture_room_free(x.table_there);
    fixture_room_free(x.flat);
    free(x.was);
    free(x.is);
    free(x.bytes);
    return ok;
}
