/* model_files.h: bytes of model files made in memory, for the loader's tests. */
#ifndef GERYON_MODEL_FILES_H
#define GERYON_MODEL_FILES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/kernels.h"
#include "tests/harness.h"

struct bytes {
    uint8_t *p;
    size_t n, cap;
};

static inline void put(struct bytes *b, const void *data, size_t n) {
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2 + 64;
        b->p = realloc(b->p, b->cap);
        assert_non_null(b->p);
    }
    if (n) memcpy(b->p + b->n, data, n);
    b->n += n;
}

static inline void put_u32(struct bytes *b, uint32_t v) {
    put(b, &v, 4);
}

static inline void put_u64(struct bytes *b, uint64_t v) {
    put(b, &v, 8);
}

static inline void put_text(struct bytes *b, const char *text) {
    put(b, text, strlen(text));
}

/* ---- safetensors ------------------------------------------------------------------------------- */

/* Length, header, then n_data bytes of data (zero where data is NULL). */
static inline struct bytes safetensors_file(const char *header, const void *data, size_t n_data) {
    struct bytes b = {0};
    put_u64(&b, strlen(header));
    put_text(&b, header);
    uint8_t zero = 0;
    if (data)
        put(&b, data, n_data);
    else
        for (size_t i = 0; i < n_data; i++)
            put(&b, &zero, 1);
    return b;
}

/* ---- GGUF -------------------------------------------------------------------------------------- */

static inline void put_string(struct bytes *b, const char *text) {
    put_u64(b, strlen(text));
    put_text(b, text);
}

static inline void put_head(struct bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv) {
    put_text(b, "GGUF");
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_kv);
}

static inline void put_kv_u32(struct bytes *b, const char *key, uint32_t v) {
    put_string(b, key);
    put_u32(b, 4);
    put_u32(b, v);
}

static inline void put_kv_f32(struct bytes *b, const char *key, float v) {
    put_string(b, key);
    put_u32(b, 6);
    put(b, &v, 4);
}

static inline void put_kv_bool(struct bytes *b, const char *key, uint8_t v) {
    put_string(b, key);
    put_u32(b, 7);
    put(b, &v, 1);
}

static inline void put_kv_string(struct bytes *b, const char *key, const char *v) {
    put_string(b, key);
    put_u32(b, 8);
    put_string(b, v);
}

/* Head of an array; the elements follow. */
static inline void put_kv_array(struct bytes *b, const char *key, uint32_t type, uint64_t n) {
    put_string(b, key);
    put_u32(b, 9);
    put_u32(b, type);
    put_u64(b, n);
}

static inline void put_tensor(struct bytes *b, const char *name, uint32_t n_dims,
                              const uint64_t *ne, uint32_t type, uint64_t offset) {
    put_string(b, name);
    put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put_u64(b, ne[i]);
    put_u32(b, type);
    put_u64(b, offset);
}

static inline void pad_to(struct bytes *b, size_t alignment) {
    uint8_t zero = 0;
    while (b->n % alignment)
        put(b, &zero, 1);
}

/* ---- files ------------------------------------------------------------------------------------- */

/* A copy that lives as long as the test program. */
static inline const char *keep(const char *text) {
    static char pool[1024][256];
    static size_t used;
    assert_true(used < ARRAY_LEN(pool));
    snprintf(pool[used], sizeof pool[0], "%s", text);
    return pool[used++];
}

static inline const char *path_in(const char *dir, const char *name) {
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static inline void write_text(const char *dir, const char *name, const char *text) {
    write_file(path_in(dir, name), text, strlen(text));
}

static inline void copy_golden(const char *checkpoint, const char *name, const char *dir) {
    char from[512];
    size_t n;
    snprintf(from, sizeof from, "%s/%s", golden_path(checkpoint), name);
    char *data = read_file(from, &n);
    write_file(path_in(dir, name), data, n);
    free(data);
}

#endif
