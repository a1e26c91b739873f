/*
 * Which model it is: the same for two copies of a model directory, different for
 * different weights, tokenizers or templates.  With it a gateway knows which
 * engines may continue each other's requests.
 */
#ifndef TR_MODEL_ID_H
#define TR_MODEL_ID_H

#include <stdint.h>

#include <tokenring/error.h>

#define TR_MODEL_ID_BYTES 16

/* Of the files in dir, and of settings that change answers.  Names,
 * sizes and small files go in whole; of a large file its first MiB and 256
 * pieces of 4 KiB, spread evenly.  TR_ERR_IO: dir or a file cannot be read. */
tr_status_t tr_model_identify(const char *dir, const char *settings,
                              uint8_t out[TR_MODEL_ID_BYTES]);

/* Of the weights' files in dir, without reading them: names, sizes, inodes, and
 * when they were written.  Another number when one was changed or replaced, the
 * same for all who open these files; a copy of dir has another.  TR_ERR_IO: as
 * above. */
tr_status_t tr_model_stamp(const char *dir, uint64_t *out);

/* Goes on with more: 64 bits of a text and of what was hashed before. */
uint64_t tr_model_hash(uint64_t before, const void *bytes, uint64_t len);

#endif
