/* GGUF containers: hostile counts, lengths, dimensions, types and alignments, and what the metadata
 * says about a model. */
#include "engine/load/gguf.h"

#include "engine/load/gguf_model.h"
#include "tests/unit/model_files.h"

static int parse(const struct bytes *b, struct gguf **out, struct err *err, char **copy) {
    *copy = guard_copy(b->p, b->n);
    return gguf_parse((const uint8_t *)*copy, b->n, b->n, "toy.gguf", out, err);
}

static void refused(struct bytes *b, const char *word) {
    struct gguf *g = NULL;
    struct err err = {0};
    char *copy;
    int rc = parse(b, &g, &err, &copy);
    if (rc == OK) fail_msg("accepted; a message with \"%s\" was expected", word);
    assert_int_equal(rc, ERR_INVALID);
    assert_null(g);
    if (!strstr(err.msg, word)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, word);
    guard_free(copy, b->n);
    free(b->p);
}

/* One tensor of these dimensions and type, with n_data bytes of data. */
static struct bytes one_tensor(uint32_t n_dims, const uint64_t *ne, uint32_t type, size_t n_data) {
    struct bytes b = {0};
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", n_dims, ne, type, 0);
    pad_to(&b, 32);
    for (size_t i = 0; i < n_data; i++)
        put(&b, "", 1);
    return b;
}

static struct bytes good_file(void) {
    struct bytes b = {0};
    put_head(&b, 3, 2, 6);
    put_kv_u32(&b, "general.alignment", 64);
    put_kv_string(&b, "s", "text");
    put_kv_bool(&b, "flag", 1);
    put_kv_f32(&b, "real", 0.5f);
    put_kv_array(&b, "list", 5, 3);
    put_u32(&b, 7);
    put_u32(&b, (uint32_t)-1);
    put_u32(&b, 9);
    put_kv_array(&b, "words", 8, 2);
    put_string(&b, "a");
    put_string(&b, "");
    put_tensor(&b, "m", 2, (uint64_t[]){32, 3}, 8, 0);
    put_tensor(&b, "v", 1, (uint64_t[]){5}, 0, 128);
    pad_to(&b, 64);
    for (size_t i = 0; i < 148; i++)
        put(&b, "", 1);
    return b;
}

static void values_and_tensors_are_read(void **state) {
    (void)state;
    struct bytes b = good_file();
    struct gguf *g = NULL;
    struct err err;
    char *copy;
    assert_int_equal(parse(&b, &g, &err, &copy), OK);
    assert_int_equal(g->alignment, 64);
    const char *text;
    size_t len;
    assert_int_equal(gguf_string(g, "s", &text, &len, &err), OK);
    assert_int_equal(len, 4);
    assert_memory_equal(text, "text", 4);
    bool flag = false;
    double real = 0;
    int64_t n = -5;
    assert_int_equal(gguf_bool(g, "flag", &flag, &err), OK);
    assert_true(flag);
    assert_int_equal(gguf_real(g, "real", &real, &err), OK);
    assert_true(real == 0.5);
    assert_int_equal(gguf_integer(g, "absent", 0, 9, &n, &err), OK);
    assert_int_equal(n, -5);
    assert_int_equal(gguf_integer(g, "general.alignment", 0, 64, &n, &err), OK);
    assert_int_equal(n, 64);
    assert_int_equal(gguf_integer(g, "general.alignment", 0, 63, &n, &err), ERR_INVALID);
    assert_int_equal(gguf_integer(g, "s", 0, 63, &n, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "s: STRING"));
    assert_int_equal(gguf_integer(g, "list", 0, 63, &n, &err), ERR_INVALID);
    assert_int_equal(gguf_string(g, "words", &text, &len, &err), ERR_INVALID);
    assert_int_equal(gguf_bool(g, "real", &flag, &err), ERR_INVALID);
    assert_int_equal(gguf_real(g, "flag", &real, &err), ERR_INVALID);
    assert_int_equal(gguf_array_integer(gguf_find(g, "list"), 1), -1);
    const uint8_t *cursor = gguf_find(g, "words")->data;
    assert_memory_equal(gguf_next_string(&cursor, &len), "a", 1);
    gguf_next_string(&cursor, &len);
    assert_int_equal(len, 0);
    assert_int_equal(g->n_tensors, 2);
    assert_int_equal(g->tensors[0].dtype, DTYPE_Q8_0);
    assert_int_equal(g->tensors[0].bytes, 3 * 34);
    assert_int_equal(g->tensors[1].offset, g->tensors[0].offset + 128);
    assert_int_equal(g->tensors[0].offset % 64, 0);
    gguf_destroy(g);
    guard_free(copy, b.n);
    free(b.p);
}

/* Every cut of the file is refused; every cut of what was read so far asks for more. */
static void a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    struct bytes b = good_file();
    size_t header = 0;
    for (size_t n = 0; n <= b.n; n++) {
        char *copy = guard_copy(b.p, n);
        struct gguf *g = NULL;
        struct err err;
        assert_int_equal(gguf_parse((uint8_t *)copy, n, n, "toy", &g, &err) == OK, n == b.n);
        gguf_destroy(g);
        g = NULL;
        int rc = gguf_parse((uint8_t *)copy, n, b.n, "toy", &g, &err);
        assert_true(rc == OK || rc == ERR_TOO_LONG);
        if (rc == OK && header == 0) header = n;
        assert_int_equal(rc == OK, header != 0);
        if (g) assert_int_equal(g->header_bytes, header);
        gguf_destroy(g);
        guard_free(copy, n);
    }
    assert_true(header > 0 && header < b.n);
    free(b.p);
}

static void S11_06_hostile_counts_and_dimensions(void **state) {
    (void)state;
    struct bytes b;
    b = one_tensor(1, (uint64_t[]){0}, 0, 64);
    refused(&b, "w: dimension 0 is 0");
    b = one_tensor(4, (uint64_t[]){1ull << 62, 4, 1, 1}, 0, 64);
    refused(&b, "w: dimension");
    b = one_tensor(2, (uint64_t[]){1ull << 40, 1ull << 24}, 0, 64);
    refused(&b, "w: dimension");
    b = one_tensor(2, (uint64_t[]){1ull << 30, 1ull << 24}, 0, 64);
    refused(&b, "outside the file");
    b = one_tensor(5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 64);
    refused(&b, "w: 5 dimensions");
    b = one_tensor(0, NULL, 0, 64);
    refused(&b, "w: 0 dimensions");
    b = one_tensor(2, (uint64_t[]){31, 2}, 8, 128);
    refused(&b, "multiple of 32");
    b = one_tensor(2, (uint64_t[]){48, 2}, 6, 128);
    refused(&b, "w: rows of 48 elements, Q5_0 wants a multiple of 32");
    b = one_tensor(2, (uint64_t[]){128, 2}, 12, 256);
    refused(&b, "w: rows of 128 elements, Q4_K wants a multiple of 256");
    b = one_tensor(2, (uint64_t[]){256, 2}, 14, 128);
    refused(&b, "w: 420 bytes at data offset 0 lie outside the file");
    b = one_tensor(1, (uint64_t[]){4}, 255, 64);
    refused(&b, "w: unknown tensor type 255");
    b = one_tensor(1, (uint64_t[]){17}, 0, 64);
    refused(&b, "w: 68 bytes at data offset 0 lie outside the file");

    b = (struct bytes){0};
    put_head(&b, 3, 1ull << 60, 0);
    put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 0);
    refused(&b, "1152921504606846976 tensors");
    b = (struct bytes){0};
    put_head(&b, 3, 1, 1ull << 60);
    put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 0);
    refused(&b, "1152921504606846976 keys");

    b = (struct bytes){0};
    put_head(&b, 3, 0, 1);
    put_kv_u32(&b, "", 1);
    pad_to(&b, 64);
    refused(&b, "empty metadata key");
    b = (struct bytes){0};
    put_head(&b, 3, 0, 1);
    put_string(&b, "k");
    put_u32(&b, 8);
    put_u64(&b, 1ull << 63);
    pad_to(&b, 64);
    refused(&b, "k of 9223372036854775808 bytes");
    b = (struct bytes){0};
    put_head(&b, 3, 0, 1);
    put_u64(&b, UINT64_MAX);
    pad_to(&b, 64);
    refused(&b, "metadata key");
    b = (struct bytes){0};
    put_head(&b, 3, 0, 1);
    put_kv_array(&b, "k", 10, (1ull << 61) + 1);
    pad_to(&b, 128);
    refused(&b, "k");
    b = (struct bytes){0};
    put_head(&b, 3, 0, 1);
    put_kv_array(&b, "k", 8, UINT64_MAX);
    pad_to(&b, 64);
    refused(&b, "k");
    b = (struct bytes){0};
    put_head(&b, 3, 0, 1);
    put_kv_array(&b, "k", 9, 1);
    put_u32(&b, 4);
    put_u64(&b, 0);
    pad_to(&b, 64);
    refused(&b, "k: metadata type 9");
    b = (struct bytes){0};
    put_head(&b, 3, 0, 1);
    put_string(&b, "k");
    put_u32(&b, 255);
    pad_to(&b, 64);
    refused(&b, "k: metadata type 255");
    b = (struct bytes){0};
    put_head(&b, 3, 0, 1);
    put_kv_bool(&b, "k", 2);
    pad_to(&b, 64);
    refused(&b, "k: BOOL of value 2");
    b = (struct bytes){0};
    put_head(&b, 3, 1, 2);
    put_kv_u32(&b, "k", 2);
    put_kv_u32(&b, "k", 2);
    put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 0);
    pad_to(&b, 128);
    refused(&b, "k: this key is there twice");
    b = (struct bytes){0};
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 0);
    put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 32);
    pad_to(&b, 256);
    refused(&b, "w: this tensor is there twice");
    b = (struct bytes){0};
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "v", 1, (uint64_t[]){16}, 0, 0);
    put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 32);
    pad_to(&b, 256);
    refused(&b, "w: data overlaps");
    b = (struct bytes){0};
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 4);
    pad_to(&b, 128);
    refused(&b, "w: offset 4");
    b = (struct bytes){0};
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, UINT64_MAX - 31);
    pad_to(&b, 128);
    refused(&b, "outside the file");
    b = (struct bytes){0};
    put_head(&b, 3, 0, 0);
    pad_to(&b, 64);
    refused(&b, "no tensor");
}

static void S11_06_alignment_must_be_a_power_of_two(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct bytes b = {0};
        put_head(&b, 3, 1, 1);
        if (kind == 0) put_kv_u32(&b, "general.alignment", 0);
        if (kind == 1) put_kv_u32(&b, "general.alignment", 3);
        if (kind == 2) put_kv_string(&b, "general.alignment", "32");
        if (kind == 3) put_kv_u32(&b, "general.alignment", 1u << 31);
        put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 0);
        pad_to(&b, 256);
        refused(&b, "general.alignment");
    }
}

static void other_versions_are_refused(void **state) {
    (void)state;
    static const uint32_t versions[] = {0, 1, 4, 0x03000000};
    for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
        struct bytes b = {0};
        put_head(&b, versions[i], 1, 0);
        put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 0);
        pad_to(&b, 128);
        refused(&b, "version");
    }
    struct bytes b = {0};
    put_text(&b, "GGML");
    pad_to(&b, 64);
    refused(&b, "not a GGUF file");
}

static void random_damage_is_survived(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct bytes b = good_file();
    for (int round = 0; round < 3000; round++) {
        char *copy = guard_copy(b.p, b.n);
        for (uint32_t k = 1 + rng_below(&rng, 3); k > 0; k--)
            copy[rng_below(&rng, (uint32_t)b.n)] = (char)rng_u64(&rng);
        struct gguf *g = NULL;
        struct config c;
        if (gguf_parse((uint8_t *)copy, b.n, b.n, "toy", &g, NULL) == OK &&
            gguf_model_config(g, &c, NULL) == OK)
            config_fini(&c);
        gguf_destroy(g);
        guard_free(copy, b.n);
    }
    free(b.p);
}

/* ---- models ------------------------------------------------------------------------------------ */

/* The metadata of a small llama; `extra` adds its own keys. Tensors: the embedding alone. */
static struct bytes llama_file(const char *arch, void (*extra)(struct bytes *b, const char *arch),
                               uint64_t n_extra) {
    struct bytes b = {0};
    char key[64];
    static const struct {
        const char *name;
        uint32_t v;
    } numbers[] = {{"block_count", 2},          {"context_length", 512},
                   {"embedding_length", 64},    {"feed_forward_length", 96},
                   {"attention.head_count", 4}, {"attention.head_count_kv", 2}};
    put_head(&b, 3, 1, 1 + ARRAY_LEN(numbers) + 2 + n_extra);
    put_kv_string(&b, "general.architecture", arch);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        snprintf(key, sizeof key, "%s.%s", arch, numbers[i].name);
        put_kv_u32(&b, key, numbers[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    put_kv_f32(&b, key, 1e-5f);
    put_kv_u32(&b, "tokenizer.ggml.eos_token_id", 7);
    if (extra) extra(&b, arch);
    put_tensor(&b, "token_embd.weight", 2, (uint64_t[]){64, 10}, 0, 0);
    pad_to(&b, 32);
    for (size_t i = 0; i < 64 * 10 * 4; i++)
        put(&b, "", 1);
    return b;
}

static int model_config(struct bytes *b, struct config *c, struct err *err) {
    struct gguf *g = NULL;
    char *copy;
    int rc = parse(b, &g, err, &copy);
    if (!rc) rc = gguf_model_config(g, c, err);
    gguf_destroy(g);
    guard_free(copy, b->n);
    free(b->p);
    return rc;
}

static void extra_yarn(struct bytes *b, const char *arch) {
    char key[64];
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    put_kv_string(b, key, "yarn");
    snprintf(key, sizeof key, "%s.rope.scaling.factor", arch);
    put_kv_f32(b, key, 4);
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
    put_kv_u32(b, key, 32);
    put_kv_u32(b, "geryon.orthros.window", 8);
    put_kv_u32(b, "geryon.orthrus.block_size", 8);
    put_kv_u32(b, "geryon.orthrus.mask_token_id", 9);
}

static void configuration_comes_from_the_metadata(void **state) {
    (void)state;
    struct bytes b = llama_file("llama", extra_yarn, 6);
    struct config c;
    struct err err;
    if (model_config(&b, &c, &err)) fail_msg("%s", err.msg);
    assert_int_equal(c.backbone, BACKBONE_LLAMA);
    assert_int_equal(c.shape.n_layers, 2);
    assert_int_equal(c.shape.head_dim, 16);
    assert_int_equal(c.shape.n_kv_heads, 2);
    assert_int_equal(c.shape.vocab_size, 10);
    assert_int_equal(c.shape.max_position, 512);
    assert_true(c.shape.tied_head);
    assert_true(c.shape.orthros);
    assert_int_equal(c.shape.window, 8);
    assert_int_equal(c.shape.block_size, 8);
    assert_int_equal(c.shape.mask_token, 9);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 7);
    assert_true(c.shape.rms_eps == 1e-5f);
    /* the yarn table of test_config.c */
    assert_true(c.shape.rope_freq[1] > 0.1976423537 && c.shape.rope_freq[1] < 0.1976423538);
    assert_true(c.shape.rope_scale > 1.13862943 && c.shape.rope_scale < 1.13862944);
    config_fini(&c);
}

static void rope_factors_divide_the_frequencies(void **state) {
    (void)state;
    struct bytes b = llama_file("llama", NULL, 0);
    struct config c;
    struct err err;
    assert_int_equal(model_config(&b, &c, &err), OK);
    float factors[8] = {1, 2, 4, 8, 8, 8, 8, 8};
    double second = c.shape.rope_freq[1], last = c.shape.rope_freq[7];
    assert_int_equal(gguf_model_rope_factors(&c, factors, 7, &err), ERR_INVALID);
    assert_int_equal(gguf_model_rope_factors(&c, factors, 8, &err), OK);
    assert_true(c.shape.rope_freq[1] == second / 2);
    assert_true(c.shape.rope_freq[7] == last / 8);
    factors[3] = 0;
    assert_int_equal(gguf_model_rope_factors(&c, factors, 8, &err), ERR_INVALID);
    config_fini(&c);
}

static const char *extra_key;
static int extra_kind; /* 0 u32 2, 1 f32 0.5, 2 string, 3 true */

static void extra_one(struct bytes *b, const char *arch) {
    (void)arch;
    if (extra_kind == 0) put_kv_u32(b, extra_key, 2);
    if (extra_kind == 1) put_kv_f32(b, extra_key, 0.5f);
    if (extra_kind == 2) put_kv_string(b, extra_key, "strange");
    if (extra_kind == 3) put_kv_bool(b, extra_key, 1);
}

static void keys_that_change_the_result_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *key;
        int kind;
    } cases[] = {
        {"llama.expert_count", 0},
        {"llama.attention.sliding_window", 0},
        {"llama.attention.scale", 1},
        {"llama.logit_scale", 1},
        {"llama.rope.scaling.type", 2},
        {"llama.rope.scaling.attn_factor", 1},
        {"llama.rope.dimension_count", 0},
        {"llama.attention.value_length", 0},
        {"llama.attention.key_length", 2},
        {"llama.rope.freq_base", 0},
        {"llama.use_parallel_residual", 3},
        {"geryon.unknown", 0},
        {"geryon.orthrus.block_size", 0},
        {"geryon.msar.branches_per_block", 0},
        {"split.count", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        extra_key = cases[i].key;
        extra_kind = cases[i].kind;
        struct bytes b = llama_file("llama", extra_one, 1);
        struct config c;
        struct err err = {0};
        if (model_config(&b, &c, &err) == OK) fail_msg("%s was accepted", cases[i].key);
        char stem[32]; /* the message names the key, or its group */
        snprintf(stem, sizeof stem, "%.11s", cases[i].key);
        if (!strstr(err.msg, stem)) fail_msg("\"%s\" lacks %s", err.msg, cases[i].key);
    }
    struct bytes b = llama_file("gemma", NULL, 0);
    struct config c;
    struct err err = {0};
    assert_int_equal(model_config(&b, &c, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "\"gemma\""));
}

static void inert_keys_are_accepted(void **state) {
    (void)state;
    static const char *const keys[] = {"general.name", "tokenizer.ggml.pre",
                                       "quantize.imatrix.file"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        extra_key = keys[i];
        extra_kind = 2;
        struct bytes b = llama_file("qwen2", extra_one, 1);
        struct config c;
        struct err err;
        if (model_config(&b, &c, &err)) fail_msg("%s", err.msg);
        assert_true(c.qkv_bias);
        config_fini(&c);
    }
}

static void names_become_those_of_safetensors(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        int permuted;
    } cases[] = {
        {"token_embd.weight", "model.embed_tokens.weight", 0},
        {"output.weight", "lm_head.weight", 0},
        {"output_norm.weight", "model.norm.weight", 0},
        {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", 1},
        {"blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias", 2},
        {"blk.3.attn_v.weight", "model.layers.3.self_attn.v_proj.weight", 0},
        {"blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight", 0},
        {"blk.3.attn_q_norm.weight", "model.layers.3.self_attn.q_norm.weight", 0},
        {"blk.3.attn_norm.weight", "model.layers.3.input_layernorm.weight", 0},
        {"blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight", 0},
        {"blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight", 0},
        {"model.layers.0.self_attn.q_proj_diff.weight",
         "model.layers.0.self_attn.q_proj_diff.weight", 0},
        {"blk.03.ffn_down.weight", "blk.03.ffn_down.weight", 0},
        {"blk.3.ffn_down.weightx", "blk.3.ffn_down.weightx", 0},
        {"blk.3.ffn_down.scale", "blk.3.ffn_down.scale", 0},
        {"blk.99999999999.ffn_down.weight", "blk.99999999999.ffn_down.weight", 0},
        {"blk.3.ffn_gate_exps.weight", "blk.3.ffn_gate_exps.weight", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct gguf_tensor t = {.name = cases[i].from, .name_len = strlen(cases[i].from)};
        char name[GGUF_MODEL_NAME_CAP];
        int permuted = -1;
        struct err err;
        assert_int_equal(gguf_model_tensor_name(&t, true, name, &permuted, &err), OK);
        assert_string_equal(name, cases[i].to);
        assert_int_equal(permuted, cases[i].permuted);
        assert_int_equal(gguf_model_tensor_name(&t, false, name, &permuted, &err), OK);
        assert_int_equal(permuted, 0);
    }
    char longest[400];
    memset(longest, 'x', sizeof longest);
    struct gguf_tensor t = {.name = longest, .name_len = sizeof longest};
    char name[GGUF_MODEL_NAME_CAP];
    int permuted;
    assert_int_equal(gguf_model_tensor_name(&t, true, name, &permuted, NULL), ERR_INVALID);
}

static void vocabulary_is_checked_and_copied(void **state) {
    (void)state;
    for (int fault = 0; fault <= 5; fault++) {
        struct bytes b = {0};
        put_head(&b, 3, 1, 7);
        put_kv_string(&b, "tokenizer.ggml.model", "gpt2");
        put_kv_string(&b, "tokenizer.ggml.pre", "qwen2");
        put_kv_array(&b, "tokenizer.ggml.tokens", fault == 1 ? 4 : 8, 2);
        if (fault == 1) {
            put_u32(&b, 1);
            put_u32(&b, 2);
        } else {
            put_string(&b, "a");
            put_string(&b, "<end>");
        }
        put_kv_array(&b, "tokenizer.ggml.token_type", 5, fault == 2 ? 1 : 2);
        put_u32(&b, 1);
        if (fault != 2) put_u32(&b, fault == 3 ? 77 : 3);
        put_kv_array(&b, "tokenizer.ggml.merges", 8, 1);
        put_string(&b, "a a");
        put_kv_u32(&b, "tokenizer.ggml.eos_token_id", fault == 4 ? 2 : 1);
        if (fault == 5)
            put_kv_u32(&b, "tokenizer.ggml.add_bos_token", 1);
        else
            put_kv_bool(&b, "tokenizer.ggml.add_bos_token", 0);
        put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 0);
        pad_to(&b, 512);
        struct gguf *g = NULL;
        struct err err;
        char *copy;
        if (parse(&b, &g, &err, &copy)) fail_msg("%s", err.msg);
        struct gguf_vocab v;
        int rc = gguf_model_vocab(g, &v, &err);
        assert_int_equal(rc, fault ? ERR_INVALID : OK);
        gguf_destroy(g);
        guard_free(copy, b.n);
        free(b.p);
        if (rc) continue;
        assert_string_equal(v.model, "gpt2");
        assert_string_equal(v.pre, "qwen2");
        assert_int_equal(v.n_tokens, 2);
        assert_string_equal(v.tokens[1], "<end>");
        assert_int_equal(v.token_lens[1], 5);
        assert_int_equal(v.types[1], 3);
        assert_int_equal(v.n_merges, 1);
        assert_string_equal(v.merges[0], "a a");
        assert_int_equal(v.bos_id, -1);
        assert_int_equal(v.eos_id, 1);
        assert_int_equal(v.add_bos, 0);
        assert_int_equal(v.add_eos, -1);
        gguf_model_vocab_free(&v);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_tensors_are_read),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(S11_06_hostile_counts_and_dimensions),
        cmocka_unit_test(S11_06_alignment_must_be_a_power_of_two),
        cmocka_unit_test(other_versions_are_refused),
        cmocka_unit_test(random_damage_is_survived),
        cmocka_unit_test(configuration_comes_from_the_metadata),
        cmocka_unit_test(rope_factors_divide_the_frequencies),
        cmocka_unit_test(keys_that_change_the_result_are_refused),
        cmocka_unit_test(inert_keys_are_accepted),
        cmocka_unit_test(names_become_those_of_safetensors),
        cmocka_unit_test(vocabulary_is_checked_and_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
