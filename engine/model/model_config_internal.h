/*
 * What the files that read config.json share: a reader that remembers the first
 * failure and which keys were read (model_config_keys.c), and typed reads of a
 * key.
 */
#ifndef TR_MODEL_CONFIG_INTERNAL_H
#define TR_MODEL_CONFIG_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "model_families.h"

#define TR_CONFIG_SHOWN 65 /* bytes of a value in a message */

/* The file, a text_config, two rotary tables, quantization_config with its
 * groups. */
#define TR_CONFIG_WATCHED 16

/* An object whose keys must all be read, and those that were. */
typedef struct {
    const char *name; /* of the object, for messages; "": the model's config */
    json_t *object, *read;
} tr_config_watched_t;

typedef struct tr_config_reader {
    json_t *root;  /* what describes the text model */
    json_t *outer; /* the file, where root is its text_config; else NULL */
    tr_error_t *err;
    tr_status_t rc;     /* of the first failure; later reads do nothing */
    const char *ignore; /* the setting ignore_config */
    tr_config_watched_t watched[TR_CONFIG_WATCHED];
    uint32_t n_watched;
} tr_config_reader_t;

/* A key's value; NULL when it is absent or null.  It counts as read, where its
 * object is watched. */
json_t *tr_config_field(tr_config_reader_t *r, json_t *object, const char *key);

/* model_config_keys.c: from now on reads of the object are remembered (`name`
 * is kept), keys that nobody read fail, and the end of it. */
void tr_config_watch(tr_config_reader_t *r, const char *name, json_t *object);
void tr_config_check_unread(tr_config_reader_t *r);
void tr_config_unwatch(tr_config_reader_t *r);

/* The first failure. */
void tr_config_fail(tr_config_reader_t *r, tr_status_t status, const char *key,
                    const char *text);

/* What a field holds, for messages. */
void tr_config_show(json_t *v, char text[TR_CONFIG_SHOWN]);

/* An integer, or a number, in [min, max]; absent: `otherwise`, or an error when
 * that is negative. */
uint32_t tr_config_uint(tr_config_reader_t *r, json_t *object, const char *key,
                        int64_t otherwise, uint32_t min, uint32_t max);
double tr_config_number(tr_config_reader_t *r, json_t *object, const char *key,
                        double otherwise, double min, double max);
bool tr_config_bool(tr_config_reader_t *r, json_t *object, const char *key,
                    bool otherwise);

/* An object in dir/name, the caller's.  TR_ERR_NOT_FOUND: there is no file. */
tr_status_t tr_config_load_json(const char *dir, const char *name, json_t **out,
                                tr_error_t *err);

/* model_generation.c: the end tokens of a file, and all that
 * generation_config.json says, where there is one. */
void tr_config_eos(tr_config_reader_t *r, tr_model_config_t *c,
                   const char *file, json_t *root);
void tr_config_generation(tr_config_reader_t *r, const char *dir,
                          tr_model_config_t *c);

/* model_config_quant.c: how weights are quantised, where they are. */
void tr_config_quantization(tr_config_reader_t *r, const char *dir,
                            tr_model_config_t *c);

/* model_config_rope.c: the tables of frequencies and which layers use which. */
void tr_config_ropes(tr_config_reader_t *r, tr_model_config_t *c);

#endif
