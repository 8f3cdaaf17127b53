/* gguf.c: see gguf.h. */
#include "engine/load/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/load/loader.h"

/* Element sizes of metadata types; 0: variable. */
static const struct {
    const char *name;
    uint32_t bytes;
} types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"UINT8", 1},    [GGUF_I8] = {"INT8", 1},    [GGUF_U16] = {"UINT16", 2},
    [GGUF_I16] = {"INT16", 2},   [GGUF_U32] = {"UINT32", 4}, [GGUF_I32] = {"INT32", 4},
    [GGUF_F32] = {"FLOAT32", 4}, [GGUF_BOOL] = {"BOOL", 1},  [GGUF_STRING] = {"STRING", 0},
    [GGUF_ARRAY] = {"ARRAY", 0}, [GGUF_U64] = {"UINT64", 8}, [GGUF_I64] = {"INT64", 8},
    [GGUF_F64] = {"FLOAT64", 8},
};

/* Tensor types: elements and bytes of a block where we know them, and our dtype or -1. */
static const struct ggml_type {
    uint32_t id;
    const char *name;
    uint32_t block, bytes;
    int dtype;
} ggml_types[] = {
    {0, "F32", 1, 4, DTYPE_F32},
    {1, "F16", 1, 2, DTYPE_F16},
    {2, "Q4_0", 32, 18, DTYPE_Q4_0},
    {3, "Q4_1", 32, 20, DTYPE_Q4_1},
    {6, "Q5_0", 32, 22, DTYPE_Q5_0},
    {7, "Q5_1", 32, 24, DTYPE_Q5_1},
    {8, "Q8_0", 32, 34, DTYPE_Q8_0},
    {9, "Q8_1", 32, 36, -1},
    {10, "Q2_K", 256, 84, -1},
    {11, "Q3_K", 256, 110, -1},
    {12, "Q4_K", 256, 144, DTYPE_Q4_K},
    {13, "Q5_K", 256, 176, DTYPE_Q5_K},
    {14, "Q6_K", 256, 210, DTYPE_Q6_K},
    {15, "Q8_K", 256, 292, -1},
    {16, "IQ2_XXS", 0, 0, -1},
    {17, "IQ2_XS", 0, 0, -1},
    {18, "IQ3_XXS", 0, 0, -1},
    {19, "IQ1_S", 0, 0, -1},
    {20, "IQ4_NL", 0, 0, -1},
    {21, "IQ3_S", 0, 0, -1},
    {22, "IQ2_S", 0, 0, -1},
    {23, "IQ4_XS", 0, 0, -1},
    {24, "I8", 1, 1, -1},
    {25, "I16", 1, 2, -1},
    {26, "I32", 1, 4, -1},
    {27, "I64", 1, 8, -1},
    {28, "F64", 1, 8, -1},
    {29, "IQ1_M", 0, 0, -1},
    {30, "BF16", 1, 2, DTYPE_BF16},
    {34, "TQ1_0", 0, 0, -1},
    {35, "TQ2_0", 0, 0, -1},
    {39, "MXFP4", 0, 0, -1},
};

const char *gguf_type_name(enum gguf_type type) {
    return (unsigned)type < GGUF_TYPE_COUNT ? types[type].name : "unknown";
}

/* ---- reading bytes in order -------------------------------------------------------------------- */

/* pos <= len <= file_size. Counts in the file are checked against what the file could still hold,
 * so that an absurd one is refused at once and not by asking for more bytes. */
struct reader {
    const uint8_t *data;
    size_t len, pos;
    uint64_t file_size;
    const char *file;
    struct err *err;
};

/* n more bytes are here, or an error: the file is cut, or the caller must read on. */
static int need(struct reader *r, uint64_t n, const char *what) {
    if (n <= r->len - r->pos) return OK;
    if (n > r->file_size - r->pos)
        return err_set(r->err, ERR_INVALID, "%s: %s wants %llu bytes at %zu, the file has %llu",
                       r->file, what, (unsigned long long)n, r->pos,
                       (unsigned long long)r->file_size);
    return err_set(r->err, ERR_TOO_LONG, "%s: the header goes on beyond byte %zu", r->file, r->len);
}

static int read_u32(struct reader *r, const char *what, uint32_t *out) {
    int rc = need(r, 4, what);
    if (rc) return rc;
    memcpy(out, r->data + r->pos, 4);
    r->pos += 4;
    return OK;
}

static int read_u64(struct reader *r, const char *what, uint64_t *out) {
    int rc = need(r, 8, what);
    if (rc) return rc;
    memcpy(out, r->data + r->pos, 8);
    r->pos += 8;
    return OK;
}

static int read_string(struct reader *r, const char *what, uint64_t max, const char **text,
                       size_t *len) {
    uint64_t n;
    int rc = read_u64(r, what, &n);
    if (rc) return rc;
    if (n > max)
        return err_set(r->err, ERR_INVALID, "%s: %s of %llu bytes at %zu, at most %llu", r->file,
                       what, (unsigned long long)n, r->pos - 8, (unsigned long long)max);
    rc = need(r, n, what);
    if (rc) return rc;
    *text = (const char *)r->data + r->pos;
    *len = (size_t)n;
    r->pos += (size_t)n;
    return OK;
}

/* The elements of a value are checked and stepped over; kv->data keeps where they start. */
static int skip_elements(struct reader *r, struct gguf_kv *kv, const char *key) {
    kv->data = r->data + r->pos;
    if (kv->type == GGUF_STRING) {
        for (uint64_t i = 0; i < kv->count; i++) {
            const char *text;
            size_t len;
            int rc = read_string(r, key, UINT32_MAX, &text, &len);
            if (rc) return rc;
        }
        return OK;
    }
    uint64_t bytes;
    if (__builtin_mul_overflow(kv->count, (uint64_t)types[kv->type].bytes, &bytes))
        return err_set(r->err, ERR_INVALID, "%s: %s: %llu elements", r->file, key,
                       (unsigned long long)kv->count);
    int rc = need(r, bytes, key);
    if (rc) return rc;
    if (kv->type == GGUF_BOOL)
        for (uint64_t i = 0; i < bytes; i++)
            if (kv->data[i] > 1)
                return err_set(r->err, ERR_INVALID, "%s: %s: BOOL of value %u", r->file, key,
                               kv->data[i]);
    r->pos += (size_t)bytes;
    return OK;
}

static int parse_kv(struct reader *r, struct gguf_kv *kv) {
    int rc = read_string(r, "metadata key", GGUF_NAME_MAX, &kv->key, &kv->key_len);
    if (rc) return rc;
    if (kv->key_len == 0)
        return err_set(r->err, ERR_INVALID, "%s: empty metadata key at byte %zu", r->file,
                       r->pos - 8);
    char key[LOADER_NAME_CAP];
    loader_printable(kv->key, kv->key_len, key);
    uint32_t type;
    rc = read_u32(r, key, &type);
    if (rc) return rc;
    kv->count = 1;
    kv->is_array = type == GGUF_ARRAY;
    if (kv->is_array) {
        rc = read_u32(r, key, &type);
        if (rc) return rc;
        rc = read_u64(r, key, &kv->count);
        if (rc) return rc;
    }
    if (type >= GGUF_TYPE_COUNT || type == GGUF_ARRAY)
        return err_set(r->err, ERR_INVALID, "%s: %s: metadata type %u is not supported", r->file,
                       key, type);
    kv->type = (enum gguf_type)type;
    return skip_elements(r, kv, key);
}

static int parse_tensor(struct reader *r, struct gguf_tensor *t) {
    int rc = read_string(r, "tensor name", GGUF_NAME_MAX, &t->name, &t->name_len);
    if (rc) return rc;
    char name[LOADER_NAME_CAP];
    loader_printable(t->name, t->name_len, name);
    if (t->name_len == 0)
        return err_set(r->err, ERR_INVALID, "%s: empty tensor name at byte %zu", r->file,
                       r->pos - 8);
    rc = read_u32(r, name, &t->n_dims);
    if (rc) return rc;
    if (t->n_dims < 1 || t->n_dims > GGUF_DIMS_MAX)
        return err_set(r->err, ERR_INVALID, "%s: %s: %u dimensions, 1 to %d are allowed", r->file,
                       name, t->n_dims, GGUF_DIMS_MAX);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < GGUF_DIMS_MAX; i++) {
        t->ne[i] = 1;
        if (i >= t->n_dims) continue;
        rc = read_u64(r, name, &t->ne[i]);
        if (rc) return rc;
        if (t->ne[i] == 0 || __builtin_mul_overflow(elements, t->ne[i], &elements) ||
            elements > INT64_MAX / 8)
            return err_set(r->err, ERR_INVALID, "%s: %s: dimension %u is %llu", r->file, name, i,
                           (unsigned long long)t->ne[i]);
    }
    rc = read_u32(r, name, &t->ggml_type);
    if (rc) return rc;
    rc = read_u64(r, name, &t->offset);
    if (rc) return rc;
    const struct ggml_type *type = NULL;
    for (size_t i = 0; i < ARRAY_LEN(ggml_types); i++)
        if (ggml_types[i].id == t->ggml_type) type = &ggml_types[i];
    if (!type)
        return err_set(r->err, ERR_INVALID, "%s: %s: unknown tensor type %u", r->file, name,
                       t->ggml_type);
    t->type_name = type->name;
    t->dtype = type->dtype;
    if (type->block == 0) return OK;
    if (t->ne[0] % type->block)
        return err_set(r->err, ERR_INVALID,
                       "%s: %s: rows of %llu elements, %s wants a multiple of %u", r->file, name,
                       (unsigned long long)t->ne[0], type->name, type->block);
    if (__builtin_mul_overflow(elements / type->block, (uint64_t)type->bytes, &t->bytes))
        return err_set(r->err, ERR_INVALID, "%s: %s: too large", r->file, name);
    return OK;
}

/* ---- the whole --------------------------------------------------------------------------------- */

static int compare_names(const char *a, size_t a_len, const char *b, size_t b_len) {
    int c = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return c ? c : (a_len > b_len) - (a_len < b_len);
}

static int kv_by_key(const void *a, const void *b) {
    const struct gguf_kv *x = a, *y = b;
    return compare_names(x->key, x->key_len, y->key, y->key_len);
}

static int tensor_by_name(const void *a, const void *b) {
    const struct gguf_tensor *x = a, *y = b;
    return compare_names(x->name, x->name_len, y->name, y->name_len);
}

static int tensor_by_offset(const void *a, const void *b) {
    const struct gguf_tensor *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Room for one more element of `size` bytes: doubling, so that memory follows what was really
 * parsed and never a count in the file. */
static void *grow(void *array, size_t n, size_t *cap, size_t size) {
    if (n < *cap) return array;
    size_t wanted = *cap ? *cap * 2 : 64;
    void *p = realloc(array, wanted * size);
    if (p) *cap = wanted;
    return p;
}

static int parse_kvs(struct reader *r, struct gguf *g, uint64_t n_kv) {
    size_t cap = 0;
    for (uint64_t i = 0; i < n_kv; i++) {
        struct gguf_kv *kv = grow(g->kv, g->n_kv, &cap, sizeof *kv);
        if (!kv) return err_set(r->err, ERR_NOMEM, "%s: no memory for the header", r->file);
        g->kv = kv;
        memset(&kv[g->n_kv], 0, sizeof *kv);
        int rc = parse_kv(r, &kv[g->n_kv]);
        if (rc) return rc;
        g->n_kv++;
    }
    if (g->n_kv) qsort(g->kv, g->n_kv, sizeof *g->kv, kv_by_key);
    for (size_t i = 1; i < g->n_kv; i++)
        if (kv_by_key(&g->kv[i - 1], &g->kv[i]) == 0) {
            char key[LOADER_NAME_CAP];
            return err_set(r->err, ERR_INVALID, "%s: %s: this key is there twice", r->file,
                           loader_printable(g->kv[i].key, g->kv[i].key_len, key));
        }
    return OK;
}

static int parse_table(struct reader *r, struct gguf *g, uint64_t n_tensors) {
    size_t cap = 0;
    for (uint64_t i = 0; i < n_tensors; i++) {
        struct gguf_tensor *t = grow(g->tensors, g->n_tensors, &cap, sizeof *t);
        if (!t) return err_set(r->err, ERR_NOMEM, "%s: no memory for the header", r->file);
        g->tensors = t;
        memset(&t[g->n_tensors], 0, sizeof *t);
        int rc = parse_tensor(r, &t[g->n_tensors]);
        if (rc) return rc;
        g->n_tensors++;
    }
    if (g->n_tensors) qsort(g->tensors, g->n_tensors, sizeof *g->tensors, tensor_by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (tensor_by_name(&g->tensors[i - 1], &g->tensors[i]) == 0) {
            char name[LOADER_NAME_CAP];
            return err_set(r->err, ERR_INVALID, "%s: %s: this tensor is there twice", r->file,
                           loader_printable(g->tensors[i].name, g->tensors[i].name_len, name));
        }
    return OK;
}

static int read_alignment(struct gguf *g, const char *file, struct err *err) {
    const struct gguf_kv *kv = gguf_find(g, "general.alignment");
    g->alignment = GGUF_ALIGNMENT_DEFAULT;
    if (!kv) return OK;
    if (kv->is_array || kv->type != GGUF_U32)
        return err_set(err, ERR_INVALID, "%s: general.alignment: %s%s, a UINT32 is expected", file,
                       kv->is_array ? "ARRAY of " : "", gguf_type_name(kv->type));
    uint32_t v;
    memcpy(&v, kv->data, 4);
    if (v == 0 || v > 1u << 20 || (v & (v - 1)))
        return err_set(err, ERR_INVALID,
                       "%s: general.alignment: %u, a power of two up to 1048576 is expected", file,
                       v);
    g->alignment = v;
    return OK;
}

/* Offsets become places in the file; every known range must lie inside and apart from the others. */
static int place_tensors(struct gguf *g, uint64_t file_size, const char *file, struct err *err) {
    if (g->n_tensors == 0) return err_set(err, ERR_INVALID, "%s: holds no tensor", file);
    uint64_t start = (g->header_bytes + g->alignment - 1) & ~(g->alignment - 1);
    char name[LOADER_NAME_CAP];
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, tensor_by_offset);
    uint64_t at = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        loader_printable(t->name, t->name_len, name);
        if (t->offset % g->alignment)
            return err_set(err, ERR_INVALID, "%s: %s: offset %llu is no multiple of %llu", file,
                           name, (unsigned long long)t->offset, (unsigned long long)g->alignment);
        if (start > file_size || t->offset > file_size - start ||
            t->bytes > file_size - start - t->offset)
            return err_set(err, ERR_INVALID,
                           "%s: %s: %llu bytes at data offset %llu lie outside the file", file,
                           name, (unsigned long long)t->bytes, (unsigned long long)t->offset);
        if (t->offset < at)
            return err_set(err, ERR_INVALID, "%s: %s: data overlaps another tensor's", file, name);
        at = t->offset + t->bytes;
        t->offset += start;
    }
    return OK;
}

int gguf_parse(const uint8_t *data, size_t len, uint64_t file_size, const char *file,
               struct gguf **out, struct err *err) {
    struct reader r = {data, len, 0, file_size, file, err};
    if (file_size < 24 || (len >= 4 && memcmp(data, "GGUF", 4) != 0))
        return err_set(err, ERR_INVALID, "%s: not a GGUF file", file);
    r.pos = len < 4 ? len : 4;
    uint32_t version;
    uint64_t n_tensors, n_kv;
    int rc = read_u32(&r, "version", &version);
    if (rc) return rc;
    if (version != 2 && version != 3)
        return err_set(err, ERR_INVALID,
                       "%s: GGUF version %u, 2 and 3 (little endian) are supported", file, version);
    rc = read_u64(&r, "tensor count", &n_tensors);
    if (!rc) rc = read_u64(&r, "metadata count", &n_kv);
    if (rc) return rc;
    /* The least that a tensor (8 + 1 + 4 + 8 + 4 + 8) and a key (8 + 1 + 4 + 1) take. */
    if (n_tensors > file_size / 33 || n_kv > file_size / 14)
        return err_set(err, ERR_INVALID, "%s: %llu tensors and %llu keys in a file of %llu bytes",
                       file, (unsigned long long)n_tensors, (unsigned long long)n_kv,
                       (unsigned long long)file_size);
    struct gguf *g = calloc(1, sizeof *g);
    if (!g) return err_set(err, ERR_NOMEM, "%s: no memory for the header", file);
    g->version = version;
    rc = parse_kvs(&r, g, n_kv);
    if (!rc) rc = read_alignment(g, file, err);
    if (!rc) rc = parse_table(&r, g, n_tensors);
    if (!rc) {
        g->header_bytes = r.pos;
        rc = place_tensors(g, file_size, file, err);
    }
    if (rc) {
        gguf_destroy(g);
        return rc;
    }
    *out = g;
    return OK;
}

void gguf_destroy(struct gguf *g) {
    if (!g) return;
    free(g->kv);
    free(g->tensors);
    free(g);
}

/* ---- values ------------------------------------------------------------------------------------ */

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key) {
    size_t lo = 0, hi = g->n_kv, len = strlen(key);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = compare_names(key, len, g->kv[mid].key, g->kv[mid].key_len);
        if (c == 0) return &g->kv[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

static int wrong_type(const struct gguf_kv *kv, const char *key, const char *wanted,
                      struct err *err) {
    return err_set(err, ERR_INVALID, "%s: %s%s, %s is expected", key,
                   kv->is_array ? "ARRAY of " : "", gguf_type_name(kv->type), wanted);
}

static bool is_integer(enum gguf_type type) {
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

int64_t gguf_array_integer(const struct gguf_kv *kv, uint64_t i) {
    ASSERT(is_integer(kv->type));
    ASSERT(i < kv->count);
    const uint8_t *p = kv->data + i * types[kv->type].bytes;
    uint64_t v = 0;
    memcpy(&v, p, types[kv->type].bytes); /* little endian: the low bytes come first */
    switch (kv->type) {
    case GGUF_I8:
        return (int8_t)v;
    case GGUF_I16:
        return (int16_t)v;
    case GGUF_I32:
        return (int32_t)v;
    case GGUF_U64:
        return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    default:
        return (int64_t)v;
    }
}

int gguf_integer(const struct gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out,
                 struct err *err) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv) return OK;
    if (kv->is_array || !is_integer(kv->type)) return wrong_type(kv, key, "an integer", err);
    int64_t v = gguf_array_integer(kv, 0);
    if (v < lo || v > hi)
        return err_set(err, ERR_INVALID, "%s: %lld, allowed are %lld to %lld", key, (long long)v,
                       (long long)lo, (long long)hi);
    *out = v;
    return OK;
}

int gguf_real(const struct gguf *g, const char *key, double *out, struct err *err) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv) return OK;
    double v;
    if (kv->is_array || (kv->type != GGUF_F32 && kv->type != GGUF_F64))
        return wrong_type(kv, key, "FLOAT32", err);
    if (kv->type == GGUF_F32) {
        float f;
        memcpy(&f, kv->data, 4);
        v = f;
    } else {
        memcpy(&v, kv->data, 8);
    }
    if (!isfinite(v)) return err_set(err, ERR_INVALID, "%s: not a finite number", key);
    *out = v;
    return OK;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *err) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv) return OK;
    if (kv->is_array || kv->type != GGUF_BOOL) return wrong_type(kv, key, "BOOL", err);
    *out = kv->data[0] != 0;
    return OK;
}

const char *gguf_next_string(const uint8_t **cursor, size_t *len) {
    uint64_t n;
    memcpy(&n, *cursor, 8);
    const char *text = (const char *)*cursor + 8;
    *cursor += 8 + n;
    *len = (size_t)n;
    return text;
}

int gguf_string(const struct gguf *g, const char *key, const char **text, size_t *len,
                struct err *err) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv) return OK;
    if (kv->is_array || kv->type != GGUF_STRING) return wrong_type(kv, key, "STRING", err);
    const uint8_t *cursor = kv->data;
    *text = gguf_next_string(&cursor, len);
    return OK;
}
