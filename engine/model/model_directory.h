/*
 * What a model directory is, before anything in it is read: a Hugging Face
 * directory with safetensors, or something that people take for one.
 */
#ifndef TR_MODEL_DIRECTORY_H
#define TR_MODEL_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>

#include <tokenring/error.h>

/* Names what is there instead of a model: nothing, a hub id, one GGUF file, a
 * directory of GGUF or PyTorch files alone, pointers of git-lfs instead of
 * files.  weights: whether they are needed. */
tr_status_t tr_model_directory_check(const char *dir, bool weights,
                                     tr_error_t *err);

/* Is this the beginning of a pointer of git-lfs?  And what to say then, a format
 * with the file's name. */
bool tr_model_is_lfs_pointer(const void *data, size_t size);
#define TR_MODEL_LFS_TEXT                                              \
    "%.200s: a pointer of git-lfs, not the file itself; run `git lfs " \
    "pull` in the model's directory"

#endif
