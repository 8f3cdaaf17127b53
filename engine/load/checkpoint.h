/* checkpoint.h: one view of a checkpoint on disk, whatever its format: a directory of safetensors
 * (single or sharded) or one GGUF file. Tensors go by their safetensors names, their rows in
 * safetensors order.
 *
 * Files are read by pread and never mapped: a file that is cut or replaced while we read gives a
 * short read, which is an error value, where a map would give SIGBUS. The files stay open, so one
 * that is renamed over does not change what is read. One thread at a time, but for checkpoint_read. */
#ifndef GERYON_CHECKPOINT_H
#define GERYON_CHECKPOINT_H

#include "engine/load/config.h"
#include "engine/tokenizer/tokenizer.h"

enum { CHECKPOINT_DIMS_MAX = 8 };

struct checkpoint; /* opaque */

struct checkpoint_tensor {
    const char *name;   /* safetensors name */
    const char *source; /* its name in the file */
    const char *file;   /* base name of the file that holds it */
    const char *type;   /* as the file calls it: "BF16", "Q4_K", "I8" .. */
    int dtype;          /* enum dtype, or -1: cannot be read as a weight */
    uint32_t n_dims;
    uint64_t shape[CHECKPOINT_DIMS_MAX]; /* [out, in] for a matrix, also where nibbles are packed */
    uint64_t bytes;                      /* stored, scales included */
};

/* path: a checkpoint directory, a .safetensors file (config.json beside it) or a .gguf file. Checks
 * every header; reads no weights. */
int checkpoint_open(const char *path, struct checkpoint **out, struct err *err);
void checkpoint_close(struct checkpoint *ck); /* NULL is fine */

bool checkpoint_is_gguf(const struct checkpoint *ck);
size_t checkpoint_n_tensors(const struct checkpoint *ck);
/* Ascending by name; lives as long as the checkpoint. */
const struct checkpoint_tensor *checkpoint_tensor(const struct checkpoint *ck, size_t i);
/* The index of that name, or -1. */
int64_t checkpoint_find(const struct checkpoint *ck, const char *name);

/* Rows row .. row + n_rows - 1 of tensor i, in its dtype, into dst. A tensor of one dimension is
 * one row. The tensor must have a dtype, and one or two dimensions. Several threads may read at once. */
int checkpoint_read(const struct checkpoint *ck, size_t i, uint64_t row, uint64_t n_rows, void *dst,
                    struct err *err);
/* Tensor i is wanted next: the system may begin to read it from its disk. */
void checkpoint_read_ahead(const struct checkpoint *ck, size_t i);

/* The configuration (end-of-sequence ids of generation_config.json included); config_fini it. */
int checkpoint_config(struct checkpoint *ck, struct config *out, struct err *err);
int checkpoint_tokenizer(struct checkpoint *ck, struct tokenizer **out, struct err *err);
/* The source of the chat template, malloc'd; *out = NULL and OK when there is none.
 * chat_template.jinja wins over tokenizer_config.json; of a list, "default" is taken. */
int checkpoint_chat_template(struct checkpoint *ck, char **out, size_t *len, struct err *err);

/* A hash over configuration, tensor names, types, shapes, places, file sizes and 1 MiB of samples
 * of each file: enough to tell two checkpoints apart, not to detect tampering. */
int checkpoint_fingerprint(struct checkpoint *ck, uint64_t *out, struct err *err);

#endif
