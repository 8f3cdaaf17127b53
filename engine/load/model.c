/* model.c: loads a checkpoint onto a device.
 *
 *   checkpoint -> config -> plan (names, shapes) -> tokenizer, template -> device
 *   then each tensor:  file --pread--> rows --convert--> staging --load--> device
 *
 * Everything that can be refused is refused before the first weight is read. One staging buffer,
 * anonymous memory of the largest weight's size, serves all of them. Some threads read a weight
 * together, each a chunk of rows at a time: one alone copies slower than a good disk reads. While the
 * device takes a weight, the system is told to read on. */
#include "engine/model.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/cpu_count.h"
#include "engine/load/checkpoint.h"
#include "engine/load/costs.h"
#include "engine/load/loader.h"
#include "engine/load/model_internal.h"
#include "engine/load/synthetic.h"
#include "engine/load/weights.h"

enum {
    CHUNK_BYTES = 4 << 20, /* rows are converted in pieces of about this much float32 */
    READERS_MAX = 4,
    PERMILLE_WEIGHTS = 900, /* share of the weights in the whole start */
    BAR_WIDTH = 40,
};

/* ---- progress ---------------------------------------------------------------------------------- */

struct progress {
    struct load_progress *out; /* may be NULL */
    bool bar;
    uint64_t done, total; /* bytes on the device */
    uint32_t shown;       /* percent on the bar; UINT32_MAX: nothing yet */
};

static void progress_bar(struct progress *p) {
    uint32_t percent = (uint32_t)(p->total ? p->done * 100 / p->total : 100);
    if (!p->bar || percent == p->shown) return;
    p->shown = percent;
    char bar[BAR_WIDTH + 1];
    for (uint32_t i = 0; i < BAR_WIDTH; i++)
        bar[i] = i * 100 < percent * BAR_WIDTH ? '#' : ' ';
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\rloading weights [%s] %3u %%", bar, percent);
    fflush(stderr);
}

static void progress_end(struct progress *p) {
    if (p->bar && p->shown != UINT32_MAX) fputc('\n', stderr);
}

static int progress_add(struct progress *p, uint64_t bytes, struct err *err) {
    p->done += bytes;
    progress_bar(p);
    if (!p->out) return OK;
    uint32_t permille =
        p->total ? (uint32_t)((double)p->done / (double)p->total * PERMILLE_WEIGHTS) : 0;
    atomic_store(&p->out->permille, permille);
    if (atomic_load(&p->out->cancel)) return err_set(err, ERR_CANCELLED, "loading was cancelled");
    return OK;
}

static void progress_phase(const struct model_options *options, enum load_phase phase) {
    if (options->progress) atomic_store(&options->progress->phase, (int)phase);
}

/* ---- one weight -------------------------------------------------------------------------------- */

/* One of the threads that read a weight. */
struct reader {
    struct stage *stage;
    void *rows;    /* a chunk as in the file */
    float *floats; /* the same in float32 */
    pthread_t thread;
    bool started;
    int rc;
    struct err err;
};

/* Buffers of the loading loop, and the weight at hand. */
struct stage {
    struct checkpoint *ck;
    void *staging; /* the weight as the device gets it */
    size_t staging_bytes, rows_bytes, floats_bytes;
    struct reader readers[READERS_MAX]; /* the first is the caller's thread */
    uint32_t n_readers;
    const struct weight_item *item;
    enum dtype dtype;
    uint64_t step;        /* rows of a chunk */
    pthread_mutex_t lock; /* of what follows */
    uint64_t next_row;    /* that nobody reads yet; item->rows when one failed */
    struct progress progress;
};

static int map_buffer(size_t bytes, void **out, struct err *err) {
    void *p =
        mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_set(err, ERR_NOMEM, "weights: no memory for a buffer of %zu bytes", bytes);
    *out = p;
    return OK;
}

static void unmap_buffer(void *p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : 1);
}

static uint64_t chunk_rows(uint32_t rows, uint32_t cols) {
    uint64_t n = CHUNK_BYTES / ((uint64_t)cols * sizeof(float));
    if (n == 0) n = 1;
    return n < rows ? n : rows;
}

/* Rows row .. row + n - 1 of the weight, in its dtype, to their place in staging. */
static int stage_rows(struct reader *r, uint64_t row, uint64_t n) {
    struct stage *s = r->stage;
    const struct weight_item *item = s->item;
    const struct checkpoint_tensor *t = checkpoint_tensor(s->ck, item->tensor);
    enum dtype stored = (enum dtype)t->dtype, dtype = s->dtype;
    uint8_t *dst = (uint8_t *)s->staging + row * dtype_row_bytes(dtype, item->cols);
    if (stored == dtype) return checkpoint_read(s->ck, item->tensor, row, n, dst, &r->err);
    int rc = checkpoint_read(s->ck, item->tensor, row, n, r->rows, &r->err);
    if (rc) return rc;
    size_t n_numbers = (size_t)n * item->cols;
    float *floats = dtype == DTYPE_F32 ? (float *)(void *)dst : r->floats;
    dtype_to_f32(stored, r->rows, n_numbers, floats);
    return dtype == DTYPE_F32 ? OK : weights_round(t->name, dtype, floats, n_numbers, dst, &r->err);
}

/* Chunks of the weight at hand until none is left or some reader failed. */
static void *read_chunks(void *arg) {
    struct reader *r = arg;
    struct stage *s = r->stage;
    uint64_t rows = s->item->rows, row_bytes = dtype_row_bytes(s->dtype, s->item->cols);
    for (;;) {
        pthread_mutex_lock(&s->lock);
        uint64_t row = s->next_row, n = rows - row < s->step ? rows - row : s->step;
        s->next_row += n;
        pthread_mutex_unlock(&s->lock);
        if (n == 0) return NULL;
        r->rc = stage_rows(r, row, n);
        pthread_mutex_lock(&s->lock);
        if (!r->rc) r->rc = progress_add(&s->progress, n * row_bytes, &r->err);
        if (r->rc) s->next_row = rows;
        pthread_mutex_unlock(&s->lock);
    }
}

/* The weight into staging. Where the system gives no more threads, the others read all of it. */
static int read_weight(struct stage *s, const struct weight_item *item, enum dtype dtype,
                       struct err *err) {
    s->item = item;
    s->dtype = dtype;
    s->step = chunk_rows(item->rows, item->cols);
    s->next_row = 0;
    uint64_t n_chunks = div_ceil(item->rows, s->step);
    uint32_t n = n_chunks < s->n_readers ? (uint32_t)n_chunks : s->n_readers;
    for (uint32_t i = 1; i < n; i++)
        s->readers[i].started =
            pthread_create(&s->readers[i].thread, NULL, read_chunks, &s->readers[i]) == 0;
    read_chunks(&s->readers[0]);
    for (uint32_t i = 1; i < n; i++)
        if (s->readers[i].started) pthread_join(s->readers[i].thread, NULL);
    for (uint32_t i = 0; i < n; i++)
        if (s->readers[i].rc) return err_set(err, s->readers[i].rc, "%s", s->readers[i].err.msg);
    return OK;
}

static int load_weight(struct stage *s, struct model *m, const struct weight_item *item,
                       const struct weight_item *next, enum dtype dtype, struct err *err) {
    int rc = read_weight(s, item, dtype, err);
    if (rc) return rc;
    if (next) checkpoint_read_ahead(s->ck, next->tensor);
    struct tensor tensor = {dtype, item->rows, item->cols, s->staging};
    return m->kernels->load(m->device, item->which, item->layer, &tensor, err);
}

/* Sizes of the buffers and of the whole, and the type of every weight. */
static int size_stage(struct stage *s, const struct weight_plan *plan, int want, enum dtype *dtypes,
                      uint64_t bytes_by_dtype[DTYPE_COUNT], struct err *err) {
    for (size_t i = 0; i < plan->n_items; i++) {
        const struct weight_item *item = &plan->items[i];
        int rc = weights_dtype(s->ck, item, want, &dtypes[i], err);
        if (rc) return rc;
        enum dtype stored = (enum dtype)checkpoint_tensor(s->ck, item->tensor)->dtype;
        uint64_t bytes = weights_bytes(item, dtypes[i]);
        uint64_t step = chunk_rows(item->rows, item->cols);
        s->progress.total += bytes;
        if (item->matrix) bytes_by_dtype[dtypes[i]] += bytes;
        if (bytes > s->staging_bytes) s->staging_bytes = (size_t)bytes;
        if (stored == dtypes[i]) continue;
        size_t rows = (size_t)step * dtype_row_bytes(stored, item->cols);
        size_t floats = (size_t)step * item->cols * sizeof(float);
        if (rows > s->rows_bytes) s->rows_bytes = rows;
        if (floats > s->floats_bytes) s->floats_bytes = floats;
    }
    return OK;
}

static int open_reader(struct stage *s, struct reader *r, struct err *err) {
    void *floats = NULL;
    r->stage = s;
    int rc = map_buffer(s->rows_bytes, &r->rows, err);
    if (!rc) rc = map_buffer(s->floats_bytes, &floats, err);
    r->floats = floats;
    return rc;
}

static int load_weights(struct stage *s, struct model *m, const struct weight_plan *plan,
                        const enum dtype *dtypes, uint32_t n_threads, struct err *err) {
    int rc = map_buffer(s->staging_bytes, &s->staging, err);
    s->n_readers = n_threads < READERS_MAX ? n_threads : READERS_MAX;
    pthread_mutex_init(&s->lock, NULL);
    for (uint32_t i = 0; !rc && i < s->n_readers; i++)
        rc = open_reader(s, &s->readers[i], err);
    for (size_t i = 0; !rc && i < plan->n_items; i++) {
        const struct weight_item *next = i + 1 < plan->n_items ? &plan->items[i + 1] : NULL;
        rc = load_weight(s, m, &plan->items[i], next, dtypes[i], err);
    }
    progress_end(&s->progress);
    unmap_buffer(s->staging, s->staging_bytes);
    for (uint32_t i = 0; i < s->n_readers; i++) {
        unmap_buffer(s->readers[i].rows, s->rows_bytes);
        unmap_buffer(s->readers[i].floats, s->floats_bytes);
    }
    pthread_mutex_destroy(&s->lock);
    return rc;
}

/* ---- the rest of the model --------------------------------------------------------------------- */

/* The file's or directory's own name, a GGUF file's without its suffix. */
static int set_names(struct model *m, const struct model_options *options, struct err *err) {
    char *real = realpath(options->path, NULL);
    if (!real) return err_set(err, ERR_IO, "%s: %s", options->path, strerror(errno));
    const char *slash = strrchr(real, '/');
    const char *base = options->name ? options->name : slash[1] ? slash + 1 : "model";
    m->path = strdup(options->path);
    m->name = strdup(base);
    size_t n = strlen(base);
    if (m->name && !options->name && n > 5 && strcmp(base + n - 5, ".gguf") == 0)
        m->name[n - 5] = 0;
    free(real);
    return m->path && m->name ? OK : err_set(err, ERR_NOMEM, "%s: no memory", options->path);
}

static int set_text_side(struct model *m, struct checkpoint *ck, struct config *config,
                         struct err *err) {
    int rc = checkpoint_tokenizer(ck, &m->tokenizer, err);
    if (rc) return rc;
    uint32_t n = tokenizer_n_tokens(m->tokenizer);
    if (n > config->shape.vocab_size)
        return err_set(err, ERR_INVALID, "tokenizer: %u tokens, the embedding has only %u rows", n,
                       config->shape.vocab_size);
    int32_t eos = tokenizer_eos(m->tokenizer);
    if (eos >= 0) rc = config_add_eos(config, eos, err);
    if (rc) return rc;
    memcpy(m->eos_ids, config->eos_ids, sizeof config->eos_ids);
    m->info.n_eos_ids = config->n_eos;

    char *source = NULL;
    size_t len;
    rc = checkpoint_chat_template(ck, &source, &len, err);
    if (rc || !source) return rc;
    model_set_chat_template(m, source, len);
    if (m->chat_template)
        m->chat_template_text = source;
    else
        free(source);
    return OK;
}
_Static_assert(sizeof((struct model *)0)->eos_ids == sizeof((struct config *)0)->eos_ids,
               "both hold the same number of ids");

int model_set_window(struct config *config, const struct model_options *options, struct err *err) {
    uint32_t window = options->window;
    if (options->force_window && config->shape.orthros) {
        config->shape.window = window ? window : config->shape.max_position;
        return OK;
    }
    if (window == 0) return OK;
    if (config->shape.orthros)
        return err_set(err, ERR_INVALID, "window: %u, this model has a window of its own (%u)",
                       window, config->shape.window);
    config->shape.orthros = true; /* no affine tensors: identity */
    config->shape.window = window;
    return OK;
}

static void set_info(struct model *m, const struct config *config,
                     const uint64_t bytes_by_dtype[DTYPE_COUNT]) {
    struct model_info *info = &m->info;
    int most = -1, kinds = 0;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        if (!bytes_by_dtype[d]) continue;
        kinds++;
        if (most < 0 || bytes_by_dtype[d] > bytes_by_dtype[most]) most = d;
    }
    m->weight_dtype = most < 0 ? DTYPE_F32 : (enum dtype)most;
    info->name = m->name;
    info->path = m->path;
    info->architecture = backbone_name(config->backbone);
    info->weight_dtype = kinds > 1 ? "mixed" : dtype_name(m->weight_dtype);
    model_set_table_info(m);
    m->products = model_products(m->shape.activations, bytes_by_dtype);
    info->activations = activations_name(m->products);
    info->vocab_size = m->shape.vocab_size;
    info->context_length = m->shape.max_position;
    info->block_size = m->shape.block_size;
    info->window = m->shape.orthros ? m->shape.window : 0;
    info->eos_ids = m->eos_ids;
    info->hints = config->hints;
    info->has_chat_template = m->chat_template != NULL;
    info->chat_template_error = m->chat_template_error[0] ? m->chat_template_error : NULL;
    info->chat_template = m->chat_template_text;
    info->adds_bos = tokenizer_adds_bos(m->tokenizer);
}

static int set_fingerprint(struct model *m, struct checkpoint *ck,
                           const struct model_options *options, struct err *err) {
    uint64_t hash;
    int rc = checkpoint_fingerprint(ck, &hash, err);
    if (rc) return rc;
    const char *dtype = options->dtype ? options->dtype : "auto";
    hash = loader_hash(hash, dtype, strlen(dtype) + 1);
    hash = loader_hash(hash, &m->shape.window, sizeof m->shape.window);
    hash = loader_hash(hash, m->kernels->name, strlen(m->kernels->name) + 1);
    hash = loader_hash(hash, &m->shape.activations, sizeof m->shape.activations);
    hash = loader_hash(hash, &m->shape.deterministic, sizeof m->shape.deterministic);
    m->info.fingerprint = hash;
    return OK;
}

static bool computes_with(const struct kernels *kernels, enum activations activations) {
    return kernels->activations & 1u << activations;
}

/* One format for all rows. A matrix of blocks is enough for int8, since the others then meet rows in
 * f32: what is lost is speed, and in them alone. */
static enum activations auto_activations(const struct kernels *kernels,
                                         const uint64_t bytes_by_dtype[DTYPE_COUNT]) {
    bool blocks = false, narrow = false; /* some matrix is of them; some is not f32 */
    for (int d = 0; d < DTYPE_COUNT; d++) {
        if (!bytes_by_dtype[d]) continue;
        blocks |= dtype_block((enum dtype)d) > 1;
        narrow |= d != DTYPE_F32;
    }
    if (blocks && computes_with(kernels, ACTIVATIONS_INT8)) return ACTIVATIONS_INT8;
    if (narrow && computes_with(kernels, ACTIVATIONS_BF16)) return ACTIVATIONS_BF16;
    return ACTIVATIONS_F32;
}

int model_choose_activations(const char *name, const struct kernels *kernels,
                             const uint64_t bytes_by_dtype[DTYPE_COUNT], enum activations *out,
                             struct err *err) {
    if (!name || strcmp(name, "auto") == 0) {
        *out = auto_activations(kernels, bytes_by_dtype);
        return OK;
    }
    char allowed[64] = "auto";
    for (enum activations a = 0; a < ACTIVATIONS_COUNT; a++) {
        if (!computes_with(kernels, a)) continue;
        *out = a;
        if (strcmp(name, activations_name(a)) == 0) return OK;
        size_t at = strlen(allowed);
        snprintf(allowed + at, sizeof allowed - at, ", %s", activations_name(a));
    }
    return err_set(err, ERR_INVALID, "activations: \"%.60s\", the %s kernels allow %s", name,
                   kernels->name, allowed);
}

enum activations model_products(enum activations activations,
                                const uint64_t bytes_by_dtype[DTYPE_COUNT]) {
    if (activations != ACTIVATIONS_INT8) return activations;
    for (int d = 0; d < DTYPE_COUNT; d++)
        if (bytes_by_dtype[d] && dtype_block((enum dtype)d) > 1) return activations;
    return ACTIVATIONS_F32;
}

/* Everything but the weights themselves; what can be refused is refused here. */
static int prepare(struct model *m, const struct model_options *options, struct checkpoint *ck,
                   struct config *config, struct weight_plan *plan, struct err *err) {
    int rc = set_names(m, options, err);
    if (!rc) rc = checkpoint_config(ck, config, err);
    if (!rc) rc = model_set_window(config, options, err);
    if (!rc) rc = weights_plan(ck, config, plan, err);
    if (!rc) rc = set_text_side(m, ck, config, err);
    if (!rc) m->shape = config->shape;
    return rc;
}

static int parse_dtype(const char *name, int *out, struct err *err) {
    *out = -1;
    if (!name || strcmp(name, "auto") == 0) return OK;
    *out = dtype_parse(name);
    if (*out >= 0 && *out <= DTYPE_Q4_0) return OK;
    return err_set(err, ERR_INVALID,
                   "dtype: \"%.60s\", allowed are auto, f32, bf16, f16, q8_0, q4_0", name);
}

/* ---- the table --------------------------------------------------------------------------------- */

static bool is_auto(const char *name) {
    return !name || strcmp(name, "auto") == 0;
}

/* An automatic choice is silent about a build without CUDA (ERR_INVALID), not about a device that a
 * build with it does not find. */
const struct kernels *model_choose_kernels(const struct model_options *options, char *notice,
                                           size_t cap, struct err *err) {
    const struct kernels *kernels = NULL;
    struct err why = {0};
    bool asked = options->backend && strcmp(options->backend, "cuda") == 0;
    notice[0] = 0;
    if (asked) return kernels_cuda(err);
    if (is_auto(options->backend) && is_auto(options->cpu_table)) kernels = kernels_cuda(&why);
    if (kernels) return kernels;
    if (why.code && why.code != ERR_INVALID)
        snprintf(notice, cap, "%s; the CPU is used", why.msg);
    else if (options->deterministic)
        snprintf(notice, cap, "deterministic: without meaning here, the CPU always is");
    return kernels_find(options->cpu_table ? options->cpu_table : "auto", err);
}

const char *model_backend_name(const struct kernels *kernels) {
    return strcmp(kernels->name, "cuda") == 0 ? "cuda" : "cpu";
}

void model_set_table_info(struct model *m) {
    if (m->kernels->hardware) m->kernels->hardware(m->hardware, sizeof m->hardware);
    m->info.backend = model_backend_name(m->kernels);
    m->info.kernel_table = m->kernels->name;
    m->info.hardware = m->hardware[0] ? m->hardware : NULL;
}

/* ---- all of it --------------------------------------------------------------------------------- */

int model_load_on(const struct model_options *options, const struct kernels *kernels,
                  struct model **out, struct err *err) {
    struct model *m = calloc(1, sizeof *m);
    if (!m) return err_set(err, ERR_NOMEM, "%s: no memory", options->path);
    m->kernels = kernels;
    struct config config = {0};
    struct weight_plan plan = {0};
    struct stage stage = {.progress = {.out = options->progress,
                                       .bar = options->progress_bar && isatty(STDERR_FILENO),
                                       .shown = UINT32_MAX}};
    enum dtype *dtypes = NULL;
    uint64_t by_dtype[DTYPE_COUNT] = {0};
    int want, rc = parse_dtype(options->dtype, &want, err);
    progress_phase(options, LOAD_OPEN);
    if (!rc) rc = checkpoint_open(options->path, &stage.ck, err);
    if (!rc) rc = prepare(m, options, stage.ck, &config, &plan, err);
    if (rc) goto done;

    dtypes = calloc(plan.n_items, sizeof *dtypes);
    if (!dtypes) rc = err_set(err, ERR_NOMEM, "%s: no memory", options->path);
    if (!rc) rc = size_stage(&stage, &plan, want, dtypes, by_dtype, err);
    if (!rc)
        rc = model_choose_activations(options->activations, kernels, by_dtype,
                                      &m->shape.activations, err);
    m->shape.deterministic = options->deterministic;
    m->shape.pin_threads = options->pin_threads;
    if (!rc) rc = set_fingerprint(m, stage.ck, options, err);
    if (rc) goto done;
    progress_phase(options, LOAD_WEIGHTS);
    uint32_t n_threads = options->n_threads ? options->n_threads : cpu_count();
    rc = kernels->open(&m->shape, n_threads, &m->device, err);
    m->shape.rope_freq = NULL; /* the config's, borrowed during open */
    if (!rc) rc = load_weights(&stage, m, &plan, dtypes, n_threads, err);
    if (rc) goto done;
    set_info(m, &config, by_dtype);
    m->info.n_threads = n_threads;
    for (size_t i = 0; i < plan.n_items; i++) {
        const struct weight_item *item = &plan.items[i];
        enum dtype kept =
            item->matrix ? costs_kept(kernels, m->shape.activations, dtypes[i]) : dtypes[i];
        costs_add(&m->costs, &m->shape, item, kept);
        m->info.weight_bytes += weights_bytes(item, kept);
    }
    progress_phase(options, LOAD_CACHE);
    *out = m;
    m = NULL;
done:
    free(dtypes);
    weights_plan_free(&plan);
    config_fini(&config);
    checkpoint_close(stage.ck);
    model_destroy(m);
    return rc;
}

int model_load(const struct model_options *options, struct model **out, struct err *err) {
    char notice[sizeof(*out)->notice];
    const struct kernels *kernels = model_choose_kernels(options, notice, sizeof notice, err);
    if (!kernels) return err ? err->code : ERR_INVALID;
    int rc = options->synthetic ? synthetic_load(options, kernels, out, err)
                                : model_load_on(options, kernels, out, err);
    if (rc || !notice[0]) return rc;
    memcpy((*out)->notice, notice, sizeof notice);
    (*out)->info.notice = (*out)->notice;
    return OK;
}

void model_destroy(struct model *m) {
    if (!m) return;
    if (m->device) m->kernels->close(m->device);
    tokenizer_destroy(m->tokenizer);
    chat_template_destroy(m->chat_template);
    free(m->chat_template_text);
    free(m->name);
    free(m->path);
    free(m);
}

const struct model_info *model_info(const struct model *m) {
    return &m->info;
}
