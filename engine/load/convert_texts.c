/* convert_texts.c: config.json, tokenizer, template and generation settings of a converted
 * checkpoint. A directory's files are copied byte for byte, config.json too where nothing in it
 * changes; a GGUF file's metadata is written out as those files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/load/checkpoint_internal.h"
#include "engine/load/convert_internal.h"
#include "engine/load/gguf_model.h"
#include "engine/load/loader.h"

enum { COPY_BYTES_MAX = 256 << 20 };

/* ---- the list ---------------------------------------------------------------------------------- */

/* Takes data. */
static void add_text(struct convert_texts *texts, const char *name, char *data, size_t len) {
    ASSERT(texts->n < CONVERT_TEXTS_MAX);
    texts->items[texts->n++] = (struct convert_text){name, data, len};
}

void convert_texts_free(struct convert_texts *texts) {
    for (size_t i = 0; i < texts->n; i++)
        free(texts->items[i].data);
    free(texts->config);
    *texts = (struct convert_texts){0};
}

int convert_texts_write(const struct convert_texts *texts, struct out_dir *dir, struct err *err) {
    int rc = OK;
    for (size_t i = 0; !rc && i < texts->n; i++)
        rc = out_dir_write(dir, texts->items[i].name, texts->items[i].data, texts->items[i].len,
                           err);
    return rc;
}

/* What Hugging Face libraries keep beside the weights. */
static int copy_files(const struct checkpoint *ck, struct convert_texts *out, struct err *err) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "chat_template.jinja",
                                        "generation_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt"};
    _Static_assert(ARRAY_LEN(names) <= CONVERT_TEXTS_MAX, "room for every file");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char *path = loader_join(ck->dir, names[i]), *data = NULL;
        size_t len = 0;
        int rc = path ? loader_read_file(path, COPY_BYTES_MAX, true, &data, &len, err)
                      : err_set(err, ERR_NOMEM, "%s: no memory", names[i]);
        free(path);
        if (rc) return rc;
        if (data) add_text(out, names[i], data, len);
    }
    return OK;
}

/* ---- config.json ------------------------------------------------------------------------------- */

/* jansson takes a NULL value as a failure. */
static bool put(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0;
}

/* Numbers in 15 digits where all of them come back as they were (1e-6 and not 9.9999999999999995e-7). */
static char *dump_short(const json_t *root) {
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_t *again = text ? json_loads(text, 0, NULL) : NULL;
    if (!again || !json_equal(root, again)) {
        free(text);
        text = json_dumps(root, JSON_INDENT(2));
    }
    json_decref(again);
    return text;
}

static int dump(const json_t *root, const char *name, char **out, size_t *len, struct err *err) {
    char *text = root ? dump_short(root) : NULL;
    if (!text) return err_set(err, ERR_NOMEM, "%s: no memory", name);
    *out = text;
    *len = strlen(text);
    return OK;
}

/* The shortest decimal that is this float32: 1e-5 and not 9.99999975e-06. */
static double short_decimal(float f) {
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        double d = strtod(text, NULL);
        if ((float)d == f) return d;
    }
    return (double)f;
}

static bool put_changes(json_t *root, const struct convert_changes *changes) {
    bool good = true;
    if (changes->torch_dtype) {
        bool now = json_object_get(root, "dtype") != NULL; /* the key of newer versions */
        if (now) good = put(root, "dtype", json_string(changes->torch_dtype));
        if (!now || json_object_get(root, "torch_dtype"))
            good = good && put(root, "torch_dtype", json_string(changes->torch_dtype));
    }
    if (changes->window)
        good = good && put(root, "orthros", json_pack("{s:i}", "window", (int)changes->window));
    if (changes->block)
        good = good && put(root, "orthrus",
                           json_pack("{s:i, s:i}", "block_size", (int)changes->block,
                                     "mask_token_id", (int)changes->mask_token));
    return good;
}

static int config_of_directory(const struct checkpoint *ck, const struct convert_changes *changes,
                               char **out, size_t *len, struct err *err) {
    char *path = loader_join(ck->dir, "config.json"), *text = NULL;
    if (!path) return err_set(err, ERR_NOMEM, "config.json: no memory");
    int rc = loader_read_file(path, CONFIG_JSON_MAX, false, &text, len, err);
    free(path);
    if (rc) return rc;
    if (!changes->torch_dtype && !changes->window && !changes->block) {
        *out = text;
        return OK;
    }
    json_t *root = NULL;
    rc = loader_json(text, *len, 16, 200000, "config.json", &root, err);
    free(text);
    if (!rc && !put_changes(root, changes)) rc = err_set(err, ERR_NOMEM, "config.json: no memory");
    if (!rc) rc = dump(root, "config.json", out, len, err);
    json_decref(root);
    return rc;
}

/* config.json has one switch for the biases of q, k, v and o together, and qwen2 none. */
static int check_biases(const struct config *c, struct err *err) {
    bool wants_o = c->qkv_bias && c->backbone != BACKBONE_QWEN2;
    if (c->o_bias != wants_o)
        return err_set(err, ERR_INVALID,
                       "blk.0.attn_output.bias: config.json cannot say that a %s model has %s",
                       backbone_name(c->backbone),
                       c->o_bias ? "it" : "biases on q, k, v and not on o");
    if (c->mlp_bias && c->backbone != BACKBONE_LLAMA)
        return err_set(err, ERR_INVALID,
                       "blk.0.ffn_gate.bias: config.json cannot say that a %s model has it",
                       backbone_name(c->backbone));
    return OK;
}

/* rope_freqs.weight, where there is one, becomes the llama3 rule that it came from. */
static int recover_rope(struct checkpoint *ck, const struct config *c, struct rope *rope,
                        struct err *err) {
    *rope = c->rope;
    int64_t i = checkpoint_find(ck, "rope_freqs.weight");
    if (i < 0) return OK;
    float factors[512]; /* checkpoint_config has checked type and length */
    int rc = checkpoint_read(ck, (size_t)i, 0, 1, factors, err);
    return rc ? rc : rope_from_factors(rope, c->shape.head_dim, factors, err);
}

static json_t *make_scaling(const struct rope *r) {
    if (r->type == ROPE_DEFAULT) return json_null();
    json_t *o = json_pack("{s:s, s:f}", "rope_type", rope_type_name(r->type), "factor", r->factor);
    bool good = o != NULL;
    if (good && r->original_max > 0)
        good = put(o, "original_max_position_embeddings",
                   r->original_max == floor(r->original_max)
                       ? json_integer((json_int_t)r->original_max)
                       : json_real(r->original_max));
    if (good && r->type == ROPE_LLAMA3)
        good = put(o, "low_freq_factor", json_real(r->low_freq_factor)) &&
               put(o, "high_freq_factor", json_real(r->high_freq_factor));
    if (good && r->type == ROPE_YARN)
        good = put(o, "beta_fast", json_real(r->beta_fast)) &&
               put(o, "beta_slow", json_real(r->beta_slow));
    if (good) return o;
    json_decref(o);
    return NULL;
}

static json_t *make_eos(const struct config *c) {
    if (c->n_eos == 0) return json_null();
    if (c->n_eos == 1) return json_integer(c->eos_ids[0]);
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->n_eos; i++)
        json_array_append_new(list, json_integer(c->eos_ids[i]));
    return list;
}

static json_t *make_bos(const struct tokenizer *tokenizer) {
    int32_t bos = tokenizer_bos(tokenizer);
    return bos < 0 ? json_null() : json_integer(bos);
}

static bool put_extensions(json_t *root, const struct config *c) {
    const struct model_shape *s = &c->shape;
    bool good = put_changes(root, &(struct convert_changes){NULL, s->orthros ? s->window : 0,
                                                            s->block_size, s->mask_token});
    if (!s->n_msar_streams) return good;
    json_t *kernels = json_array();
    for (uint32_t i = 0; i < s->n_msar_streams; i++)
        json_array_append_new(kernels, json_integer(s->msar_kernels[i]));
    return good && put(root, "msar",
                       json_pack("{s:o, s:i}", "kernels", kernels, "branches_per_block",
                                 (int)s->msar_branches));
}

static json_t *make_config(const struct config *c, const struct rope *rope,
                           const struct tokenizer *tokenizer) {
    static const char *const classes[] = {"LlamaForCausalLM", "Qwen2ForCausalLM",
                                          "Qwen3ForCausalLM"};
    const struct model_shape *s = &c->shape;
    json_t *root = json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:b, s:f}", "architectures",
        classes[c->backbone], "model_type", backbone_name(c->backbone), "vocab_size",
        (int)s->vocab_size, "hidden_size", (int)s->d_model, "intermediate_size", (int)s->d_ff,
        "num_hidden_layers", (int)s->n_layers, "num_attention_heads", (int)s->n_heads,
        "num_key_value_heads", (int)s->n_kv_heads, "head_dim", (int)s->head_dim,
        "max_position_embeddings", (int)s->max_position, "hidden_act", "silu", "rms_norm_eps",
        short_decimal(s->rms_eps), "tie_word_embeddings", s->tied_head, "rope_theta", rope->theta);
    bool good = root != NULL;
    if (c->backbone != BACKBONE_QWEN2)
        good = good && put(root, "attention_bias", json_boolean(c->o_bias));
    if (c->backbone == BACKBONE_LLAMA)
        good = good && put(root, "mlp_bias", json_boolean(c->mlp_bias));
    good = good && put(root, "rope_scaling", make_scaling(rope)) &&
           put(root, "bos_token_id", make_bos(tokenizer)) &&
           put(root, "eos_token_id", make_eos(c)) && put_extensions(root, c);
    if (good) return root;
    json_decref(root);
    return NULL;
}

static int config_of_gguf(struct checkpoint *ck, const struct config *config,
                          const struct tokenizer *tokenizer, const struct convert_changes *changes,
                          char **out, size_t *len, struct err *err) {
    struct rope rope;
    int rc = check_biases(config, err);
    if (!rc) rc = recover_rope(ck, config, &rope, err);
    if (rc) return rc;
    json_t *root = make_config(config, &rope, tokenizer);
    if (!root || !put_changes(root, changes))
        rc = err_set(err, ERR_NOMEM, "config.json: no memory");
    if (!rc) rc = dump(root, "config.json", out, len, err);
    json_decref(root);
    return rc;
}

/* ---- the check --------------------------------------------------------------------------------- */

static bool same_rope(const struct model_shape *a, const struct model_shape *b) {
    bool same = a->rope_scale == b->rope_scale;
    for (uint32_t m = 0; same && m < a->head_dim / 2; m++) /* factors of a GGUF are float32 */
        same = fabs(a->rope_freq[m] - b->rope_freq[m]) <= 1e-5 * fabs(b->rope_freq[m]);
    return same;
}

/* The new config.json must say what was meant. */
static int check_config(const struct convert_texts *texts, const struct config *config,
                        const struct convert_changes *changes, struct err *err) {
    struct config again;
    int rc = config_parse(texts->config, texts->config_len, "the new config.json", &again, err);
    if (rc) return rc;
    const struct model_shape *a = &again.shape, *s = &config->shape;
    uint32_t window = changes->window ? changes->window : s->orthros ? s->window : 0;
    uint32_t block = changes->block ? changes->block : s->block_size;
    const struct {
        const char *name;
        int64_t found, wanted;
    } numbers[] = {
        {"model_type", again.backbone, config->backbone},
        {"vocab_size", a->vocab_size, s->vocab_size},
        {"hidden_size", a->d_model, s->d_model},
        {"intermediate_size", a->d_ff, s->d_ff},
        {"num_hidden_layers", a->n_layers, s->n_layers},
        {"num_attention_heads", a->n_heads, s->n_heads},
        {"num_key_value_heads", a->n_kv_heads, s->n_kv_heads},
        {"head_dim", a->head_dim, s->head_dim},
        {"max_position_embeddings", a->max_position, s->max_position},
        {"rms_norm_eps", a->rms_eps == s->rms_eps, true},
        {"tie_word_embeddings", a->tied_head, s->tied_head},
        {"attention_bias", 2 * again.qkv_bias + again.o_bias,
         2 * config->qkv_bias + config->o_bias},
        {"mlp_bias", again.mlp_bias, config->mlp_bias},
        {"orthros.window", a->orthros ? a->window : 0, window},
        {"orthrus.block_size", a->block_size, block < DRAFT_MAX ? block : DRAFT_MAX},
        {"orthrus.mask_token_id", a->mask_token,
         changes->block ? changes->mask_token : s->mask_token},
        {"msar.branches_per_block", a->msar_branches, s->msar_branches},
        {"msar.kernels", memcmp(a->msar_kernels, s->msar_kernels, sizeof a->msar_kernels), 0},
    };
    for (size_t i = 0; !rc && i < ARRAY_LEN(numbers); i++)
        if (numbers[i].found != numbers[i].wanted)
            rc = err_set(err, ERR_INVALID, "config.json cannot hold this model's %s",
                         numbers[i].name);
    if (!rc && !same_rope(a, s))
        rc = err_set(err, ERR_INVALID, "config.json cannot hold this model's rope settings");
    config_fini(&again);
    return rc;
}

/* ---- texts of a GGUF file ---------------------------------------------------------------------- */

static int tokenizer_texts(const struct checkpoint *ck, uint32_t max_length,
                           struct convert_texts *out, struct err *err) {
    struct gguf_vocab vocab;
    int rc = gguf_model_vocab(ck->gguf, &vocab, err);
    if (rc) return rc;
    char *json = NULL, *config = NULL;
    rc = tokenizer_gguf_to_json(&vocab, max_length, &json, &config, err);
    gguf_model_vocab_free(&vocab);
    if (rc) return rc;
    add_text(out, "tokenizer.json", json, strlen(json));
    add_text(out, "tokenizer_config.json", config, strlen(config));
    return OK;
}

static int generation_text(const struct config *c, const struct tokenizer *tokenizer,
                           struct convert_texts *out, struct err *err) {
    json_t *root =
        json_pack("{s:o, s:o}", "bos_token_id", make_bos(tokenizer), "eos_token_id", make_eos(c));
    char *text = NULL;
    size_t len = 0;
    int rc = dump(root, "generation_config.json", &text, &len, err);
    json_decref(root);
    if (!rc) add_text(out, "generation_config.json", text, len);
    return rc;
}

static int gguf_texts(struct checkpoint *ck, const struct config *config,
                      const struct tokenizer *tokenizer, struct convert_texts *out,
                      struct err *err) {
    int rc = tokenizer_texts(ck, config->shape.max_position, out, err);
    if (!rc) rc = generation_text(config, tokenizer, out, err);
    char *source = NULL;
    size_t len = 0;
    if (!rc) rc = checkpoint_chat_template(ck, &source, &len, err);
    if (!rc && source) add_text(out, "chat_template.jinja", source, len);
    return rc;
}

int convert_texts_make(struct checkpoint *ck, const struct config *config,
                       const struct tokenizer *tokenizer, const struct convert_changes *changes,
                       struct convert_texts *out, struct err *err) {
    *out = (struct convert_texts){0};
    int rc = ck->gguf ? gguf_texts(ck, config, tokenizer, out, err) : copy_files(ck, out, err);
    if (!rc)
        rc = ck->gguf ? config_of_gguf(ck, config, tokenizer, changes, &out->config,
                                       &out->config_len, err)
                      : config_of_directory(ck, changes, &out->config, &out->config_len, err);
    if (!rc) rc = check_config(out, config, changes, err);
    if (rc) convert_texts_free(out);
    return rc;
}
