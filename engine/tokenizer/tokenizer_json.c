/* A tokenizer from tokenizer.json and tokenizer_config.json. Every key of every component is known
 * here or refused by name: what is not understood could change ids. The components that split and
 * rewrite text are read in tokenizer_json_parts.c. */
#include "engine/tokenizer/tokenizer_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/utf8.h"

enum { JSON_BYTES_MAX = 256 << 20, JSON_DEPTH_MAX = 64 };

/* ---- reading JSON ------------------------------------------------------------------------------ */

/* jansson recurses, so depth is bounded before it sees the text. */
static int check_depth(const char *json, size_t len, const char *file, struct err *err) {
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = json[i];
        if (in_string) {
            if (c == '\\') i++;
            if (c == '"') in_string = false;
            continue;
        }
        if (c == '"') in_string = true;
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (depth > JSON_DEPTH_MAX)
            return err_set(err, ERR_INVALID, "%s: nested deeper than %d at byte %zu", file,
                           JSON_DEPTH_MAX, i);
    }
    return OK;
}

static int read_json(const char *json, size_t len, const char *file, json_t **out,
                     struct err *err) {
    if (len > JSON_BYTES_MAX)
        return err_set(err, ERR_TOO_LONG, "%s: %zu bytes, allowed are %d", file, len,
                       JSON_BYTES_MAX);
    int rc = check_depth(json, len, file, err);
    if (rc) return rc;
    json_error_t error;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return err_set(err, ERR_INVALID, "%s: line %d, column %d: %s", file, error.line,
                       error.column, error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(err, ERR_INVALID, "%s: not an object", file);
    }
    *out = root;
    return OK;
}

int json_known_keys(const json_t *object, const char *where, const char *const *keys,
                    struct err *err) {
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)object, key, member) {
        bool known = false;
        for (size_t i = 0; keys[i] && !known; i++)
            known = strcmp(keys[i], key) == 0;
        if (!known) return err_set(err, ERR_INVALID, "%s: unknown key \"%.60s\"", where, key);
    }
    return OK;
}

int json_flag(const json_t *object, const char *where, const char *key, bool fallback, bool *out,
              struct err *err) {
    const json_t *v = json_object_get(object, key);
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return err_set(err, ERR_INVALID, "%s.%s: not true or false", where, key);
    *out = v && !json_is_null(v) ? json_is_true(v) : fallback;
    return OK;
}

int json_text(const json_t *object, const char *where, const char *key, const char **out,
              struct err *err) {
    const json_t *v = json_object_get(object, key);
    if (!json_is_string(v)) return err_set(err, ERR_INVALID, "%s.%s: not a string", where, key);
    *out = json_string_value(v);
    return OK;
}

static bool absent(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return !v || json_is_null(v);
}

/* ---- the merging model ------------------------------------------------------------------------- */

static int check_model(const json_t *model, struct err *err) {
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "vocab",
                                       "merges",
                                       "continuing_subword_prefix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "end_of_word_suffix",
                                       "ignore_merges",
                                       NULL};
    if (!json_is_object(model))
        return err_set(err, ERR_INVALID, "tokenizer.json: model: not an object");
    const json_t *type = json_object_get(model, "type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return err_set(err, ERR_INVALID,
                       "tokenizer.json: model.type is \"%.60s\"; only \"BPE\" is supported",
                       json_is_string(type) ? json_string_value(type) : "?");
    int rc = json_known_keys(model, "tokenizer.json: model", keys, err);
    if (rc) return rc;
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0.0)
        return err_set(err, ERR_INVALID, "tokenizer.json: model.dropout is not supported");
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < ARRAY_LEN(affixes); i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (affix && !json_is_null(affix) &&
            !(json_is_string(affix) && json_string_length(affix) == 0))
            return err_set(err, ERR_INVALID, "tokenizer.json: model.%s is not supported",
                           affixes[i]);
    }
    if (!json_is_object(json_object_get(model, "vocab")))
        return err_set(err, ERR_INVALID, "tokenizer.json: model.vocab: not an object");
    if (!json_is_array(json_object_get(model, "merges")))
        return err_set(err, ERR_INVALID, "tokenizer.json: model.merges: not an array");
    return OK;
}

/* Ids may have a few holes, but not so many that the tables outgrow the file. */
static int count_ids(const json_t *root, const json_t *config, uint32_t *n_ids, struct err *err) {
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    const json_t *added = json_object_get(root, "added_tokens");
    const json_t *decoder = json_object_get(config, "added_tokens_decoder");
    json_int_t max = -1;
    const char *key;
    json_t *v;
    size_t i;
    json_object_foreach((json_t *)vocab, key, v) {
        if (!json_is_integer(v))
            return err_set(err, ERR_INVALID, "tokenizer.json: model.vocab[\"%.40s\"]: not an id",
                           key);
        if (json_integer_value(v) > max) max = json_integer_value(v);
    }
    json_array_foreach(added, i, v) {
        json_int_t id = json_integer_value(json_object_get(v, "id"));
        if (id > max) max = id;
    }
    json_object_foreach((json_t *)decoder, key, v) {
        long long id = strtoll(key, NULL, 10);
        if (id > max) max = id;
    }
    size_t count = json_object_size(vocab) + json_array_size(added) + json_object_size(decoder);
    if (max < 0) return err_set(err, ERR_INVALID, "tokenizer.json: model.vocab is empty");
    if (max >= VOCAB_IDS_MAX || (uint64_t)max > 4 * (uint64_t)count + 1024)
        return err_set(err, ERR_INVALID,
                       "tokenizer.json: the largest id is %lld for %zu tokens; allowed are ids "
                       "below %d, and not many more than tokens",
                       (long long)max, count, VOCAB_IDS_MAX);
    *n_ids = (uint32_t)max + 1;
    return OK;
}

static int read_vocab(struct tokenizer *t, const json_t *model, struct err *err) {
    const char *key;
    json_t *id;
    json_object_foreach(json_object_get(model, "vocab"), key, id) {
        struct err why;
        int rc = vocab_set(&t->vocab, json_integer_value(id), key, strlen(key), TOKEN_MODEL, &why);
        if (rc) return err_set(err, rc, "tokenizer.json: model.vocab: %.200s", why.msg);
    }
    return OK;
}

static int read_merge(struct tokenizer *t, uint32_t rank, const json_t *merge, bool pairs,
                      struct err *err) {
    if (!pairs) {
        if (!json_is_string(merge))
            return err_set(err, ERR_INVALID, "merge %u: not a string as the first one is", rank);
        return bpe_add_merge_line(&t->bpe, rank, json_string_value(merge),
                                  json_string_length(merge), err);
    }
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(left) || !json_is_string(right))
        return err_set(err, ERR_INVALID, "merge %u: not a pair of strings as the first one is",
                       rank);
    return bpe_add_merge(&t->bpe, rank, json_string_value(left), json_string_length(left),
                         json_string_value(right), json_string_length(right), err);
}

static int read_merges(struct tokenizer *t, const json_t *model, bool byte_level, struct err *err) {
    const json_t *merges = json_object_get(model, "merges"), *merge;
    if (bpe_init(&t->bpe, &t->vocab, byte_level, json_array_size(merges)))
        return err_set(err, ERR_NOMEM, "no memory for the merges");
    bool pairs = json_is_array(json_array_get(merges, 0));
    uint32_t rank = 0;
    size_t i;
    json_array_foreach(merges, i, merge) {
        /* A heading that GPT-2's merges.txt had and that some conversions kept. */
        if (!pairs && json_is_string(merge) &&
            strncmp(json_string_value(merge), "#version", 8) == 0)
            continue;
        struct err why;
        int rc = read_merge(t, rank++, merge, pairs, &why);
        if (rc) return err_set(err, rc, "tokenizer.json: model.merges: %.200s", why.msg);
    }
    return OK;
}

static int read_model_flags(struct tokenizer *t, const json_t *model, struct err *err) {
    const char *where = "tokenizer.json: model";
    int rc = json_flag(model, where, "ignore_merges", false, &t->bpe.ignore_merges, err);
    if (rc == OK) rc = json_flag(model, where, "byte_fallback", false, &t->bpe.byte_fallback, err);
    if (rc == OK) rc = json_flag(model, where, "fuse_unk", false, &t->bpe.fuse_unk, err);
    if (rc || absent(model, "unk_token")) return rc;
    const char *unk = NULL;
    rc = json_text(model, where, "unk_token", &unk, err);
    if (rc) return rc;
    t->bpe.unk = tokenizer_find(t, unk, strlen(unk));
    if (t->bpe.unk < 0)
        return err_set(err, ERR_INVALID, "%s.unk_token \"%.60s\" is not in the vocabulary", where,
                       unk);
    return OK;
}

/* ---- added tokens ------------------------------------------------------------------------------ */

static int read_added(const json_t *v, int64_t id, const char *where, struct added_spec *spec,
                      struct err *err) {
    const char *text = NULL;
    *spec = (struct added_spec){.id = id};
    int rc = json_text(v, where, "content", &text, err);
    if (rc) return rc;
    spec->text = text;
    spec->len = strlen(text);
    rc = json_flag(v, where, "special", false, &spec->special, err);
    if (rc == OK) rc = json_flag(v, where, "single_word", false, &spec->single_word, err);
    if (rc == OK) rc = json_flag(v, where, "lstrip", false, &spec->lstrip, err);
    if (rc == OK) rc = json_flag(v, where, "rstrip", false, &spec->rstrip, err);
    if (rc == OK) rc = json_flag(v, where, "normalized", !spec->special, &spec->normalized, err);
    return rc;
}

static int add_token(struct tokenizer *t, const struct added_spec *spec, const char *where,
                     struct err *err) {
    struct err why;
    if (spec->len == 0) return OK; /* Hugging Face ignores it */
    int rc = tokenizer_add_token(t, spec, &why);
    return rc ? err_set(err, rc, "%s: %.200s", where, why.msg) : OK;
}

static bool is_added(const struct tokenizer *t, const char *text, size_t len) {
    int32_t id = vocab_find(&t->vocab, text, len);
    return id >= 0 && t->vocab.flags[id] & TOKEN_ADDED;
}

/* added_tokens of tokenizer.json, special ones first as Hugging Face lists them. */
static int read_added_tokens(struct tokenizer *t, const json_t *root, struct err *err) {
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    const json_t *list = json_object_get(root, "added_tokens"), *v;
    if (list && !json_is_null(list) && !json_is_array(list))
        return err_set(err, ERR_INVALID, "tokenizer.json: added_tokens: not an array");
    size_t i;
    for (int special = 1; special >= 0; special--) {
        json_array_foreach(list, i, v) {
            char where[64];
            snprintf(where, sizeof where, "tokenizer.json: added_tokens[%zu]", i);
            if (!json_is_object(v) || !json_is_integer(json_object_get(v, "id")))
                return err_set(err, ERR_INVALID, "%s: not an object with an id", where);
            struct added_spec spec;
            int rc = json_known_keys(v, where, keys, err);
            if (rc == OK)
                rc = read_added(v, json_integer_value(json_object_get(v, "id")), where, &spec, err);
            if (rc == OK && spec.special == (special == 1)) rc = add_token(t, &spec, where, err);
            if (rc) return rc;
        }
    }
    return OK;
}

/* added_tokens_decoder of tokenizer_config.json: Hugging Face adds what tokenizer.json lacks. */
static int read_added_decoder(struct tokenizer *t, const json_t *config, struct err *err) {
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, v) {
        char where[96], *end;
        snprintf(where, sizeof where, "tokenizer_config.json: added_tokens_decoder[\"%.20s\"]",
                 key);
        long long id = strtoll(key, &end, 10);
        if (*end || end == key || !json_is_object(v))
            return err_set(err, ERR_INVALID, "%s: not an object under an id", where);
        struct added_spec spec;
        int rc = read_added(v, id, where, &spec, err);
        if (rc) return rc;
        bool known = is_added(t, spec.text, spec.len);
        if (known && vocab_find(&t->vocab, spec.text, spec.len) == id) continue;
        rc = add_token(t, &spec, where, err);
        if (rc) return rc;
    }
    return OK;
}

/* ---- tokenizer_config.json --------------------------------------------------------------------- */

/* A named special token is a string, or an object like an added token's. One that is an ordinary
 * token of the vocabulary becomes a special one, as in Hugging Face. */
static int read_named(struct tokenizer *t, const char *name, const json_t *v, struct err *err) {
    char where[96];
    snprintf(where, sizeof where, "tokenizer_config.json: %.60s", name);
    struct added_spec spec = {.special = true};
    int rc = OK;
    if (json_is_object(v))
        rc = read_added(v, 0, where, &spec, err);
    else {
        spec.text = json_string_value(v);
        spec.len = json_string_length(v);
    }
    if (rc || spec.len == 0) return rc;
    rc = tokenizer_set_named(t, name, spec.text, spec.len, err);
    spec.id = vocab_find(&t->vocab, spec.text, spec.len);
    if (rc || spec.id < 0 || is_added(t, spec.text, spec.len)) return rc;
    spec.special = true;
    return add_token(t, &spec, where, err);
}

static int read_all_named(struct tokenizer *t, const json_t *config, struct err *err) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)config, key, v) {
        size_t n = strlen(key);
        if (n < 6 || strcmp(key + n - 6, "_token") != 0) continue;
        if (!json_is_string(v) && !json_is_object(v)) continue; /* null, and add_bos_token */
        int rc = read_named(t, key, v, err);
        if (rc) return rc;
    }
    return OK;
}

static int32_t named_id(const struct tokenizer *t, const char *name) {
    const char *text = tokenizer_named_special(t, name);
    return text ? tokenizer_find(t, text, strlen(text)) : -1;
}

/* The classes that replace the file's template by their own from add_bos_token and add_eos_token;
 * they add the start token unless told otherwise. */
static bool class_makes_template(const json_t *config) {
    static const char *const classes[] = {
        "LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast",
        "GemmaTokenizer", "GemmaTokenizerFast", "CohereTokenizer",    "CohereTokenizerFast"};
    const json_t *v = json_object_get(config, "tokenizer_class");
    for (size_t i = 0; json_is_string(v) && i < ARRAY_LEN(classes); i++)
        if (strcmp(json_string_value(v), classes[i]) == 0) return true;
    return false;
}

static int apply_class(struct tokenizer *t, const json_t *config, struct err *err) {
    const char *where = "tokenizer_config.json";
    bool add_bos = true, add_eos = false;
    int rc = json_flag(config, where, "add_bos_token", true, &add_bos, err);
    if (rc == OK) rc = json_flag(config, where, "add_eos_token", false, &add_eos, err);
    if (rc) return rc;
    t->n_prefix = t->n_suffix = 0;
    if ((add_bos && t->bos < 0) || (add_eos && t->eos < 0))
        return err_set(err, ERR_INVALID, "%s: %s is set, but the token is not in the vocabulary",
                       where, add_bos && t->bos < 0 ? "add_bos_token" : "add_eos_token");
    if (add_bos) t->prefix[t->n_prefix++] = t->bos;
    if (add_eos) t->suffix[t->n_suffix++] = t->eos;
    return OK;
}

/* A ByteLevel pre-tokeniser that stands alone takes add_prefix_space from the config. */
static int check_prefix_space(const json_t *root, const json_t *config, struct err *err) {
    const json_t *pre = json_object_get(json_object_get(root, "pre_tokenizer"), "add_prefix_space");
    const json_t *own = json_object_get(config, "add_prefix_space");
    if (json_is_boolean(pre) && json_is_boolean(own) && json_is_true(pre) != json_is_true(own))
        return err_set(err, ERR_INVALID,
                       "add_prefix_space: tokenizer.json and tokenizer_config.json differ");
    return OK;
}

/* ---- all of it --------------------------------------------------------------------------------- */

static int build(struct tokenizer *t, const json_t *root, const json_t *config, struct err *err) {
    /* Truncation and padding are off when a server encodes, whatever the file says. */
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    const json_t *model = json_object_get(root, "model");
    bool byte_level = false;
    uint32_t n_ids = 0;
    int rc = json_known_keys(root, "tokenizer.json", keys, err);
    if (rc == OK) rc = check_model(model, err);
    if (rc == OK) rc = count_ids(root, config, &n_ids, err);
    if (rc == OK && vocab_init(&t->vocab, n_ids))
        rc = err_set(err, ERR_NOMEM, "no memory for %u tokens", n_ids);
    if (rc == OK) rc = read_vocab(t, model, err);
    if (rc == OK) rc = json_normalizer(t, json_object_get(root, "normalizer"), err);
    if (rc == OK)
        rc = json_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), &byte_level, err);
    if (rc == OK) rc = check_prefix_space(root, config, err);
    if (rc == OK) rc = json_decoder(json_object_get(root, "decoder"), &byte_level, err);
    if (rc == OK) rc = read_added_tokens(t, root, err);
    if (rc == OK) rc = read_added_decoder(t, config, err);
    if (rc == OK) rc = read_all_named(t, config, err);
    /* Merges come after the added tokens: none may spell a special one. */
    if (rc == OK) rc = read_merges(t, model, byte_level, err);
    if (rc == OK) rc = read_model_flags(t, model, err);
    if (rc == OK) rc = json_post_processor(t, json_object_get(root, "post_processor"), err);
    if (rc) return rc;
    t->bos = named_id(t, "bos_token");
    t->eos = named_id(t, "eos_token");
    if (class_makes_template(config)) rc = apply_class(t, config, err);
    if (t->bos < 0 && t->n_prefix == 1) t->bos = t->prefix[0];
    return rc ? rc : tokenizer_make_pieces(t, byte_level, err);
}

int tokenizer_from_json(const char *json, size_t len, const char *config_text, size_t config_len,
                        struct tokenizer **out, struct err *err) {
    json_t *root = NULL, *config = NULL;
    struct tokenizer *t = NULL;
    int rc = read_json(json, len, "tokenizer.json", &root, err);
    if (rc == OK && config_text)
        rc = read_json(config_text, config_len, "tokenizer_config.json", &config, err);
    if (rc) goto done;
    t = calloc(1, sizeof *t);
    if (!t) {
        rc = err_set(err, ERR_NOMEM, "no memory for a tokenizer");
        goto done;
    }
    t->bos = t->eos = -1;
    rc = build(t, root, config, err);
    if (rc) goto done;
    *out = t;
    t = NULL;
done:
    tokenizer_destroy(t);
    json_decref(config);
    json_decref(root);
    return rc;
}
