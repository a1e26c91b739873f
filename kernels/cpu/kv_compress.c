/*
 * Moves everything that a slot caches to the places that its policy chose.
 */
#include "cpu.h"

int
tr_cpu_kv_compress(const tr_stream_t *s, const tr_kv_view_t *kv,
                   const tr_kv_compress_t *c, void *work)
{
    (void) s;
    (void) kv;
    (void) c;
    (void) work;
    return TR_KERNEL_BADARG;
}

size_t
tr_cpu_kv_compress_work(const tr_stream_t *s, uint32_t head_dim)
{
    (void) s;
    (void) head_dim;
    return 64;
}
