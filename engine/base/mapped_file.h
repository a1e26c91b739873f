/*
 * Files that stay mapped while the process works with them, so that a fault can
 * be told from one of the program: reading what somebody has cut off a mapped
 * file is a SIGBUS.
 *
 * Files are added and removed by one thread, while a model is opened or freed.
 */
#ifndef TR_MAPPED_FILE_H
#define TR_MAPPED_FILE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tr_mapped_file tr_mapped_file_t;
struct tr_mapped_file {
    const void *at;
    size_t size;
    /* Says that it cannot be read any more.  In a signal's handler, on a thread
     * that was reading it. */
    void (*lost)(const char *name);
    const char *name; /* of the owner */
    tr_mapped_file_t *_Atomic next;
};

/* Borrowed until it is removed. */
void tr_mapped_file_add(tr_mapped_file_t *f);
void tr_mapped_file_remove(tr_mapped_file_t *f);

/* The file that an address is in, or NULL.  May be asked in a signal's handler. */
const tr_mapped_file_t *tr_mapped_file_at(const void *address);

#endif
