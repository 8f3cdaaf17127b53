/* Whole checkpoints onto a device: which numbers arrive where, and what is refused before. The
 * device is a table that only remembers what it was given. */
#include "engine/model.h"

#include <math.h>
#include <unistd.h>

#include "engine/cpu_count.h"
#include "engine/load/safetensors.h"
#include "tests/unit/fake_model_device.h"
#include "tests/unit/model_files.h"

/* ---- toys -------------------------------------------------------------------------------------- */

/* Tensors of one safetensors file. */
struct toy {
    struct bytes header, data;
    struct rng rng;
};

static void toy_add(struct toy *t, const char *name, const char *dtype, uint32_t rows,
                    uint32_t cols, const void *data, size_t bytes) {
    char line[512], shape[64];
    if (t->header.n == 0) put_text(&t->header, "{");
    if (rows)
        snprintf(shape, sizeof shape, "[%u,%u]", rows, cols);
    else
        snprintf(shape, sizeof shape, "[%u]", cols);
    snprintf(line, sizeof line,
             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
             t->header.n > 1 ? "," : "", name, dtype, shape, t->data.n, t->data.n + bytes);
    put_text(&t->header, line);
    put(&t->data, data, bytes);
}

/* rows 0: a vector. Random numbers. */
static void toy_f32(struct toy *t, const char *name, uint32_t rows, uint32_t cols) {
    size_t n = (rows ? rows : 1) * (size_t)cols;
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++)
        v[i] = rng_normal(&t->rng);
    toy_add(t, name, "F32", rows, cols, v, n * sizeof *v);
    free(v);
}

static void toy_write(struct toy *t, const char *path) {
    put_text(&t->header, "}");
    put(&t->header, "", 1);
    struct bytes b = safetensors_file((char *)t->header.p, t->data.p, t->data.n);
    write_file(path, b.p, b.n);
    free(b.p);
    free(t->header.p);
    free(t->data.p);
    memset(t, 0, sizeof *t);
}

enum { TOY_D = 64, TOY_FF = 96, TOY_Q = 64, TOY_KV = 32 };

static void toy_layer(struct toy *t, const char *skip) {
    static const struct {
        const char *name;
        uint32_t rows, cols;
    } all[] = {
        {"input_layernorm.weight", 0, TOY_D},       {"post_attention_layernorm.weight", 0, TOY_D},
        {"self_attn.q_proj.weight", TOY_Q, TOY_D},  {"self_attn.k_proj.weight", TOY_KV, TOY_D},
        {"self_attn.v_proj.weight", TOY_KV, TOY_D}, {"self_attn.o_proj.weight", TOY_D, TOY_Q},
        {"mlp.gate_proj.weight", TOY_FF, TOY_D},    {"mlp.up_proj.weight", TOY_FF, TOY_D},
        {"mlp.down_proj.weight", TOY_D, TOY_FF}};
    char name[128];
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (skip && strcmp(skip, all[i].name) == 0) continue;
        snprintf(name, sizeof name, "model.layers.0.%s", all[i].name);
        toy_f32(t, name, all[i].rows, all[i].cols);
    }
}

static void toy_ends(struct toy *t, uint32_t vocab) {
    toy_f32(t, "model.embed_tokens.weight", vocab, TOY_D);
    toy_f32(t, "model.norm.weight", 0, TOY_D);
}

/* Everything but the weights of a one-layer llama. */
static void toy_config(const char *dir, uint32_t vocab, const char *extra) {
    char json[1024];
    snprintf(json, sizeof json,
             "{\"model_type\":\"llama\",\"vocab_size\":%u,\"hidden_size\":64,\"head_dim\":16,"
             "\"intermediate_size\":96,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
             "\"num_key_value_heads\":2,\"max_position_embeddings\":128%s}",
             vocab, extra);
    write_text(dir, "config.json", json);
    copy_golden("llama-orthros-standard-none", "tokenizer.json", dir);
}

static const char *whole_toy(const char *extra, bool lm_head) {
    const char *dir = keep(scratch_dir());
    toy_config(dir, 320, extra);
    struct toy t = {0};
    rng_seed(&t.rng, 5);
    toy_ends(&t, 320);
    toy_layer(&t, NULL);
    if (lm_head) toy_f32(&t, "lm_head.weight", 320, TOY_D);
    toy_write(&t, path_in(dir, "model.safetensors"));
    return dir;
}

static const char *copy_checkpoint(const char *name, const char *const *files, size_t n) {
    const char *dir = keep(scratch_dir());
    for (size_t i = 0; i < n; i++)
        copy_golden(name, files[i], dir);
    return dir;
}

#define SHARDED "llama-single-standard-none-rope-linear-sharded"
static const char *copy_sharded(void) {
    static const char *const files[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "chat_template.jinja",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"};
    return copy_checkpoint(SHARDED, files, ARRAY_LEN(files));
}

/* ---- golden checkpoints ------------------------------------------------------------------------ */

static void every_golden_checkpoint_loads(void **state) {
    (void)state;
    /* convolutions of 4 sources in 3 streams, 4 weights of 8 branches, the readout */
    enum { MSAR = 4 * 3 + 8 * 4 + 1 };
    static const struct {
        const char *name;
        size_t n_weights;
        enum dtype dtype;
    } cases[] = {
        {"qwen3-single-standard-none", 2 + 3 * 11, DTYPE_F32},
        {"qwen2-single-standard-none", 2 + 2 * 12, DTYPE_F32},
        {"llama-single-standard-none-rope-llama3-untied", 3 + 3 * 9, DTYPE_F32},
        {SHARDED, 2 + 2 * (9 + 4 + 3), DTYPE_F32},
        {"qwen3-single-standard-none-rope-yarn", 3 + 2 * 11, DTYPE_F32},
        {"llama-orthros-standard-none", 2 + 3 * 13, DTYPE_F32},
        {"qwen3-single-standard-orthrus", 2 + 3 * (11 + 6), DTYPE_F32},
        {"qwen3-single-standard-orthrus-bf16", 3 + 3 * (11 + 6), DTYPE_BF16},
        {"qwen3-orthros-standard-orthrus", 2 + 3 * (11 + 4 + 6), DTYPE_F32},
        {"llama-single-msar-none", 2 + 4 * 9 + MSAR, DTYPE_F32},
        {"qwen3-orthros-msar-none-f16", 2 + 4 * (11 + 4) + MSAR, DTYPE_F16},
        {"qwen3-single-msar-orthrus-bf16", 2 + 4 * (11 + 6) + MSAR, DTYPE_BF16},
        {"qwen3-orthros-msar-orthrus", 2 + 4 * (11 + 4 + 6) + MSAR, DTYPE_F32},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s", golden_path(cases[i].name));
        struct model *m = load_path(path, "auto");
        const struct fake *f = device_of(m);
        if (f->n_records != cases[i].n_weights)
            fail_msg("%s: %zu weights, %zu expected", cases[i].name, f->n_records,
                     cases[i].n_weights);
        for (size_t k = 0; k < f->n_records; k++) {
            bool matrix = f->records[k].rows > 1 && f->records[k].which < WEIGHT_COUNT;
            enum dtype want = matrix ? cases[i].dtype : DTYPE_F32;
            assert_int_equal(f->records[k].dtype, want);
        }
        const struct model_info *info = model_info(m);
        assert_string_equal(info->name, cases[i].name);
        assert_string_equal(info->weight_dtype, dtype_name(cases[i].dtype));
        assert_string_equal(info->kernel_table, "fake");
        assert_int_equal(info->vocab_size, 320);
        assert_int_equal(info->context_length, 1024);
        assert_true(info->has_chat_template);
        assert_int_equal(m->weight_dtype, cases[i].dtype);
        assert_null(m->shape.rope_freq);
        assert_true(info->n_eos_ids >= 1);
        model_destroy(m);
        assert_int_equal(n_open, 0);
    }
}

/* The bytes of a tensor straight from a file with one header. */
static uint8_t *raw_tensor(const char *path, const char *name, size_t *bytes) {
    size_t n;
    char *file = read_file(path, &n);
    uint64_t header;
    memcpy(&header, file, 8);
    struct safetensors *h;
    assert_int_equal(safetensors_parse_header(file + 8, header, n - 8 - header, path, &h, NULL),
                     OK);
    const struct safetensors_tensor *t = safetensors_find(h, name);
    assert_non_null(t);
    *bytes = t->end - t->begin;
    uint8_t *data = malloc(*bytes);
    memcpy(data, file + 8 + header + t->begin, *bytes);
    safetensors_destroy(h);
    free(file);
    return data;
}

static void weights_arrive_as_they_are_stored(void **state) {
    (void)state;
    char path[256], file[300];
    snprintf(path, sizeof path, "%s", golden_path("qwen3-single-standard-orthrus-bf16"));
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    struct model *m = load_path(path, NULL);
    static const struct {
        enum weight which;
        uint32_t layer;
        const char *name;
    } cases[] = {{WEIGHT_EMBED, 0, "model.embed_tokens.weight"},
                 {WEIGHT_LM_HEAD, 0, "lm_head.weight"},
                 {WEIGHT_Q, 2, "model.layers.2.self_attn.q_proj.weight"},
                 {WEIGHT_K_DIFF, 1, "model.layers.1.self_attn.k_proj_diff.weight"},
                 {WEIGHT_DOWN, 0, "model.layers.0.mlp.down_proj.weight"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t bytes;
        uint8_t *raw = raw_tensor(file, cases[i].name, &bytes);
        const struct record *r = find(m, cases[i].which, cases[i].layer);
        assert_non_null(r);
        assert_int_equal(r->bytes, bytes);
        assert_memory_equal(r->data, raw, bytes);
        free(raw);
    }
    /* A norm is widened: 16 high bits, then zeros. */
    size_t bytes;
    uint8_t *raw = raw_tensor(file, "model.norm.weight", &bytes);
    const struct record *norm = find(m, WEIGHT_FINAL_NORM, 0);
    assert_int_equal(norm->bytes, 2 * bytes);
    for (size_t i = 0; i < bytes / 2; i++) {
        assert_memory_equal(norm->data + 4 * i + 2, raw + 2 * i, 2);
        assert_memory_equal(norm->data + 4 * i, "\0\0", 2);
    }
    free(raw);
    assert_int_equal(device_of(m)->shape.block_size, 8);
    assert_false(device_of(m)->shape.tied_head);
    model_destroy(m);
}

static void dtype_converts_matrices_alone(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", golden_path("qwen2-single-standard-none"));
    struct model *plain = load_path(path, "auto");
    static const char *const names[] = {"f32", "f16", "bf16", "q8_0", "q4_0"};
    uint64_t last = UINT64_MAX;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct model *m = load_path(path, names[i]);
        enum dtype want = (enum dtype)dtype_parse(names[i]);
        assert_string_equal(model_info(m)->weight_dtype, names[i]);
        assert_true(model_info(m)->weight_bytes < last || i == 2);
        last = model_info(m)->weight_bytes;
        assert_int_equal(device_of(m)->n_records, device_of(plain)->n_records);
        for (size_t k = 0; k < device_of(m)->n_records; k++) {
            const struct record *r = &device_of(m)->records[k], *p = &device_of(plain)->records[k];
            assert_int_equal(r->which, p->which);
            assert_int_equal(r->rows, p->rows);
            if (r->rows == 1) {
                assert_int_equal(r->dtype, DTYPE_F32);
                assert_memory_equal(r->data, p->data, p->bytes);
                continue;
            }
            assert_int_equal(r->dtype, want);
            uint8_t *converted = malloc(r->bytes);
            dtype_from_f32(want, (const float *)p->data, (size_t)p->rows * p->cols, converted);
            assert_memory_equal(r->data, converted, r->bytes);
            free(converted);
        }
        model_destroy(m);
    }
    model_destroy(plain);
    refused_with(&(struct model_options){.path = path, .dtype = "int4"}, "dtype: \"int4\"");
    refused_with(&(struct model_options){.path = path, .dtype = "q4_1"}, "dtype: \"q4_1\"");
    refused_with(&(struct model_options){.path = path, .dtype = "q4_k"}, "dtype: \"q4_k\"");
}

/* What a format cannot hold must not become another number when a model is loaded in it. */
static void numbers_beyond_the_format_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        float number;
        const char *dtype, *shown; /* NULL: accepted */
    } cases[] = {
        {70000, "f16", "lm_head.weight: 70000 is beyond the range of f16"},
        {70000, "q4_0", "lm_head.weight: 70000 is beyond the range of q4_0"},
        {1e9f, "q8_0", "lm_head.weight: 1e+09 is beyond the range of q8_0"},
        {NAN, "q8_0", "lm_head.weight: nan is beyond the range of q8_0"},
        {INFINITY, "q8_0", "lm_head.weight: inf is beyond the range of q8_0"},
        {70000, "q8_0", NULL},
        {INFINITY, "f16", NULL},
        {NAN, "bf16", NULL},
    };
    const char *dir = whole_toy("", true), *path = keep(path_in(dir, "model.safetensors"));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t n;
        char *data = read_file(path, &n);
        memcpy(data + n - 4, &cases[i].number, 4);
        write_file(path, data, n);
        free(data);
        if (cases[i].shown)
            refused_with(&(struct model_options){.path = dir, .dtype = cases[i].dtype},
                         cases[i].shown);
        else
            model_destroy(load_path(dir, cases[i].dtype));
    }
}

static void blocks_that_do_not_fit_are_refused_by_name(void **state) {
    (void)state;
    const char *dir = keep(scratch_dir());
    write_text(dir, "config.json",
               "{\"model_type\":\"llama\",\"vocab_size\":320,\"hidden_size\":24,"
               "\"intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
               "\"max_position_embeddings\":128,\"tie_word_embeddings\":true}");
    copy_golden("llama-orthros-standard-none", "tokenizer.json", dir);
    struct toy t = {0};
    static const char *const squares[] = {"q", "k", "v", "o"};
    char name[128];
    toy_f32(&t, "model.embed_tokens.weight", 320, 24);
    toy_f32(&t, "model.norm.weight", 0, 24);
    toy_f32(&t, "model.layers.0.input_layernorm.weight", 0, 24);
    toy_f32(&t, "model.layers.0.post_attention_layernorm.weight", 0, 24);
    for (size_t i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "model.layers.0.self_attn.%s_proj.weight", squares[i]);
        toy_f32(&t, name, 24, 24);
    }
    toy_f32(&t, "model.layers.0.mlp.gate_proj.weight", 32, 24);
    toy_f32(&t, "model.layers.0.mlp.up_proj.weight", 32, 24);
    toy_f32(&t, "model.layers.0.mlp.down_proj.weight", 24, 32);
    toy_write(&t, path_in(dir, "model.safetensors"));
    refused_with(&(struct model_options){.path = dir, .dtype = "q8_0"},
                 "model.embed_tokens.weight: rows of 24 elements, q8_0");
    struct model *m = load_path(dir, "bf16");
    model_destroy(m);
}

/* ---- shapes and names -------------------------------------------------------------------------- */

static void wrong_shapes_and_missing_tensors_are_named(void **state) {
    (void)state;
    const char *dir = whole_toy(",\"tie_word_embeddings\":true", false);
    model_destroy(load_path(dir, NULL));
    toy_config(dir, 320, ",\"tie_word_embeddings\":true,\"num_key_value_heads\":4");
    write_text(dir, "config.json",
               "{\"model_type\":\"llama\",\"vocab_size\":320,\"hidden_size\":64,"
               "\"intermediate_size\":96,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
               "\"num_key_value_heads\":4,\"max_position_embeddings\":128,"
               "\"tie_word_embeddings\":true}");
    refused(dir, "weights: model.layers.0.self_attn.k_proj.weight: shape [32,64], config wants "
                 "[64,64]");
    write_text(dir, "config.json",
               "{\"model_type\":\"llama\",\"vocab_size\":320,\"hidden_size\":64,"
               "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
               "\"num_key_value_heads\":2,\"max_position_embeddings\":128,"
               "\"tie_word_embeddings\":true}");
    refused(dir, "weights: model.layers.1.input_layernorm.weight is missing");

    struct toy t = {0};
    toy_ends(&t, 320);
    toy_layer(&t, "mlp.up_proj.weight");
    toy_write(&t, path_in(dir, "model.safetensors"));
    toy_config(dir, 320, ",\"tie_word_embeddings\":true");
    refused(dir, "weights: model.layers.0.mlp.up_proj.weight is missing");
}

static void unknown_tensors_are_refused_and_inert_ones_are_not(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool fine;
    } cases[] = {
        {"model.layers.0.self_attn.rotary_emb.inv_freq", true},
        {"model.layers.0.self_attn.q_proj.bias", false},
        {"model.layers.0.self_attn.q_norm.weight", false},
        {"model.layers.0.self_attn.q_affine_base.weight", false},
        {"model.layers.0.self_attn.q_proj_diff.weight", false},
        {"model.layers.1.input_layernorm.weight", false},
        {"score.weight", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *dir = keep(scratch_dir());
        toy_config(dir, 320, ",\"tie_word_embeddings\":true");
        struct toy t = {0};
        toy_ends(&t, 320);
        toy_layer(&t, NULL);
        toy_f32(&t, cases[i].name, 0, 8);
        toy_write(&t, path_in(dir, "model.safetensors"));
        if (cases[i].fine)
            model_destroy(load_path(dir, NULL));
        else
            refused(dir, cases[i].name);
    }
}

static void other_types_are_refused_by_name(void **state) {
    (void)state;
    static const char *const types[][2] = {
        {"F64", "type F64"}, {"I64", "type I64"}, {"I8", "I8 without its _scale"}};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        const char *dir = keep(scratch_dir());
        toy_config(dir, 320, ",\"tie_word_embeddings\":true");
        struct toy t = {0};
        toy_ends(&t, 320);
        toy_layer(&t, "self_attn.v_proj.weight");
        static const uint8_t zeros[TOY_KV * TOY_D * 8];
        toy_add(&t, "model.layers.0.self_attn.v_proj.weight", types[i][0], TOY_KV, TOY_D, zeros,
                (i == 2 ? 1u : 8u) * TOY_KV * TOY_D);
        toy_write(&t, path_in(dir, "model.safetensors"));
        refused(dir, types[i][1]);
        refused(dir, "model.layers.0.self_attn.v_proj.weight");
    }
}

/* I8 with scales is Q8_0, U8 with scales and minima Q4_1. */
static void quantised_safetensors_become_blocks(void **state) {
    (void)state;
    const char *dir = keep(scratch_dir());
    toy_config(dir, 320, ",\"tie_word_embeddings\":true");
    struct toy t = {0};
    rng_seed(&t.rng, 9);
    toy_ends(&t, 320);
    toy_layer(&t, "self_attn.v_proj.weight");
    int8_t q[TOY_KV * TOY_D];
    uint16_t scale[TOY_KV * TOY_D / 32], min[TOY_KV * TOY_D / 32];
    uint8_t nibbles[TOY_KV * TOY_D];
    for (size_t i = 0; i < ARRAY_LEN(q); i++) {
        q[i] = (int8_t)((int)rng_below(&t.rng, 255) - 127);
        nibbles[i] = (uint8_t)rng_below(&t.rng, 16);
    }
    for (size_t i = 0; i < ARRAY_LEN(scale); i++) {
        scale[i] = f32_to_f16((float)rng_unit(&t.rng));
        min[i] = f32_to_f16((float)rng_unit(&t.rng) - 1);
    }
    const char *name = "model.layers.0.self_attn.v_proj.weight";
    toy_add(&t, name, "I8", TOY_KV, TOY_D, q, sizeof q);
    toy_add(&t, "model.layers.0.self_attn.v_proj.weight_scale", "F16", TOY_KV, TOY_D / 32, scale,
            sizeof scale);
    toy_write(&t, path_in(dir, "model.safetensors"));
    struct model *m = load_path(dir, "f32");
    const float *v = (const float *)find(m, WEIGHT_V, 0)->data;
    for (size_t i = 0; i < ARRAY_LEN(q); i++)
        assert_true(v[i] == f16_to_f32(scale[i / 32]) * q[i]);
    model_destroy(m);
    m = load_path(dir, "auto");
    assert_int_equal(find(m, WEIGHT_V, 0)->dtype, DTYPE_Q8_0);
    assert_string_equal(model_info(m)->weight_dtype, "mixed");
    model_destroy(m);

    uint8_t packed[TOY_KV * TOY_D / 2];
    for (size_t i = 0; i < ARRAY_LEN(packed); i++)
        packed[i] = (uint8_t)(nibbles[2 * i] | nibbles[2 * i + 1] << 4);
    toy_ends(&t, 320);
    toy_layer(&t, "self_attn.v_proj.weight");
    toy_add(&t, name, "U8", TOY_KV, TOY_D / 2, packed, sizeof packed);
    toy_add(&t, "model.layers.0.self_attn.v_proj.weight_scale", "F16", TOY_KV, TOY_D / 32, scale,
            sizeof scale);
    toy_add(&t, "model.layers.0.self_attn.v_proj.weight_min", "F16", TOY_KV, TOY_D / 32, min,
            sizeof min);
    toy_write(&t, path_in(dir, "model.safetensors"));
    m = load_path(dir, "f32");
    v = (const float *)find(m, WEIGHT_V, 0)->data;
    for (size_t i = 0; i < ARRAY_LEN(nibbles); i++)
        assert_true(v[i] == f16_to_f32(scale[i / 32]) * nibbles[i] + f16_to_f32(min[i / 32]));
    model_destroy(m);
}

/* ---- cases of public faults -------------------------------------------------------------------- */

static void S11_01_files_that_are_no_safetensors(void **state) {
    (void)state;
    const char *dir = whole_toy(",\"tie_word_embeddings\":true", false);
    const char *path = path_in(dir, "model.safetensors");
    static const struct {
        const char *bytes;
        size_t n;
    } files[] = {{"", 0},
                 {"\1\0\0\0\0\0\0", 7},
                 {"\2\0\0\0\0\0\0\0", 8},
                 {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10},
                 {"\3\0\0\0\0\0\0\0{}", 10},
                 {"\2\0\0\0\0\0\0\0{}", 10},
                 {"\2\0\0\0\0\0\0\0xx", 10}};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        write_file(path, files[i].bytes, files[i].n);
        refused(dir, "model.safetensors");
    }
}

static void S11_02_data_outside_the_file(void **state) {
    (void)state;
    const char *dir = whole_toy(",\"tie_word_embeddings\":true", false);
    struct bytes b = safetensors_file(
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", NULL, 8);
    write_file(path_in(dir, "model.safetensors"), b.p, b.n);
    free(b.p);
    refused(dir, "model.safetensors: w: data_offsets [8, 16] outside");
}

static void S11_03_shard_missing_or_cut(void **state) {
    (void)state;
    const char *dir = copy_sharded();
    model_destroy(load_path(dir, NULL));

    const char *second = keep(path_in(dir, "model-00002-of-00003.safetensors"));
    size_t n;
    char *data = read_file(second, &n);
    write_file(second, data, n - 1);
    refused(dir, "model-00002-of-00003.safetensors");
    write_file(second, data, n / 2);
    refused(dir, "model-00002-of-00003.safetensors");
    unlink(second);
    refused(dir, "model-00002-of-00003.safetensors");
    assert_int_equal(mkdir(second, 0700), 0);
    refused(dir, "model-00002-of-00003.safetensors: not a regular file");
    rmdir(second);
    write_file(second, data, n);
    free(data);

    const char *index = keep(path_in(dir, "model.safetensors.index.json"));
    static const char *const bad[][2] = {
        {"{\"weight_map\":{\"model.norm.weight\":\"model-00001-of-00003.safetensors\","
         "\"model.nothing\":\"model-00001-of-00003.safetensors\"}}",
         "model.n"},
        {"{\"weight_map\":{\"a\":\"../model-00001-of-00003.safetensors\"}}", "no file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "no file name"},
        {"{\"weight_map\":{\"a\":7}}", "no file name"},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"[]", "weight_map"},
        {"{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "duplicate"},
        {"{\"weight_map\":", "model.safetensors.index.json"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        write_file(index, bad[i][0], strlen(bad[i][0]));
        refused(dir, bad[i][1]);
    }
    unlink(index);
    refused(dir, "neither model.safetensors nor");
    assert_int_equal(mkdir(path_in(dir, "model.safetensors"), 0700), 0);
    refused(dir, "model.safetensors: not a regular file");
    refused(path_in(dir, "nowhere"), "no such file");
    refused(path_in(dir, "config.json"), "neither a directory nor");
}

static void S11_03_an_index_names_a_tensor_its_shard_lacks(void **state) {
    (void)state;
    const char *dir = copy_sharded();
    const char *index = path_in(dir, "model.safetensors.index.json");
    size_t n;
    char *text = read_file(index, &n);
    /* The norm is said to be in another file than it is. */
    char *at = strstr(text, "\"model.norm.weight\"");
    assert_non_null(at);
    at = strstr(at, "-of-") - 1;
    *at = *at == '1' ? '2' : '1';
    write_file(index, text, n);
    free(text);
    refused(dir, "model.norm.weight: the index names this tensor, the file lacks it");
}

static void S11_04_weight_map_decides(void **state) {
    (void)state;
    const char *dir = keep(scratch_dir());
    toy_config(dir, 320, "");
    struct toy t = {0};
    rng_seed(&t.rng, 1);
    toy_ends(&t, 320);
    toy_f32(&t, "lm_head.weight", 320, TOY_D);
    toy_write(&t, path_in(dir, "one.safetensors"));
    rng_seed(&t.rng, 2);
    toy_layer(&t, NULL);
    toy_f32(&t, "lm_head.weight", 320, TOY_D); /* a copy that the index gives to the other */
    toy_f32(&t, "stray.weight", 0, 4);
    toy_write(&t, path_in(dir, "two.safetensors"));
    rng_seed(&t.rng, 3);
    toy_f32(&t, "lm_head.weight", 320, TOY_D);
    toy_write(&t, path_in(dir, "extra.safetensors"));
    struct bytes map = {0};
    put_text(&map, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    static const char *const ones[] = {"model.embed_tokens.weight", "model.norm.weight",
                                       "lm_head.weight"};
    static const char *const twos[] = {
        "input_layernorm",  "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj",         "mlp.gate_proj",    "mlp.up_proj",
        "mlp.down_proj"};
    char line[128];
    for (size_t i = 0; i < ARRAY_LEN(ones); i++) {
        snprintf(line, sizeof line, "\"%s\":\"one.safetensors\",", ones[i]);
        put_text(&map, line);
    }
    for (size_t i = 0; i < ARRAY_LEN(twos); i++) {
        snprintf(line, sizeof line, "%s\"model.layers.0.%s.weight\":\"two.safetensors\"",
                 i ? "," : "", twos[i]);
        put_text(&map, line);
    }
    put_text(&map, "}}");
    write_file(path_in(dir, "model.safetensors.index.json"), map.p, map.n);
    free(map.p);
    struct model *m = load_path(dir, NULL);
    size_t bytes;
    uint8_t *raw = raw_tensor(path_in(dir, "one.safetensors"), "lm_head.weight", &bytes);
    assert_memory_equal(find(m, WEIGHT_LM_HEAD, 0)->data, raw, bytes);
    free(raw);
    model_destroy(m);
}

static void S11_05_tied_output_head(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++)
        for (int present = 0; present < 2; present++) {
            const char *dir = whole_toy(tied ? ",\"tie_word_embeddings\":true" : "", present);
            if (!tied && !present) {
                refused(dir, "weights: lm_head.weight is missing");
                continue;
            }
            struct model *m = load_path(dir, NULL);
            assert_int_equal(find(m, WEIGHT_LM_HEAD, 0) != NULL, !tied);
            assert_int_equal(device_of(m)->shape.tied_head, tied);
            model_destroy(m);
        }
}

static void S11_07_embedding_larger_than_the_tokenizer(void **state) {
    (void)state;
    const char *dir = whole_toy(",\"tie_word_embeddings\":true", false); /* 318 tokens, 320 rows */
    struct model *m = load_path(dir, NULL);
    assert_int_equal(model_info(m)->vocab_size, 320);
    size_t len = 9;
    tokenizer_piece(m->tokenizer, 319, false, &len);
    assert_int_equal(len, 0);
    model_destroy(m);

    toy_config(dir, 300, ",\"tie_word_embeddings\":true");
    struct toy t = {0};
    toy_ends(&t, 300);
    toy_layer(&t, NULL);
    toy_write(&t, path_in(dir, "model.safetensors"));
    refused(dir, "318 tokens, the embedding has only 300 rows");
}

/* ---- options and surroundings ------------------------------------------------------------------ */

static void window_gives_a_plain_model_two_streams(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", golden_path("qwen3-single-standard-none"));
    struct model *plain = load_path(path, NULL);
    struct model *m = load(&(struct model_options){.path = path, .window = 32});
    assert_true(device_of(m)->shape.orthros);
    assert_int_equal(device_of(m)->shape.window, 32);
    assert_int_equal(model_info(m)->window, 32);
    assert_int_equal(model_info(plain)->window, 0);
    assert_null(find(m, WEIGHT_AFFINE_BASE_SCALE, 0));
    assert_true(model_info(m)->fingerprint != model_info(plain)->fingerprint);
    model_destroy(m);
    m = load(&(struct model_options){.path = path});
    assert_true(model_info(m)->fingerprint == model_info(plain)->fingerprint);
    assert_int_equal(device_of(m)->shape.activations, ACTIVATIONS_F32);
    model_destroy(m);
    m = load(&(struct model_options){.path = path, .activations = "int8"});
    assert_int_equal(device_of(m)->shape.activations, ACTIVATIONS_INT8);
    assert_string_equal(model_info(m)->activations, "f32"); /* no weights that it concerns */
    assert_true(model_info(m)->fingerprint != model_info(plain)->fingerprint);
    model_destroy(m);
    m = load(&(struct model_options){.path = path, .dtype = "q8_0", .activations = "int8"});
    assert_string_equal(model_info(m)->activations, "int8");
    model_destroy(m);
    m = load(&(struct model_options){.path = path, .dtype = "q8_0", .activations = "auto"});
    assert_int_equal(device_of(m)->shape.activations, ACTIVATIONS_INT8);
    assert_string_equal(model_info(m)->activations, "int8");
    model_destroy(m);
    m = load(&(struct model_options){.path = path, .dtype = "bf16"});
    assert_true(model_info(m)->fingerprint != model_info(plain)->fingerprint);
    model_destroy(m);
    model_destroy(plain);
    refused_with(&(struct model_options){.path = path, .activations = "int4"},
                 "activations: \"int4\"");
    snprintf(path, sizeof path, "%s", golden_path("llama-orthros-standard-none"));
    refused_with(&(struct model_options){.path = path, .window = 32}, "window: 32");
}

/* What "auto" means, for every type of matrix and every table. */
static void activations_follow_the_weights(void **state) {
    (void)state;
    enum { F32 = 1 << ACTIVATIONS_F32, BF16 = 1 << ACTIVATIONS_BF16, INT8 = 1 << ACTIVATIONS_INT8 };
    static const unsigned tables[] = {F32, F32 | BF16, F32 | INT8, F32 | BF16 | INT8};
    for (size_t i = 0; i < ARRAY_LEN(tables); i++)
        for (int d = 0; d < DTYPE_COUNT; d++)
            for (int other = 0; other < DTYPE_COUNT; other++) {
                struct kernels kernels = {.name = "some", .activations = tables[i]};
                uint64_t bytes[DTYPE_COUNT] = {0};
                bytes[d] = 1, bytes[other] += 1000;
                bool blocks = d >= DTYPE_Q8_0 || other >= DTYPE_Q8_0;
                bool narrow = d != DTYPE_F32 || other != DTYPE_F32;
                enum activations want = blocks && tables[i] & INT8   ? ACTIVATIONS_INT8
                                        : narrow && tables[i] & BF16 ? ACTIVATIONS_BF16
                                                                     : ACTIVATIONS_F32;
                enum activations got = ACTIVATIONS_COUNT;
                struct err err = {0};
                assert_int_equal(model_choose_activations(NULL, &kernels, bytes, &got, &err), OK);
                assert_int_equal(got, want);
                assert_int_equal(model_choose_activations("f32", &kernels, bytes, &got, &err), OK);
                assert_int_equal(got, ACTIVATIONS_F32);
            }
}

static void names_threads_and_progress(void **state) {
    (void)state;
    const char *dir = whole_toy(",\"tie_word_embeddings\":true,\"eos_token_id\":[3,4]", false);
    write_text(dir, "generation_config.json", "{\"eos_token_id\":[4,9]}");
    struct load_progress progress = {0};
    struct model *m = load(&(struct model_options){
        .path = dir, .name = "my-model", .n_threads = 3, .progress = &progress});
    assert_string_equal(model_info(m)->name, "my-model");
    assert_int_equal(device_of(m)->n_threads, 3);
    assert_int_equal(atomic_load(&progress.phase), LOAD_CACHE);
    assert_int_equal(atomic_load(&progress.permille), 900);
    assert_true(model_info(m)->n_eos_ids >= 3);
    assert_int_equal(model_info(m)->eos_ids[0], 3);
    assert_int_equal(model_info(m)->eos_ids[2], 9);
    model_destroy(m);
    m = load_path(dir, NULL);
    assert_int_equal(device_of(m)->n_threads, cpu_count());
    model_destroy(m);

    cancel_at_first = &progress;
    refused_with(&(struct model_options){.path = dir, .progress = &progress}, "cancelled");
    cancel_at_first = NULL;
}

static void processor_quotas_are_read(void **state) {
    (void)state;
    assert_int_equal(cpu_count_quota("200000 100000\n"), 2);
    assert_int_equal(cpu_count_quota("150000 100000\n"), 2);
    assert_int_equal(cpu_count_quota("50000 100000"), 1);
    assert_int_equal(cpu_count_quota("max 100000"), 0);
    assert_int_equal(cpu_count_quota("100000 0"), 0);
    assert_int_equal(cpu_count_quota(""), 0);
    assert_true(cpu_count() >= 1);
}

static void a_file_cut_while_loading_is_an_error(void **state) {
    (void)state;
    const char *dir = whole_toy(",\"tie_word_embeddings\":true", false);
    cut_path = keep(path_in(dir, "model.safetensors"));
    refused(dir, "model.safetensors: model.layers.0.");
    cut_path = NULL;
}

/* A weight of several chunks, which threads read together, is what a single one reads; the first error
 * ends all of them, and so does a cancelled load. */
static void threads_read_large_weights_together(void **state) {
    (void)state;
    enum { VOCAB = 70000 };
    const char *dir = keep(scratch_dir()), *path = keep(path_in(dir, "model.safetensors"));
    toy_config(dir, VOCAB, ",\"tie_word_embeddings\":true");
    struct toy t = {0};
    rng_seed(&t.rng, 6);
    toy_layer(&t, NULL);
    toy_ends(&t, VOCAB);
    toy_write(&t, path);
    static const char *const dtypes[] = {"f32", "bf16", "q8_0"};
    struct load_progress progress = {0};
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
        struct model_options options = {.path = dir, .dtype = dtypes[i], .n_threads = 1};
        struct model *alone = load(&options);
        options.n_threads = 7;
        options.progress = &progress;
        struct model *m = load(&options);
        assert_int_equal(device_of(m)->n_records, device_of(alone)->n_records);
        for (size_t k = 0; k < device_of(m)->n_records; k++) {
            const struct record *r = &device_of(m)->records[k],
                                *one = &device_of(alone)->records[k];
            assert_int_equal(r->bytes, one->bytes);
            assert_memory_equal(r->data, one->data, r->bytes);
        }
        assert_int_equal(atomic_load(&progress.permille), 900);
        model_destroy(m);
        model_destroy(alone);
    }
    atomic_store(&progress.cancel, true);
    refused_with(&(struct model_options){.path = dir, .n_threads = 7, .progress = &progress},
                 "cancelled");
    size_t n;
    char *data = read_file(path, &n);
    const float large = 70000;
    memcpy(data + n - TOY_D * 4 * (VOCAB / 2), &large, 4); /* in the embedding's middle */
    write_file(path, data, n);
    refused_with(&(struct model_options){.path = dir, .dtype = "f16", .n_threads = 7},
                 "embed_tokens.weight: 70000 is beyond");
    free(data);
}

static void templates_come_from_either_place(void **state) {
    (void)state;
    static const struct {
        const char *config, *jinja;
        bool has, error;
    } cases[] = {
        {NULL, NULL, false, false},
        {"{}", NULL, false, false},
        {"{\"chat_template\":\"{{ messages }}\"}", NULL, true, false},
        {"{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"{% if\"},"
         "{\"name\":\"default\",\"template\":\"x\"}]}",
         NULL, true, false},
        {"{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"x\"}]}", NULL, false, false},
        {"{\"chat_template\":\"{% if x %}\"}", NULL, false, true},
        {"{\"chat_template\":\"{% if x %}\"}", "{{ messages }}", true, false},
    };
    const char *dir = whole_toy(",\"tie_word_embeddings\":true", false);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        unlink(path_in(dir, "tokenizer_config.json"));
        unlink(path_in(dir, "chat_template.jinja"));
        if (cases[i].config) write_text(dir, "tokenizer_config.json", cases[i].config);
        if (cases[i].jinja) write_text(dir, "chat_template.jinja", cases[i].jinja);
        struct model *m = load_path(dir, NULL);
        assert_int_equal(model_info(m)->has_chat_template, cases[i].has);
        assert_int_equal(m->chat_template != NULL, cases[i].has);
        assert_int_equal(m->chat_template_error[0] != 0, cases[i].error);
        model_destroy(m);
    }
    write_text(dir, "tokenizer_config.json", "{\"chat_template\":7}");
    unlink(path_in(dir, "chat_template.jinja"));
    refused(dir, "chat_template");
}

static void a_safetensors_path_means_its_directory(void **state) {
    (void)state;
    const char *dir = whole_toy(",\"tie_word_embeddings\":true", false);
    struct model *m = load_path(path_in(dir, "model.safetensors"), NULL);
    assert_int_equal(device_of(m)->n_records, 2 + 9);
    model_destroy(m);
}

static void inspect_shows_and_judges(void **state) {
    (void)state;
    static const struct {
        const char *name;
        const char *words[5];
    } cases[] = {
        {"qwen3-orthros-standard-orthrus",
         {"base and output (Orthros), window 8", "Orthrus, blocks of up to 8 rows",
          "model.layers.2.self_attn.o_proj_diff.weight", "can be loaded"}},
        {"qwen3-single-msar-orthrus-bf16",
         {"MSAR, 3 branches a block, kernels 1 4 8 12",
          /* 8 vectors of 64 floats at 11 + 15 + 8 positions, and at 11 */
          "MSAR per sequence  69632 bytes", "MSAR per snapshot  22528 bytes", "can be loaded"}},
        {SHARDED,
         {"llama", "linear, factor 2", "KV f32 per 1000    512000 bytes",
          "KV q8_0 per 1000   144000 bytes", "can be loaded"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[256], *text = NULL;
        size_t n = 0;
        snprintf(path, sizeof path, "%s", golden_path(cases[i].name));
        FILE *out = open_memstream(&text, &n);
        struct err err = {0};
        if (model_inspect(&(struct model_options){.path = path}, out, &err))
            fail_msg("%s", err.msg);
        fclose(out);
        for (size_t w = 0; w < 5 && cases[i].words[w]; w++)
            if (!strstr(text, cases[i].words[w]))
                fail_msg("%s: \"%s\" is not in:\n%s", cases[i].name, cases[i].words[w], text);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_checkpoint_loads),
        cmocka_unit_test(weights_arrive_as_they_are_stored),
        cmocka_unit_test(dtype_converts_matrices_alone),
        cmocka_unit_test(numbers_beyond_the_format_are_refused_by_name),
        cmocka_unit_test(blocks_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(wrong_shapes_and_missing_tensors_are_named),
        cmocka_unit_test(unknown_tensors_are_refused_and_inert_ones_are_not),
        cmocka_unit_test(other_types_are_refused_by_name),
        cmocka_unit_test(quantised_safetensors_become_blocks),
        cmocka_unit_test(S11_01_files_that_are_no_safetensors),
        cmocka_unit_test(S11_02_data_outside_the_file),
        cmocka_unit_test(S11_03_shard_missing_or_cut),
        cmocka_unit_test(S11_03_an_index_names_a_tensor_its_shard_lacks),
        cmocka_unit_test(S11_04_weight_map_decides),
        cmocka_unit_test(S11_05_tied_output_head),
        cmocka_unit_test(S11_07_embedding_larger_than_the_tokenizer),
        cmocka_unit_test(window_gives_a_plain_model_two_streams),
        cmocka_unit_test(activations_follow_the_weights),
        cmocka_unit_test(names_threads_and_progress),
        cmocka_unit_test(processor_quotas_are_read),
        cmocka_unit_test(a_file_cut_while_loading_is_an_error),
        cmocka_unit_test(threads_read_large_weights_together),
        cmocka_unit_test(templates_come_from_either_place),
        cmocka_unit_test(a_safetensors_path_means_its_directory),
        cmocka_unit_test(inspect_shows_and_judges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
