/* safetensors_write.c: see safetensors_write.h. One file is open at a time. */
#include "engine/load/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/load/loader.h"
#include "engine/load/safetensors.h"

enum {
    FILES_MAX = 1000,
    FILE_NAME_CAP = 64
}; /* as many as a checkpoint may have when it is read */

struct place {
    uint32_t file;
    uint64_t begin; /* from the start of the file's data */
    uint64_t bytes, written;
};

struct safetensors_writer {
    struct out_dir *dir;
    const struct safetensors_entry *entries;
    struct place *places; /* [n_entries] */
    size_t n_entries;
    uint32_t n_files;
    uint32_t file; /* open, or the next one */
    int fd;        /* -1: none is open */
    uint64_t data_start, data_bytes;
};

static uint32_t element_bytes(const struct safetensors_entry *e) {
    static const struct {
        const char *name;
        uint32_t bytes;
    } known[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I8", 1}, {"U8", 1}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(e->dtype, known[i].name) == 0) return known[i].bytes;
    ASSERT(!"a dtype that is written");
    return 0;
}

uint64_t safetensors_entry_bytes(const struct safetensors_entry *e) {
    uint64_t n = element_bytes(e);
    for (uint32_t d = 0; d < e->n_dims; d++)
        n *= e->shape[d];
    return n;
}

/* ---- layout ------------------------------------------------------------------------------------ */

/* Entries to files, in order. */
static int assign_files(struct safetensors_writer *w, uint64_t shard_bytes, struct err *err) {
    uint64_t filled = 0;
    w->n_files = 1;
    for (size_t i = 0; i < w->n_entries;) {
        size_t end = i + 1;
        uint64_t bytes = safetensors_entry_bytes(&w->entries[i]);
        for (; end < w->n_entries && w->entries[end].with_last; end++)
            bytes += safetensors_entry_bytes(&w->entries[end]);
        if (filled > 0 && (bytes > shard_bytes || filled > shard_bytes - bytes)) {
            w->n_files++;
            filled = 0;
        }
        filled += bytes;
        for (; i < end; i++)
            w->places[i] =
                (struct place){w->n_files - 1, 0, safetensors_entry_bytes(&w->entries[i]), 0};
    }
    if (w->n_files > FILES_MAX)
        return err_set(err, ERR_TOO_LONG, "%u weight files of at most %llu bytes, %d are allowed",
                       w->n_files, (unsigned long long)shard_bytes, FILES_MAX);
    return OK;
}

/* Call each(w, i, arg) for the entries of a file in the order of their data. */
static int in_data_order(struct safetensors_writer *w, uint32_t file,
                         int (*each)(struct safetensors_writer *w, size_t i, void *arg),
                         void *arg) {
    for (uint32_t width = 4; width > 0; width /= 2)
        for (size_t i = 0; i < w->n_entries; i++) {
            if (w->places[i].file != file || element_bytes(&w->entries[i]) != width) continue;
            int rc = each(w, i, arg);
            if (rc) return rc;
        }
    return OK;
}

static int set_begin(struct safetensors_writer *w, size_t i, void *arg) {
    uint64_t *at = arg;
    w->places[i].begin = *at;
    *at += w->places[i].bytes;
    return OK;
}

int safetensors_writer_create(struct out_dir *dir, const struct safetensors_entry *entries,
                              size_t n_entries, uint64_t shard_bytes,
                              struct safetensors_writer **out, struct err *err) {
    ASSERT(n_entries > 0 && !entries[0].with_last);
    struct safetensors_writer *w = calloc(1, sizeof *w);
    if (w) w->places = calloc(n_entries, sizeof *w->places);
    if (!w || !w->places) {
        free(w);
        return err_set(err, ERR_NOMEM, "no memory for a list of %zu tensors", n_entries);
    }
    w->dir = dir;
    w->entries = entries;
    w->n_entries = n_entries;
    w->fd = -1;
    int rc = assign_files(w, shard_bytes, err);
    for (uint32_t f = 0; !rc && f < w->n_files; f++)
        rc = in_data_order(w, f, set_begin, &(uint64_t){0});
    if (rc) {
        safetensors_writer_destroy(w);
        return rc;
    }
    *out = w;
    return OK;
}

void safetensors_writer_destroy(struct safetensors_writer *w) {
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    free(w->places);
    free(w);
}

uint32_t safetensors_writer_n_files(const struct safetensors_writer *w) {
    return w->n_files;
}

/* ---- one file ---------------------------------------------------------------------------------- */

static void file_name(const struct safetensors_writer *w, uint32_t file, char out[FILE_NAME_CAP]) {
    if (w->n_files == 1)
        snprintf(out, FILE_NAME_CAP, "model.safetensors");
    else
        snprintf(out, FILE_NAME_CAP, "model-%05u-of-%05u.safetensors", file + 1, w->n_files);
}

/* jansson steals references, also of what could not be made: NULL values fail as well. */
static int add_to_header(struct safetensors_writer *w, size_t i, void *arg) {
    const struct safetensors_entry *e = &w->entries[i];
    const struct place *p = &w->places[i];
    json_t *root = arg, *tensor = json_object(), *shape = json_array();
    int rc = 0;
    for (uint32_t d = 0; d < e->n_dims; d++)
        rc |= json_array_append_new(shape, json_integer((json_int_t)e->shape[d]));
    rc |= json_object_set_new(tensor, "dtype", json_string(e->dtype));
    rc |= json_object_set_new(tensor, "shape", shape);
    json_t *range = json_pack("[I, I]", (json_int_t)p->begin, (json_int_t)(p->begin + p->bytes));
    rc |= json_object_set_new(tensor, "data_offsets", range);
    rc |= json_object_set_new(root, e->name, tensor);
    w->data_bytes += p->bytes;
    return rc ? ERR_NOMEM : OK;
}

/* Length and JSON, padded with blanks; malloc'd. */
static int make_header(struct safetensors_writer *w, char **out, size_t *len, struct err *err) {
    /* Hugging Face transformers wants to be told the framework. */
    json_t *root = json_pack("{s: {s: s}}", "__metadata__", "format", "pt");
    w->data_bytes = 0;
    int rc = root ? in_data_order(w, w->file, add_to_header, root) : ERR_NOMEM;
    char *json = rc ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    size_t n = json ? strlen(json) : 0, padded = align_up(n, 8);
    char *header = json ? malloc(8 + padded) : NULL;
    if (!header || padded > SAFETENSORS_HEADER_MAX) {
        free(json);
        free(header);
        return header ? err_set(err, ERR_TOO_LONG, "a header of %zu bytes, at most %d are allowed",
                                padded, SAFETENSORS_HEADER_MAX)
                      : err_set(err, ERR_NOMEM, "no memory for a header");
    }
    for (int i = 0; i < 8; i++)
        header[i] = (char)(padded >> 8 * i & 0xff);
    memcpy(header + 8, json, n);
    memset(header + 8 + n, ' ', padded - n);
    free(json);
    *out = header;
    *len = 8 + padded;
    return OK;
}

/* Ask for all of the room at once, so that a full disk is known before the work; where the file
 * system cannot say, the writes will. */
static int reserve(int fd, uint64_t bytes, const char *name, struct err *err) {
    if (bytes == 0 || fallocate(fd, 0, 0, (off_t)bytes) == 0) return OK;
    if (errno != ENOSPC && errno != EFBIG && errno != EDQUOT) return OK;
    return err_set(err, ERR_IO, "%s: %s (%llu bytes)", name, strerror(errno),
                   (unsigned long long)bytes);
}

static int open_file(struct safetensors_writer *w, struct err *err) {
    char name[FILE_NAME_CAP], *header = NULL;
    size_t len = 0;
    file_name(w, w->file, name);
    int rc = make_header(w, &header, &len, err);
    if (!rc) rc = out_dir_open(w->dir, name, &w->fd, err);
    if (!rc) rc = reserve(w->fd, len + w->data_bytes, name, err);
    if (!rc) rc = out_dir_pwrite(w->fd, header, len, 0, name, err);
    w->data_start = len;
    free(header);
    return rc;
}

static int close_file(struct safetensors_writer *w, struct err *err) {
    for (size_t i = 0; i < w->n_entries; i++)
        ASSERT(w->places[i].file != w->file || w->places[i].written == w->places[i].bytes);
    char name[FILE_NAME_CAP];
    file_name(w, w->file, name);
    int rc = out_dir_sync(w->fd, name, err);
    if (close(w->fd) != 0 && !rc) rc = err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
    w->fd = -1;
    w->file++;
    return rc;
}

int safetensors_writer_put(struct safetensors_writer *w, size_t i, uint64_t at, const void *data,
                           size_t n, struct err *err) {
    struct place *p = &w->places[i];
    ASSERT(i < w->n_entries && at <= p->bytes && n <= p->bytes - at);
    int rc = OK;
    if (w->fd >= 0 && p->file != w->file) rc = close_file(w, err);
    if (!rc && w->fd < 0) {
        ASSERT(p->file == w->file);
        rc = open_file(w, err);
    }
    char name[FILE_NAME_CAP];
    file_name(w, w->file, name);
    if (!rc) rc = out_dir_pwrite(w->fd, data, n, w->data_start + p->begin + at, name, err);
    if (!rc) p->written += n;
    return rc;
}

/* ---- the index --------------------------------------------------------------------------------- */

static int write_index(struct safetensors_writer *w, struct err *err) {
    json_t *map = json_object();
    uint64_t total = 0;
    int bad = map ? 0 : 1;
    for (size_t i = 0; i < w->n_entries; i++) {
        char name[FILE_NAME_CAP];
        file_name(w, w->places[i].file, name);
        bad |= json_object_set_new(map, w->entries[i].name, json_string(name));
        total += w->places[i].bytes;
    }
    json_t *root = json_pack("{s: {s: I}, s: o}", "metadata", "total_size", (json_int_t)total,
                             "weight_map", map);
    char *text = root && !bad ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    int rc = text ? out_dir_write(w->dir, "model.safetensors.index.json", text, strlen(text), err)
                  : err_set(err, ERR_NOMEM, "no memory for the index");
    free(text);
    return rc;
}

int safetensors_writer_finish(struct safetensors_writer *w, struct err *err) {
    ASSERT(w->fd >= 0 && w->file + 1 == w->n_files);
    int rc = close_file(w, err);
    if (!rc && w->n_files > 1) rc = write_index(w, err);
    return rc;
}
