/* Checkpoints rewritten: every number format against the one definition of rounding, the layout of
 * quantised safetensors, added streams and draft views, and what is refused; then what the reader
 * says of such files when they are wrong. */
#include <math.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/load/checkpoint.h"
#include "engine/load/safetensors.h"
#include "engine/load/safetensors_write.h"
#include "engine/load/weights.h"
#include "tests/unit/model_files.h"

#define PLAIN   "qwen3-single-standard-none"
#define BIASED  "qwen2-single-standard-none"
#define UNTIED  "llama-single-standard-none-rope-llama3-untied"
#define SHARDED "llama-single-standard-none-rope-linear-sharded"
#define ORTHROS "llama-orthros-standard-none"
#define ORTHRUS "qwen3-single-standard-orthrus"
#define MSAR    "qwen3-orthros-msar-none-f16"

static const char *checkpoint(const char *name) {
    return keep(golden_path(name));
}

static const char *new_dir(void) {
    return keep(path_in(keep(scratch_dir()), "out"));
}

static void convert_with(struct convert_options options) {
    struct convert_report report;
    struct err err = {0};
    if (model_convert(&options, &report, &err))
        fail_msg("%s to %s: %s", options.in, options.dtype, err.msg);
}

static const char *convert(const char *in, const char *dtype) {
    const char *out = new_dir();
    convert_with((struct convert_options){.in = in, .out = out, .dtype = dtype, .mask_token = -1});
    return out;
}

/* Refused naming `word`, and nothing is left of out. */
static void convert_refused(struct convert_options options, const char *word) {
    struct convert_report report;
    struct err err = {0};
    options.out = options.out ? options.out : new_dir();
    if (model_convert(&options, &report, &err) == OK) fail_msg("accepted, no \"%s\"", word);
    if (!strstr(err.msg, word)) fail_msg("\"%s\" is not in: %s", word, err.msg);
    assert_int_not_equal(access(options.out, F_OK), 0);
}

static struct checkpoint *open_ck(const char *path) {
    struct checkpoint *ck = NULL;
    struct err err = {0};
    if (checkpoint_open(path, &ck, &err)) fail_msg("%s", err.msg);
    return ck;
}

static const struct checkpoint_tensor *tensor(struct checkpoint *ck, const char *name) {
    int64_t i = checkpoint_find(ck, name);
    if (i < 0) fail_msg("%s is missing", name);
    return checkpoint_tensor(ck, (size_t)i);
}

/* All rows as stored (blocks as the engine has them), malloc'd. */
static void *read_tensor(struct checkpoint *ck, const char *name, size_t *n) {
    const struct checkpoint_tensor *t = tensor(ck, name);
    uint64_t rows = t->n_dims == 2 ? t->shape[0] : 1, cols = t->shape[t->n_dims - 1];
    *n = (size_t)(rows * cols);
    void *data = malloc(dtype_row_bytes((enum dtype)t->dtype, *n) + 1);
    struct err err = {0};
    if (checkpoint_read(ck, (size_t)checkpoint_find(ck, name), 0, rows, data, &err))
        fail_msg("%s", err.msg);
    return data;
}

static float *read_floats(struct checkpoint *ck, const char *name, size_t *n) {
    void *data = read_tensor(ck, name, n);
    float *f = malloc(*n * sizeof *f + 1);
    dtype_to_f32((enum dtype)tensor(ck, name)->dtype, data, *n, f);
    free(data);
    return f;
}

/* ---- number formats ---------------------------------------------------------------------------- */

/* Is it a matrix of the model proper, which a --dtype applies to? */
static bool is_matrix(const struct checkpoint_tensor *t) {
    return t->n_dims == 2 && !strstr(t->name, "_read.") && !strstr(t->name, "msar");
}

/* A tensor of `out` holds what the definition makes of the one of `in`. */
static void check_tensor(struct checkpoint *in, struct checkpoint *out, const char *name,
                         int want) {
    const struct checkpoint_tensor *was = tensor(in, name), *is = tensor(out, name);
    bool rounded = want >= 0 && is_matrix(was);
    int form = rounded ? want : was->dtype;
    if (form == DTYPE_Q4_0) form = DTYPE_Q4_1; /* the same numbers */
    if (want == DTYPE_F32) form = DTYPE_F32;
    assert_int_equal(is->dtype, form);
    size_t n, m;
    float *x = read_floats(in, name, &n), *y = read_floats(out, name, &m);
    assert_int_equal(n, m);
    if (rounded) {
        uint8_t *blocks = malloc(n * 4);
        dtype_from_f32((enum dtype)want, x, n, blocks);
        if (want != DTYPE_Q4_0) { /* not only the numbers: the very blocks */
            void *stored = read_tensor(out, name, &m);
            assert_memory_equal(stored, blocks, dtype_row_bytes((enum dtype)want, n));
            free(stored);
        }
        dtype_to_f32((enum dtype)want, blocks, n, x);
        free(blocks);
    }
    for (size_t i = 0; i < n; i++)
        if (!(x[i] == y[i]))
            fail_msg("%s: [%zu] is %g, not %g", name, i, (double)y[i], (double)x[i]);
    free(x);
    free(y);
}

static void every_format_is_rounded_once(void **state) {
    (void)state;
    static const char *const names[] = {PLAIN, BIASED, UNTIED, SHARDED, ORTHROS, ORTHRUS, MSAR};
    static const char *const dtypes[] = {"auto", "f32", "bf16", "f16", "q8_0", "q4_0", "q4_1"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *path = checkpoint(names[i]);
        for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
            struct checkpoint *in = open_ck(path), *out = open_ck(convert(path, dtypes[d]));
            assert_int_equal(checkpoint_n_tensors(in), checkpoint_n_tensors(out));
            for (size_t t = 0; t < checkpoint_n_tensors(in); t++)
                check_tensor(in, out, checkpoint_tensor(in, t)->name, dtype_parse(dtypes[d]));
            checkpoint_close(in);
            checkpoint_close(out);
        }
    }
}

static void same_file(const char *a, const char *b, const char *name) {
    size_t n, m;
    char *x = read_file(path_in(a, name), &n), *y = read_file(path_in(b, name), &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* Once written, a format is carried on bit for bit; other files are copied byte for byte. */
static void what_is_equal_is_not_touched(void **state) {
    (void)state;
    static const char *const dtypes[] = {"bf16", "q8_0", "q4_1"};
    const char *path = checkpoint(PLAIN);
    for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
        const char *once = convert(path, dtypes[d]);
        const char *twice = convert(once, d % 2 ? "auto" : dtypes[d]);
        same_file(once, twice, "model.safetensors");
        same_file(once, twice, "config.json");
        same_file(path, twice, "tokenizer.json");
        same_file(path, twice, "tokenizer_config.json");
        same_file(path, twice, "generation_config.json");
        if (d) same_file(path, twice, "config.json");
    }
    same_file(checkpoint(SHARDED), convert(checkpoint(SHARDED), "auto"), "chat_template.jinja");
}

/* The header and data of model.safetensors; *data points into the malloc'd text. */
static char *open_raw(const char *dir, struct safetensors **h, const uint8_t **data) {
    size_t len;
    char *text = read_file(path_in(dir, "model.safetensors"), &len);
    uint64_t n;
    struct err err = {0};
    if (safetensors_header_bytes(text, 8, len, "raw", &n, &err) ||
        safetensors_parse_header(text + 8, (size_t)n, len - 8 - n, "raw", h, &err))
        fail_msg("%s", err.msg);
    *data = (const uint8_t *)text + 8 + n;
    return text;
}

/* Byte i of a row holds elements 2i (low) and 2i + 1 (high); scales and minima go beside it. */
static void nibbles_lie_in_order(void **state) {
    (void)state;
    const char *path = checkpoint(PLAIN);
    const char *name = "model.layers.1.mlp.down_proj.weight"; /* [64, 96]: three blocks a row */
    struct checkpoint *in = open_ck(path);
    size_t n;
    float *x = read_floats(in, name, &n);
    uint8_t *blocks = malloc(n);
    dtype_from_f32(DTYPE_Q4_1, x, n, blocks);
    struct safetensors *h = NULL;
    const uint8_t *data;
    char *raw = open_raw(convert(path, "q4_1"), &h, &data);
    const struct safetensors_tensor *q = safetensors_find(h, name);
    const struct safetensors_tensor *scale =
        safetensors_find(h, "model.layers.1.mlp.down_proj.weight_scale");
    const struct safetensors_tensor *min =
        safetensors_find(h, "model.layers.1.mlp.down_proj.weight_min");
    assert_string_equal(q->dtype, "U8");
    assert_int_equal(q->shape[0], 64);
    assert_int_equal(q->shape[1], 48);
    assert_string_equal(scale->dtype, "F16");
    assert_int_equal(min->shape[1], 3);
    for (size_t e = 0; e < n; e++) {
        const uint8_t *b = blocks + e / 32 * 20;
        size_t k = e % 32;
        unsigned block_nibble = k < 16 ? b[4 + k] & 15u : b[4 + k - 16] >> 4u;
        unsigned row_nibble = data[q->begin + e / 2] >> (e % 2 ? 4 : 0) & 15u;
        assert_int_equal(row_nibble, block_nibble);
        assert_memory_equal(data + scale->begin + e / 32 * 2, b, 2);
        assert_memory_equal(data + min->begin + e / 32 * 2, b + 2, 2);
    }
    safetensors_destroy(h);
    free(raw);
    free(x);
    free(blocks);
    checkpoint_close(in);
}

static void int8_rows_and_scales(void **state) {
    (void)state;
    const char *path = checkpoint(PLAIN), *name = "model.embed_tokens.weight";
    struct checkpoint *in = open_ck(path);
    size_t n;
    float *x = read_floats(in, name, &n);
    uint8_t *blocks = malloc(n * 2);
    dtype_from_f32(DTYPE_Q8_0, x, n, blocks);
    struct safetensors *h = NULL;
    const uint8_t *data;
    char *raw = open_raw(convert(path, "q8_0"), &h, &data);
    const struct safetensors_tensor *q = safetensors_find(h, name);
    const struct safetensors_tensor *scale = safetensors_find(h, "model.embed_tokens.weight_scale");
    assert_string_equal(q->dtype, "I8");
    for (size_t b = 0; b < n / 32; b++) {
        assert_memory_equal(data + q->begin + b * 32, blocks + b * 34 + 2, 32);
        assert_memory_equal(data + scale->begin + b * 2, blocks + b * 34, 2);
    }
    safetensors_destroy(h);
    free(raw);
    free(x);
    free(blocks);
    checkpoint_close(in);
}

static void shards_hold_the_same_model(void **state) {
    (void)state;
    const char *path = checkpoint(UNTIED), *out = new_dir();
    convert_with((struct convert_options){
        .in = path, .out = out, .dtype = "q4_1", .shard_bytes = 20000, .mask_token = -1});
    assert_int_equal(access(path_in(out, "model-00002-of-00005.safetensors"), F_OK), 0);
    struct checkpoint *one = open_ck(convert(path, "q4_1")), *many = open_ck(out);
    assert_int_equal(checkpoint_n_tensors(one), checkpoint_n_tensors(many));
    for (size_t i = 0; i < checkpoint_n_tensors(one); i++) {
        const char *name = checkpoint_tensor(one, i)->name;
        size_t n, m;
        void *x = read_tensor(one, name, &n), *y = read_tensor(many, name, &m);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, dtype_row_bytes((enum dtype)checkpoint_tensor(one, i)->dtype, n));
        free(x);
        free(y);
    }
    checkpoint_close(one);
    checkpoint_close(many);
}

/* ---- additions --------------------------------------------------------------------------------- */

static struct config config_of(const char *path) {
    struct checkpoint *ck = open_ck(path);
    struct config c;
    struct err err = {0};
    if (checkpoint_config(ck, &c, &err)) fail_msg("%s", err.msg);
    struct weight_plan plan;
    if (weights_plan(ck, &c, &plan, &err)) fail_msg("%s", err.msg);
    weights_plan_free(&plan);
    checkpoint_close(ck);
    return c;
}

static void orthros_adds_identity_affines(void **state) {
    (void)state;
    const char *out = new_dir();
    convert_with((struct convert_options){
        .in = checkpoint(BIASED), .out = out, .dtype = "bf16", .window = 12, .mask_token = -1});
    struct config c = config_of(out);
    assert_true(c.shape.orthros && c.shape.window == 12);
    config_fini(&c);
    struct checkpoint *ck = open_ck(out), *in = open_ck(checkpoint(BIASED));
    assert_int_equal(checkpoint_n_tensors(ck), checkpoint_n_tensors(in) + 2 * 4);
    static const char *const names[] = {"base.weight", "base.bias", "output.weight", "output.bias"};
    for (int layer = 0; layer < 2; layer++)
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            char name[128];
            snprintf(name, sizeof name, "model.layers.%d.self_attn.q_affine_%s", layer, names[i]);
            size_t n;
            float *x = read_floats(ck, name, &n);
            assert_int_equal(n, 64);
            assert_int_equal(tensor(ck, name)->dtype, DTYPE_F32);
            for (size_t k = 0; k < n; k++)
                assert_true(x[k] == (i % 2 ? 0 : 1));
            free(x);
        }
    checkpoint_close(ck);
    checkpoint_close(in);
    convert_refused((struct convert_options){.in = checkpoint(ORTHROS), .window = 4},
                    "window of its own");
}

static void orthrus_copies_projections_norms_and_biases(void **state) {
    (void)state;
    static const struct {
        const char *checkpoint, *tensors[5];
    } cases[] = {
        {PLAIN,
         {"q_proj.weight", "v_proj.weight", "o_proj.weight", "q_norm.weight", "k_norm.weight"}},
        {BIASED, {"k_proj.weight", "q_proj.bias", "k_proj.bias", "v_proj.bias", NULL}},
        {SHARDED, {"o_proj.weight", "o_proj.bias", "q_proj.bias", NULL}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int quantised = 0; quantised < 2; quantised++) {
            const char *out = new_dir();
            convert_with((struct convert_options){.in = checkpoint(cases[i].checkpoint),
                                                  .out = out,
                                                  .dtype = quantised ? "q8_0" : "auto",
                                                  .block = 8,
                                                  .mask_token = -1});
            struct config c = config_of(out);
            assert_int_equal(c.shape.block_size, 8);
            /* 318 tokens, 320 rows: the first row that is nobody's */
            assert_int_equal(c.shape.mask_token, 318);
            config_fini(&c);
            struct checkpoint *ck = open_ck(out);
            for (size_t t = 0; t < 5 && cases[i].tensors[t]; t++) {
                char name[128], copy[128];
                const char *role = cases[i].tensors[t], *dot = strchr(role, '.');
                snprintf(name, sizeof name, "model.layers.1.self_attn.%s", role);
                snprintf(copy, sizeof copy, "model.layers.1.self_attn.%.*s_diff%s",
                         (int)(dot - role), role, dot);
                size_t n, m;
                void *x = read_tensor(ck, name, &n), *y = read_tensor(ck, copy, &m);
                assert_int_equal(tensor(ck, name)->dtype, tensor(ck, copy)->dtype);
                assert_int_equal(n, m);
                assert_memory_equal(x, y, dtype_row_bytes((enum dtype)tensor(ck, name)->dtype, n));
                free(x);
                free(y);
            }
            checkpoint_close(ck);
        }
    convert_refused(
        (struct convert_options){.in = checkpoint(ORTHRUS), .block = 4, .mask_token = -1},
        "draft view of its own");
}

static void write_edited(const char *from, const char *to, const char *name, const char *old,
                         const char *new_text) {
    char *text = read_file(path_in(from, name), NULL), *at = strstr(text, old);
    if (!at) fail_msg("%s holds no %s", name, old);
    struct bytes b = {0};
    put(&b, text, (size_t)(at - text));
    put_text(&b, new_text);
    put_text(&b, at + strlen(old));
    write_file(path_in(to, name), b.p, b.n);
    free(b.p);
    free(text);
}

static void the_mask_token_is_chosen_or_given(void **state) {
    (void)state;
    const char *out = new_dir();
    struct convert_options o = {.in = checkpoint(PLAIN), .out = out, .block = 4, .mask_token = 319};
    convert_with(o);
    struct config c = config_of(out);
    assert_int_equal(c.shape.mask_token, 319);
    config_fini(&c);
    o.out = NULL;
    o.mask_token = 320;
    convert_refused(o, "320 rows (0 to 319)");

    /* One that the tokenizer names comes first. */
    const char *dir = convert(checkpoint(PLAIN), "auto");
    write_edited(dir, dir, "tokenizer_config.json", "\"unk_token\": null",
                 "\"mask_token\": \"<|mask|>\", \"unk_token\": null");
    o = (struct convert_options){.in = dir, .out = new_dir(), .block = 4, .mask_token = -1};
    convert_with(o);
    c = config_of(o.out);
    assert_int_equal(c.shape.mask_token, 315);
    config_fini(&c);
}

static void a_model_without_a_spare_row_pads_or_ends(void **state) {
    (void)state;
    /* Two more tokens fill the vocabulary. */
    const char *full = convert(checkpoint(PLAIN), "auto");
    write_edited(full, full, "tokenizer_config.json", "\"added_tokens_decoder\": {",
                 "\"added_tokens_decoder\": {\"318\": {\"content\": \"<x>\"}, "
                 "\"319\": {\"content\": \"<y>\"}, ");
    struct convert_options o = {.in = full, .out = new_dir(), .block = 4, .mask_token = -1};
    convert_with(o);
    struct config c = config_of(o.out);
    assert_int_equal(c.shape.mask_token, 312); /* <|endoftext|>, its padding */
    config_fini(&c);
    write_edited(full, full, "tokenizer_config.json", "\"pad_token\": \"<|endoftext|>\"",
                 "\"pad_token\": null");
    o.out = new_dir();
    convert_with(o);
    c = config_of(o.out);
    assert_int_equal(c.shape.mask_token, 314); /* <|im_end|>, its end */
    config_fini(&c);
}

/* ---- refusals ---------------------------------------------------------------------------------- */

static void what_cannot_be_done_leaves_nothing(void **state) {
    (void)state;
    const char *path = checkpoint(PLAIN);
    convert_refused((struct convert_options){.in = path, .dtype = "q5_k"}, "q5_k");
    convert_refused((struct convert_options){.in = "/nonexistent"}, "/nonexistent");
    struct convert_options o = {.in = path, .dtype = "f32", .mask_token = -1};
    struct convert_report report;
    struct err err = {0};
    const char *taken = keep(scratch_dir());
    write_text(taken, "mine", "x");
    o.out = taken;
    assert_int_equal(model_convert(&o, &report, &err), ERR_IO);
    assert_non_null(strstr(err.msg, "not empty"));
    assert_int_equal(access(path_in(taken, "model.safetensors"), F_OK), -1);
    o.out = o.in; /* onto itself */
    assert_int_equal(model_convert(&o, &report, &err), ERR_IO);
}

static bool stop_at(void *arg, uint64_t done, uint64_t total) {
    uint64_t *calls = arg;
    assert_true(done <= total);
    return --*calls > 0;
}

static void a_stop_leaves_nothing(void **state) {
    (void)state;
    for (uint64_t after = 1; after < 36; after += 7) {
        uint64_t calls = after;
        convert_refused((struct convert_options){.in = checkpoint(PLAIN),
                                                 .dtype = "q8_0",
                                                 .progress = stop_at,
                                                 .progress_arg = &calls},
                        "stopped");
        assert_int_equal(calls, 0);
    }
}

/* A copy of a directory that has only model.safetensors, config.json and tokenizer files. */
static const char *copy_of(const char *dir) {
    static const char *const names[] = {"model.safetensors", "config.json", "tokenizer.json",
                                        "tokenizer_config.json"};
    const char *to = keep(scratch_dir());
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        size_t n;
        char *data = read_file(path_in(dir, names[i]), &n);
        write_file(path_in(to, names[i]), data, n);
        free(data);
    }
    return to;
}

/* n bytes at `at` of a tensor's data, in place. */
static void patch_data(const char *dir, const char *name, size_t at, const void *bytes, size_t n) {
    struct safetensors *h = NULL;
    const uint8_t *data;
    char *raw = open_raw(dir, &h, &data);
    const struct safetensors_tensor *t = safetensors_find(h, name);
    assert_non_null(t);
    FILE *f = fopen(path_in(dir, "model.safetensors"), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)((const char *)data - raw + (long)(t->begin + at)), SEEK_SET),
                     0);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    safetensors_destroy(h);
    free(raw);
}

/* The header with one text in place of another of its length. */
static const char *patch_header(const char *dir, const char *old, const char *new_text) {
    const char *to = copy_of(dir);
    assert_int_equal(strlen(old), strlen(new_text));
    size_t len;
    char *data = read_file(path_in(to, "model.safetensors"), &len);
    char *at = memmem(data, len, old, strlen(old));
    if (!at) fail_msg("the header holds no %s", old);
    memcpy(at, new_text, strlen(old));
    write_file(path_in(to, "model.safetensors"), data, len);
    free(data);
    return to;
}

/* One number of a matrix in the place of another: refused by name, or read back as rounded. */
static void refused_with(const char *dir, float number, const char *dtype, const char *shown) {
    const char *name = "model.layers.2.mlp.up_proj.weight";
    patch_data(dir, name, 400, &number, 4);
    convert_refused((struct convert_options){.in = dir, .dtype = dtype}, name);
    char words[64];
    snprintf(words, sizeof words, ": %s is beyond the range of %s", shown, dtype);
    convert_refused((struct convert_options){.in = dir, .dtype = dtype}, words);
}

static void kept_with(const char *dir, float number, const char *dtype, float rounded) {
    const char *name = "model.layers.2.mlp.up_proj.weight";
    patch_data(dir, name, 400, &number, 4);
    struct checkpoint *ck = open_ck(convert(convert(dir, dtype), "f32"));
    size_t n;
    float *x = read_tensor(ck, name, &n);
    if (!(isnan(rounded) ? isnan(x[100]) : x[100] == rounded))
        fail_msg("%s: %g is read back as %g", dtype, (double)number, (double)x[100]);
    free(x);
    checkpoint_close(ck);
}

static void numbers_beyond_the_format_are_named(void **state) {
    (void)state;
    const char *dir = copy_of(convert(checkpoint(PLAIN), "f32"));
    static const char *const blocks[] = {"q8_0", "q4_0", "q4_1"};
    refused_with(dir, 70000, "f16", "70000");
    kept_with(dir, 70000, "bf16", 70144);
    kept_with(dir, 70000, "q8_0", 69977); /* 127 times a scale of 551 */
    refused_with(dir, 3.4e38f, "bf16", "3.4e+38");
    refused_with(dir, 1e9f, "q8_0", "1e+09");
    refused_with(dir, -1e6f, "q4_0", "-1e+06");
    refused_with(dir, -1e6f, "q4_1", "-1e+06");
    kept_with(dir, -65519, "f16", -65504); /* the last that f16 rounds to a number */
    kept_with(dir, -65519, "q4_0", -65504);
    kept_with(dir, -65519, "q4_1", -65504);
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        refused_with(dir, INFINITY, blocks[i], "inf");
        refused_with(dir, NAN, blocks[i], "nan");
    }
    kept_with(dir, INFINITY, "f16", INFINITY); /* stays what it is where the format has it */
    kept_with(dir, -INFINITY, "bf16", -INFINITY);
    kept_with(dir, NAN, "bf16", NAN);
}

/* ---- reading quantised safetensors that are wrong ---------------------------------------------- */

/* Whether model_load would take it, up to the weights' numbers; then reads all of them. */
static int read_all(const char *dir, struct err *err) {
    struct checkpoint *ck = NULL;
    struct config c = {0};
    struct weight_plan plan = {0};
    int rc = checkpoint_open(dir, &ck, err);
    if (!rc) rc = checkpoint_config(ck, &c, err);
    if (!rc) rc = weights_plan(ck, &c, &plan, err);
    for (size_t i = 0; !rc && i < plan.n_items; i++) {
        const struct weight_item *item = &plan.items[i];
        enum dtype dtype = (enum dtype)checkpoint_tensor(ck, item->tensor)->dtype;
        void *data = malloc(weights_bytes(item, dtype) + 1);
        rc = checkpoint_read(ck, item->tensor, 0, item->rows, data, err);
        free(data);
    }
    weights_plan_free(&plan);
    config_fini(&c);
    checkpoint_close(ck);
    return rc;
}

static void read_refused(const char *dir, const char *name, const char *word) {
    struct err err = {0};
    if (read_all(dir, &err) != ERR_INVALID) fail_msg("accepted: no \"%s\", %s", word, err.msg);
    if (!strstr(err.msg, name) || !strstr(err.msg, word))
        fail_msg("\"%s\" or \"%s\" is not in: %s", name, word, err.msg);
}

#define V "model.layers.0.self_attn.v_proj.weight" /* [32, 64] */

static void companions_are_checked_by_name(void **state) {
    (void)state;
    const char *q8 = convert(checkpoint(PLAIN), "q8_0"), *q4 = convert(checkpoint(PLAIN), "q4_1");
    struct err err;
    assert_int_equal(read_all(q8, &err), OK);
    assert_int_equal(read_all(q4, &err), OK);
    /* Missing: the scale has another name. */
    read_refused(patch_header(q8, V "_scale\"", V "_scalf\""), V, "_scale");
    read_refused(patch_header(q4, V "_scale\"", V "_scalf\""), V, "_scale");
    read_refused(patch_header(q4, V "_min\"", V "_max\""), V, "_min");
    /* Scales without their weight, and weights of another type. */
    read_refused(patch_header(q8, V "\"", "model.layers.0.self_attn.v_proj.weighs\""), V,
                 "missing");
    read_refused(patch_header(q4, V "\":{\"dtype\":\"U8\"", V "\":{\"dtype\":\"I8\""), V, "_scale");
    read_refused(patch_header(q8, V "\":{\"dtype\":\"I8\"", V "\":{\"dtype\":\"U8\""), V, "_scale");
    /* Shapes and types of the companions. */
    read_refused(patch_header(q8, V "_scale\":{\"dtype\":\"F16\",\"shape\":[32,2]",
                              V "_scale\":{\"dtype\":\"F16\",\"shape\":[2,32]"),
                 V "_scale", "[32, 64 / 32]");
    read_refused(patch_header(q4, V "_min\":{\"dtype\":\"F16\",\"shape\":[32,2]",
                              V "_min\":{\"dtype\":\"F16\",\"shape\":[64,1]"),
                 V "_min", "[32, 64 / 32]");
    read_refused(patch_header(q8, V "_scale\":{\"dtype\":\"F16\"", V "_scale\":{\"dtype\":\"I16\""),
                 V "_scale", "F16");
    /* The weight's own shape, scales to match. */
    read_refused(patch_header(patch_header(q8, V "\":{\"dtype\":\"I8\",\"shape\":[32,64]",
                                           V "\":{\"dtype\":\"I8\",\"shape\":[64,32]"),
                              V "_scale\":{\"dtype\":\"F16\",\"shape\":[32,2]",
                              V "_scale\":{\"dtype\":\"F16\",\"shape\":[64,1]"),
                 V, "shape [64,32]");
}

/* A copy with one tensor more, of zeros. */
static const char *with_tensor(const char *dir, const struct safetensors_entry *extra) {
    struct safetensors *h = NULL;
    const uint8_t *data;
    char *raw = open_raw(dir, &h, &data);
    struct safetensors_entry *entries = calloc(h->n_tensors + 1, sizeof *entries);
    for (size_t i = 0; i < h->n_tensors; i++) {
        const struct safetensors_tensor *t = &h->tensors[i];
        entries[i] =
            (struct safetensors_entry){t->name, t->dtype, t->n_dims, {t->shape[0], 0}, false};
        if (t->n_dims == 2) entries[i].shape[1] = t->shape[1];
    }
    entries[h->n_tensors] = *extra;
    const char *to = copy_of(dir);
    assert_int_equal(unlink(path_in(to, "model.safetensors")), 0);
    const char *weights = keep(path_in(to, "weights"));
    struct out_dir *out = NULL;
    struct safetensors_writer *w = NULL;
    struct err err = {0};
    assert_int_equal(out_dir_create(weights, &out, &err), OK);
    assert_int_equal(safetensors_writer_create(out, entries, h->n_tensors + 1, 1 << 30, &w, &err),
                     OK);
    for (size_t i = 0; i < h->n_tensors; i++)
        assert_int_equal(safetensors_writer_put(w, i, 0, data + h->tensors[i].begin,
                                                h->tensors[i].end - h->tensors[i].begin, &err),
                         OK);
    size_t n = (size_t)safetensors_entry_bytes(extra);
    void *zeros = calloc(n, 1);
    assert_int_equal(safetensors_writer_put(w, h->n_tensors, 0, zeros, n, &err), OK);
    assert_int_equal(safetensors_writer_finish(w, &err), OK);
    const char *name = "model.safetensors";
    assert_int_equal(rename(path_in(weights, name), path_in(to, name)), 0);
    safetensors_writer_destroy(w);
    out_dir_destroy(out);
    free(zeros);
    free(entries);
    safetensors_destroy(h);
    free(raw);
    return to;
}

/* A minimum beside int8, scales beside plain numbers or nothing, and integers that are no weight. */
static void companions_and_integers_too_many_are_refused(void **state) {
    (void)state;
    const char *q8 = convert(checkpoint(PLAIN), "q8_0"), *plain = convert(checkpoint(PLAIN), "f32");
    const struct {
        const char *in;
        struct safetensors_entry entry;
    } cases[] = {
        {q8, {V "_min", "F16", 2, {32, 2}, false}},
        {plain, {V "_scale", "F16", 2, {32, 2}, false}},
        {plain, {"model.layers.0.self_attn.x_proj.weight_scale", "F16", 2, {32, 2}, false}},
        {q8, {"model.layers.0.self_attn.v_proj.g_idx", "I8", 1, {64, 0}, false}},
        {q8, {"model.layers.0.self_attn.v_proj.zeros", "U8", 2, {32, 2}, false}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *dir = with_tensor(cases[i].in, &cases[i].entry);
        read_refused(dir, cases[i].entry.name, "no such tensor");
        convert_refused((struct convert_options){.in = dir}, cases[i].entry.name);
    }
    const struct safetensors_entry alone = {"model.extra.weight", "U8", 2, {4, 16}, false};
    read_refused(with_tensor(q8, &alone), "model.extra.weight", "U8 without its _scale");
}

/* A vector must be plain numbers. */
static void integers_where_a_vector_belongs_are_refused(void **state) {
    (void)state;
    const char *q8 = convert(checkpoint(UNTIED), "q8_0");
    const struct safetensors_entry norm = {"model.norm.weight", "I8", 1, {64, 0}, false};
    const char *other = patch_header(q8, "\"model.norm.weight\"", "\"model.nomm.weight\"");
    read_refused(with_tensor(other, &norm), "model.norm.weight", "type I8");
}

static void scales_that_are_not_finite_are_named(void **state) {
    (void)state;
    static const uint8_t values[][2] = {{0, 0x7c}, {0, 0xfc}, {1, 0x7c}, {0xff, 0xff}};
    static const struct {
        const char *dtype, *name;
    } cases[] = {{"q8_0", V "_scale"}, {"q4_1", V "_scale"}, {"q4_1", V "_min"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *dir = convert(checkpoint(PLAIN), cases[i].dtype);
        for (size_t v = 0; v < ARRAY_LEN(values); v++) {
            const char *bad = copy_of(dir);
            patch_data(bad, cases[i].name, 2 * (2 * 7 + 1), values[v], 2);
            read_refused(bad, cases[i].name, "[7, 1]");
            convert_refused((struct convert_options){.in = bad, .dtype = "f32"}, cases[i].name);
        }
        const char *good = copy_of(dir); /* the largest that is finite */
        patch_data(good, cases[i].name, 0, (const uint8_t[]){0xff, 0x7b}, 2);
        struct err err = {0};
        if (read_all(good, &err)) fail_msg("%s", err.msg);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_rounded_once),
        cmocka_unit_test(what_is_equal_is_not_touched),
        cmocka_unit_test(nibbles_lie_in_order),
        cmocka_unit_test(int8_rows_and_scales),
        cmocka_unit_test(shards_hold_the_same_model),
        cmocka_unit_test(orthros_adds_identity_affines),
        cmocka_unit_test(orthrus_copies_projections_norms_and_biases),
        cmocka_unit_test(the_mask_token_is_chosen_or_given),
        cmocka_unit_test(a_model_without_a_spare_row_pads_or_ends),
        cmocka_unit_test(what_cannot_be_done_leaves_nothing),
        cmocka_unit_test(a_stop_leaves_nothing),
        cmocka_unit_test(numbers_beyond_the_format_are_named),
        cmocka_unit_test(companions_are_checked_by_name),
        cmocka_unit_test(companions_and_integers_too_many_are_refused),
        cmocka_unit_test(integers_where_a_vector_belongs_are_refused),
        cmocka_unit_test(scales_that_are_not_finite_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
