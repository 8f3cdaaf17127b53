/* safetensors.h: the header of one .safetensors file.
 *
 *   | u64 N | N bytes of JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end)}, ..} | data |
 *
 * Both functions are pure over memory; the caller reads the bytes. Every error names the file and,
 * where there is one, the tensor. Offsets count from the start of the data. */
#ifndef GERYON_SAFETENSORS_H
#define GERYON_SAFETENSORS_H

#include "kernels/base.h"

enum {
    SAFETENSORS_HEADER_MAX = 100000000, /* bytes of JSON, as in the reference implementation */
    SAFETENSORS_DIMS_MAX = 8,
    SAFETENSORS_VALUES_MAX = 4000000, /* JSON values in a header: about 500,000 tensors */
};

struct safetensors_tensor {
    char *name;        /* owned */
    const char *dtype; /* static: "F32", "F16", "BF16", "I8", "U8", .. */
    uint32_t n_dims;
    uint64_t shape[SAFETENSORS_DIMS_MAX]; /* a scalar has none */
    uint64_t begin, end;
};

struct safetensors {
    size_t n_tensors;
    struct safetensors_tensor *tensors; /* ascending by name */
};

/* The length of the JSON from the first bytes of a file (n_first: 8, or less in a shorter file). */
int safetensors_header_bytes(const void *first, size_t n_first, uint64_t file_size,
                             const char *file, uint64_t *out, struct err *err);

/* data_bytes: size of the file after the header. Ranges must tile it: inside, no overlap, no hole. */
int safetensors_parse_header(const char *json, size_t len, uint64_t data_bytes, const char *file,
                             struct safetensors **out, struct err *err);
void safetensors_destroy(struct safetensors *header); /* NULL is fine */

/* NULL when there is no such tensor. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *header,
                                                  const char *name);

#endif
