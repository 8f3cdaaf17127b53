/* safetensors.c: see safetensors.h. */
#include "engine/load/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "engine/load/loader.h"

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
    {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I8", 1},      {"U8", 1},
    {"F64", 8}, {"I64", 8}, {"I32", 4},  {"I16", 2},     {"U16", 2},
    {"U32", 4}, {"U64", 8}, {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

int safetensors_header_bytes(const void *first, size_t n_first, uint64_t file_size,
                             const char *file, uint64_t *out, struct err *err) {
    if (n_first < 8 || file_size < 8)
        return err_set(err, ERR_INVALID, "%s: %llu bytes, too short for a safetensors header", file,
                       (unsigned long long)file_size);
    const unsigned char *p = first;
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | p[i];
    if (n > SAFETENSORS_HEADER_MAX)
        return err_set(err, ERR_INVALID, "%s: header of %llu bytes, at most %d are allowed", file,
                       (unsigned long long)n, SAFETENSORS_HEADER_MAX);
    if (n > file_size - 8)
        return err_set(err, ERR_INVALID, "%s: header of %llu bytes in a file of %llu", file,
                       (unsigned long long)n, (unsigned long long)file_size);
    *out = n;
    return OK;
}

/* A JSON array of non-negative integers; -1 when it is not one or longer than cap. */
static int integers(const json_t *array, uint64_t *out, size_t cap) {
    if (!json_is_array(array) || json_array_size(array) > cap) return -1;
    size_t n = json_array_size(array);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0) return -1;
        out[i] = (uint64_t)json_integer_value(v);
    }
    return (int)n;
}

static int parse_tensor(const json_t *entry, uint64_t data_bytes, const char *file,
                        struct safetensors_tensor *t, struct err *err) {
    char name[LOADER_NAME_CAP];
    loader_printable(t->name, strlen(t->name), name);
    if (!json_is_object(entry) || json_object_size(entry) != 3)
        return err_set(err, ERR_INVALID, "%s: %s: not an object of dtype, shape, data_offsets",
                       file, name);
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    uint64_t size = 0;
    for (size_t i = 0; dtype && i < ARRAY_LEN(dtypes); i++)
        if (strcmp(dtype, dtypes[i].name) == 0) {
            t->dtype = dtypes[i].name;
            size = dtypes[i].bytes;
        }
    if (!size) {
        char found[LOADER_NAME_CAP];
        loader_printable(dtype ? dtype : "", dtype ? strlen(dtype) : 0, found);
        return err_set(err, ERR_INVALID, "%s: %s: unknown dtype \"%s\"", file, name, found);
    }
    int n_dims = integers(json_object_get(entry, "shape"), t->shape, SAFETENSORS_DIMS_MAX);
    if (n_dims < 0)
        return err_set(err, ERR_INVALID, "%s: %s: shape is not a list of at most %d sizes", file,
                       name, SAFETENSORS_DIMS_MAX);
    t->n_dims = (uint32_t)n_dims;
    for (int i = 0; i < n_dims; i++)
        if (__builtin_mul_overflow(size, t->shape[i], &size))
            return err_set(err, ERR_INVALID, "%s: %s: shape is too large", file, name);
    uint64_t range[2];
    if (integers(json_object_get(entry, "data_offsets"), range, 2) != 2)
        return err_set(err, ERR_INVALID, "%s: %s: data_offsets are not two sizes", file, name);
    if (range[0] > range[1] || range[1] > data_bytes)
        return err_set(err, ERR_INVALID, "%s: %s: data_offsets [%llu, %llu] outside 0 .. %llu",
                       file, name, (unsigned long long)range[0], (unsigned long long)range[1],
                       (unsigned long long)data_bytes);
    if (range[1] - range[0] != size)
        return err_set(err, ERR_INVALID, "%s: %s: %llu bytes of data, shape and dtype want %llu",
                       file, name, (unsigned long long)(range[1] - range[0]),
                       (unsigned long long)size);
    t->begin = range[0];
    t->end = range[1];
    return OK;
}

static int by_begin(const void *a, const void *b) {
    const struct safetensors_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b) {
    const struct safetensors_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* The ranges, in order, must cover the data exactly. */
static int check_tiling(struct safetensors *h, uint64_t data_bytes, const char *file,
                        struct err *err) {
    qsort(h->tensors, h->n_tensors, sizeof *h->tensors, by_begin);
    uint64_t at = 0;
    char name[LOADER_NAME_CAP];
    for (size_t i = 0; i < h->n_tensors; i++) {
        const struct safetensors_tensor *t = &h->tensors[i];
        loader_printable(t->name, strlen(t->name), name);
        if (t->begin < at)
            return err_set(err, ERR_INVALID, "%s: %s: data overlaps another tensor's", file, name);
        if (t->begin > at)
            return err_set(err, ERR_INVALID, "%s: %s: a hole of %llu bytes before its data", file,
                           name, (unsigned long long)(t->begin - at));
        at = t->end;
    }
    if (at != data_bytes)
        return err_set(err, ERR_INVALID, "%s: %s: %llu bytes follow the data of the last tensor",
                       file, name, (unsigned long long)(data_bytes - at));
    return OK;
}

static int parse_tensors(const json_t *root, uint64_t data_bytes, const char *file,
                         struct safetensors *h, struct err *err) {
    const char *key;
    json_t *entry;
    json_object_foreach((json_t *)root, key, entry) {
        if (strcmp(key, "__metadata__") == 0) {
            if (!json_is_object(entry))
                return err_set(err, ERR_INVALID, "%s: __metadata__ is not an object", file);
            continue;
        }
        struct safetensors_tensor *t = &h->tensors[h->n_tensors];
        t->name = strdup(key);
        if (!t->name) return err_set(err, ERR_NOMEM, "%s: no memory for the header", file);
        h->n_tensors++;
        int rc = parse_tensor(entry, data_bytes, file, t, err);
        if (rc) return rc;
    }
    if (h->n_tensors == 0) return err_set(err, ERR_INVALID, "%s: holds no tensor", file);
    return OK;
}

int safetensors_parse_header(const char *json, size_t len, uint64_t data_bytes, const char *file,
                             struct safetensors **out, struct err *err) {
    json_t *root = NULL;
    int rc = loader_json(json, len, 4, SAFETENSORS_VALUES_MAX, file, &root, err);
    if (rc) return rc;
    struct safetensors *h = NULL;
    if (!json_is_object(root)) {
        rc = err_set(err, ERR_INVALID, "%s: the header is not a JSON object", file);
        goto done;
    }
    h = calloc(1, sizeof *h);
    if (h) h->tensors = calloc(json_object_size(root) + 1, sizeof *h->tensors);
    if (!h || !h->tensors) {
        rc = err_set(err, ERR_NOMEM, "%s: no memory for the header", file);
        goto done;
    }
    rc = parse_tensors(root, data_bytes, file, h, err);
    if (!rc) rc = check_tiling(h, data_bytes, file, err);
    if (rc) goto done;
    qsort(h->tensors, h->n_tensors, sizeof *h->tensors, by_name);
    *out = h;
    h = NULL;
done:
    safetensors_destroy(h);
    json_decref(root);
    return rc;
}

void safetensors_destroy(struct safetensors *h) {
    if (!h) return;
    for (size_t i = 0; h->tensors && i < h->n_tensors; i++)
        free(h->tensors[i].name);
    free(h->tensors);
    free(h);
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *h, const char *name) {
    size_t lo = 0, hi = h->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, h->tensors[mid].name);
        if (c == 0) return &h->tensors[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}
