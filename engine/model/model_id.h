/*
 * An id of a model directory: equal for two copies of it, different where
 * weights, tokenizer or chat template differ.  Engines with equal ids may
 * continue each other's requests (include/tokenring/status.h, model_id).
 */
#ifndef TR_MODEL_ID_H
#define TR_MODEL_ID_H

#include <stdint.h>

#include <tokenring/error.h>

#define TR_MODEL_ID_BYTES 16

/* The id of the files in dir and of settings that change answers, given as a
 * text.  Hashes all names and sizes, small files whole, and of a large file its
 * first MiB and 256 pieces of 4 KiB, spread evenly.  TR_ERR_IO: dir or a file
 * cannot be read. */
tr_status_t tr_model_identify(const char *dir, const char *settings,
                              uint8_t out[TR_MODEL_ID_BYTES]);

/* A number that tells whether dir still has the same weights, found without
 * reading them: from names, sizes, inodes and times of writing.  It changes when
 * a file is changed or replaced; a copy of dir has another one.  TR_ERR_IO: as
 * above. */
tr_status_t tr_model_stamp(const char *dir, uint64_t *out);

/* A hash of `bytes` and of an earlier hash, so that many can be chained. */
uint64_t tr_model_hash(uint64_t before, const void *bytes, uint64_t len);

#endif
