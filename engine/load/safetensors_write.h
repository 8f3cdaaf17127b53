/* safetensors_write.h: writes the weights of a checkpoint: model.safetensors, or shards
 * model-00001-of-0000N.safetensors with model.safetensors.index.json where they are too large for one
 * file. The list is known before the first byte, so data streams through.
 *
 * Within a file wide numbers come first (as the reference implementation orders them), so that every
 * tensor is aligned to its element; the header is padded to 8 bytes. */
#ifndef GERYON_SAFETENSORS_WRITE_H
#define GERYON_SAFETENSORS_WRITE_H

#include <stdbool.h>

#include "engine/load/out_dir.h"

struct safetensors_entry {
    const char *name;  /* borrowed */
    const char *dtype; /* "F32", "F16", "BF16", "I8", "U8" */
    uint32_t n_dims;   /* 1 or 2 */
    uint64_t shape[2];
    bool with_last; /* in the same file as the entry before */
};
uint64_t safetensors_entry_bytes(const struct safetensors_entry *entry);

struct safetensors_writer; /* opaque */

/* entries (at least one) and dir are kept until destroy. A file ends before the entry that would take
 * its data over shard_bytes; one entry may be larger by itself. */
int safetensors_writer_create(struct out_dir *dir, const struct safetensors_entry *entries,
                              size_t n_entries, uint64_t shard_bytes,
                              struct safetensors_writer **out, struct err *err);
void safetensors_writer_destroy(struct safetensors_writer *writer); /* NULL is fine */

/* n bytes of entry i at `at` of its data. Entries of one file in any order, files one after the
 * other. */
int safetensors_writer_put(struct safetensors_writer *writer, size_t i, uint64_t at,
                           const void *data, size_t n, struct err *err);
/* After all data: the last file is synced, the index written where there are several. */
int safetensors_writer_finish(struct safetensors_writer *writer, struct err *err);
uint32_t safetensors_writer_n_files(const struct safetensors_writer *writer);

#endif
