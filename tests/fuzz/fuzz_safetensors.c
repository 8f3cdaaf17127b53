/* libFuzzer: a whole safetensors file in memory. Besides not failing, an accepted header must keep
 * its promise: ranges inside the data, one after the other, found by name. */
#include "engine/load/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    return 0;
}
