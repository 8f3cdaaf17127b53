/* synthetic.c: see synthetic.h.
 *
 * Matrices are uniform in +-sqrt(3 / columns), which keeps activations near their usual size, norms
 * are 1; MSAR's convolutions count their taps for columns, its mixers have bias 0 and scale 1. Every number is a function of (weight, layer, index) alone. */
#include "engine/load/synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu_count.h"
#include "engine/load/costs.h"
#include "engine/load/loader.h"
#include "engine/load/model_internal.h"
#include "engine/load/weights.h"

enum {
    CHUNK = 1 << 16,  /* numbers that are made at a time, at least */
    NAME_BYTES = 128, /* of a whole spec */
    WORD_BYTES = 5,   /* " abcd" */
    WINDOW_MAX = 1 << 24,
};

struct shape {
    const char *name;
    enum backbone backbone;
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab_size, max_position;
    float rms_eps;
    bool tied_head, qk_norm;
    double rope_theta;
    bool llama3_rope;
};

/* As their config.json files have it, but for the context of smollm2-135m (8192): four times as
 * long, so that the price of long prompts can be measured on a small model. `tiny` is nobody's: it is for
 * trying the bench itself. */
static const struct shape SHAPES[] = {
    {"tiny", BACKBONE_QWEN3, 2, 64, 4, 2, 16, 128, 512, 4096, 1e-6f, true, true, 1e4, false},
    {"smollm2-135m", BACKBONE_LLAMA, 30, 576, 9, 3, 64, 1536, 49152, 32768, 1e-5f, true, false, 1e5,
     false},
    {"qwen3-1.7b", BACKBONE_QWEN3, 28, 2048, 16, 8, 128, 6144, 151936, 40960, 1e-6f, true, true,
     1e6, false},
    {"qwen3-8b", BACKBONE_QWEN3, 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e-6f, false, true,
     1e6, false},
    {"llama3.1-8b", BACKBONE_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 131072, 1e-5f, false,
     false, 5e5, true},
};

/* ---- the spec ---------------------------------------------------------------------------------- */

static const struct shape *find_shape(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(SHAPES); i++)
        if (strcmp(SHAPES[i].name, name) == 0) return &SHAPES[i];
    return NULL;
}

static void set_shape(const struct shape *shape, struct config *out) {
    *out = (struct config){.backbone = shape->backbone, .qk_norm = shape->qk_norm};
    out->shape = (struct model_shape){
        .n_layers = shape->n_layers,
        .d_model = shape->d_model,
        .n_heads = shape->n_heads,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .d_ff = shape->d_ff,
        .vocab_size = shape->vocab_size,
        .rms_eps = shape->rms_eps,
        .tied_head = shape->tied_head,
        .max_position = shape->max_position,
    };
    rope_init(&out->rope);
    out->rope.theta = shape->rope_theta;
    if (!shape->llama3_rope) return;
    out->rope.type = ROPE_LLAMA3;
    out->rope.factor = 8;
    out->rope.low_freq_factor = 1;
    out->rope.high_freq_factor = 4;
    out->rope.original_max = 8192;
}

/* The number behind "key=" in part, in lo .. hi. */
static int parse_number(const char *part, size_t key_len, uint32_t lo, uint32_t hi, uint32_t *out,
                        struct err *err) {
    const char *text = part + key_len;
    uint64_t n = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && n <= hi; at++)
        n = n * 10 + (uint64_t)(*at - '0');
    if (at == text || *at || n < lo || n > hi)
        return err_set(err, ERR_INVALID, "synthetic: \"%.60s\", expected a number from %u to %u",
                       part, lo, hi);
    *out = (uint32_t)n;
    return OK;
}

static int set_part(const char *part, struct config *out, struct err *err) {
    if (strncmp(part, "window=", 7) == 0) {
        out->shape.orthros = true;
        return parse_number(part, 7, 1, WINDOW_MAX, &out->shape.window, err);
    }
    if (strncmp(part, "drafts=", 7) == 0) {
        out->shape.mask_token = (int32_t)out->shape.vocab_size - 1;
        return parse_number(part, 7, 2, DRAFT_MAX, &out->shape.block_size, err);
    }
    if (strcmp(part, "msar") == 0) { /* the paper's streams */
        static const uint32_t kernels[] = {1, 4, 8, 12};
        memcpy(out->shape.msar_kernels, kernels, sizeof kernels);
        out->shape.n_msar_streams = ARRAY_LEN(kernels);
        out->shape.msar_branches = 4;
        return OK;
    }
    return err_set(err, ERR_INVALID, "synthetic: \"%.60s\", expected window=N, drafts=B or msar",
                   part);
}

int synthetic_config(const char *spec, struct config *out, struct err *err) {
    char copy[NAME_BYTES], *save = NULL;
    size_t len = strlen(spec);
    if (len == 0 || len >= sizeof copy)
        return err_set(err, ERR_INVALID,
                       "synthetic: %zu bytes, expected NAME[,window=N][,drafts=B][,msar]", len);
    memcpy(copy, spec, len + 1);
    const char *name = strtok_r(copy, ",", &save);
    const struct shape *shape = name ? find_shape(name) : NULL;
    if (!shape)
        return err_set(err, ERR_INVALID,
                       "synthetic: \"%.60s\", known are tiny, smollm2-135m, qwen3-1.7b, qwen3-8b, "
                       "llama3.1-8b",
                       name ? name : spec);
    set_shape(shape, out);
    int rc = OK;
    for (const char *part; rc == OK && (part = strtok_r(NULL, ",", &save));)
        rc = set_part(part, out, err);
    return rc == OK ? config_finish(out, err) : rc;
}

/* ---- weights ----------------------------------------------------------------------------------- */

/* A hash of 32 bits, evenly spread over them (a multiply-xorshift permutation). */
static uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

static void make_numbers(uint32_t key, uint64_t first, size_t n, float scale, float *out) {
    uint32_t high = mix(key ^ (uint32_t)(first >> 32));
    for (size_t i = 0; i < n; i++) {
        int32_t r = (int32_t)mix(high ^ (uint32_t)(first + i));
        out[i] = (float)r * (scale / 2147483648.0f);
    }
}

static uint32_t key_of(const struct weight_item *item) {
    return mix(item->layer * WEIGHT_COUNT + (uint32_t)item->which + 1);
}

static float spread_of(const struct weight_item *item) {
    bool conv = item->which == WEIGHT_MSAR_CONV;
    return sqrtf(3.0f / (float)(conv ? item->rows : item->cols));
}

static void fill_matrix(const struct weight_item *item, enum dtype dtype, float *numbers,
                        size_t chunk_rows, uint8_t *out) {
    float scale = spread_of(item);
    uint32_t key = key_of(item);
    size_t row_bytes = dtype_row_bytes(dtype, item->cols);
    for (size_t row = 0; row < item->rows; row += chunk_rows) {
        size_t n_rows = item->rows - row < chunk_rows ? item->rows - row : chunk_rows;
        size_t n = n_rows * item->cols;
        make_numbers(key, row * item->cols, n, scale, numbers);
        dtype_from_f32(dtype, numbers, n, out + row * row_bytes);
    }
}

/* Of norms and scales; these shapes have no biases but those of MSAR's mixers. */
static float constant_of(const struct weight_item *item) {
    return item->which == WEIGHT_MSAR_MIX_BIAS ? 0 : 1;
}

static void fill_vector(const struct weight_item *item, float *out) {
    for (uint32_t i = 0; i < item->cols; i++)
        out[i] = constant_of(item);
}

static bool is_random(const struct weight_item *item) {
    return item->matrix || item->which == WEIGHT_MSAR_CONV || item->which == WEIGHT_MSAR_QUERY ||
           item->which == WEIGHT_MSAR_MIX || item->which == WEIGHT_MSAR_READOUT;
}

/* The same on a device that makes its own numbers: other ones, but as spread. */
static int make_on_device(struct model *m, const struct weight_plan *plan, enum dtype dtype,
                          struct err *err) {
    int rc = OK;
    for (size_t i = 0; rc == OK && i < plan->n_items; i++) {
        const struct weight_item *item = &plan->items[i];
        bool random = is_random(item);
        rc = m->kernels->load_random(
            m->device, item->which, item->layer, item->matrix ? dtype : DTYPE_F32, key_of(item),
            random ? 0 : constant_of(item), random ? spread_of(item) : 0, err);
    }
    return rc;
}

static int load_weights(struct model *m, const struct weight_plan *plan, enum dtype dtype,
                        struct err *err) {
    if (m->kernels->load_random) return make_on_device(m, plan, dtype, err);
    size_t most = 0, widest = 0;
    for (size_t i = 0; i < plan->n_items; i++) {
        const struct weight_item *item = &plan->items[i];
        size_t bytes = (size_t)weights_bytes(item, item->matrix ? dtype : DTYPE_F32);
        most = bytes > most ? bytes : most;
        widest = item->cols > widest ? item->cols : widest;
    }
    uint8_t *staging = malloc(most);
    float *numbers = malloc((CHUNK + widest) * sizeof *numbers);
    int rc = OK;
    if (!staging || !numbers)
        rc = err_set(err, ERR_NOMEM, "synthetic: no memory for a weight of %zu bytes", most);
    for (size_t i = 0; rc == OK && i < plan->n_items; i++) {
        const struct weight_item *item = &plan->items[i];
        struct tensor tensor = {item->matrix ? dtype : DTYPE_F32, item->rows, item->cols, staging};
        if (is_random(item))
            fill_matrix(item, tensor.dtype, numbers, div_ceil(CHUNK, item->cols), staging);
        else
            fill_vector(item, (float *)(void *)staging);
        rc = m->kernels->load(m->device, item->which, item->layer, &tensor, err);
    }
    free(numbers);
    free(staging);
    return rc;
}

/* ---- the rest ---------------------------------------------------------------------------------- */

/* " aaaa", " aaab", ...: a word for every id. */
static int make_tokenizer(uint32_t n, struct tokenizer **out, struct err *err) {
    char *words = malloc((size_t)n * WORD_BYTES);
    const char **pieces = calloc(n, sizeof *pieces);
    size_t *lens = calloc(n, sizeof *lens);
    int rc = ERR_NOMEM;
    if (words && pieces && lens) {
        for (uint32_t id = 0; id < n; id++) {
            char *word = words + (size_t)id * WORD_BYTES;
            word[0] = ' ';
            for (uint32_t i = WORD_BYTES - 1, rest = id; i > 0; i--, rest /= 26)
                word[i] = (char)('a' + rest % 26);
            pieces[id] = word;
            lens[id] = WORD_BYTES;
        }
        rc = tokenizer_from_pieces(pieces, lens, NULL, n, out, err);
    } else {
        err_set(err, ERR_NOMEM, "synthetic: no memory for %u words", n);
    }
    free(words);
    free(pieces);
    free(lens);
    return rc;
}

static int parse_dtype(const char *name, enum dtype *out, struct err *err) {
    bool as_is = !name || strcmp(name, "auto") == 0;
    int dtype = as_is ? DTYPE_BF16 : dtype_parse(name);
    if (dtype < 0 || dtype > DTYPE_Q4_0)
        return err_set(err, ERR_INVALID,
                       "dtype: \"%.60s\", allowed are auto, f32, bf16, f16, q8_0, q4_0", name);
    *out = (enum dtype)dtype;
    return OK;
}

static void set_info(struct model *m, const struct config *config, const char *spec,
                     const struct weight_plan *plan, enum dtype dtype) {
    uint64_t matrix_bytes[DTYPE_COUNT] = {0};
    matrix_bytes[dtype] = 1;
    m->weight_dtype = dtype;
    m->products = model_products(m->shape.activations, matrix_bytes);
    m->info = (struct model_info){
        .name = m->name,
        .path = m->path,
        .architecture = backbone_name(config->backbone),
        .weight_dtype = dtype_name(dtype),
        .activations = activations_name(m->products),
        .vocab_size = m->shape.vocab_size,
        .context_length = m->shape.max_position,
        .block_size = m->shape.block_size,
        .window = m->shape.orthros ? m->shape.window : 0,
        .eos_ids = m->eos_ids,
    };
    model_set_table_info(m);
    for (size_t i = 0; i < plan->n_items; i++) {
        const struct weight_item *item = &plan->items[i];
        enum dtype kept =
            item->matrix ? costs_kept(m->kernels, m->shape.activations, dtype) : DTYPE_F32;
        m->info.weight_bytes += weights_bytes(item, kept);
        costs_add(&m->costs, &m->shape, item, kept);
    }
    uint64_t hash = loader_hash(LOADER_HASH_START, spec, strlen(spec) + 1);
    hash = loader_hash(hash, &dtype, sizeof dtype);
    hash = loader_hash(hash, &m->shape.activations, sizeof m->shape.activations);
    hash = loader_hash(hash, &m->shape.deterministic, sizeof m->shape.deterministic);
    m->info.fingerprint = loader_hash(hash, m->kernels->name, strlen(m->kernels->name) + 1);
}

int synthetic_load(const struct model_options *options, const struct kernels *kernels,
                   struct model **out, struct err *err) {
    const char *spec = options->synthetic;
    struct config config = {0};
    struct weight_plan plan = {0};
    enum dtype dtype = DTYPE_BF16;
    struct model *m = calloc(1, sizeof *m);
    if (!m) return err_set(err, ERR_NOMEM, "synthetic: no memory");
    m->kernels = kernels;
    m->path = strdup(spec);
    m->name = strdup(options->name ? options->name : spec);
    int rc = m->path && m->name ? OK : err_set(err, ERR_NOMEM, "synthetic: no memory");
    if (rc == OK) rc = parse_dtype(options->dtype, &dtype, err);
    if (rc == OK) rc = synthetic_config(spec, &config, err);
    if (rc == OK) rc = model_set_window(&config, options, err);
    if (rc == OK) rc = weights_plan(NULL, &config, &plan, err);
    if (rc == OK) rc = make_tokenizer(config.shape.vocab_size, &m->tokenizer, err);
    uint32_t n_threads = options->n_threads ? options->n_threads : cpu_count();
    if (rc == OK) {
        m->shape = config.shape;
        m->shape.deterministic = options->deterministic;
        m->shape.pin_threads = options->pin_threads;
        uint64_t matrix_bytes[DTYPE_COUNT] = {0};
        matrix_bytes[dtype] = 1;
        rc = model_choose_activations(options->activations, kernels, matrix_bytes,
                                      &m->shape.activations, err);
    }
    if (rc == OK) {
        rc = kernels->open(&m->shape, n_threads, &m->device, err);
        m->shape.rope_freq = NULL; /* the config's, borrowed during open */
    }
    if (rc == OK) rc = load_weights(m, &plan, dtype, err);
    if (rc == OK) {
        set_info(m, &config, spec, &plan, dtype);
        m->info.n_threads = n_threads;
        *out = m;
        m = NULL;
    }
    weights_plan_free(&plan);
    config_fini(&config);
    model_destroy(m);
    return rc;
}
