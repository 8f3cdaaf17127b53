/* A GGUF file made from a golden checkpoint, as the usual converter writes it (llama's q and k rows
 * permuted within each head), must put the same numbers on the device as the checkpoint itself. */
#include <math.h>
#include <unistd.h>

#include "engine/load/checkpoint.h"
#include "tests/unit/fake_model_device.h"
#include "tests/unit/model_files.h"

/* ---- the converter ----------------------------------------------------------------------------- */

struct out_tensor {
    char name[160];
    uint32_t n_dims;
    uint64_t ne[2];
    uint32_t type; /* GGUF's number */
    struct bytes data;
};

struct converter {
    struct checkpoint *ck;
    struct config config;
    enum dtype dtype; /* of the matrices */
    bool llama;
    struct out_tensor tensors[256];
    size_t n_tensors;
    struct bytes kv;
    uint64_t n_kv;
};

static uint32_t gguf_number(enum dtype dtype) {
    static const uint32_t numbers[] = {[DTYPE_F32] = 0,  [DTYPE_F16] = 1,  [DTYPE_BF16] = 30,
                                       [DTYPE_Q8_0] = 8, [DTYPE_Q4_0] = 2, [DTYPE_Q4_1] = 3};
    return numbers[dtype];
}

/* "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight"; others keep their names. */
static void gguf_name(const char *name, char out[160]) {
    static const char *const names[][2] = {
        {"input_layernorm.", "attn_norm."},    {"post_attention_layernorm.", "ffn_norm."},
        {"self_attn.q_proj.", "attn_q."},      {"self_attn.k_proj.", "attn_k."},
        {"self_attn.v_proj.", "attn_v."},      {"self_attn.o_proj.", "attn_output."},
        {"self_attn.q_norm.", "attn_q_norm."}, {"self_attn.k_norm.", "attn_k_norm."},
        {"mlp.gate_proj.", "ffn_gate."},       {"mlp.up_proj.", "ffn_up."},
        {"mlp.down_proj.", "ffn_down."},
    };
    snprintf(out, 160, "%s", name);
    if (!strcmp(name, "model.embed_tokens.weight")) strcpy(out, "token_embd.weight");
    if (!strcmp(name, "model.norm.weight")) strcpy(out, "output_norm.weight");
    if (!strcmp(name, "lm_head.weight")) strcpy(out, "output.weight");
    unsigned layer;
    int at = 0;
    if (sscanf(name, "model.layers.%u.%n", &layer, &at) != 1) return;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (!strncmp(name + at, names[i][0], strlen(names[i][0])))
            snprintf(out, 160, "blk.%u.%s%s", layer, names[i][1], name + at + strlen(names[i][0]));
}

static void add_tensor(struct converter *c, size_t index) {
    const struct checkpoint_tensor *t = checkpoint_tensor(c->ck, index);
    struct out_tensor *o = &c->tensors[c->n_tensors++];
    bool matrix = t->n_dims == 2;
    uint64_t rows = matrix ? t->shape[0] : 1, cols = t->shape[t->n_dims - 1];
    gguf_name(t->name, o->name);
    o->n_dims = t->n_dims;
    o->ne[0] = cols;
    o->ne[1] = rows;
    size_t n = (size_t)(rows * cols);
    uint8_t *stored = malloc(n * 4);
    float *wide = malloc(n * 4), *sorted = malloc(n * 4);
    assert_int_equal(checkpoint_read(c->ck, index, 0, rows, stored, NULL), OK);
    dtype_to_f32((enum dtype)t->dtype, stored, n, wide);
    memcpy(sorted, wide, n * 4);
    uint64_t half = c->config.shape.head_dim / 2, unit = matrix ? cols : 1;
    if (c->llama && (strstr(o->name, ".attn_q.") || strstr(o->name, ".attn_k.")))
        for (uint64_t r = 0; r < n / unit; r++) { /* row m + s * half of ours goes to 2m + s */
            uint64_t h = r / (2 * half), s = r % (2 * half) / half, m = r % half;
            memcpy(sorted + (h * 2 * half + 2 * m + s) * unit, wide + r * unit, unit * 4);
        }
    enum dtype dtype = matrix ? c->dtype : DTYPE_F32;
    o->type = gguf_number(dtype);
    size_t bytes = dtype_row_bytes(dtype, n);
    uint8_t *data = malloc(bytes);
    dtype_from_f32(dtype, sorted, n, data);
    put(&o->data, data, bytes);
    free(data);
    free(stored);
    free(wide);
    free(sorted);
}

static void add_u32(struct converter *c, const char *key, uint32_t v) {
    char full[96];
    if (strchr(key, '.') && !strncmp(key, "geryon.", 7))
        snprintf(full, sizeof full, "%s", key);
    else
        snprintf(full, sizeof full, "%s.%s", backbone_name(c->config.backbone), key);
    put_kv_u32(&c->kv, full, v);
    c->n_kv++;
}

static void add_f32(struct converter *c, const char *key, double v) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", backbone_name(c->config.backbone), key);
    put_kv_f32(&c->kv, full, (float)v);
    c->n_kv++;
}

static void add_rope(struct converter *c) {
    const struct rope *r = &c->config.rope;
    uint32_t half = c->config.shape.head_dim / 2;
    add_f32(c, "rope.freq_base", r->theta);
    if (r->type == ROPE_LLAMA3) { /* as a tensor of factors, as the converter does */
        struct out_tensor *o = &c->tensors[c->n_tensors++];
        strcpy(o->name, "rope_freqs.weight");
        o->n_dims = 1;
        o->ne[0] = half;
        for (uint32_t m = 0; m < half; m++) {
            double plain = pow(r->theta, -2.0 * m / (2 * half));
            float factor = (float)(plain / c->config.shape.rope_freq[m]);
            put(&o->data, &factor, 4);
        }
        return;
    }
    if (r->type == ROPE_DEFAULT) return;
    char key[64];
    snprintf(key, sizeof key, "%s.rope.scaling.type", backbone_name(c->config.backbone));
    put_kv_string(&c->kv, key, rope_type_name(r->type));
    c->n_kv++;
    add_f32(c, "rope.scaling.factor", r->factor);
    if (r->original_max > 0)
        add_u32(c, "rope.scaling.original_context_length", (uint32_t)r->original_max);
}

/* 256 single bytes as byte-level text, as a vocabulary; the rest of the rows have no piece. */
static void add_vocabulary(struct converter *c) {
    put_kv_string(&c->kv, "tokenizer.ggml.model", "gpt2");
    put_kv_string(&c->kv, "tokenizer.ggml.pre", "gpt-2");
    put_kv_array(&c->kv, "tokenizer.ggml.tokens", 8, 256);
    for (uint32_t b = 0, next = 256; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
        uint32_t u = plain ? b : next++;
        char text[4] = {0};
        if (u < 128) {
            text[0] = (char)u;
        } else {
            text[0] = (char)(0xc0 | u >> 6);
            text[1] = (char)(0x80 | (u & 63));
        }
        put_string(&c->kv, text);
    }
    put_kv_array(&c->kv, "tokenizer.ggml.token_type", 5, 256);
    for (int i = 0; i < 256; i++)
        put_u32(&c->kv, 1);
    put_kv_u32(&c->kv, "tokenizer.ggml.eos_token_id", 5);
    put_kv_u32(&c->kv, "tokenizer.ggml.eot_token_id", 6);
    put_kv_string(&c->kv, "tokenizer.chat_template", "{{ messages }}");
    c->n_kv += 7;
}

static void add_metadata(struct converter *c) {
    const struct model_shape *s = &c->config.shape;
    put_kv_string(&c->kv, "general.architecture", backbone_name(c->config.backbone));
    c->n_kv++;
    add_u32(c, "block_count", s->n_layers);
    add_u32(c, "context_length", s->max_position);
    add_u32(c, "embedding_length", s->d_model);
    add_u32(c, "feed_forward_length", s->d_ff);
    add_u32(c, "attention.head_count", s->n_heads);
    add_u32(c, "attention.head_count_kv", s->n_kv_heads);
    add_u32(c, "attention.key_length", s->head_dim);
    add_u32(c, "attention.value_length", s->head_dim);
    add_u32(c, "rope.dimension_count", s->head_dim);
    add_f32(c, "attention.layer_norm_rms_epsilon", (double)s->rms_eps);
    if (s->orthros) add_u32(c, "geryon.orthros.window", s->window);
    if (s->block_size) {
        add_u32(c, "geryon.orthrus.block_size", s->block_size);
        add_u32(c, "geryon.orthrus.mask_token_id", (uint32_t)s->mask_token);
    }
    add_rope(c);
    add_vocabulary(c);
}

static void write_gguf(struct converter *c, const char *path) {
    struct bytes b = {0}, data = {0};
    put_head(&b, 2 + (c->dtype != DTYPE_F32), c->n_tensors, c->n_kv);
    put(&b, c->kv.p, c->kv.n);
    for (size_t i = 0; i < c->n_tensors; i++) {
        struct out_tensor *o = &c->tensors[i];
        put_tensor(&b, o->name, o->n_dims, o->ne, o->type, data.n);
        put(&data, o->data.p, o->data.n);
        pad_to(&data, 32);
        free(o->data.p);
    }
    pad_to(&b, 32);
    put(&b, data.p, data.n);
    write_file(path, b.p, b.n);
    free(b.p);
    free(data.p);
    free(c->kv.p);
}

static void convert(const char *dir, enum dtype dtype, const char *path) {
    struct converter *c = calloc(1, sizeof *c);
    struct err err;
    c->dtype = dtype;
    if (checkpoint_open(dir, &c->ck, &err) || checkpoint_config(c->ck, &c->config, &err))
        fail_msg("%s: %s", dir, err.msg);
    c->llama = c->config.backbone == BACKBONE_LLAMA;
    add_metadata(c);
    for (size_t i = 0; i < checkpoint_n_tensors(c->ck); i++)
        add_tensor(c, i);
    write_gguf(c, path);
    checkpoint_close(c->ck);
    config_fini(&c->config);
    free(c);
}

/* ---- tests ------------------------------------------------------------------------------------- */

static void same_on_the_device(const struct model *a, const struct model *b) {
    const struct fake *x = device_of(a), *y = device_of(b);
    assert_int_equal(x->n_records, y->n_records);
    for (size_t i = 0; i < x->n_records; i++) {
        const struct record *p = &x->records[i], *q = &y->records[i];
        assert_int_equal(p->which, q->which);
        assert_int_equal(p->layer, q->layer);
        assert_int_equal(p->dtype, q->dtype);
        assert_int_equal(p->bytes, q->bytes);
        if (memcmp(p->data, q->data, p->bytes) != 0)
            fail_msg("weight %d of layer %u differs", (int)p->which, p->layer);
    }
    for (uint32_t m = 0; m < x->shape.head_dim / 2; m++)
        assert_true(fabs(x->freq[m] / y->freq[m] - 1) < 2e-7); /* float32 in the metadata */
    assert_true(fabs(x->shape.rope_scale / y->shape.rope_scale - 1) < 1e-7);
    assert_true(x->shape.rms_eps == y->shape.rms_eps);
    assert_int_equal(x->shape.tied_head, y->shape.tied_head);
    assert_int_equal(x->shape.window, y->shape.window);
    assert_int_equal(x->shape.block_size, y->shape.block_size);
    assert_int_equal(x->shape.mask_token, y->shape.mask_token);
    assert_int_equal(x->shape.max_position, y->shape.max_position);
    assert_int_equal(x->shape.n_kv_heads, y->shape.n_kv_heads);
}

static void gguf_and_safetensors_give_the_same_weights(void **state) {
    (void)state;
    static const char *const names[] = {
        "llama-orthros-standard-none",
        "llama-single-standard-none-rope-llama3-untied",
        "llama-single-standard-none-rope-linear-sharded",
        "qwen2-single-standard-none",
        "qwen3-single-standard-none-rope-yarn",
        "qwen3-single-standard-orthrus-bf16",
        "qwen3-orthros-standard-orthrus",
    };
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0};
    const char *dir = scratch_dir();
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
            const char *path = keep(path_in(dir, "toy-model.gguf"));
            const char *golden = keep(golden_path(names[i]));
            convert(golden, dtypes[d], path);
            struct model *a = load_path(path, "auto");
            struct model *b = load_path(golden, dtype_name(dtypes[d]));
            same_on_the_device(a, b);
            assert_string_equal(model_info(a)->name, "toy-model");
            assert_string_equal(model_info(a)->weight_dtype, dtype_name(dtypes[d]));
            assert_int_equal(model_info(a)->eos_ids[0], 5);
            assert_int_equal(model_info(a)->eos_ids[1], 6);
            assert_true(model_info(a)->has_chat_template);
            model_destroy(a);
            model_destroy(b);
        }
}

/* Q4_1 has no --dtype; widened to float32 it must be what was stored. */
static void q4_1_is_widened_exactly(void **state) {
    (void)state;
    const char *path = keep(path_in(scratch_dir(), "toy.gguf"));
    convert(golden_path("qwen2-single-standard-none"), DTYPE_Q4_1, path);
    struct model *a = load_path(path, "auto"), *b = load_path(path, "f32");
    assert_string_equal(model_info(a)->weight_dtype, "q4_1");
    const struct record *p = find(a, WEIGHT_UP, 1), *q = find(b, WEIGHT_UP, 1);
    float *wide = malloc(q->bytes);
    dtype_to_f32(DTYPE_Q4_1, p->data, (size_t)p->rows * p->cols, wide);
    assert_memory_equal(wide, q->data, q->bytes);
    free(wide);
    model_destroy(a);
    model_destroy(b);
}

static void unsupported_tensor_types_are_named(void **state) {
    (void)state;
    const char *path = keep(path_in(scratch_dir(), "toy.gguf"));
    convert(golden_path("qwen2-single-standard-none"), DTYPE_F32, path);
    size_t n;
    char *data = read_file(path, &n);
    static const char name[] = "blk.1.ffn_up.weight";
    char *at = memmem(data, n, name, sizeof name - 1);
    assert_non_null(at);
    char *dims = at + sizeof name - 1;
    uint32_t q6_k = 14;
    uint64_t ne[2] = {64, 1}; /* rows of 64 are no multiple of 256 */
    memcpy(dims + 4 + 16, &q6_k, 4);
    write_file(path, data, n);
    refused(path, "Q6_K wants a multiple of 256");
    ne[0] = 256;
    memcpy(dims + 4, ne, 16);
    write_file(path, data, n);
    refused(path, "weights: model.layers.1.mlp.up_proj.weight: shape [1,256]");
    uint32_t iq4 = 20; /* a type whose layout this program does not know at all */
    ne[0] = 64, ne[1] = 96;
    memcpy(dims + 4, ne, 16);
    memcpy(dims + 4 + 16, &iq4, 4);
    write_file(path, data, n);
    refused(path, "weights: model.layers.1.mlp.up_proj.weight: type IQ4_NL is not yet supported");
    struct err err;
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    assert_int_equal(model_inspect(&(struct model_options){.path = path}, out, &err), OK);
    fclose(out);
    assert_non_null(strstr(text, "would be refused: weights: model.layers.1.mlp.up_proj"));
    free(text);
    free(data);
}

/* A real file, where one is at hand: GERYON_TEST_GGUF names it. */
static void a_real_file_loads(void **state) {
    (void)state;
    const char *path = getenv("GERYON_TEST_GGUF");
    if (!path) skip();
    struct model *m = load_path(path, "auto");
    assert_true(device_of(m)->n_records > 3);
    printf("# %s: %s, %zu weights, %llu bytes, %s\n", model_info(m)->name,
           model_info(m)->architecture, device_of(m)->n_records,
           (unsigned long long)model_info(m)->weight_bytes, model_info(m)->weight_dtype);
    model_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_and_safetensors_give_the_same_weights),
        cmocka_unit_test(q4_1_is_widened_exactly),
        cmocka_unit_test(unsupported_tensor_types_are_named),
        cmocka_unit_test(a_real_file_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
