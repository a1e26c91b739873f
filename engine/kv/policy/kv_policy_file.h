/*
 * The policy file of a model, kv_policy.json: the settings that `tokenring
 * calibrate` found for it, in its directory, so that they travel with it.
 *
 *     {
 *       "kv_policy": "diffkv:alpha_high=12,alpha_low=0",
 *       "layers": 8, "kv_heads": 2, "head_dim": 64,
 *       "calibrated": { .. }
 *     }
 *
 * It answers for a policy that is asked for by its name alone: `kv_policy
 * diffkv` takes the settings of the file, `kv_policy diffkv:window=32` none of
 * them.  A file for another policy is passed over.  A file that cannot be read,
 * or that was made for a model of another shape, is an error: to go on with
 * other settings would cost answers or memory without a word.
 *
 * The file may come from anywhere: it is at most 64 KiB, and may not name
 * further files (alpha_file).  "calibrated" is for people, and not looked at.
 */
#ifndef TR_KV_POLICY_FILE_H
#define TR_KV_POLICY_FILE_H

#include <jansson.h>

#include "kv_policy.h"

#define TR_KV_POLICY_FILE "kv_policy.json"

/* Where a policy's settings came from. */
typedef enum {
    TR_KV_FROM_SETTINGS, /* given with its name, or it has none */
    TR_KV_FROM_FILE,
    TR_KV_FROM_DEFAULTS /* no file, or one for another policy */
} tr_kv_source_t;

/* As tr_kv_policy_create, with the file in dir (of the model) for a spec that
 * is a bare name.  Errors of the file begin with its path. */
tr_status_t tr_kv_policy_open(const char *dir, const char *spec,
                              uint32_t layers, uint32_t kv_heads,
                              uint32_t head_dim, tr_kv_policy_t **out,
                              tr_kv_source_t *source, tr_error_t *err);

/* "settings", "kv_policy.json", "defaults" */
const char *tr_kv_source_name(tr_kv_source_t source);

/* Should a user hear that `tokenring calibrate` would help?  For thresholds that
 * are the defaults. */
bool tr_kv_policy_uncalibrated(const tr_kv_policy_t *p, tr_kv_source_t source);

/* Writes the file, or replaces it as a whole.  spec must have settings;
 * calibrated: an object, borrowed. */
tr_status_t tr_kv_policy_file_write(const char *dir, const char *spec,
                                    uint32_t layers, uint32_t kv_heads,
                                    uint32_t head_dim, json_t *calibrated,
                                    tr_error_t *err);

#endif
