/* gguf.h: the container format GGUF, versions 2 and 3, little endian: metadata and tensor table.
 *
 *   "GGUF" u32 version  u64 n_tensors  u64 n_kv
 *   n_kv      x  string key, u32 type, value                     string = u64 length, bytes
 *   n_tensors x  string name, u32 n_dims, u64 ne[n_dims], u32 type, u64 offset
 *   padding to `general.alignment` (32), then the data; offsets count from there
 *
 * What the keys mean for a model is gguf_model.h's. Pure over memory: nothing is copied, so the
 * bytes given to gguf_parse must outlive the result. */
#ifndef GERYON_GGUF_H
#define GERYON_GGUF_H

#include <stdbool.h>

#include "kernels/kernels.h"

enum {
    GGUF_DIMS_MAX = 4,
    GGUF_NAME_MAX = 65535,       /* bytes of a key or tensor name */
    GGUF_HEADER_MAX = 512 << 20, /* bytes before the data that are read at most */
    GGUF_ALIGNMENT_DEFAULT = 32,
};

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};
const char *gguf_type_name(enum gguf_type type); /* "UINT32", "STRING", .. */

struct gguf_kv {
    const char *key; /* not NUL-terminated */
    size_t key_len;
    enum gguf_type type; /* for an array: the type of its elements */
    bool is_array;
    uint64_t count;      /* elements; 1 for a single value */
    const uint8_t *data; /* the elements as in the file; a string is its length, then its bytes */
};

struct gguf_tensor {
    const char *name; /* not NUL-terminated */
    size_t name_len;
    uint32_t n_dims;
    uint64_t ne[GGUF_DIMS_MAX]; /* ne[0] is the length of a row; unused ones are 1 */
    uint32_t ggml_type;
    const char *type_name; /* static: "Q4_K", or "type 99" as "unknown" */
    int dtype;             /* enum dtype, or -1: a type this program cannot read yet */
    uint64_t offset;       /* from the start of the file */
    uint64_t bytes;        /* 0 where the type's size is unknown to us */
};

struct gguf {
    uint32_t version;
    uint64_t alignment;
    uint64_t header_bytes; /* metadata and table, without the padding */
    size_t n_kv;
    struct gguf_kv *kv; /* ascending by key */
    size_t n_tensors;
    struct gguf_tensor *tensors; /* ascending by offset */
};

/* Parse the first len bytes of a file of file_size bytes. When they end inside the header and the
 * file goes on: ERR_TOO_LONG, to be called again with more. file: for messages. */
int gguf_parse(const uint8_t *data, size_t len, uint64_t file_size, const char *file,
               struct gguf **out, struct err *err);
void gguf_destroy(struct gguf *gguf); /* NULL is fine */

/* The entry of that key, or NULL. */
const struct gguf_kv *gguf_find(const struct gguf *gguf, const char *key);

/* Single values. An absent key leaves *out alone and is OK; another type, or a number outside
 * lo .. hi, is ERR_INVALID naming the key. Any integer type serves for an integer. */
int gguf_integer(const struct gguf *gguf, const char *key, int64_t lo, int64_t hi, int64_t *out,
                 struct err *err);
int gguf_real(const struct gguf *gguf, const char *key, double *out, struct err *err);
int gguf_bool(const struct gguf *gguf, const char *key, bool *out, struct err *err);
/* Bytes inside the parsed memory, not NUL-terminated. */
int gguf_string(const struct gguf *gguf, const char *key, const char **text, size_t *len,
                struct err *err);

/* Walk an array of strings: *cursor starts as kv->data and moves on; count says when to stop. */
const char *gguf_next_string(const uint8_t **cursor, size_t *len);
/* Element i of an array of integers of any integer type. */
int64_t gguf_array_integer(const struct gguf_kv *kv, uint64_t i);

#endif
