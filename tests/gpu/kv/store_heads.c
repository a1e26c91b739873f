/*
 * A step's keys and values as part of what a product left: queries, keys and
 * values side by side, without their biases (device.h, tr_cuda_keys_t.heads).
 */
#include "store_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/hadamard.h"

#define HEADS_MAX 8u

static void *
room(size_t bytes)
{
    void *p = calloc(1, bytes + 1);

    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static float
rounded(float x, tr_dtype_t type)
{
    uint16_t h;

    tr_float_store(&h, 0, type, x);
    return tr_float_load(&h, 0, type);
}

/* What a row of the product has of keys or values, which get their bias. */
static void
side_in(float *x, uint32_t n, const float *bias, tr_dtype_t type, uint16_t *out)
{
    for (uint32_t i = 0; i < n; i++) {
        tr_float_store(out, i, type, x[i]);
        x[i] = bias == NULL ? x[i] : rounded(x[i] + bias[i], type);
    }
}

/* A query or a key of a row as tr_cuda_qkv leaves it; x: the product's. */
static void
rotate(const tr_cuda_qkv_t *h, float *x, const float *bias, const float *angles,
       const float *shift)
{
    uint32_t half = h->head_dim / 2;

    for (uint32_t i = 0; i < half; i++) {
        float u = bias == NULL ? x[i] : x[i] + bias[i];
        float v = bias == NULL ? x[half + i] : x[half + i] + bias[half + i];

        x[i] = u * angles[i] - v * angles[half + i];
        x[half + i] = v * angles[i] + u * angles[half + i];
    }
    for (uint32_t i = 0; shift != NULL && i < h->head_dim; i++) {
        x[i] += shift[i];
    }
    if (h->hadamard) {
        tr_hadamard(x, 1, h->head_dim);
    }
}

/* A query before and after. */
static void
query_in(const tr_cuda_qkv_t *h, float *x, const float *bias,
         const float *angles, uint16_t *out, uint16_t *want)
{
    for (uint32_t i = 0; i < h->head_dim; i++) {
        tr_float_store(out, i, h->type, x[i]);
        x[i] = tr_float_load(out, i, h->type);
    }
    rotate(h, x, bias, angles, NULL);
    for (uint32_t i = 0; i < h->head_dim; i++) {
        tr_float_store(want, i, h->type, x[i]);
    }
}

/* A row's keys, which are turned with them. */
static void
keys_in(const tr_cuda_qkv_t *h, float *x, const float *bias,
        const float *angles, const float *shift, uint16_t *out)
{
    uint32_t n = h->kv_heads * h->head_dim;

    for (uint32_t i = 0; i < n; i++) {
        tr_float_store(out, i, h->type, x[i]);
    }
    for (uint32_t i = 0; i < n; i += h->head_dim) {
        rotate(h, x + i, bias == NULL ? NULL : bias + i, angles,
               shift == NULL ? NULL : shift + i);
    }
    for (uint32_t i = 0; i < n; i++) {
        x[i] = rounded(x[i], h->type);
    }
}

/* [n] numbers, or NULL; *there: the same for the device. */
static float *
maybe(uint32_t n, bool have, const float **there)
{
    float *x = have ? room(n * 4ul) : NULL, *to;

    *there = NULL;
    if (have) {
        for (uint32_t i = 0; i < n; i++) {
            x[i] = (float) random_normal();
        }
        to = fixture_room(n * 4ul);
        fixture_put(to, x, n * 4ul);
        *there = to;
    }
    return x;
}

void
fixture_heads(fixture_t *b, uint32_t rows, fixture_input_t *in)
{
    uint32_t dim = b->host.head_dim, n = b->host.kv_heads * dim;
    tr_cuda_qkv_t *h = &in->heads;
    tr_dtype_t type = in->other.type;
    uint32_t q, all;
    float *bias, *shift, *x;
    uint16_t *out;
    bool keys;

    h->heads = 1 + random_below(HEADS_MAX);
    h->kv_heads = b->host.kv_heads;
    h->head_dim = dim;
    h->type = type;
    h->angles = in->there;
    in->other.angles = in->there;
    h->hadamard = tr_hadamard_has(dim) && random_below(2);
    keys = h->hadamard || random_below(3) == 0;
    h->key_angles = keys ? in->there : NULL;
    q = h->heads * dim;
    all = q + 2 * n;
    h->ld = all + random_below(3) * 8;
    x = room(all * 4ul);
    out = room(rows * h->ld * 2);
    in->want = room(rows * (size_t) q * 2);
    bias = maybe(all, random_below(2), &h->bias);
    shift = maybe(n, keys && random_below(2), &h->key_shift);
    for (uint32_t r = 0; r < rows; r++) {
        uint16_t *row = out + r * h->ld;

        for (uint32_t i = 0; i < q; i++) {
            x[i] = (float) (random_normal() * 3);
        }
        for (uint32_t i = 0; i < q; i += dim) {
            query_in(h, x + i, bias == NULL ? NULL : bias + i,
                     in->angles + (size_t) r * dim, row + i,
                     in->want + r * (size_t) q + i);
        }
        if (keys) {
            keys_in(h, in->k + r * in->ld, bias == NULL ? NULL : bias + q,
                    in->angles + (size_t) r * dim, shift, row + q);
        } else {
            side_in(in->k + r * in->ld, n, bias == NULL ? NULL : bias + q, type,
                    row + q);
        }
        side_in(in->v + r * in->ld, n, bias == NULL ? NULL : bias + q + n, type,
                row + q + n);
    }
    h->qkv = fixture_room(rows * h->ld * 2);
    fixture_put(h->qkv, out, rows * h->ld * 2);
    fixture_room_free((void *) in->other.k);
    fixture_room_free((void *) in->other.v);
    in->other.k = (uint16_t *) h->qkv + q;
    in->other.v = (uint16_t *) h->qkv + q + n;
    in->other.ld = h->ld;
    in->other.heads = h;
    if (keys) {
        in->other.angles = NULL;
    }
    free(bias);
    free(shift);
    free(out);
    free(x);
}

bool
fixture_heads_same(const fixture_input_t *in)
{
    const tr_cuda_qkv_t *h = &in->heads;
    size_t q = (size_t) h->heads * h->head_dim;
    uint16_t *got = room(h->rows * h->ld * 2);
    bool same = true;

    fixture_get(got, h->qkv, h->rows * h->ld * 2);
    for (uint32_t r = 0; r < h->rows && same; r++) {
        same = memcmp(got + r * h->ld, in->want + r * q, q * 2) == 0;
    }
    if (!same) {
        printf("queries differ: rows %u, heads %u, bias %d, keys %d, shift %d, "
               "hadamard %d\n",
               h->rows, h->heads, h->bias != NULL, h->key_angles != NULL,
               h->key_shift != NULL, h->hadamard);
    }
    free(got);
    return same;
}
