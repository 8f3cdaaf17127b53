/* checkpoint_open.c: opens the files of a checkpoint and lists what they hold.
 *
 * A directory: model.safetensors if it is there, else model.safetensors.index.json, whose
 * weight_map alone says which shard gives a tensor; whatever else lies in a shard, or beside it, is
 * not looked at. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/load/checkpoint_internal.h"
#include "engine/load/gguf_model.h"
#include "engine/load/loader.h"

enum { INDEX_BYTES_MAX = 64 << 20, INDEX_VALUES_MAX = 2000000, GGUF_FIRST_READ = 4 << 20 };

/* ---- the struct -------------------------------------------------------------------------------- */

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int checkpoint_add_file(struct checkpoint *ck, const char *path, uint32_t *out, struct err *err) {
    if (ck->n_files == ck->files_cap) {
        size_t cap = ck->files_cap ? ck->files_cap * 2 : 4;
        struct source_file *p = realloc(ck->files, cap * sizeof *p);
        if (!p) return err_set(err, ERR_NOMEM, "%s: no memory", path);
        ck->files = p;
        ck->files_cap = cap;
    }
    struct source_file f = {.path = strdup(path), .fd = -1};
    if (!f.path) return err_set(err, ERR_NOMEM, "%s: no memory", path);
    f.name = base_name(f.path);
    int rc = loader_open(path, &f.fd, &f.size, err);
    if (rc) {
        free(f.path);
        return rc;
    }
    *out = (uint32_t)ck->n_files;
    ck->files[ck->n_files++] = f;
    return OK;
}

int checkpoint_add_entry(struct checkpoint *ck, const char *name, const char *source,
                         size_t source_len, struct entry **out, struct err *err) {
    if (ck->n_entries == ck->entries_cap) {
        size_t cap = ck->entries_cap ? ck->entries_cap * 2 : 64;
        struct entry *p = realloc(ck->entries, cap * sizeof *p);
        if (!p) return err_set(err, ERR_NOMEM, "%s: no memory", name);
        ck->entries = p;
        ck->entries_cap = cap;
    }
    struct entry *e = &ck->entries[ck->n_entries];
    memset(e, 0, sizeof *e);
    e->pub.name = strdup(name);
    e->pub.source = strndup(source, source_len);
    ck->n_entries++;
    if (!e->pub.name || !e->pub.source) return err_set(err, ERR_NOMEM, "%s: no memory", name);
    *out = e;
    return OK;
}

void checkpoint_close(struct checkpoint *ck) {
    if (!ck) return;
    for (size_t i = 0; i < ck->n_entries; i++) {
        free((char *)ck->entries[i].pub.name);
        free((char *)ck->entries[i].pub.source);
    }
    for (size_t i = 0; i < ck->n_files; i++) {
        close(ck->files[i].fd);
        free(ck->files[i].path);
    }
    free(ck->entries);
    free(ck->files);
    free(ck->dir);
    gguf_destroy(ck->gguf);
    free(ck->gguf_bytes);
    free(ck);
}

static int by_name(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    return strcmp(x->pub.name, y->pub.name);
}

/* Sort, and refuse two tensors of one name (GGUF: a translated name and the plain one). */
static int finish_entries(struct checkpoint *ck, struct err *err) {
    qsort(ck->entries, ck->n_entries, sizeof *ck->entries, by_name);
    for (size_t i = 1; i < ck->n_entries; i++)
        if (by_name(&ck->entries[i - 1], &ck->entries[i]) == 0) {
            char name[LOADER_NAME_CAP];
            const char *n = ck->entries[i].pub.name;
            return err_set(err, ERR_INVALID, "%s: this tensor is there twice",
                           loader_printable(n, strlen(n), name));
        }
    return OK;
}

/* ---- safetensors ------------------------------------------------------------------------------- */

static int read_header(const struct source_file *f, struct safetensors **out, uint64_t *data_start,
                       struct err *err) {
    unsigned char first[8];
    size_t n_first = f->size < 8 ? (size_t)f->size : 8;
    int rc = loader_pread(f->fd, first, n_first, 0, f->name, err);
    if (rc) return rc;
    uint64_t n;
    rc = safetensors_header_bytes(first, n_first, f->size, f->name, &n, err);
    if (rc) return rc;
    char *json = malloc((size_t)n + 1);
    if (!json)
        return err_set(err, ERR_NOMEM, "%s: no memory for a header of %llu bytes", f->name,
                       (unsigned long long)n);
    rc = loader_pread(f->fd, json, (size_t)n, 8, f->name, err);
    if (!rc) rc = safetensors_parse_header(json, (size_t)n, f->size - 8 - n, f->name, out, err);
    free(json);
    *data_start = 8 + n;
    return rc;
}

static int add_safetensors(struct checkpoint *ck, uint32_t file, uint64_t data_start,
                           const struct safetensors_tensor *t, struct err *err) {
    static const struct {
        const char *name;
        int dtype;
    } readable[] = {{"F32", DTYPE_F32}, {"F16", DTYPE_F16}, {"BF16", DTYPE_BF16}};
    struct entry *e;
    int rc = checkpoint_add_entry(ck, t->name, t->name, strlen(t->name), &e, err);
    if (rc) return rc;
    e->pub.type = t->dtype;
    e->pub.dtype = -1;
    for (size_t i = 0; i < ARRAY_LEN(readable); i++)
        if (strcmp(t->dtype, readable[i].name) == 0) e->pub.dtype = readable[i].dtype;
    e->pub.n_dims = t->n_dims;
    memcpy(e->pub.shape, t->shape, sizeof t->shape);
    e->pub.bytes = t->end - t->begin;
    e->data = (struct place){file, data_start + t->begin};
    return OK;
}

static int open_single(struct checkpoint *ck, const char *path, struct err *err) {
    uint32_t file;
    struct safetensors *header = NULL;
    uint64_t start;
    int rc = checkpoint_add_file(ck, path, &file, err);
    if (!rc) rc = read_header(&ck->files[file], &header, &start, err);
    for (size_t i = 0; !rc && i < header->n_tensors; i++)
        rc = add_safetensors(ck, file, start, &header->tensors[i], err);
    safetensors_destroy(header);
    return rc;
}

/* Shards of an index, each opened once. headers and starts run beside ck->files. */
struct shards {
    struct safetensors *headers[CHECKPOINT_SHARDS_MAX];
    uint64_t starts[CHECKPOINT_SHARDS_MAX];
};

static int open_shard(struct checkpoint *ck, struct shards *shards, const char *name, uint32_t *out,
                      struct err *err) {
    for (size_t i = 0; i < ck->n_files; i++)
        if (strcmp(ck->files[i].name, name) == 0) {
            *out = (uint32_t)i;
            return OK;
        }
    char shown[LOADER_NAME_CAP];
    if (!*name || name[0] == '.' || strchr(name, '/'))
        return err_set(err, ERR_INVALID, "model.safetensors.index.json: \"%s\" is no file name",
                       loader_printable(name, strlen(name), shown));
    if (ck->n_files == CHECKPOINT_SHARDS_MAX)
        return err_set(err, ERR_TOO_LONG, "model.safetensors.index.json: more than %d shards",
                       CHECKPOINT_SHARDS_MAX);
    char *path = loader_join(ck->dir, name);
    if (!path) return err_set(err, ERR_NOMEM, "%s: no memory", name);
    uint32_t file;
    int rc = checkpoint_add_file(ck, path, &file, err);
    if (!rc) rc = read_header(&ck->files[file], &shards->headers[file], &shards->starts[file], err);
    free(path);
    if (!rc) *out = file;
    return rc;
}

static int add_mapped(struct checkpoint *ck, struct shards *shards, const char *name,
                      const json_t *shard, struct err *err) {
    char shown[LOADER_NAME_CAP];
    loader_printable(name, strlen(name), shown);
    if (!json_is_string(shard))
        return err_set(err, ERR_INVALID, "model.safetensors.index.json: %s: no file name", shown);
    uint32_t file = 0;
    int rc = open_shard(ck, shards, json_string_value(shard), &file, err);
    if (rc) return rc;
    const struct safetensors_tensor *t = safetensors_find(shards->headers[file], name);
    if (!t)
        return err_set(err, ERR_INVALID, "%s: %s: the index names this tensor, the file lacks it",
                       ck->files[file].name, shown);
    return add_safetensors(ck, file, shards->starts[file], t, err);
}

static int open_index(struct checkpoint *ck, const char *path, struct err *err) {
    char *text = NULL;
    size_t len;
    json_t *root = NULL;
    struct shards *shards = calloc(1, sizeof *shards);
    if (!shards) return err_set(err, ERR_NOMEM, "%s: no memory", path);
    int rc = loader_read_file(path, INDEX_BYTES_MAX, false, &text, &len, err);
    if (!rc)
        rc =
            loader_json(text, len, 4, INDEX_VALUES_MAX, "model.safetensors.index.json", &root, err);
    if (rc) goto done;
    json_t *map = json_object_get(root, "weight_map");
    if (json_object_size(map) == 0) {
        rc = err_set(err, ERR_INVALID, "model.safetensors.index.json: weight_map names no tensor");
        goto done;
    }
    const char *name;
    json_t *shard;
    json_object_foreach(map, name, shard) {
        rc = add_mapped(ck, shards, name, shard, err);
        if (rc) goto done;
    }
done:
    for (size_t i = 0; i < CHECKPOINT_SHARDS_MAX; i++)
        safetensors_destroy(shards->headers[i]);
    free(shards);
    json_decref(root);
    free(text);
    return rc;
}

/* NAME.weight_scale or _min of a quantised NAME.weight: F16 [out, in / 32]. */
static int find_companion(const struct checkpoint *ck, const struct entry *e, const char *suffix,
                          uint64_t in, size_t *out, struct err *err) {
    char name[512], shown[LOADER_NAME_CAP];
    loader_printable(e->pub.name, strlen(e->pub.name), shown);
    snprintf(name, sizeof name, "%.500s%s", e->pub.name, suffix);
    int64_t i = checkpoint_find(ck, name);
    if (i < 0)
        return err_set(err, ERR_INVALID, "%s: %s without its %s", shown, e->pub.type, suffix);
    const struct checkpoint_tensor *t = &ck->entries[i].pub;
    if (t->dtype != DTYPE_F16 || t->n_dims != 2 || t->shape[0] != e->pub.shape[0] || in % 32 ||
        t->shape[1] != in / 32)
        return err_set(err, ERR_INVALID, "%s%s: F16 [%llu, %llu / 32] is expected", shown, suffix,
                       (unsigned long long)e->pub.shape[0], (unsigned long long)in);
    *out = (size_t)i;
    return OK;
}

/* I8 and U8 weights take their scales and minima in; those leave the list. Any other I8 or U8
 * tensor stays unreadable and is refused when a weight wants it. */
static int join_quantised(struct checkpoint *ck, struct err *err) {
    bool *gone = calloc(ck->n_entries, sizeof *gone);
    if (!gone) return err_set(err, ERR_NOMEM, "no memory for the tensor list");
    int rc = OK;
    for (size_t i = 0; !rc && i < ck->n_entries; i++) {
        struct entry *e = &ck->entries[i];
        size_t n = strlen(e->pub.name), scale = 0, min = 0;
        bool i8 = strcmp(e->pub.type, "I8") == 0, u8 = strcmp(e->pub.type, "U8") == 0;
        bool weight = n > 7 && strcmp(e->pub.name + n - 7, ".weight") == 0;
        if ((!i8 && !u8) || !weight || e->pub.n_dims != 2) continue;
        uint64_t in = u8 ? e->pub.shape[1] * 2 : e->pub.shape[1];
        rc = find_companion(ck, e, "_scale", in, &scale, err);
        if (!rc && u8) rc = find_companion(ck, e, "_min", in, &min, err);
        if (rc) break;
        e->storage = i8 ? STORAGE_I8 : STORAGE_U4;
        e->pub.dtype = i8 ? DTYPE_Q8_0 : DTYPE_Q4_1;
        e->pub.shape[1] = in;
        e->scale = ck->entries[scale].data;
        e->pub.bytes += ck->entries[scale].pub.bytes;
        gone[scale] = true;
        if (i8) continue;
        e->min = ck->entries[min].data;
        e->pub.bytes += ck->entries[min].pub.bytes;
        gone[min] = true;
    }
    size_t kept = 0;
    for (size_t i = 0; !rc && i < ck->n_entries; i++) {
        if (gone[i]) {
            free((char *)ck->entries[i].pub.name);
            free((char *)ck->entries[i].pub.source);
        } else {
            ck->entries[kept++] = ck->entries[i];
        }
    }
    if (!rc) ck->n_entries = kept;
    free(gone);
    return rc;
}

static int open_directory(struct checkpoint *ck, struct err *err) {
    char *single = loader_join(ck->dir, "model.safetensors");
    char *index = loader_join(ck->dir, "model.safetensors.index.json");
    int rc;
    if (!single || !index)
        rc = err_set(err, ERR_NOMEM, "%s: no memory", ck->dir);
    else if (access(single, F_OK) == 0)
        rc = open_single(ck, single, err);
    else if (access(index, F_OK) == 0)
        rc = open_index(ck, index, err);
    else
        rc = err_set(err, ERR_IO,
                     "%s: holds neither model.safetensors nor model.safetensors.index.json",
                     ck->dir);
    free(single);
    free(index);
    return rc;
}

/* ---- GGUF -------------------------------------------------------------------------------------- */

/* The length of the header is only known by parsing it: read a prefix, doubled until it is enough. */
static int parse_prefix(struct checkpoint *ck, struct err *err) {
    const struct source_file *f = &ck->files[0];
    uint64_t limit = f->size < GGUF_HEADER_MAX ? f->size : GGUF_HEADER_MAX;
    size_t n = 0, next = GGUF_FIRST_READ;
    for (;;) {
        size_t wanted = next < limit ? next : (size_t)limit;
        uint8_t *p = realloc(ck->gguf_bytes, wanted + 1);
        if (!p) return err_set(err, ERR_NOMEM, "%s: no memory for %zu bytes", f->name, wanted);
        ck->gguf_bytes = p;
        int rc = loader_pread(f->fd, p + n, wanted - n, n, f->name, err);
        if (rc) return rc;
        n = wanted;
        rc = gguf_parse(p, n, f->size, f->name, &ck->gguf, err);
        if (rc != ERR_TOO_LONG || n == limit) return rc;
        next = n * 2;
    }
}

static int add_gguf(struct checkpoint *ck, const struct gguf_tensor *t, bool llama,
                    const uint32_t head_rows[3], struct err *err) {
    char name[GGUF_MODEL_NAME_CAP];
    int permuted;
    int rc = gguf_model_tensor_name(t, llama, name, &permuted, err);
    if (rc) return rc;
    struct entry *e;
    rc = checkpoint_add_entry(ck, name, t->name, t->name_len, &e, err);
    if (rc) return rc;
    e->pub.type = t->type_name;
    e->pub.dtype = t->dtype;
    e->pub.n_dims = t->n_dims;
    for (uint32_t i = 0; i < t->n_dims; i++)
        e->pub.shape[i] = t->ne[t->n_dims - 1 - i];
    e->pub.bytes = t->bytes;
    e->data = (struct place){0, t->offset};
    e->permuted_rows = head_rows[permuted];
    return OK;
}

/* Rows of one head of q (1) and k (2), by which a llama file is permuted; 0 where nothing is. A
 * configuration that cannot be read is no error here: checkpoint_config will refuse it by name. */
static int permuted_heads(const struct gguf *g, bool *llama, uint32_t head_rows[3],
                          struct err *err) {
    struct config c;
    struct err why;
    *llama = false;
    int rc = gguf_model_config(g, &c, &why);
    if (rc == ERR_NOMEM) return err_set(err, rc, "%s", why.msg);
    if (rc) return OK;
    *llama = c.backbone == BACKBONE_LLAMA;
    head_rows[1] = head_rows[2] = c.shape.head_dim;
    config_fini(&c);
    return OK;
}

static int open_gguf(struct checkpoint *ck, const char *path, struct err *err) {
    uint32_t file;
    int rc = checkpoint_add_file(ck, path, &file, err);
    if (!rc) rc = parse_prefix(ck, err);
    if (rc) return rc;
    bool llama;
    uint32_t head_rows[3] = {0};
    rc = permuted_heads(ck->gguf, &llama, head_rows, err);
    for (size_t i = 0; !rc && i < ck->gguf->n_tensors; i++)
        rc = add_gguf(ck, &ck->gguf->tensors[i], llama, head_rows, err);
    return rc;
}

/* ---- */

static bool has_suffix(const char *text, const char *suffix) {
    size_t n = strlen(text), m = strlen(suffix);
    return n > m && strcmp(text + n - m, suffix) == 0;
}

int checkpoint_open(const char *path, struct checkpoint **out, struct err *err) {
    struct stat st;
    if (stat(path, &st) != 0) return err_set(err, ERR_IO, "%s: no such file or directory", path);
    struct checkpoint *ck = calloc(1, sizeof *ck);
    if (!ck) return err_set(err, ERR_NOMEM, "%s: no memory", path);
    int rc;
    if (S_ISDIR(st.st_mode)) {
        ck->dir = strdup(path);
        rc = ck->dir ? open_directory(ck, err) : err_set(err, ERR_NOMEM, "%s: no memory", path);
    } else if (has_suffix(path, ".safetensors")) {
        const char *base = base_name(path);
        ck->dir = base == path ? strdup(".") : strndup(path, (size_t)(base - path));
        rc = ck->dir ? open_single(ck, path, err) : err_set(err, ERR_NOMEM, "%s: no memory", path);
    } else if (has_suffix(path, ".gguf")) {
        rc = open_gguf(ck, path, err);
    } else {
        rc = err_set(err, ERR_INVALID, "%s: neither a directory nor a .safetensors or .gguf file",
                     path);
    }
    if (!rc) rc = finish_entries(ck, err);
    if (!rc && !ck->gguf) rc = join_quantised(ck, err);
    if (rc) {
        checkpoint_close(ck);
        return rc;
    }
    *out = ck;
    return OK;
}
