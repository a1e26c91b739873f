/*
 * Room for the coming tokens (kv_cache.h, tr_kv_reserve).
 */
#include "kv_internal.h"

tr_status_t
tr_kv_reserve(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    return tr_kv_reserve_dense(kv, slot, len);
}
