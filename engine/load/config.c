/* config.c: see config.h. */
#include "engine/load/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/load/loader.h"

enum { JSON_DEPTH_MAX = 16, JSON_VALUES_MAX = 200000 };

/* Keys that never change what the model computes: bookkeeping, training, and what older versions
 * of the library wrote as defaults for text generation. */
static const char *const inert_keys[] = {
    "_name_or_path",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",

    "min_length",
    "model_name",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_flash_attn",
};

/* Keys that this file reads and obeys. */
static const char *const known_keys[] = {
    "architectures",
    "attention_bias",
    "block_size",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "mask_token_id",
    "max_window_layers",
    "max_position_embeddings",
    "mlp_bias",
    "model_type",
    "msar",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "orthros",
    "orthrus",
    "partial_rotary_factor",
    "pretraining_tp",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "use_sliding_window",
    "vocab_size",
};

static bool listed(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0) return true;
    return false;
}

/* ---- single values ----------------------------------------------------------------------------- */

/* Where a value is: the file, the object inside it ("" at the top), and the object itself. */
struct place {
    const char *file, *prefix;
    const json_t *object;
};

/* A value as text for a message. */
static const char *show(const json_t *v, char out[LOADER_NAME_CAP]) {
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    loader_printable(text ? text : "?", text ? strlen(text) : 1, out);
    free(text);
    return out;
}

static int refuse(const struct place *p, const char *key, const char *wanted, struct err *err) {
    char found[LOADER_NAME_CAP];
    return err_set(err, ERR_INVALID, "%s: %s%s: %s, %s", p->file, p->prefix, key,
                   show(json_object_get(p->object, key), found), wanted);
}

/* The member, NULL when absent or null. */
static const json_t *member(const struct place *p, const char *key) {
    const json_t *v = json_object_get(p->object, key);
    return json_is_null(v) ? NULL : v;
}

static int read_uint(const struct place *p, const char *key, bool required, uint32_t lo,
                     uint32_t hi, uint32_t *out, struct err *err) {
    const json_t *v = member(p, key);
    if (!v && required)
        return err_set(err, ERR_INVALID, "%s: %s%s is missing", p->file, p->prefix, key);
    if (!v) return OK;
    char wanted[64];
    snprintf(wanted, sizeof wanted, "an integer from %u to %u is expected", lo, hi);
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return refuse(p, key, wanted, err);
    *out = (uint32_t)json_integer_value(v);
    return OK;
}

static int read_real(const struct place *p, const char *key, double *out, struct err *err) {
    const json_t *v = member(p, key);
    if (!v) return OK;
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return refuse(p, key, "a number is expected", err);
    *out = json_number_value(v);
    return OK;
}

static int read_bool(const struct place *p, const char *key, bool *out, struct err *err) {
    const json_t *v = member(p, key);
    if (!v) return OK;
    if (!json_is_boolean(v)) return refuse(p, key, "true or false is expected", err);
    *out = json_is_true(v);
    return OK;
}

/* Members of an object outside the list are refused. */
static int only_keys(const struct place *p, const char *const *keys, size_t n, struct err *err) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)p->object, key, v) {
        if (!json_is_null(v) && !listed(key, keys, n)) return refuse(p, key, "not supported", err);
    }
    return OK;
}

/* ---- parts of the file ------------------------------------------------------------------------- */

const char *backbone_name(enum backbone backbone) {
    static const char *const names[] = {"llama", "qwen2", "qwen3"};
    return names[backbone];
}

static const char *text_member(const struct place *p, const char *key) {
    return json_string_value(json_object_get(p->object, key));
}

/* *orthrus: the file is a published Orthrus checkpoint, whose extension keys are at the top. */
static int read_architecture(const struct place *p, struct config *c, bool *orthrus,
                             struct err *err) {
    static const struct {
        const char *model_type, *architecture;
        enum backbone backbone;
    } known[] = {
        {"llama", "LlamaForCausalLM", BACKBONE_LLAMA},
        {"qwen2", "Qwen2ForCausalLM", BACKBONE_QWEN2},
        {"qwen3", "Qwen3ForCausalLM", BACKBONE_QWEN3},
        {"qwen3", "OrthrusLM", BACKBONE_QWEN3},
        {"orthrus", "OrthrusLM", BACKBONE_QWEN3},
        {"orthrus", "Qwen3ForCausalLM", BACKBONE_QWEN3},
    };
    const char *type = text_member(p, "model_type");
    if (!json_object_get(p->object, "model_type"))
        return err_set(err, ERR_INVALID, "%s: model_type is missing", p->file);
    const json_t *list = member(p, "architectures");
    if (list && (json_array_size(list) != 1 || !json_is_string(json_array_get(list, 0))))
        return refuse(p, "architectures", "a list of one name is expected", err);
    const char *architecture = list ? json_string_value(json_array_get(list, 0)) : NULL;
    bool type_known = false;
    for (size_t i = 0; type && i < ARRAY_LEN(known); i++) {
        if (strcmp(type, known[i].model_type) != 0) continue;
        type_known = true;
        if (architecture && strcmp(architecture, known[i].architecture) != 0) continue;
        c->backbone = known[i].backbone;
        *orthrus = strcmp(type, "orthrus") == 0 ||
                   (architecture && strcmp(architecture, "OrthrusLM") == 0);
        return OK;
    }
    if (type_known)
        return refuse(p, "architectures", "not an architecture supported for this model_type", err);
    return refuse(p, "model_type", "supported are llama, qwen2, qwen3, orthrus", err);
}

static int read_shape(const struct place *p, struct config *c, struct err *err) {
    struct model_shape *s = &c->shape;
    int rc = read_uint(p, "vocab_size", true, 1, 1 << 24, &s->vocab_size, err);
    if (!rc) rc = read_uint(p, "hidden_size", true, 1, 1 << 20, &s->d_model, err);
    if (!rc) rc = read_uint(p, "intermediate_size", true, 1, 1 << 22, &s->d_ff, err);
    if (!rc) rc = read_uint(p, "num_hidden_layers", true, 1, 4096, &s->n_layers, err);
    if (!rc) rc = read_uint(p, "num_attention_heads", true, 1, 4096, &s->n_heads, err);
    if (rc) return rc;
    s->n_kv_heads = s->n_heads;
    s->head_dim = c->backbone == BACKBONE_QWEN3 ? 128 : s->d_model / s->n_heads;
    if (!rc) rc = read_uint(p, "num_key_value_heads", false, 1, 4096, &s->n_kv_heads, err);
    if (!rc) rc = read_uint(p, "head_dim", false, 2, 1024, &s->head_dim, err);
    if (!rc && c->backbone != BACKBONE_QWEN3 && !member(p, "head_dim") &&
        s->d_model % s->n_heads != 0)
        return refuse(p, "num_attention_heads", "hidden_size is no multiple of it", err);
    if (!rc)
        rc = read_uint(p, "max_position_embeddings", true, 1, INT32_MAX, &s->max_position, err);
    double eps = 1e-6;
    if (!rc) rc = read_real(p, "rms_norm_eps", &eps, err);
    if (rc) return rc;
    if (!(eps >= 0 && eps < 1)) return refuse(p, "rms_norm_eps", "allowed are 0 to 1", err);
    s->rms_eps = (float)eps;
    return read_bool(p, "tie_word_embeddings", &s->tied_head, err);
}

static int read_switches(const struct place *p, struct config *c, struct err *err) {
    bool attention_bias = false, mlp_bias = false;
    int rc = read_bool(p, "attention_bias", &attention_bias, err);
    if (!rc) rc = read_bool(p, "mlp_bias", &mlp_bias, err);
    if (rc) return rc;
    /* qwen2's biases are part of the architecture; its attention_bias key, where written, says
     * nothing (Hugging Face does not read it). */
    c->qkv_bias = c->backbone == BACKBONE_QWEN2 || attention_bias;
    c->o_bias = c->backbone != BACKBONE_QWEN2 && attention_bias;
    if (mlp_bias && c->backbone != BACKBONE_LLAMA)
        return refuse(p, "mlp_bias", "only llama models can have it", err);
    c->mlp_bias = mlp_bias;
    c->qk_norm = c->backbone == BACKBONE_QWEN3;
    const json_t *act = member(p, "hidden_act");
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return refuse(p, "hidden_act", "only \"silu\" is supported", err);
    double tp = 1, rotary = 1;
    rc = read_real(p, "pretraining_tp", &tp, err);
    if (!rc) rc = read_real(p, "partial_rotary_factor", &rotary, err);
    if (rc) return rc;
    if (tp != 1) return refuse(p, "pretraining_tp", "only 1 is supported", err);
    if (rotary != 1) return refuse(p, "partial_rotary_factor", "only 1 is supported", err);
    const json_t *types = member(p, "layer_types");
    if (!types) return OK;
    if (!json_is_array(types) || json_array_size(types) != c->shape.n_layers)
        return refuse(p, "layer_types", "one name for each layer is expected", err);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *t = json_string_value(json_array_get(types, i));
        if (!t || strcmp(t, "full_attention") != 0)
            return refuse(p, "layer_types", "only \"full_attention\" is supported", err);
    }
    return OK;
}

/* A window that some layer would use is refused. Qwen files carry an inert one: it counts only with
 * use_sliding_window (absent: false), for the layers from max_window_layers on. */
static int read_window(const struct place *p, const struct config *c, struct err *err) {
    bool use = c->backbone == BACKBONE_LLAMA;
    bool given = json_is_boolean(json_object_get(p->object, "use_sliding_window"));
    int rc = read_bool(p, "use_sliding_window", &use, err);
    uint32_t from = 0, window = 0;
    if (!rc) rc = read_uint(p, "sliding_window", false, 0, INT32_MAX, &window, err);
    if (!rc) rc = read_uint(p, "max_window_layers", false, 0, INT32_MAX, &from, err);
    if (rc || !use || window == 0) return rc;
    if (given && c->backbone != BACKBONE_LLAMA && member(p, "max_window_layers") &&
        from >= c->shape.n_layers)
        return OK;
    return refuse(p, "sliding_window", "layers with a sliding window are not supported", err);
}

static int read_rope_type(const struct place *p, struct rope *rope, struct err *err) {
    const json_t *v = member(p, "rope_type"), *old = member(p, "type");
    const char *key = v ? "rope_type" : "type";
    if (v && old && !json_equal(v, old)) return refuse(p, "type", "rope_type says otherwise", err);
    if (!v) v = old;
    if (!v) return OK;
    for (int t = ROPE_DEFAULT; t <= ROPE_YARN; t++)
        if (json_is_string(v) && strcmp(json_string_value(v), rope_type_name(t)) == 0) {
            rope->type = (enum rope_type)t;
            return OK;
        }
    return refuse(p, key, "supported are default, linear, llama3, yarn", err);
}

/* One object holds the rule: rope_scaling, or rope_parameters with rope_theta inside. */
static int read_rope(const struct place *top, struct config *c, struct err *err) {
    static const char *const keys_of[][14] = {
        [ROPE_DEFAULT] = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor",
                          "original_max_position_embeddings"},
        [ROPE_LINEAR] = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor",
                         "original_max_position_embeddings"},
        [ROPE_LLAMA3] = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor",
                         "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
        [ROPE_YARN] = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor",
                       "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale",
                       "mscale_all_dim", "attention_factor", "truncate", "finetuned"},
    };
    struct rope *r = &c->rope;
    const json_t *scaling = member(top, "rope_scaling"), *params = member(top, "rope_parameters");
    if (scaling && params && !json_equal(scaling, params))
        return refuse(top, "rope_scaling", "rope_parameters says otherwise", err);
    int rc = read_real(top, "rope_theta", &r->theta, err);
    const char *name = params ? "rope_parameters" : "rope_scaling";
    const json_t *object = params ? params : scaling;
    if (rc || !object) return rc;
    if (!json_is_object(object)) return refuse(top, name, "an object is expected", err);
    struct place p = {top->file, params ? "rope_parameters." : "rope_scaling.", object};
    rc = read_rope_type(&p, r, err);
    if (rc) return rc;
    size_t n_keys = 0;
    while (n_keys < ARRAY_LEN(keys_of[0]) && keys_of[r->type][n_keys])
        n_keys++;
    rc = only_keys(&p, keys_of[r->type], n_keys, err);
    if (rc) return rc;
    bool outer = member(top, "rope_theta") != NULL;
    double theta = r->theta, rotary = 1;
    rc = read_real(&p, "rope_theta", &theta, err);
    if (rc) return rc;
    if (outer && theta != r->theta)
        return refuse(&p, "rope_theta", "the key outside says otherwise", err);
    r->theta = theta;
    const json_t *factor = member(&p, "factor");
    if (!factor && r->type != ROPE_DEFAULT)
        return err_set(err, ERR_INVALID, "%s: %sfactor is missing", p.file, p.prefix);
    rc = read_real(&p, "factor", &r->factor, err);
    if (!rc && r->type == ROPE_DEFAULT && r->factor != 1)
        return refuse(&p, "factor", "rope_type default has none", err);
    if (!rc) rc = read_real(&p, "partial_rotary_factor", &rotary, err);
    if (!rc && rotary != 1) return refuse(&p, "partial_rotary_factor", "only 1 is supported", err);
    if (!rc) rc = read_real(&p, "original_max_position_embeddings", &r->original_max, err);
    if (!rc) rc = read_real(&p, "low_freq_factor", &r->low_freq_factor, err);
    if (!rc) rc = read_real(&p, "high_freq_factor", &r->high_freq_factor, err);
    if (!rc) rc = read_real(&p, "beta_fast", &r->beta_fast, err);
    if (!rc) rc = read_real(&p, "beta_slow", &r->beta_slow, err);
    if (!rc) rc = read_real(&p, "mscale", &r->mscale, err);
    if (!rc) rc = read_real(&p, "mscale_all_dim", &r->mscale_all_dim, err);
    if (!rc) rc = read_real(&p, "attention_factor", &r->attention_factor, err);
    if (!rc) rc = read_bool(&p, "truncate", &r->truncate, err);
    return rc;
}

/* The object of an extension, entered; *found false when there is none. */
static int enter(const struct place *top, const char *key, const char *prefix, struct place *out,
                 bool *found, struct err *err) {
    const json_t *v = member(top, key);
    *found = v != NULL;
    if (v && !json_is_object(v)) return refuse(top, key, "an object is expected", err);
    *out = (struct place){top->file, prefix, v};
    return OK;
}

static int read_block(const struct place *p, struct config *c, struct err *err) {
    struct model_shape *s = &c->shape;
    uint32_t block = 0, mask = 0;
    int rc = read_uint(p, "block_size", true, 2, 65536, &block, err);
    if (!rc) rc = read_uint(p, "mask_token_id", true, 0, s->vocab_size - 1, &mask, err);
    if (rc) return rc;
    /* A block may always be shorter than the largest: drafts change speed, never text. */
    s->block_size = block < DRAFT_MAX ? block : DRAFT_MAX;
    s->mask_token = (int32_t)mask;
    return OK;
}

static int read_orthrus(const struct place *top, struct config *c, bool published,
                        struct err *err) {
    static const char *const keys[] = {"block_size", "mask_token_id"};
    struct place p;
    bool nested, flat = member(top, "block_size") || member(top, "mask_token_id");
    int rc = enter(top, "orthrus", "orthrus.", &p, &nested, err);
    if (rc) return rc;
    if (flat && !published)
        return refuse(top, member(top, keys[0]) ? keys[0] : keys[1],
                      "only an OrthrusLM has this key at the top level", err);
    if (nested) {
        rc = only_keys(&p, keys, ARRAY_LEN(keys), err);
        if (!rc) rc = read_block(&p, c, err);
        for (size_t i = 0; !rc && flat && i < ARRAY_LEN(keys); i++)
            if (!json_equal(json_object_get(top->object, keys[i]),
                            json_object_get(p.object, keys[i])))
                return refuse(top, keys[i], "the object orthrus says otherwise", err);
        return rc;
    }
    return published ? read_block(top, c, err) : OK;
}

static int read_orthros(const struct place *top, struct config *c, struct err *err) {
    static const char *const keys[] = {"window"};
    struct place p;
    int rc = enter(top, "orthros", "orthros.", &p, &c->shape.orthros, err);
    if (rc || !c->shape.orthros) return rc;
    rc = only_keys(&p, keys, ARRAY_LEN(keys), err);
    if (!rc) rc = read_uint(&p, "window", true, 1, INT32_MAX, &c->shape.window, err);
    return rc;
}

static int read_msar(const struct place *top, struct config *c, struct err *err) {
    static const char *const keys[] = {"kernels", "branches_per_block"};
    struct place p;
    bool msar = false;
    int rc = enter(top, "msar", "msar.", &p, &msar, err);
    if (rc || !msar) return rc;
    rc = only_keys(&p, keys, ARRAY_LEN(keys), err);
    if (!rc)
        rc = read_uint(&p, "branches_per_block", true, 1, 2 * c->shape.n_layers,
                       &c->shape.msar_branches, err);
    if (rc) return rc;
    const json_t *list = member(&p, "kernels");
    size_t n = json_array_size(list);
    if (!list) return err_set(err, ERR_INVALID, "%s: msar.kernels is missing", p.file);
    if (n < 1 || n > MAX_MSAR_STREAMS) return refuse(&p, "kernels", "1 to 8 sizes expected", err);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t k = json_integer_value(v);
        if (!json_is_integer(v) || k < 1 || k > 256 || (i == 0 && k != 1))
            return refuse(&p, "kernels", "sizes from 1 to 256 expected, the first is 1", err);
        c->shape.msar_kernels[i] = (uint32_t)k;
    }
    c->shape.n_msar_streams = (uint32_t)n;
    return OK;
}

int config_add_eos(struct config *c, int64_t id, struct err *err) {
    if (id < 0 || id >= c->shape.vocab_size)
        return err_set(err, ERR_INVALID, "eos_token_id: %lld, allowed are 0 to %u", (long long)id,
                       c->shape.vocab_size - 1);
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] == id) return OK;
    if (c->n_eos == CONFIG_EOS_MAX)
        return err_set(err, ERR_TOO_LONG, "eos_token_id: more than %d ids", CONFIG_EOS_MAX);
    c->eos_ids[c->n_eos++] = (int32_t)id;
    return OK;
}

/* An integer or a list of them. */
static int read_eos(const struct place *p, struct config *c, struct err *err) {
    const json_t *v = member(p, "eos_token_id");
    if (!v) return OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id))
            return refuse(p, "eos_token_id", "an id or a list of ids is expected", err);
        struct err why;
        int rc = config_add_eos(c, json_integer_value(id), &why);
        if (rc) return err_set(err, rc, "%s: %s", p->file, why.msg);
    }
    return OK;
}

/* Nothing is silently ignored. */
static int check_keys(const struct place *p, struct err *err) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)p->object, key, v) {
        if (listed(key, known_keys, ARRAY_LEN(known_keys))) continue;
        if (listed(key, inert_keys, ARRAY_LEN(inert_keys))) continue;
        bool unset = json_is_null(v) || json_is_false(v) ||
                     (json_is_string(v) && json_string_length(v) == 0) ||
                     (json_is_array(v) && json_array_size(v) == 0) ||
                     (json_is_object(v) && json_object_size(v) == 0);
        if (unset) continue;
        char found[LOADER_NAME_CAP], name[LOADER_NAME_CAP];
        return err_set(err, ERR_INVALID,
                       "%s: %s: %.60s: this key is not known and might change the result", p->file,
                       loader_printable(key, strlen(key), name), show(v, found));
    }
    return OK;
}

int config_finish(struct config *c, struct err *err) {
    struct model_shape *s = &c->shape;
    if (s->n_heads % s->n_kv_heads)
        return err_set(err, ERR_INVALID, "num_key_value_heads: %u does not divide the %u heads",
                       s->n_kv_heads, s->n_heads);
    if (s->head_dim < 2 || s->head_dim > 1024 || s->head_dim % 2)
        return err_set(err, ERR_INVALID, "head_dim: %u, even numbers from 2 to 1024 are supported",
                       s->head_dim);
    double *freq = calloc(s->head_dim / 2, sizeof *freq);
    if (!freq) return err_set(err, ERR_NOMEM, "no memory for the rope table");
    double scale;
    int rc = rope_frequencies(&c->rope, s->head_dim, s->max_position, freq, &scale, err);
    if (rc) {
        free(freq);
        return rc;
    }
    s->rope_freq = freq;
    s->rope_scale = scale;
    return OK;
}

void config_fini(struct config *c) {
    free((double *)c->shape.rope_freq);
    c->shape.rope_freq = NULL;
}

int config_parse(const char *json, size_t len, const char *file, struct config *out,
                 struct err *err) {
    json_t *root = NULL;
    int rc = loader_json(json, len, JSON_DEPTH_MAX, JSON_VALUES_MAX, file, &root, err);
    if (rc) return rc;
    struct config c = {0};
    struct place p = {file, "", root};
    bool published = false;
    rope_init(&c.rope);
    if (!json_is_object(root)) rc = err_set(err, ERR_INVALID, "%s: not a JSON object", file);
    if (!rc) rc = read_architecture(&p, &c, &published, err);
    if (!rc) rc = check_keys(&p, err);
    if (!rc) rc = read_shape(&p, &c, err);
    if (!rc) rc = read_switches(&p, &c, err);
    if (!rc) rc = read_window(&p, &c, err);
    if (!rc) rc = read_rope(&p, &c, err);
    if (!rc) rc = read_orthros(&p, &c, err);
    if (!rc) rc = read_orthrus(&p, &c, published, err);
    if (!rc) rc = read_msar(&p, &c, err);
    if (!rc) rc = read_eos(&p, &c, err);
    if (!rc) {
        struct err why;
        rc = config_finish(&c, &why);
        if (rc) err_set(err, rc, "%s: %s", file, why.msg);
    }
    json_decref(root);
    if (!rc) *out = c;
    return rc;
}

static int read_hint(const struct place *p, const char *key, struct sampling_hint *out,
                     struct err *err) {
    out->given = member(p, key) != NULL;
    return read_real(p, key, &out->value, err);
}

static int read_hints(const struct place *p, struct sampling_hints *out, struct err *err) {
    int rc = read_hint(p, "temperature", &out->temperature, err);
    if (!rc) rc = read_hint(p, "top_p", &out->top_p, err);
    if (!rc) rc = read_hint(p, "top_k", &out->top_k, err);
    if (!rc) rc = read_hint(p, "min_p", &out->min_p, err);
    if (!rc) rc = read_hint(p, "repetition_penalty", &out->repetition_penalty, err);
    return rc;
}

int config_parse_generation(const char *json, size_t len, const char *file, struct config *config,
                            struct err *err) {
    json_t *root = NULL;
    int rc = loader_json(json, len, JSON_DEPTH_MAX, JSON_VALUES_MAX, file, &root, err);
    if (rc) return rc;
    struct place p = {file, "", root};
    if (!json_is_object(root))
        rc = err_set(err, ERR_INVALID, "%s: not a JSON object", file);
    else
        rc = read_eos(&p, config, err);
    if (!rc) rc = read_hints(&p, &config->hints, err);
    json_decref(root);
    return rc;
}
