/* The header of a .safetensors file: the whole input is the file. */
#include <string.h>

#include "engine/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err err;
    uint64_t header_bytes;
    if (safetensors_header_bytes(data, size < 8 ? size : 8, size, "x", &header_bytes, &err) != OK)
        return 0;
    ASSERT(header_bytes <= size - 8);
    struct safetensors *header;
    size_t data_bytes = size - 8 - (size_t)header_bytes;
    if (safetensors_parse_header((const char *)data + 8, (size_t)header_bytes, data_bytes, "x",
                                 &header, &err) != OK)
        return 0;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const struct safetensors_tensor *tensor = &header->tensors[i];
        ASSERT(tensor->begin <= tensor->end && tensor->end <= data_bytes);
        ASSERT(safetensors_find(header, tensor->name) == tensor);
    }
    safetensors_destroy(header);
    return 0;
}
