/* convert.c: a checkpoint rewritten: other number formats, or a plain model made into the start of one
 * with Orthros streams (identity affines) or a draft view (copies of its projections).
 *
 *   checkpoint -> config -> plan -> outputs -> entries (one output: a tensor, or 2 or 3 with scales)
 *   then each output:  file --pread--> rows --convert--> split --pwrite--> its entries
 *
 * What can be refused is refused before the directory is made. config.json comes last: without it
 * the rest is no checkpoint.
 *
 *   form     written as
 *   Q8_0     I8 [out, in], F16 scale [out, in/32]                       exact
 *   Q4_1     U8 [out, in/2], F16 scale and min [out, in/32]             exact, nibbles in order
 *   Q4_0     the same with min = -8 scale: d (q - 8) = d q + (-8 d)     exact, since 8 is a power of 2
 *
 * Vectors and MSAR tensors meet the model as float32 whatever --dtype says, so they are never rounded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/load/convert_internal.h"
#include "engine/load/loader.h"
#include "engine/load/safetensors_write.h"
#include "engine/load/weights.h"

enum { CHUNK_ELEMENTS = 1 << 20, NAME_CAP = 192, BLOCK = 32 };
#define SHARD_BYTES_DEFAULT (4ull << 30)

/* One tensor of the model as it will be. */
struct output {
    char *name;
    int64_t source;          /* index into the checkpoint; -1: every element is `fill` */
    enum dtype stored, form; /* in the checkpoint; in the new one */
    uint64_t rows, cols;     /* a vector is one row */
    uint32_t n_dims;
    float fill;
    size_t entry; /* first of its entries */
};

struct job {
    const struct convert_options *options;
    struct checkpoint *ck;
    struct config config;
    struct tokenizer *tokenizer;
    int want; /* enum dtype of matrices, or -1: as they are */
    int32_t mask_token;
    struct output *outputs;
    size_t n_outputs, outputs_cap;
    struct safetensors_entry *entries;
    char *entry_names; /* NAME_CAP each */
    size_t n_entries;
    struct convert_texts texts;
    struct safetensors_writer *writer;
    /* Buffers of a chunk of rows. */
    size_t chunk_elements;
    uint8_t *stored, *formed, *split;
    float *floats;
    uint64_t done, total; /* bytes of data */
};

/* ---- outputs ----------------------------------------------------------------------------------- */

static int add_output(struct job *j, const char *name, struct output output, struct err *err) {
    if (j->n_outputs == j->outputs_cap) {
        size_t cap = j->outputs_cap ? j->outputs_cap * 2 : 256;
        struct output *outputs = realloc(j->outputs, cap * sizeof *outputs);
        if (!outputs) return err_set(err, ERR_NOMEM, "no memory for the list of tensors");
        j->outputs = outputs;
        j->outputs_cap = cap;
    }
    output.name = strdup(name);
    if (!output.name) return err_set(err, ERR_NOMEM, "no memory for the list of tensors");
    j->outputs[j->n_outputs++] = output;
    return OK;
}

static bool is_plain(enum dtype dtype) {
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

static bool has_form(enum dtype dtype) {
    return is_plain(dtype) || dtype == DTYPE_Q8_0 || dtype == DTYPE_Q4_0 || dtype == DTYPE_Q4_1;
}

/* How a matrix of the model is written. Rows that are no whole blocks stay as they are. */
static int matrix_form(const struct job *j, const struct checkpoint_tensor *t, enum dtype *out,
                       struct err *err) {
    enum dtype stored = (enum dtype)t->dtype, form = stored;
    if (j->want >= 0) form = (enum dtype)j->want;
    if (t->shape[1] % dtype_block(form)) form = stored;
    /* Finer than asked for, and exact. */
    if (stored == DTYPE_Q4_0 && form == DTYPE_Q4_1) form = DTYPE_Q4_0;
    if (!has_form(form))
        return err_set(
            err, ERR_INVALID,
            "weights: %s: type %s has no form in safetensors; --dtype names one that has", t->name,
            t->type);
    *out = form;
    return OK;
}

/* is_matrix: by the model's plan, so a --dtype applies. */
static int add_stored(struct job *j, size_t i, bool is_matrix, struct err *err) {
    const struct checkpoint_tensor *t = checkpoint_tensor(j->ck, i);
    struct output o = {.source = (int64_t)i,
                       .stored = (enum dtype)t->dtype,
                       .rows = t->n_dims == 2 ? t->shape[0] : 1,
                       .cols = t->shape[t->n_dims - 1],
                       .n_dims = t->n_dims};
    int rc = OK;
    if (is_matrix)
        rc = matrix_form(j, t, &o.form, err);
    else
        o.form = is_plain(o.stored) && j->want != DTYPE_F32 ? o.stored : DTYPE_F32;
    return rc ? rc : add_output(j, t->name, o, err);
}

/* q_proj.weight -> q_proj_diff.weight; false for a tensor that the draft view has no copy of. */
static bool diff_name(enum weight which, const char *name, char out[NAME_CAP]) {
    switch (which) {
    case WEIGHT_Q:
    case WEIGHT_K:
    case WEIGHT_V:
    case WEIGHT_O:
    case WEIGHT_Q_BIAS:
    case WEIGHT_K_BIAS:
    case WEIGHT_V_BIAS:
    case WEIGHT_O_BIAS:
    case WEIGHT_Q_NORM:
    case WEIGHT_K_NORM:
        break;
    default:
        return false;
    }
    const char *kind = strrchr(name, '.');
    snprintf(out, NAME_CAP, "%.*s_diff%s", (int)(kind - name), name, kind);
    return true;
}

/* Scale 1 and shift 0 of both streams. */
static int add_affines(struct job *j, uint32_t layer, struct err *err) {
    static const char *const streams[] = {"base", "output"};
    const struct model_shape *s = &j->config.shape;
    int rc = OK;
    for (size_t i = 0; !rc && i < 4; i++) {
        char name[NAME_CAP];
        bool scale = i % 2 == 0;
        snprintf(name, sizeof name, "model.layers.%u.self_attn.q_affine_%s.%s", layer,
                 streams[i / 2], scale ? "weight" : "bias");
        rc = add_output(j, name,
                        (struct output){.source = -1,
                                        .form = DTYPE_F32,
                                        .rows = 1,
                                        .cols = (uint64_t)s->n_heads * s->head_dim,
                                        .n_dims = 1,
                                        .fill = scale ? 1 : 0},
                        err);
    }
    return rc;
}

static int by_name(const void *a, const void *b) {
    const struct output *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int list_outputs(struct job *j, const struct weight_plan *plan, struct err *err) {
    size_t n = checkpoint_n_tensors(j->ck);
    bool *matrix = calloc(n + 1, sizeof *matrix);
    if (!matrix) return err_set(err, ERR_NOMEM, "no memory for the list of tensors");
    int rc = OK;
    for (size_t i = 0; i < plan->n_items; i++)
        if (plan->items[i].which < WEIGHT_COUNT)
            matrix[plan->items[i].tensor] = plan->items[i].matrix;
    for (size_t i = 0; !rc && i < n; i++)
        if (!weights_inert(&j->config, checkpoint_tensor(j->ck, i)->name))
            rc = add_stored(j, i, matrix[i], err);
    for (size_t i = 0; !rc && j->options->block && i < plan->n_items; i++) {
        const struct weight_item *item = &plan->items[i];
        char name[NAME_CAP];
        if (!diff_name(item->which, checkpoint_tensor(j->ck, item->tensor)->name, name)) continue;
        rc = add_stored(j, item->tensor, item->matrix, err);
        if (rc) break;
        char *copy = strdup(name);
        if (!copy) rc = err_set(err, ERR_NOMEM, "no memory for the list of tensors");
        if (rc) break;
        free(j->outputs[j->n_outputs - 1].name);
        j->outputs[j->n_outputs - 1].name = copy;
    }
    for (uint32_t l = 0; !rc && j->options->window && l < j->config.shape.n_layers; l++)
        rc = add_affines(j, l, err);
    free(matrix);
    if (!rc) qsort(j->outputs, j->n_outputs, sizeof *j->outputs, by_name);
    return rc;
}

/* ---- entries ----------------------------------------------------------------------------------- */

static struct safetensors_entry *add_entry(struct job *j, const struct output *o,
                                           const char *suffix, const char *dtype, uint64_t cols) {
    char *name = j->entry_names + j->n_entries * NAME_CAP;
    snprintf(name, NAME_CAP, "%s%s", o->name, suffix);
    struct safetensors_entry *e = &j->entries[j->n_entries++];
    *e = (struct safetensors_entry){
        name, dtype, o->n_dims, {o->n_dims == 2 ? o->rows : cols, cols}, *suffix != 0};
    return e;
}

static void add_entries(struct job *j, struct output *o) {
    static const char *const plain[] = {
        [DTYPE_F32] = "F32", [DTYPE_F16] = "F16", [DTYPE_BF16] = "BF16"};
    o->entry = j->n_entries;
    if (is_plain(o->form)) {
        add_entry(j, o, "", plain[o->form], o->cols);
    } else if (o->form == DTYPE_Q8_0) {
        add_entry(j, o, "", "I8", o->cols);
        add_entry(j, o, "_scale", "F16", o->cols / BLOCK);
    } else {
        add_entry(j, o, "", "U8", o->cols / 2);
        add_entry(j, o, "_scale", "F16", o->cols / BLOCK);
        add_entry(j, o, "_min", "F16", o->cols / BLOCK);
    }
}

static int list_entries(struct job *j, struct err *err) {
    j->entries = calloc(3 * j->n_outputs, sizeof *j->entries);
    j->entry_names = calloc(3 * j->n_outputs, NAME_CAP);
    if (!j->entries || !j->entry_names)
        return err_set(err, ERR_NOMEM, "no memory for the list of tensors");
    for (size_t i = 0; i < j->n_outputs; i++) {
        if (strlen(j->outputs[i].name) + sizeof "_scale" > NAME_CAP)
            return err_set(err, ERR_TOO_LONG, "weights: %.100s..: a name of %zu bytes",
                           j->outputs[i].name, strlen(j->outputs[i].name));
        add_entries(j, &j->outputs[i]);
    }
    for (size_t i = 0; i < j->n_entries; i++)
        j->total += safetensors_entry_bytes(&j->entries[i]);
    return OK;
}

/* ---- one output -------------------------------------------------------------------------------- */

static uint64_t chunk_rows(const struct output *o) {
    uint64_t n = o->cols ? CHUNK_ELEMENTS / o->cols : 1;
    if (n == 0) n = 1;
    return n < o->rows ? n : o->rows;
}

static int make_buffers(struct job *j, struct err *err) {
    for (size_t i = 0; i < j->n_outputs; i++) {
        size_t n = (size_t)(chunk_rows(&j->outputs[i]) * j->outputs[i].cols);
        if (n > j->chunk_elements) j->chunk_elements = n;
    }
    size_t bytes = j->chunk_elements * sizeof(float) + BLOCK * sizeof(float);
    j->stored = malloc(bytes);
    j->formed = malloc(bytes);
    j->split = malloc(bytes);
    j->floats = malloc(bytes);
    if (j->stored && j->formed && j->split && j->floats) return OK;
    return err_set(err, ERR_NOMEM, "no memory for buffers of %zu bytes", bytes);
}

/* Rows of an output in its form; *out points into a buffer of the job. */
static int form_rows(struct job *j, const struct output *o, uint64_t row, uint64_t n_rows,
                     const uint8_t **out, struct err *err) {
    size_t n = (size_t)(n_rows * o->cols);
    if (o->source < 0) {
        for (size_t i = 0; i < n; i++)
            j->floats[i] = o->fill;
        *out = (const uint8_t *)j->floats;
        return OK;
    }
    int rc = checkpoint_read(j->ck, (size_t)o->source, row, n_rows, j->stored, err);
    *out = j->stored;
    if (rc || o->stored == o->form) return rc;
    dtype_to_f32(o->stored, j->stored, n, j->floats);
    *out = (const uint8_t *)j->floats;
    if (o->form == DTYPE_F32) return OK;
    *out = j->formed;
    return weights_round(o->name, o->form, j->floats, n, j->formed, err);
}

static int put(struct job *j, const struct output *o, size_t which, uint64_t at, const void *data,
               size_t n, struct err *err) {
    j->done += n;
    return safetensors_writer_put(j->writer, o->entry + which, at, data, n, err);
}

static int check_scale(const struct output *o, const uint8_t *f16, struct err *err) {
    if ((f16[1] & 0x7c) != 0x7c) return OK;
    return err_set(err, ERR_INVALID, "weights: %s: a block has a scale that is not finite",
                   o->name);
}

/* Q8_0 blocks (scale, 32 values) to values and scales. */
static int put_q8_0(struct job *j, const struct output *o, uint64_t first, size_t n,
                    const uint8_t *b, struct err *err) {
    uint8_t *values = j->split, *scales = j->split + n * BLOCK;
    for (size_t i = 0; i < n; i++, b += 34) {
        int rc = check_scale(o, b, err);
        if (rc) return rc;
        memcpy(scales + i * 2, b, 2);
        memcpy(values + i * BLOCK, b + 2, BLOCK);
    }
    int rc = put(j, o, 0, first * BLOCK, values, n * BLOCK, err);
    return rc ? rc : put(j, o, 1, first * 2, scales, n * 2, err);
}

/* Byte i of a block holds elements i and i + 16; of a row, elements 2i and 2i + 1. */
static void order_nibbles(const uint8_t in[16], uint8_t out[16]) {
    for (int i = 0; i < 16; i++) {
        int even = 2 * i, odd = 2 * i + 1;
        int low = even < 16 ? in[even] & 15 : in[even - 16] >> 4;
        int high = odd < 16 ? in[odd] & 15 : in[odd - 16] >> 4;
        out[i] = (uint8_t)(low | high << 4);
    }
}

/* -8 times a scale: exact, unless it is beyond f16. */
static void minus_eight(const uint8_t scale[2], uint8_t min[2]) {
    uint16_t h = f32_to_f16(-8 * f16_to_f32((uint16_t)(scale[0] | scale[1] << 8)));
    min[0] = (uint8_t)h;
    min[1] = (uint8_t)(h >> 8);
}

/* Q4_1 blocks (scale, min, 16 bytes) or Q4_0 blocks (scale, 16 bytes) to nibbles, scales, minima. */
static int put_q4(struct job *j, const struct output *o, uint64_t first, size_t n, const uint8_t *b,
                  struct err *err) {
    bool has_min = o->form == DTYPE_Q4_1;
    size_t head = has_min ? 4 : 2;
    uint8_t *nibbles = j->split, *scales = nibbles + n * 16, *minima = scales + n * 2;
    for (size_t i = 0; i < n; i++, b += head + 16) {
        memcpy(scales + i * 2, b, 2);
        if (has_min)
            memcpy(minima + i * 2, b + 2, 2);
        else
            minus_eight(b, minima + i * 2);
        int rc = check_scale(o, scales + i * 2, err);
        if (!rc) rc = check_scale(o, minima + i * 2, err);
        if (rc) return rc;
        order_nibbles(b + head, nibbles + i * 16);
    }
    int rc = put(j, o, 0, first * 16, nibbles, n * 16, err);
    if (!rc) rc = put(j, o, 1, first * 2, scales, n * 2, err);
    return rc ? rc : put(j, o, 2, first * 2, minima, n * 2, err);
}

static int write_output(struct job *j, const struct output *o, struct err *err) {
    uint64_t step = chunk_rows(o);
    int rc = OK;
    for (uint64_t row = 0; !rc && row < o->rows; row += step) {
        uint64_t n_rows = o->rows - row < step ? o->rows - row : step;
        const uint8_t *data = NULL;
        rc = form_rows(j, o, row, n_rows, &data, err);
        if (rc) return rc;
        uint64_t first = row * (o->cols / BLOCK);
        size_t n_blocks = (size_t)(n_rows * (o->cols / BLOCK));
        size_t row_bytes = dtype_row_bytes(o->form, (size_t)o->cols);
        if (is_plain(o->form))
            rc = put(j, o, 0, row * row_bytes, data, (size_t)n_rows * row_bytes, err);
        else if (o->form == DTYPE_Q8_0)
            rc = put_q8_0(j, o, first, n_blocks, data, err);
        else
            rc = put_q4(j, o, first, n_blocks, data, err);
        const struct convert_options *c = j->options;
        if (!rc && c->progress && !c->progress(c->progress_arg, j->done, j->total))
            rc = err_set(err, ERR_CANCELLED, "%s: stopped, nothing is left of it", c->out);
    }
    return rc;
}

/* ---- the whole --------------------------------------------------------------------------------- */

static int parse_dtype(const char *name, int *out, struct err *err) {
    *out = -1;
    if (!name || strcmp(name, "auto") == 0) return OK;
    *out = dtype_parse(name);
    if (*out >= 0 && has_form((enum dtype) * out)) return OK;
    return err_set(err, ERR_INVALID,
                   "dtype: \"%.60s\", allowed are auto, f32, bf16, f16, q8_0, q4_0, q4_1", name);
}

/* The id of a token that the tokenizer names, or -1. */
static int32_t named_id(const struct job *j, const char *name) {
    const char *text = tokenizer_named_special(j->tokenizer, name);
    return text ? tokenizer_find(j->tokenizer, text, strlen(text)) : -1;
}

/* Draft rows hold this token where they know none. A row of the embedding that no text uses serves
 * best (published checkpoints take the first beyond the tokenizer's), else what pads or ends. */
static int choose_mask(struct job *j, struct err *err) {
    uint32_t n = tokenizer_n_tokens(j->tokenizer), rows = j->config.shape.vocab_size;
    int32_t given = j->options->mask_token;
    if (given >= (int64_t)rows)
        return err_set(err, ERR_INVALID, "mask token: %d, this model has %u rows (0 to %u)", given,
                       rows, rows - 1);
    const int32_t choices[] = {given, named_id(j, "mask_token"), n < rows ? (int32_t)n : -1,
                               named_id(j, "pad_token"),
                               j->config.n_eos > 0 ? j->config.eos_ids[0] : -1};
    for (size_t i = 0; j->mask_token < 0 && i < ARRAY_LEN(choices); i++)
        j->mask_token = choices[i];
    if (j->mask_token >= 0) return OK;
    return err_set(err, ERR_INVALID,
                   "mask token: this model has no row to spare, no padding and no end token: give "
                   "one");
}

static int check_additions(struct job *j, struct err *err) {
    const struct model_shape *s = &j->config.shape;
    const struct convert_options *o = j->options;
    j->mask_token = -1;
    if (o->window && s->orthros)
        return err_set(err, ERR_INVALID, "orthros: %u, this model has a window of its own (%u)",
                       o->window, s->window);
    if (!o->block) return OK;
    if (s->block_size)
        return err_set(err, ERR_INVALID, "orthrus: %u, this model has a draft view of its own",
                       o->block);
    return choose_mask(j, err);
}

/* torch_dtype says what most numbers are; blocks have no name there. */
static const char *torch_dtype(const struct job *j) {
    static const char *const names[] = {
        [DTYPE_F32] = "float32", [DTYPE_F16] = "float16", [DTYPE_BF16] = "bfloat16"};
    if (j->want >= 0 && is_plain((enum dtype)j->want)) return names[j->want];
    if (!checkpoint_is_gguf(j->ck)) return NULL;
    int64_t i = checkpoint_find(j->ck, "model.embed_tokens.weight");
    int stored = i < 0 ? -1 : checkpoint_tensor(j->ck, (size_t)i)->dtype;
    return stored >= 0 && is_plain((enum dtype)stored) ? names[stored] : names[DTYPE_F32];
}

static int open_tokenizer(struct job *j, struct err *err) {
    int rc = checkpoint_tokenizer(j->ck, &j->tokenizer, err);
    if (rc) return rc;
    uint32_t n = tokenizer_n_tokens(j->tokenizer), rows = j->config.shape.vocab_size;
    if (n > rows)
        return err_set(err, ERR_INVALID, "tokenizer: %u tokens, the embedding has only %u rows", n,
                       rows);
    int32_t eos = tokenizer_eos(j->tokenizer);
    return eos >= 0 ? config_add_eos(&j->config, eos, err) : OK;
}

/* Everything that can be refused. */
static int prepare(struct job *j, struct err *err) {
    struct weight_plan plan = {0};
    int rc = parse_dtype(j->options->dtype, &j->want, err);
    if (!rc) rc = checkpoint_open(j->options->in, &j->ck, err);
    if (!rc) rc = checkpoint_config(j->ck, &j->config, err);
    if (!rc) rc = weights_plan(j->ck, &j->config, &plan, err);
    if (!rc) rc = open_tokenizer(j, err);
    if (!rc) rc = check_additions(j, err);
    if (!rc) rc = list_outputs(j, &plan, err);
    weights_plan_free(&plan);
    if (!rc) rc = list_entries(j, err);
    if (!rc) rc = make_buffers(j, err);
    if (rc) return rc;
    struct convert_changes changes = {torch_dtype(j), j->options->window, j->options->block,
                                      j->mask_token};
    return convert_texts_make(j->ck, &j->config, j->tokenizer, &changes, &j->texts, err);
}

static int write_all(struct job *j, struct out_dir *dir, struct err *err) {
    uint64_t shard = j->options->shard_bytes ? j->options->shard_bytes : SHARD_BYTES_DEFAULT;
    int rc = safetensors_writer_create(dir, j->entries, j->n_entries, shard, &j->writer, err);
    for (size_t i = 0; !rc && i < j->n_outputs; i++)
        rc = write_output(j, &j->outputs[i], err);
    if (!rc) rc = safetensors_writer_finish(j->writer, err);
    if (!rc) rc = convert_texts_write(&j->texts, dir, err);
    if (!rc) rc = out_dir_commit(dir, "config.json", j->texts.config, j->texts.config_len, err);
    return rc;
}

static void job_fini(struct job *j) {
    safetensors_writer_destroy(j->writer);
    convert_texts_free(&j->texts);
    for (size_t i = 0; i < j->n_outputs; i++)
        free(j->outputs[i].name);
    free(j->outputs);
    free(j->entries);
    free(j->entry_names);
    free(j->stored);
    free(j->formed);
    free(j->split);
    free(j->floats);
    tokenizer_destroy(j->tokenizer);
    config_fini(&j->config);
    checkpoint_close(j->ck);
}

int model_convert(const struct convert_options *options, struct convert_report *report,
                  struct err *err) {
    struct job j = {.options = options};
    struct out_dir *dir = NULL;
    int rc = prepare(&j, err);
    if (!rc) rc = out_dir_create(options->out, &dir, err);
    if (!rc) rc = write_all(&j, dir, err);
    if (!rc)
        *report = (struct convert_report){j.n_entries, safetensors_writer_n_files(j.writer),
                                          j.total, j.mask_token};
    job_fini(&j);
    out_dir_destroy(dir);
    return rc;
}
