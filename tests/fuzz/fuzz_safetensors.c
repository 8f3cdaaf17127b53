/* libFuzzer: a whole safetensors file in memory. Besides not failing, an accepted header must keep
 * its promise: ranges inside the data, one after the other, found by name. What is accepted is then
 * opened as a checkpoint's file: int8 and nibbles join their scales, or are refused, and every tensor
 * that can be a weight can be read to its last row. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/load/checkpoint.h"
#include "engine/load/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[256], path[300];

static void remove_folder(void) {
    unlink(path);
    rmdir(folder);
}

static void write_input(const uint8_t *data, size_t size) {
    if (!folder[0]) {
        const char *tmp = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/fuzz-safetensors-XXXXXX", tmp ? tmp : "/tmp");
        ASSERT(mkdtemp(folder));
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        atexit(remove_folder);
    }
    FILE *f = fopen(path, "wb");
    ASSERT(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
}

static void read_rows(struct checkpoint *ck, size_t i) {
    const struct checkpoint_tensor *t = checkpoint_tensor(ck, i);
    if (t->dtype < 0 || t->n_dims < 1 || t->n_dims > 2) return;
    uint64_t rows = t->n_dims == 2 ? t->shape[0] : 1, cols = t->shape[t->n_dims - 1];
    if (rows == 0 || cols > 1 << 20) return;
    void *row = malloc(dtype_row_bytes((enum dtype)t->dtype, (size_t)cols) + 1);
    struct err err;
    ASSERT(row);
    for (uint64_t r = 0; r < rows && r < 64; r++)
        checkpoint_read(ck, i, rows - 1 - r, 1, row, &err);
    free(row);
}

static void open_checkpoint(const uint8_t *data, size_t size) {
    struct checkpoint *ck;
    struct err err;
    write_input(data, size);
    if (checkpoint_open(path, &ck, &err)) return;
    for (size_t i = 0; i < checkpoint_n_tensors(ck); i++) {
        ASSERT(checkpoint_find(ck, checkpoint_tensor(ck, i)->name) == (int64_t)i);
        read_rows(ck, i);
    }
    checkpoint_close(ck);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err err;
    uint64_t n;
    if (safetensors_header_bytes(data, size < 8 ? size : 8, size, "fuzz", &n, &err)) return 0;
    struct safetensors *h;
    if (safetensors_parse_header((const char *)data + 8, (size_t)n, size - 8 - n, "fuzz", &h, &err))
        return 0;
    uint64_t total = 0;
    for (size_t i = 0; i < h->n_tensors; i++) {
        const struct safetensors_tensor *t = &h->tensors[i];
        ASSERT(t->begin <= t->end && t->end <= size - 8 - n);
        ASSERT(safetensors_find(h, t->name) == t);
        total += t->end - t->begin;
    }
    ASSERT(total == size - 8 - n);
    safetensors_destroy(h);
    open_checkpoint(data, size);
    return 0;
}
