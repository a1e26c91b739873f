/*
 * A list of mapped files (mapped_file.h).
 */
#include "mapped_file.h"

static tr_mapped_file_t *_Atomic files;

void
tr_mapped_file_add(tr_mapped_file_t *f)
{
    atomic_store(&f->next, atomic_load(&files));
    atomic_store(&files, f);
}

void
tr_mapped_file_remove(tr_mapped_file_t *f)
{
    tr_mapped_file_t *_Atomic *at = &files;

    while (atomic_load(at) != NULL && atomic_load(at) != f) {
        at = &atomic_load(at)->next;
    }
    if (atomic_load(at) == f) {
        atomic_store(at, atomic_load(&f->next));
    }
}

const tr_mapped_file_t *
tr_mapped_file_at(const void *address)
{
    const tr_mapped_file_t *f = atomic_load(&files);

    while (f != NULL
           && ((uintptr_t) address < (uintptr_t) f->at
               || (uintptr_t) address - (uintptr_t) f->at >= f->size)) {
        f = atomic_load(&f->next);
    }
    return f;
}
