/* gguf_model.c: see gguf_model.h. */
#include "engine/load/gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/load/loader.h"

/* ---- configuration ----------------------------------------------------------------------------- */

/* Keys under "ARCH." that are obeyed, or checked to have no effect. Any other one is refused: new
 * versions of the format put new arithmetic there. */
static const char *const arch_keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
    "vocab_size",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
};

static bool key_is(const struct gguf_kv *kv, const char *key) {
    return strlen(key) == kv->key_len && memcmp(kv->key, key, kv->key_len) == 0;
}

static bool starts_with(const struct gguf_kv *kv, const char *prefix) {
    size_t n = strlen(prefix);
    return kv->key_len >= n && memcmp(kv->key, prefix, n) == 0;
}

/* A number 0, false, or "" / "none": a switch that is off. */
static bool is_unset(const struct gguf_kv *kv) {
    if (kv->is_array) return kv->count == 0;
    uint64_t len;
    float f;
    double d;
    switch (kv->type) {
    case GGUF_STRING:
        memcpy(&len, kv->data, 8);
        return len == 0 || (len == 4 && memcmp(kv->data + 8, "none", 4) == 0);
    case GGUF_F32:
        memcpy(&f, kv->data, 4);
        return f == 0;
    case GGUF_F64:
        memcpy(&d, kv->data, 8);
        return d == 0;
    case GGUF_BOOL:
        return kv->data[0] == 0;
    default:
        return gguf_array_integer(kv, 0) == 0;
    }
}

static int check_keys(const struct gguf *g, const char *arch, struct err *err) {
    char key[128];
    for (size_t i = 0; i < g->n_kv; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        bool known = false;
        snprintf(key, sizeof key, "%s.", arch);
        if (starts_with(kv, key)) {
            for (size_t k = 0; k < ARRAY_LEN(arch_keys); k++) {
                snprintf(key, sizeof key, "%s.%s", arch, arch_keys[k]);
                known = known || key_is(kv, key);
            }
        } else if (starts_with(kv, "geryon.")) {
            known =
                key_is(kv, "geryon.orthros.window") || key_is(kv, "geryon.orthrus.block_size") ||
                key_is(kv, "geryon.orthrus.mask_token_id") || key_is(kv, "geryon.msar.kernels") ||
                key_is(kv, "geryon.msar.branches_per_block");
        } else {
            known = true; /* general, tokenizer, quantize, ..: no arithmetic */
        }
        if (known || is_unset(kv)) continue;
        char name[LOADER_NAME_CAP];
        return err_set(err, ERR_INVALID, "%s: this key is not known and might change the result",
                       loader_printable(kv->key, kv->key_len, name));
    }
    return OK;
}

/* Key "ARCH.name" as an integer in range; required ones must be there. */
static int arch_integer(const struct gguf *g, const char *arch, const char *name, bool required,
                        int64_t hi, uint32_t *out, struct err *err) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    int64_t v = *out;
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv && required) return err_set(err, ERR_INVALID, "%s is missing", key);
    if (kv && kv->is_array && kv->count > 0 && kv->type != GGUF_STRING && kv->type != GGUF_F32 &&
        kv->type != GGUF_F64 && kv->type != GGUF_BOOL) {
        /* One number a layer: fine as long as they agree. */
        v = gguf_array_integer(kv, 0);
        for (uint64_t i = 1; i < kv->count; i++)
            if (gguf_array_integer(kv, i) != v)
                return err_set(err, ERR_INVALID, "%s: layers that differ are not supported", key);
        if (v < 1 || v > hi)
            return err_set(err, ERR_INVALID, "%s: %lld, allowed are 1 to %lld", key, (long long)v,
                           (long long)hi);
    } else {
        int rc = gguf_integer(g, key, 1, hi, &v, err);
        if (rc) return rc;
    }
    *out = (uint32_t)v;
    return OK;
}

static int arch_real(const struct gguf *g, const char *arch, const char *name, double *out,
                     struct err *err) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    return gguf_real(g, key, out, err);
}

static int read_architecture(const struct gguf *g, struct config *c, struct err *err) {
    const char *text = NULL;
    size_t len = 0;
    int rc = gguf_string(g, "general.architecture", &text, &len, err);
    if (rc) return rc;
    if (!text) return err_set(err, ERR_INVALID, "general.architecture is missing");
    for (int b = BACKBONE_LLAMA; b <= BACKBONE_QWEN3; b++) {
        const char *name = backbone_name((enum backbone)b);
        if (strlen(name) == len && memcmp(name, text, len) == 0) {
            c->backbone = (enum backbone)b;
            return OK;
        }
    }
    char found[LOADER_NAME_CAP];
    return err_set(err, ERR_INVALID,
                   "general.architecture: \"%s\", supported are llama, qwen2, qwen3",
                   loader_printable(text, len, found));
}

static int check_split(const struct gguf *g, struct err *err) {
    int64_t parts = 1;
    int rc = gguf_integer(g, "split.count", 0, INT32_MAX, &parts, err);
    if (rc) return rc;
    if (parts > 1)
        return err_set(err, ERR_INVALID,
                       "split.count: %lld, split files are not supported (merge them first)",
                       (long long)parts);
    return OK;
}

static const struct gguf_tensor *find_tensor(const struct gguf *g, const char *name) {
    for (size_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i].name_len == strlen(name) &&
            memcmp(g->tensors[i].name, name, g->tensors[i].name_len) == 0)
            return &g->tensors[i];
    return NULL;
}

static int read_shape(const struct gguf *g, const char *arch, struct config *c, struct err *err) {
    struct model_shape *s = &c->shape;
    int rc = arch_integer(g, arch, "block_count", true, 4096, &s->n_layers, err);
    if (!rc) rc = arch_integer(g, arch, "embedding_length", true, 1 << 20, &s->d_model, err);
    if (!rc) rc = arch_integer(g, arch, "feed_forward_length", true, 1 << 22, &s->d_ff, err);
    if (!rc) rc = arch_integer(g, arch, "attention.head_count", true, 4096, &s->n_heads, err);
    if (!rc) rc = arch_integer(g, arch, "context_length", true, INT32_MAX, &s->max_position, err);
    if (rc) return rc;
    s->n_kv_heads = s->n_heads;
    s->head_dim = s->d_model / s->n_heads;
    rc = arch_integer(g, arch, "attention.head_count_kv", false, 4096, &s->n_kv_heads, err);
    if (!rc) rc = arch_integer(g, arch, "attention.key_length", false, 1024, &s->head_dim, err);
    uint32_t value = s->head_dim, rotary = s->head_dim;
    if (!rc) rc = arch_integer(g, arch, "attention.value_length", false, 1024, &value, err);
    if (!rc) rc = arch_integer(g, arch, "rope.dimension_count", false, 1024, &rotary, err);
    if (rc) return rc;
    if (value != s->head_dim || rotary != s->head_dim)
        return err_set(err, ERR_INVALID, "%s.%s: %u, only the key length %u is supported", arch,
                       value != s->head_dim ? "attention.value_length" : "rope.dimension_count",
                       value != s->head_dim ? value : rotary, s->head_dim);
    const struct gguf_tensor *embed = find_tensor(g, "token_embd.weight");
    if (!embed) return err_set(err, ERR_INVALID, "token_embd.weight: this tensor is missing");
    if (embed->ne[1] > 1 << 24)
        return err_set(err, ERR_INVALID, "token_embd.weight: %llu rows, at most %d are supported",
                       (unsigned long long)embed->ne[1], 1 << 24);
    s->vocab_size = (uint32_t)embed->ne[1];
    double eps = 1e-6;
    rc = arch_real(g, arch, "attention.layer_norm_rms_epsilon", &eps, err);
    if (rc) return rc;
    if (!(eps >= 0 && eps < 1))
        return err_set(err, ERR_INVALID, "%s.attention.layer_norm_rms_epsilon: %g, 0 to 1 allowed",
                       arch, eps);
    s->rms_eps = (float)eps;
    s->tied_head = !find_tensor(g, "output.weight");
    return OK;
}

/* A number that must be 1 where it is given at all. */
static int only_one(const struct gguf *g, const char *arch, const char *name, struct err *err) {
    double v = 1;
    int rc = arch_real(g, arch, name, &v, err);
    if (!rc && v != 1)
        rc = err_set(err, ERR_INVALID, "%s.%s: %g, only 1 is supported", arch, name, v);
    return rc;
}

static int read_rope(const struct gguf *g, const char *arch, struct config *c, struct err *err) {
    struct rope *r = &c->rope;
    rope_init(r);
    char key[128];
    const char *text = "none";
    size_t len = 4;
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    int rc = gguf_string(g, key, &text, &len, err);
    if (!rc) rc = arch_real(g, arch, "rope.freq_base", &r->theta, err);
    if (!rc) rc = arch_real(g, arch, "rope.scaling.factor", &r->factor, err);
    if (!rc) rc = arch_real(g, arch, "rope.scaling.yarn_beta_fast", &r->beta_fast, err);
    if (!rc) rc = arch_real(g, arch, "rope.scaling.yarn_beta_slow", &r->beta_slow, err);
    if (!rc) rc = only_one(g, arch, "rope.scaling.attn_factor", err);
    if (!rc) rc = only_one(g, arch, "rope.scaling.yarn_ext_factor", err);
    if (!rc) rc = only_one(g, arch, "rope.scaling.yarn_attn_factor", err);
    uint32_t original = 0;
    if (!rc)
        rc = arch_integer(g, arch, "rope.scaling.original_context_length", false, INT32_MAX,
                          &original, err);
    if (rc) return rc;
    r->original_max = original;
    if (len == 4 && memcmp(text, "none", 4) == 0)
        r->factor = 1;
    else if (len == 6 && memcmp(text, "linear", 6) == 0)
        r->type = ROPE_LINEAR;
    else if (len == 4 && memcmp(text, "yarn", 4) == 0)
        r->type = ROPE_YARN;
    else {
        char found[LOADER_NAME_CAP];
        return err_set(err, ERR_INVALID, "%s: \"%s\", supported are none, linear, yarn", key,
                       loader_printable(text, len, found));
    }
    return OK;
}

static int read_msar(const struct gguf *g, struct config *c, struct err *err) {
    const struct gguf_kv *kernels = gguf_find(g, "geryon.msar.kernels");
    int64_t branches = 0;
    int rc = gguf_integer(g, "geryon.msar.branches_per_block", 1, 2 * (int64_t)c->shape.n_layers,
                          &branches, err);
    if (rc || (!kernels && !branches)) return rc;
    bool good = kernels && branches && kernels->is_array && kernels->count >= 1 &&
                kernels->count <= MAX_MSAR_STREAMS &&
                (kernels->type == GGUF_I32 || kernels->type == GGUF_U32);
    for (uint64_t i = 0; good && i < kernels->count; i++) {
        int64_t k = gguf_array_integer(kernels, i);
        good = k >= 1 && k <= 256 && (i > 0 || k == 1);
        c->shape.msar_kernels[i] = (uint32_t)k;
    }
    if (!good)
        return err_set(err, ERR_INVALID,
                       "geryon.msar: kernels (1 to %d INT32 from 1 to 256, the first 1) and "
                       "branches_per_block belong together",
                       MAX_MSAR_STREAMS);
    c->shape.n_msar_streams = (uint32_t)kernels->count;
    c->shape.msar_branches = (uint32_t)branches;
    return OK;
}

static int read_extensions(const struct gguf *g, struct config *c, struct err *err) {
    int64_t window = 0, block = 0, mask = -1;
    int rc = gguf_integer(g, "geryon.orthros.window", 1, INT32_MAX, &window, err);
    if (!rc) rc = gguf_integer(g, "geryon.orthrus.block_size", 2, 65536, &block, err);
    if (!rc)
        rc = gguf_integer(g, "geryon.orthrus.mask_token_id", 0, (int64_t)c->shape.vocab_size - 1,
                          &mask, err);
    if (rc) return rc;
    if ((block > 0) != (mask >= 0))
        return err_set(err, ERR_INVALID,
                       "geryon.orthrus: block_size and mask_token_id belong together");
    c->shape.orthros = window > 0;
    c->shape.window = (uint32_t)window;
    c->shape.block_size = (uint32_t)(block < DRAFT_MAX ? block : DRAFT_MAX);
    c->shape.mask_token = block > 0 ? (int32_t)mask : 0;
    return read_msar(g, c, err);
}

static int read_eos(const struct gguf *g, struct config *c, struct err *err) {
    /* eot and eom are what chat models end a turn with, where it is not eos. */
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        int64_t id = -1;
        int rc = gguf_integer(g, keys[i], 0, (int64_t)c->shape.vocab_size - 1, &id, err);
        if (!rc && id >= 0) rc = config_add_eos(c, id, err);
        if (rc) return rc;
    }
    return OK;
}

int gguf_model_config(const struct gguf *g, struct config *out, struct err *err) {
    struct config c = {0};
    int rc = check_split(g, err);
    if (!rc) rc = read_architecture(g, &c, err);
    if (rc) return rc;
    const char *arch = backbone_name(c.backbone);
    rc = check_keys(g, arch, err);
    if (!rc) rc = read_shape(g, arch, &c, err);
    if (!rc) rc = read_rope(g, arch, &c, err);
    if (!rc) rc = read_extensions(g, &c, err);
    if (!rc) rc = read_eos(g, &c, err);
    if (rc) return rc;
    c.qkv_bias = c.backbone == BACKBONE_QWEN2 || find_tensor(g, "blk.0.attn_q.bias");
    c.o_bias = find_tensor(g, "blk.0.attn_output.bias") != NULL;
    c.mlp_bias = find_tensor(g, "blk.0.ffn_gate.bias") != NULL;
    c.qk_norm = c.backbone == BACKBONE_QWEN3;
    rc = config_finish(&c, err);
    if (!rc) *out = c;
    return rc;
}

int gguf_model_rope_factors(struct config *c, const float *factors, uint64_t n, struct err *err) {
    if (n != c->shape.head_dim / 2)
        return err_set(err, ERR_INVALID, "rope_freqs.weight: %llu factors, %u are wanted",
                       (unsigned long long)n, c->shape.head_dim / 2);
    if (c->rope.type != ROPE_DEFAULT)
        return err_set(err, ERR_INVALID, "rope_freqs.weight: not supported besides rope scaling %s",
                       rope_type_name(c->rope.type));
    double *freq = (double *)c->shape.rope_freq;
    for (uint64_t m = 0; m < n; m++) {
        if (!(factors[m] > 1e-6f && factors[m] < 1e6f))
            return err_set(err, ERR_INVALID, "rope_freqs.weight: factor %llu is %g",
                           (unsigned long long)m, (double)factors[m]);
        freq[m] /= factors[m];
    }
    return OK;
}

/* ---- tensor names ------------------------------------------------------------------------------ */

static const struct {
    const char *gguf, *ours;
    int permuted;
} layer_names[] = {
    {"attn_norm", "input_layernorm", 0},    {"ffn_norm", "post_attention_layernorm", 0},
    {"attn_q", "self_attn.q_proj", 1},      {"attn_k", "self_attn.k_proj", 2},
    {"attn_v", "self_attn.v_proj", 0},      {"attn_output", "self_attn.o_proj", 0},
    {"attn_q_norm", "self_attn.q_norm", 0}, {"attn_k_norm", "self_attn.k_norm", 0},
    {"ffn_gate", "mlp.gate_proj", 0},       {"ffn_up", "mlp.up_proj", 0},
    {"ffn_down", "mlp.down_proj", 0},
};

static int put_name(char out[GGUF_MODEL_NAME_CAP], const char *name, size_t len, struct err *err) {
    char shown[LOADER_NAME_CAP];
    if (len >= GGUF_MODEL_NAME_CAP || memchr(name, 0, len))
        return err_set(err, ERR_INVALID, "%s: not a possible tensor name",
                       loader_printable(name, len, shown));
    memcpy(out, name, len);
    out[len] = 0;
    return OK;
}

int gguf_model_tensor_name(const struct gguf_tensor *t, bool llama, char out[GGUF_MODEL_NAME_CAP],
                           int *permuted, struct err *err) {
    *permuted = 0;
    int rc = put_name(out, t->name, t->name_len, err);
    if (rc) return rc;
    static const char *const once[][2] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                          {"output.weight", "lm_head.weight"},
                                          {"output_norm.weight", "model.norm.weight"}};
    for (size_t i = 0; i < ARRAY_LEN(once); i++)
        if (strcmp(out, once[i][0]) == 0) {
            return put_name(out, once[i][1], strlen(once[i][1]), err);
        }
    unsigned layer;
    char role[32], kind[8];
    int end = 0;
    if (sscanf(out, "blk.%4u.%31[a-z_].%7[a-z]%n", &layer, role, kind, &end) != 3) return OK;
    if (end != (int)t->name_len || (strcmp(kind, "weight") != 0 && strcmp(kind, "bias") != 0))
        return OK;
    for (size_t i = 0; i < ARRAY_LEN(layer_names); i++)
        if (strcmp(role, layer_names[i].gguf) == 0) {
            char again[48]; /* one spelling only: no leading zeros */
            snprintf(again, sizeof again, "blk.%u.%s.%s", layer, role, kind);
            if (strcmp(again, out) != 0) return OK;
            snprintf(out, GGUF_MODEL_NAME_CAP, "model.layers.%u.%s.%s", layer, layer_names[i].ours,
                     kind);
            *permuted = llama ? layer_names[i].permuted : 0;
            return OK;
        }
    return OK;
}

/* ---- vocabulary -------------------------------------------------------------------------------- */

/* The strings of an array, each NUL-terminated; texts and lens (may be NULL) are malloc'd, the text
 * itself hangs on texts[0] .. in one block that texts[count] points to. */
static int copy_strings(const struct gguf_kv *kv, const char *const **texts_out,
                        const size_t **lens_out, struct err *err) {
    size_t total = 0, len;
    const uint8_t *cursor = kv->data;
    for (uint64_t i = 0; i < kv->count; i++) {
        gguf_next_string(&cursor, &len);
        total += len + 1; /* bounded by the bytes of the file: each string has a length of 8 */
    }
    char **texts = calloc((size_t)kv->count + 1, sizeof *texts);
    size_t *lens = calloc((size_t)kv->count + 1, sizeof *lens);
    char *block = malloc(total + 1);
    if (!texts || !lens || !block) {
        free(texts);
        free(lens);
        free(block);
        return err_set(err, ERR_NOMEM, "no memory for the vocabulary");
    }
    char *at = block;
    cursor = kv->data;
    for (uint64_t i = 0; i < kv->count; i++) {
        const char *text = gguf_next_string(&cursor, &len);
        memcpy(at, text, len);
        at[len] = 0;
        texts[i] = at;
        lens[i] = len;
        at += len + 1;
    }
    texts[kv->count] = block;
    *texts_out = (const char *const *)texts;
    if (lens_out)
        *lens_out = lens;
    else
        free(lens);
    return OK;
}

static void free_strings(const char *const *texts, uint32_t n) {
    if (texts) free((char *)texts[n]);
    free((void *)texts);
}

/* A required array of strings with at most INT32_MAX elements. */
static int string_array(const struct gguf *g, const char *key, bool required,
                        const struct gguf_kv **out, struct err *err) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv && required) return err_set(err, ERR_INVALID, "%s is missing", key);
    if (kv && (!kv->is_array || kv->type != GGUF_STRING || kv->count > 1 << 24))
        return err_set(err, ERR_INVALID, "%s: an ARRAY of at most %d STRING is expected", key,
                       1 << 24);
    *out = kv;
    return OK;
}

static int copy_text(const struct gguf *g, const char *key, const char **out, struct err *err) {
    const char *text = NULL;
    size_t len = 0;
    int rc = gguf_string(g, key, &text, &len, err);
    if (rc || !text) return rc;
    *out = strndup(text, len);
    return *out ? OK : err_set(err, ERR_NOMEM, "no memory for %s", key);
}

static int read_types(const struct gguf *g, struct gguf_vocab *v, struct err *err) {
    const char *key = "tokenizer.ggml.token_type";
    const struct gguf_kv *kv = gguf_find(g, key);
    if (kv && (!kv->is_array || (kv->type != GGUF_I32 && kv->type != GGUF_U32) ||
               kv->count != v->n_tokens))
        return err_set(err, ERR_INVALID, "%s: an ARRAY of %u INT32 is expected", key, v->n_tokens);
    int32_t *types = malloc(((size_t)v->n_tokens + 1) * sizeof *types);
    if (!types) return err_set(err, ERR_NOMEM, "no memory for the vocabulary");
    v->types = types;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        int64_t t = kv ? gguf_array_integer(kv, i) : 1;
        if (t < 0 || t > 6)
            return err_set(err, ERR_INVALID, "%s: element %u is %lld, 0 to 6 are known", key, i,
                           (long long)t);
        types[i] = (int32_t)t;
    }
    return OK;
}

static int read_flag(const struct gguf *g, const char *key, int *out, struct err *err) {
    bool v = false;
    int rc = gguf_bool(g, key, &v, err);
    *out = rc || !gguf_find(g, key) ? -1 : v;
    return rc;
}

static int read_vocab(const struct gguf *g, struct gguf_vocab *v, struct err *err) {
    const struct gguf_kv *tokens, *merges;
    int rc = copy_text(g, "tokenizer.ggml.model", &v->model, err);
    if (!rc && !v->model) rc = err_set(err, ERR_INVALID, "tokenizer.ggml.model is missing");
    if (!rc) rc = copy_text(g, "tokenizer.ggml.pre", &v->pre, err);
    if (!rc && !v->pre) {
        v->pre = strdup("default");
        if (!v->pre) rc = err_set(err, ERR_NOMEM, "no memory for the vocabulary");
    }
    if (!rc) rc = string_array(g, "tokenizer.ggml.tokens", true, &tokens, err);
    if (!rc) rc = copy_strings(tokens, &v->tokens, &v->token_lens, err);
    if (rc) return rc;
    v->n_tokens = (uint32_t)tokens->count;
    rc = read_types(g, v, err);
    if (!rc) rc = string_array(g, "tokenizer.ggml.merges", false, &merges, err);
    if (!rc && merges) {
        rc = copy_strings(merges, &v->merges, NULL, err);
        if (!rc) v->n_merges = (uint32_t)merges->count;
    }
    int64_t bos = -1, eos = -1, top = (int64_t)v->n_tokens - 1;
    if (!rc) rc = gguf_integer(g, "tokenizer.ggml.bos_token_id", 0, top, &bos, err);
    if (!rc) rc = gguf_integer(g, "tokenizer.ggml.eos_token_id", 0, top, &eos, err);
    if (!rc) rc = read_flag(g, "tokenizer.ggml.add_bos_token", &v->add_bos, err);
    if (!rc) rc = read_flag(g, "tokenizer.ggml.add_eos_token", &v->add_eos, err);
    v->bos_id = (int32_t)bos;
    v->eos_id = (int32_t)eos;
    return rc;
}

int gguf_model_vocab(const struct gguf *g, struct gguf_vocab *out, struct err *err) {
    struct gguf_vocab v = {0};
    int rc = read_vocab(g, &v, err);
    if (rc)
        gguf_model_vocab_free(&v);
    else
        *out = v;
    return rc;
}

void gguf_model_vocab_free(struct gguf_vocab *v) {
    free((char *)v->model);
    free((char *)v->pre);
    free_strings(v->tokens, v->n_tokens);
    free((size_t *)v->token_lens);
    free((int32_t *)v->types);
    free_strings(v->merges, v->n_merges);
    memset(v, 0, sizeof *v);
}
