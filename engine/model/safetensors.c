/*
 * safetensors.h: opening, checking and indexing of weight files.
 *
 * The header is parsed by jansson (strict UTF-8, duplicate keys refused, 64-bit
 * integers), then every number in it is checked against the file's real size.
 * Tensors are kept sorted by name.
 */
#include "safetensors.h"

#include "model_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mapped_file.h"
#include "engine/config/log.h"

#include "weights/packed.h"

#define HEADER_MAX (100u << 20) /* as the format's own readers have it */
#define SHARDS_MAX 4096
#define PATH_LEN 1024

typedef struct {
    char *name; /* base name */
    uint8_t *map;
    uint64_t size, header; /* bytes of the file; of length field and JSON */
    tr_mapped_file_t *mapped;
} shard_t;

struct tr_safetensors {
    shard_t *shards;
    uint32_t n_shards;
    tr_tensor_t *tensors; /* sorted by name */
    uint32_t n_tensors, capacity;
    tr_tensor_t *added; /* sorted by name */
    uint32_t n_added;
};

static tr_status_t
out_of_memory(tr_error_t *err, const char *file)
{
    return tr_error_set(err, TR_ERR_NOMEM, "", "%s: out of memory", file);
}

static void
parse_dtype(const char *name, tr_tensor_t *t)
{
    static const char *const known[] = {
        [TR_STORED_F8_E4M3] = "F8_E4M3", [TR_STORED_F8_E8M0] = "F8_E8M0",
        [TR_STORED_U8] = "U8",           [TR_STORED_I8] = "I8",
        [TR_STORED_I32] = "I32",         [TR_STORED_I64] = "I64",
    };

    for (int i = 0; i < TR_DTYPES; i++) {
        if (strcmp(name, tr_dtype_stored_name((tr_dtype_t) i)) == 0) {
            t->stored = TR_STORED_FLOAT;
            t->dtype = (tr_dtype_t) i;
            return;
        }
    }
    snprintf(t->other, sizeof(t->other), "%s", name);
    t->stored = TR_STORED_OTHER;
    for (int i = TR_STORED_F8_E4M3; i < TR_STORED_OTHER; i++) {
        if (strcmp(name, known[i]) == 0) {
            t->stored = (tr_stored_t) i;
        }
    }
}

/* Bytes of an element. */
static uint32_t
width(const tr_tensor_t *t)
{
    switch (t->stored) {
    case TR_STORED_FLOAT:
        return tr_dtype_size(t->dtype);
    case TR_STORED_I32:
        return 4;
    case TR_STORED_I64:
        return 8;
    default:
        return 1;
    }
}

/* Fills dims and returns the number of elements, or -1 if it is no shape or
 * the product overflows. */
static int64_t
parse_shape(json_t *shape, tr_tensor_t *t)
{
    uint64_t elements = 1;

    if (!json_is_array(shape) || json_array_size(shape) > TR_TENSOR_DIMS) {
        return -1;
    }
    t->n_dims = (uint32_t) json_array_size(shape);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        json_t *d = json_array_get(shape, i);

        if (!json_is_integer(d) || json_integer_value(d) < 0) {
            return -1;
        }
        t->dims[i] = (uint64_t) json_integer_value(d);
        if (__builtin_mul_overflow(elements, t->dims[i], &elements)
            || elements > INT64_MAX / 8) {
            return -1;
        }
    }
    return (int64_t) elements;
}

static tr_status_t
parse_tensor(const shard_t *s, const char *name, json_t *entry, tr_tensor_t *t,
             tr_error_t *err)
{
    json_t *dtype = json_object_get(entry, "dtype");
    json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t data = s->size - s->header, expected;
    int64_t begin, end, elements;

    if (!json_is_object(entry) || !json_is_string(dtype)
        || !json_is_array(offsets) || json_array_size(offsets) != 2
        || !json_is_integer(json_array_get(offsets, 0))
        || !json_is_integer(json_array_get(offsets, 1))) {
        return tr_error_set(err, TR_ERR_FORMAT, name,
                            "%s: tensor \"%.200s\" needs dtype (string), shape "
                            "(array) and "
                            "data_offsets (two integers)",
                            s->name, name);
    }
    parse_dtype(json_string_value(dtype), t);
    elements = parse_shape(json_object_get(entry, "shape"), t);
    if (elements < 0) {
        return tr_error_set(err, TR_ERR_FORMAT, name,
                            "%s: tensor \"%.200s\" has no valid shape, "
                            "expected at most %d "
                            "sizes whose product fits",
                            s->name, name, TR_TENSOR_DIMS);
    }
    begin = json_integer_value(json_array_get(offsets, 0));
    end = json_integer_value(json_array_get(offsets, 1));
    if (begin < 0 || end < begin || (uint64_t) end > data) {
        return tr_error_set(err, TR_ERR_FORMAT, name,
                            "%s: tensor \"%.200s\" has data_offsets [%" PRId64
                            ", %" PRId64
                            "], expected a range within the %" PRIu64
                            " bytes of data",
                            s->name, name, begin, end, data);
    }
    expected = t->stored == TR_STORED_OTHER ? (uint64_t) (end - begin)
                                            : (uint64_t) elements * width(t);
    if ((uint64_t) (end - begin) != expected) {
        return tr_error_set(err, TR_ERR_FORMAT, name,
                            "%s: tensor \"%.200s\" has %" PRId64
                            " bytes of data, its dtype "
                            "and shape need %" PRIu64,
                            s->name, name, end - begin, expected);
    }
    t->data = s->map + s->header + begin;
    t->size = expected;
    t->file = s->name;
    return TR_OK;
}

static tr_status_t
add_tensor(tr_safetensors_t *st, const char *name, const tr_tensor_t *t,
           tr_error_t *err)
{
    if (st->n_tensors == st->capacity) {
        uint32_t capacity = st->capacity ? 2 * st->capacity : 64;
        tr_tensor_t *grown = realloc(st->tensors,
                                     capacity * sizeof(tr_tensor_t));

        if (grown == NULL) {
            return out_of_memory(err, t->file);
        }
        st->tensors = grown;
        st->capacity = capacity;
    }
    st->tensors[st->n_tensors] = *t;
    st->tensors[st->n_tensors].name = strdup(name);
    if (st->tensors[st->n_tensors].name == NULL) {
        return out_of_memory(err, t->file);
    }
    st->n_tensors++;
    return TR_OK;
}

static int
by_data(const void *a, const void *b)
{
    const tr_tensor_t *x = a, *y = b;

    if (x->data != y->data) {
        return x->data < y->data ? -1 : 1;
    }
    return x->size < y->size ? -1 : x->size > y->size;
}

static int
by_name(const void *a, const void *b)
{
    return strcmp(((const tr_tensor_t *) a)->name,
                  ((const tr_tensor_t *) b)->name);
}

/* Refuses tensors that share bytes; tensors are those of one file. */
static tr_status_t
check_overlap(tr_tensor_t *tensors, uint32_t n, tr_error_t *err)
{
    if (n > 1) {
        qsort(tensors, n, sizeof(tensors[0]), by_data);
    }
    for (uint32_t i = 1; i < n; i++) {
        const tr_tensor_t *a = &tensors[i - 1], *b = &tensors[i];

        if ((const uint8_t *) a->data + a->size > (const uint8_t *) b->data) {
            return tr_error_set(err, TR_ERR_FORMAT, b->name,
                                "%s: the data of tensors \"%.160s\" and "
                                "\"%.160s\" overlap",
                                a->file, a->name, b->name);
        }
    }
    return TR_OK;
}

static tr_status_t
parse_header(tr_safetensors_t *st, const shard_t *s, tr_error_t *err)
{
    uint32_t first = st->n_tensors;
    json_error_t je;
    json_t *header, *entry;
    const char *name;
    tr_status_t rc = TR_OK;

    header = json_loadb((const char *) s->map + 8, s->header - 8,
                        JSON_REJECT_DUPLICATES, &je);
    if (!json_is_object(header)) {
        rc = tr_error_set(err, TR_ERR_FORMAT, "",
                          "%s: the header is not a JSON object: %s at byte %d",
                          s->name, header ? "another type" : je.text,
                          header ? 0 : je.position);
        json_decref(header);
        return rc;
    }
    json_object_foreach (header, name, entry) {
        tr_tensor_t t = { 0 };

        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        rc = parse_tensor(s, name, entry, &t, err);
        if (rc == TR_OK) {
            rc = add_tensor(st, name, &t, err);
        }
        if (rc != TR_OK) {
            break;
        }
    }
    json_decref(header);
    if (rc == TR_OK) {
        rc = check_overlap(st->tensors + first, st->n_tensors - first, err);
    }
    return rc;
}

/* Whoever reads weights holds no lock that this needs. */
static void
say_lost(const char *name)
{
    tr_log(TR_LEVEL_ERROR,
           "weights lost file=%s why=\"it was made shorter while it was in "
           "use, "
           "or cannot be read\"",
           name);
}

static tr_status_t
map_shard(int dir, const char *name, shard_t *s, tr_error_t *err)
{
    struct stat sb;
    uint64_t length;
    void *map;
    /* or a pipe would be waited for */
    int e, fd = openat(dir, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &sb) != 0) {
        e = errno;
        if (fd >= 0) {
            close(fd);
        }
        return tr_error_set(err, e == ENOENT ? TR_ERR_NOT_FOUND : TR_ERR_IO, "",
                            "%s: cannot open: %s", name, strerror(e));
    }
    if (!S_ISREG(sb.st_mode)) {
        close(fd);
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "%s: not a regular file, expected safetensors",
                            name);
    }
    if (sb.st_size < 8) {
        close(fd);
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "%s: %" PRId64
                            " bytes, expected a file of at least 8",
                            name, (int64_t) sb.st_size);
    }
    map = mmap(NULL, (size_t) sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    e = errno;
    close(fd);
    if (map == MAP_FAILED) {
        return tr_error_set(err, TR_ERR_IO, "", "%s: cannot map: %s", name,
                            strerror(e));
    }
    s->map = map;
    s->size = (uint64_t) sb.st_size;
    s->mapped = malloc(sizeof(*s->mapped));
    if (s->mapped == NULL) {
        return out_of_memory(err, name);
    }
    *s->mapped = (tr_mapped_file_t){
        .at = map, .size = s->size, .lost = say_lost, .name = s->name
    };
    tr_mapped_file_add(s->mapped);
    if (tr_model_is_lfs_pointer(map, s->size)) {
        return tr_error_set(err, TR_ERR_FORMAT, "", TR_MODEL_LFS_TEXT, name);
    }
    memcpy(&length, map, 8); /* little-endian, as all our machines */
    if (length < 2 || length > HEADER_MAX || length > s->size - 8) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "%s: header length %" PRIu64
                            ", expected 2 to %" PRIu64,
                            name, length,
                            s->size - 8 < HEADER_MAX ? s->size - 8
                                                     : HEADER_MAX);
    }
    s->header = 8 + length;
    return TR_OK;
}

/* Adds one file.  A name is a plain file name: an index cannot lead out of the
 * directory. */
static tr_status_t
add_shard(tr_safetensors_t *st, int dir, const char *name, tr_error_t *err)
{
    shard_t *s, *grown;
    tr_status_t rc;

    if (name[0] == '\0' || strchr(name, '/') != NULL || strlen(name) > 255) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "model.safetensors.index.json: shard \"%.200s\", "
                            "expected a file "
                            "name without directory",
                            name);
    }
    if (st->n_shards == SHARDS_MAX) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "model.safetensors.index.json: more than %d shards",
                            SHARDS_MAX);
    }
    grown = realloc(st->shards, (st->n_shards + 1) * sizeof(shard_t));
    if (grown == NULL) {
        return out_of_memory(err, name);
    }
    st->shards = grown;
    s = &st->shards[st->n_shards];
    *s = (shard_t){ .name = strdup(name) };
    if (s->name == NULL) {
        return out_of_memory(err, name);
    }
    st->n_shards++;
    rc = map_shard(dir, name, s, err);
    return rc == TR_OK ? parse_header(st, s, err) : rc;
}

static tr_status_t
sort_tensors(tr_safetensors_t *st, tr_error_t *err)
{
    if (st->n_tensors > 1) {
        qsort(st->tensors, st->n_tensors, sizeof(st->tensors[0]), by_name);
    }
    for (uint32_t i = 1; i < st->n_tensors; i++) {
        const tr_tensor_t *a = &st->tensors[i - 1], *b = &st->tensors[i];

        if (strcmp(a->name, b->name) == 0) {
            return tr_error_set(err, TR_ERR_FORMAT, a->name,
                                "tensor \"%.160s\" is both in %.100s and in "
                                "%.100s",
                                a->name, a->file, b->file);
        }
    }
    return TR_OK;
}

static bool
has_shard(const tr_safetensors_t *st, const char *name)
{
    for (uint32_t i = 0; i < st->n_shards; i++) {
        if (strcmp(st->shards[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Opens the shards that the map names, then checks that each tensor is where
 * the map says. */
static tr_status_t
open_map(tr_safetensors_t *st, int dir, json_t *map, tr_error_t *err)
{
    const char *name;
    json_t *file;
    tr_status_t rc;

    json_object_foreach (map, name, file) {
        if (!json_is_string(file)) {
            return tr_error_set(err, TR_ERR_FORMAT, name,
                                "model.safetensors.index.json: weight_map of "
                                "\"%.200s\" is "
                                "not a file name",
                                name);
        }
        if (!has_shard(st, json_string_value(file))) {
            rc = add_shard(st, dir, json_string_value(file), err);
            if (rc != TR_OK) {
                return rc;
            }
        }
    }
    rc = sort_tensors(st, err);
    if (rc != TR_OK) {
        return rc;
    }
    json_object_foreach (map, name, file) {
        const tr_tensor_t *t = tr_safetensors_find(st, name);

        if (t == NULL || strcmp(t->file, json_string_value(file)) != 0) {
            return tr_error_set(err, TR_ERR_FORMAT, name,
                                "model.safetensors.index.json: tensor "
                                "\"%.160s\" should be in "
                                "%.100s, which does not hold it",
                                name, json_string_value(file));
        }
    }
    return TR_OK;
}

static tr_status_t
open_index(tr_safetensors_t *st, const char *path, int dir, tr_error_t *err)
{
    char file[PATH_LEN];
    json_error_t je;
    json_t *index, *map;
    tr_status_t rc;

    if (snprintf(file, sizeof(file), "%s/model.safetensors.index.json", path)
        >= (int) sizeof(file)) {
        return tr_error_set(err, TR_ERR_INVALID, "model",
                            "%.100s...: path longer than %d bytes", path,
                            PATH_LEN);
    }
    if (faccessat(dir, "model.safetensors.index.json", R_OK, 0) != 0) {
        return tr_error_set(err, TR_ERR_NOT_FOUND, "model",
                            "%.200s: neither model.safetensors nor "
                            "model.safetensors.index.json can be read: %s",
                            path, strerror(errno));
    }
    index = json_load_file(file, JSON_REJECT_DUPLICATES, &je);
    map = json_object_get(index, "weight_map");
    if (index == NULL) {
        rc = tr_error_set(err, TR_ERR_FORMAT, "",
                          "model.safetensors.index.json: line %d: %s", je.line,
                          je.text);
    } else if (!json_is_object(map) || json_object_size(map) == 0) {
        rc = tr_error_set(err, TR_ERR_FORMAT, "weight_map",
                          "model.safetensors.index.json: no weight_map of "
                          "tensors to files");
    } else {
        rc = open_map(st, dir, map, err);
    }
    json_decref(index);
    return rc;
}

tr_status_t
tr_safetensors_open(const char *path, tr_safetensors_t **out, tr_error_t *err)
{
    tr_safetensors_t *st;
    tr_status_t rc;
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (dir < 0) {
        return tr_error_set(err, errno == ENOENT ? TR_ERR_NOT_FOUND : TR_ERR_IO,
                            "model",
                            "%.200s: cannot open the model directory: %s", path,
                            strerror(errno));
    }
    st = calloc(1, sizeof(*st));
    if (st == NULL) {
        close(dir);
        return out_of_memory(err, path);
    }
    if (faccessat(dir, "model.safetensors", F_OK, 0) == 0) {
        rc = add_shard(st, dir, "model.safetensors", err);
        if (rc == TR_OK) {
            rc = sort_tensors(st, err);
        }
    } else {
        rc = open_index(st, path, dir, err);
    }
    close(dir);
    if (rc != TR_OK) {
        tr_safetensors_close(st);
        return rc;
    }
    *out = st;
    return TR_OK;
}

void
tr_safetensors_close(tr_safetensors_t *st)
{
    if (st == NULL) {
        return;
    }
    for (uint32_t i = 0; i < st->n_tensors; i++) {
        free((char *) st->tensors[i].name);
    }
    for (uint32_t i = 0; i < st->n_added; i++) {
        free((char *) st->added[i].name);
        free((void *) st->added[i].packed);
    }
    free(st->added);
    for (uint32_t i = 0; i < st->n_shards; i++) {
        if (st->shards[i].mapped != NULL) {
            tr_mapped_file_remove(st->shards[i].mapped);
            free(st->shards[i].mapped);
        }
        if (st->shards[i].map != NULL) {
            munmap(st->shards[i].map, st->shards[i].size);
        }
        free(st->shards[i].name);
    }
    free(st->tensors);
    free(st->shards);
    free(st);
}

void
tr_safetensors_add(tr_safetensors_t *st, tr_tensor_t *added, uint32_t n)
{
    if (n > 1) {
        qsort(added, n, sizeof(added[0]), by_name);
    }
    st->added = added;
    st->n_added = n;
}

uint64_t
tr_safetensors_bytes(const char *dir)
{
    tr_safetensors_t *st;
    tr_error_t err = { 0 };
    uint64_t bytes = 0;

    if (tr_safetensors_open(dir, &st, &err) != TR_OK) {
        return 0;
    }
    for (uint32_t i = 0; i < st->n_tensors; i++) {
        bytes += st->tensors[i].size;
    }
    tr_safetensors_close(st);
    return bytes;
}

uint32_t
tr_safetensors_count(const tr_safetensors_t *st)
{
    return st->n_tensors;
}

const tr_tensor_t *
tr_safetensors_at(const tr_safetensors_t *st, uint32_t i)
{
    return &st->tensors[i];
}

const tr_tensor_t *
tr_safetensors_find(const tr_safetensors_t *st, const char *name)
{
    tr_tensor_t key = { .name = name }, *found = NULL;

    if (st->n_added != 0) {
        found = bsearch(&key, st->added, st->n_added, sizeof(key), by_name);
    }
    if (found == NULL && st->n_tensors != 0) {
        found = bsearch(&key, st->tensors, st->n_tensors, sizeof(key), by_name);
    }
    return found;
}

void
tr_tensor_read(const tr_tensor_t *t, size_t first, size_t n, float *out)
{
    if (t->packed != NULL) {
        tr_packed_read(t, first, n, out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = tr_float_load(t->data, first + i, t->dtype);
    }
}

tr_status_t
tr_tensor_check(const tr_tensor_t *t, tr_error_t *err)
{
    return t->packed != NULL ? tr_packed_check_codes(t->packed, err) : TR_OK;
}

/* Whole pages around it. */
static int
advise(const tr_tensor_t *t, int advice)
{
    uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t) t->data / page * page;
    uintptr_t end = (uintptr_t) t->data + t->size;

    return madvise((void *) begin, end - begin, advice);
}

tr_status_t
tr_safetensors_keep(const tr_tensor_t *t, tr_error_t *err)
{
    if (advise(t, MADV_POPULATE_READ) == 0 || errno == EINVAL) {
        return TR_OK; /* EINVAL: before Linux 5.14; it comes when it is used */
    }
    return tr_error_set(err, TR_ERR_IO, t->name,
                        "%s: tensor \"%s\" cannot be read: %s", t->file,
                        t->name,
                        errno == EFAULT ? "the file is shorter than it was"
                                        : strerror(errno));
}

void
tr_safetensors_release(const tr_tensor_t *t)
{
    if (t->packed != NULL) {
        tr_packed_release(t->packed);
        return;
    }
    advise(t, MADV_DONTNEED); /* what neighbours need again is read again */
}
