/* checkpoint.c: see checkpoint.h; checkpoint_open.c fills the struct. */
#include "engine/load/checkpoint.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "engine/load/checkpoint_internal.h"
#include "engine/load/gguf_model.h"
#include "engine/load/loader.h"

enum {
    TOKENIZER_BYTES_MAX = 256 << 20,
    TEMPLATE_BYTES_MAX = 4 << 20,
    SAMPLE_BYTES = 64 << 10, /* 16 of them a file for the fingerprint */
    N_SAMPLES = 16,
    AHEAD_BYTES = 64 << 20, /* what a disk reads while a device takes a weight, and no more */
};

bool checkpoint_is_gguf(const struct checkpoint *ck) {
    return ck->gguf != NULL;
}

size_t checkpoint_n_tensors(const struct checkpoint *ck) {
    return ck->n_entries;
}

const struct checkpoint_tensor *checkpoint_tensor(const struct checkpoint *ck, size_t i) {
    ASSERT(i < ck->n_entries);
    return &ck->entries[i].pub;
}

int64_t checkpoint_find(const struct checkpoint *ck, const char *name) {
    size_t lo = 0, hi = ck->n_entries;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, ck->entries[mid].pub.name);
        if (c == 0) return (int64_t)mid;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return -1;
}

/* ---- reading weights --------------------------------------------------------------------------- */

static int read_place(const struct checkpoint *ck, const struct place *place, uint64_t offset,
                      size_t n, void *dst, const struct entry *e, struct err *err) {
    const struct source_file *f = &ck->files[place->file];
    char what[256], name[LOADER_NAME_CAP];
    loader_printable(e->pub.source, strlen(e->pub.source), name);
    snprintf(what, sizeof what, "%.100s: %s", f->name, name);
    return loader_pread(f->fd, dst, n, place->offset + offset, what, err);
}

/* n f16 numbers of a quantised tensor's companion (_scale, _min), each finite. */
static int read_scales(const struct checkpoint *ck, const struct entry *e,
                       const struct place *place, const char *suffix, uint64_t first, size_t n,
                       uint8_t *dst, struct err *err) {
    int rc = read_place(ck, place, first * 2, n * 2, dst, e, err);
    for (size_t i = 0; !rc && i < n; i++)
        if ((dst[2 * i + 1] & 0x7c) == 0x7c) {
            char name[LOADER_NAME_CAP];
            uint64_t at = first + i, blocks = e->pub.shape[1] / 32;
            rc = err_set(err, ERR_INVALID, "weights: %s%s: element [%llu, %llu] is not finite",
                         loader_printable(e->pub.name, strlen(e->pub.name), name), suffix,
                         (unsigned long long)(at / blocks), (unsigned long long)(at % blocks));
        }
    return rc;
}

/* n_rows rows of int8 and their scales become Q8_0 blocks: scale, then 32 values. */
static int read_i8(const struct checkpoint *ck, const struct entry *e, uint64_t row,
                   uint64_t n_rows, uint8_t *dst, struct err *err) {
    size_t blocks = (size_t)(e->pub.shape[1] / 32), n = (size_t)n_rows * blocks;
    uint8_t *q = malloc(n * 32), *scale = malloc(n * 2);
    int rc = q && scale ? OK : err_set(err, ERR_NOMEM, "%s: no memory", e->pub.name);
    if (!rc) rc = read_place(ck, &e->data, row * blocks * 32, n * 32, q, e, err);
    if (!rc) rc = read_scales(ck, e, &e->scale, "_scale", row * blocks, n, scale, err);
    for (size_t i = 0; !rc && i < n; i++) {
        memcpy(dst + i * 34, scale + i * 2, 2);
        memcpy(dst + i * 34 + 2, q + i * 32, 32);
    }
    free(q);
    free(scale);
    return rc;
}

/* Nibbles in order of elements (2i low, 2i + 1 high) become Q4_1 blocks, whose byte i holds
 * elements i and i + 16. */
static void repack_nibbles(const uint8_t in[16], uint8_t out[16]) {
    uint8_t v[32];
    for (int i = 0; i < 16; i++) {
        v[2 * i] = in[i] & 15;
        v[2 * i + 1] = in[i] >> 4;
    }
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)(v[i] | v[i + 16] << 4);
}

static int read_u4(const struct checkpoint *ck, const struct entry *e, uint64_t row,
                   uint64_t n_rows, uint8_t *dst, struct err *err) {
    size_t blocks = (size_t)(e->pub.shape[1] / 32), n = (size_t)n_rows * blocks;
    uint8_t *q = malloc(n * 16), *scale = malloc(n * 2), *min = malloc(n * 2);
    int rc = q && scale && min ? OK : err_set(err, ERR_NOMEM, "%s: no memory", e->pub.name);
    if (!rc) rc = read_place(ck, &e->data, row * blocks * 16, n * 16, q, e, err);
    if (!rc) rc = read_scales(ck, e, &e->scale, "_scale", row * blocks, n, scale, err);
    if (!rc) rc = read_scales(ck, e, &e->min, "_min", row * blocks, n, min, err);
    for (size_t i = 0; !rc && i < n; i++) {
        memcpy(dst + i * 20, scale + i * 2, 2);
        memcpy(dst + i * 20 + 2, min + i * 2, 2);
        repack_nibbles(q + i * 16, dst + i * 20 + 4);
    }
    free(q);
    free(scale);
    free(min);
    return rc;
}

/* Rows of a head in the file:  0 1 2 3 4 5 ..   row 2m + s of the file is row m + s * e/2 of ours:
 * rows of ours in that order:  0 e/2 1 e/2+1 2 ..   whole heads are read and sorted. */
static int read_permuted(const struct checkpoint *ck, const struct entry *e, uint64_t row,
                         uint64_t n_rows, size_t row_bytes, uint8_t *dst, struct err *err) {
    uint64_t head_rows = e->permuted_rows, half = head_rows / 2;
    uint8_t *head = malloc((size_t)head_rows * row_bytes);
    if (!head) return err_set(err, ERR_NOMEM, "%s: no memory", e->pub.name);
    int rc = OK;
    uint64_t loaded = UINT64_MAX;
    for (uint64_t r = row; !rc && r < row + n_rows; r++) {
        uint64_t h = r / head_rows, ours = r % head_rows;
        if (h != loaded)
            rc = read_place(ck, &e->data, h * head_rows * row_bytes, (size_t)head_rows * row_bytes,
                            head, e, err);
        loaded = h;
        uint64_t theirs = 2 * (ours % half) + ours / half;
        if (!rc) memcpy(dst + (r - row) * row_bytes, head + theirs * row_bytes, row_bytes);
    }
    free(head);
    return rc;
}

int checkpoint_read(const struct checkpoint *ck, size_t i, uint64_t row, uint64_t n_rows, void *dst,
                    struct err *err) {
    ASSERT(i < ck->n_entries);
    const struct entry *e = &ck->entries[i];
    const struct checkpoint_tensor *t = &e->pub;
    ASSERT(t->dtype >= 0 && (t->n_dims == 1 || t->n_dims == 2));
    uint64_t rows = t->n_dims == 2 ? t->shape[0] : 1, cols = t->shape[t->n_dims - 1];
    ASSERT(row <= rows && n_rows <= rows - row);
    if (n_rows == 0) return OK;
    if (e->storage == STORAGE_I8) return read_i8(ck, e, row, n_rows, dst, err);
    if (e->storage == STORAGE_U4) return read_u4(ck, e, row, n_rows, dst, err);
    size_t row_bytes = dtype_row_bytes((enum dtype)t->dtype, (size_t)cols);
    if (!e->permuted_rows)
        return read_place(ck, &e->data, row * row_bytes, (size_t)n_rows * row_bytes, dst, e, err);
    bool bias = t->n_dims == 1; /* each element goes with a row of the matrix */
    uint64_t units = bias ? cols : rows;
    if (units % e->permuted_rows || (bias && dtype_block((enum dtype)t->dtype) > 1))
        return err_set(err, ERR_INVALID, "%s: %llu rows, heads have %u", t->name,
                       (unsigned long long)units, e->permuted_rows);
    if (bias)
        return read_permuted(ck, e, 0, cols, dtype_row_bytes((enum dtype)t->dtype, 1), dst, err);
    return read_permuted(ck, e, row, n_rows, row_bytes, dst, err);
}

void checkpoint_read_ahead(const struct checkpoint *ck, size_t i) {
    const struct entry *e = &ck->entries[i];
    uint64_t n = e->pub.bytes < AHEAD_BYTES ? e->pub.bytes : AHEAD_BYTES;
    /* A hint: where it is refused, reading is merely slower. */
    (void)posix_fadvise(ck->files[e->data.file].fd, (off_t)e->data.offset, (off_t)n,
                        POSIX_FADV_WILLNEED);
}

/* ---- configuration, tokenizer, template -------------------------------------------------------- */

/* A file of the directory; *out = NULL when it is optional and absent. */
static int read_neighbour(const struct checkpoint *ck, const char *name, size_t limit,
                          bool optional, char **out, size_t *len, struct err *err) {
    char *path = loader_join(ck->dir, name);
    if (!path) return err_set(err, ERR_NOMEM, "%s: no memory", name);
    int rc = loader_read_file(path, limit, optional, out, len, err);
    free(path);
    return rc;
}

static int config_from_files(struct checkpoint *ck, struct config *out, struct err *err) {
    char *text = NULL, *generation = NULL;
    size_t len, generation_len;
    struct config c;
    int rc = read_neighbour(ck, "config.json", CONFIG_JSON_MAX, false, &text, &len, err);
    if (rc) return rc;
    rc = config_parse(text, len, "config.json", &c, err);
    free(text);
    if (rc) return rc;
    rc = read_neighbour(ck, "generation_config.json", CONFIG_JSON_MAX, true, &generation,
                        &generation_len, err);
    if (!rc && generation)
        rc = config_parse_generation(generation, generation_len, "generation_config.json", &c, err);
    free(generation);
    if (rc)
        config_fini(&c);
    else
        *out = c;
    return rc;
}

static int apply_rope_factors(struct checkpoint *ck, struct config *c, struct err *err) {
    int64_t i = checkpoint_find(ck, "rope_freqs.weight");
    if (i < 0) return OK;
    const struct checkpoint_tensor *t = &ck->entries[i].pub;
    float factors[512]; /* head_dim is at most 1024 */
    if (t->dtype != DTYPE_F32 || t->n_dims != 1 || t->shape[0] > ARRAY_LEN(factors))
        return err_set(err, ERR_INVALID, "rope_freqs.weight: F32 [%u] is expected",
                       c->shape.head_dim / 2);
    int rc = checkpoint_read(ck, (size_t)i, 0, 1, factors, err);
    return rc ? rc : gguf_model_rope_factors(c, factors, t->shape[0], err);
}

int checkpoint_config(struct checkpoint *ck, struct config *out, struct err *err) {
    if (!ck->gguf) return config_from_files(ck, out, err);
    struct config c;
    int rc = gguf_model_config(ck->gguf, &c, err);
    if (rc) return rc;
    rc = apply_rope_factors(ck, &c, err);
    if (rc)
        config_fini(&c);
    else
        *out = c;
    return rc;
}

int checkpoint_tokenizer(struct checkpoint *ck, struct tokenizer **out, struct err *err) {
    if (ck->gguf) {
        struct gguf_vocab vocab;
        int rc = gguf_model_vocab(ck->gguf, &vocab, err);
        if (rc) return rc;
        rc = tokenizer_from_gguf(&vocab, out, err);
        gguf_model_vocab_free(&vocab);
        return rc;
    }
    char *json = NULL, *config = NULL;
    size_t len, config_len = 0;
    int rc = read_neighbour(ck, "tokenizer.json", TOKENIZER_BYTES_MAX, false, &json, &len, err);
    if (!rc)
        rc = read_neighbour(ck, "tokenizer_config.json", TOKENIZER_BYTES_MAX, true, &config,
                            &config_len, err);
    if (!rc) rc = tokenizer_from_json(json, len, config, config_len, out, err);
    free(json);
    free(config);
    return rc;
}

/* chat_template of tokenizer_config.json: a string, or a list of {name, template}. */
static int template_of(const json_t *root, char **out, size_t *len, struct err *err) {
    const json_t *v = json_object_get(root, "chat_template");
    const json_t *text = v;
    if (json_is_array(v)) {
        text = NULL;
        for (size_t i = 0; i < json_array_size(v); i++) {
            const json_t *item = json_array_get(v, i);
            const char *name = json_string_value(json_object_get(item, "name"));
            if (name && strcmp(name, "default") == 0) text = json_object_get(item, "template");
        }
        if (!text) return OK; /* only templates for other purposes */
    }
    if (!text || json_is_null(text)) return OK;
    if (!json_is_string(text))
        return err_set(
            err, ERR_INVALID,
            "tokenizer_config.json: chat_template: a text, or a list of {name, template} "
            "is expected");
    *out = strdup(json_string_value(text));
    *len = json_string_length(text);
    return *out ? OK : err_set(err, ERR_NOMEM, "no memory for the chat template");
}

int checkpoint_chat_template(struct checkpoint *ck, char **out, size_t *len, struct err *err) {
    *out = NULL;
    *len = 0;
    if (ck->gguf) {
        const char *text = NULL;
        int rc = gguf_string(ck->gguf, "tokenizer.chat_template", &text, len, err);
        if (rc || !text) return rc;
        *out = malloc(*len + 1);
        if (!*out) return err_set(err, ERR_NOMEM, "no memory for the chat template");
        memcpy(*out, text, *len);
        (*out)[*len] = 0;
        return OK;
    }
    int rc = read_neighbour(ck, "chat_template.jinja", TEMPLATE_BYTES_MAX, true, out, len, err);
    if (rc || *out) return rc;
    char *json = NULL;
    size_t json_len;
    rc = read_neighbour(ck, "tokenizer_config.json", TOKENIZER_BYTES_MAX, true, &json, &json_len,
                        err);
    if (rc || !json) return rc;
    json_t *root = NULL;
    rc = loader_json(json, json_len, 64, 4000000, "tokenizer_config.json", &root, err);
    if (!rc) rc = template_of(root, out, len, err);
    json_decref(root);
    free(json);
    return rc;
}

/* ---- fingerprint ------------------------------------------------------------------------------- */

static int hash_file(const struct source_file *f, uint8_t *buffer, uint64_t *hash,
                     struct err *err) {
    *hash = loader_hash(*hash, f->name, strlen(f->name));
    *hash = loader_hash(*hash, &f->size, sizeof f->size);
    for (uint64_t i = 0; i < N_SAMPLES; i++) {
        /* Spread evenly; the first at the start, the last at the end. */
        uint64_t span = f->size > SAMPLE_BYTES ? f->size - SAMPLE_BYTES : 0;
        uint64_t at = span / (N_SAMPLES - 1) * i;
        if (i == N_SAMPLES - 1) at = span;
        size_t n = f->size < SAMPLE_BYTES ? (size_t)f->size : SAMPLE_BYTES;
        int rc = loader_pread(f->fd, buffer, n, at, f->name, err);
        if (rc) return rc;
        *hash = loader_hash(*hash, buffer, n);
        if (span == 0) break;
    }
    return OK;
}

int checkpoint_fingerprint(struct checkpoint *ck, uint64_t *out, struct err *err) {
    uint64_t hash = LOADER_HASH_START;
    uint8_t *buffer = malloc(SAMPLE_BYTES);
    if (!buffer) return err_set(err, ERR_NOMEM, "no memory for the fingerprint");
    int rc = OK;
    if (ck->gguf) {
        hash = loader_hash(hash, ck->gguf_bytes, (size_t)ck->gguf->header_bytes);
    } else {
        char *text = NULL;
        size_t len = 0;
        rc = read_neighbour(ck, "config.json", CONFIG_JSON_MAX, false, &text, &len, err);
        if (!rc) hash = loader_hash(hash, text, len);
        free(text);
    }
    for (size_t i = 0; i < ck->n_entries; i++) {
        const struct entry *e = &ck->entries[i];
        hash = loader_hash(hash, e->pub.name, strlen(e->pub.name) + 1);
        hash = loader_hash(hash, e->pub.type, strlen(e->pub.type) + 1);
        hash = loader_hash(hash, e->pub.shape, sizeof e->pub.shape);
        hash = loader_hash(hash, &e->data.file, sizeof e->data.file);
        hash = loader_hash(hash, &e->data.offset, sizeof e->data.offset);
    }
    for (size_t i = 0; !rc && i < ck->n_files; i++)
        rc = hash_file(&ck->files[i], buffer, &hash, err);
    free(buffer);
    if (!rc) *out = hash;
    return rc;
}
