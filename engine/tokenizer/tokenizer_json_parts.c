/* The components of tokenizer.json: normaliser, pre-tokeniser, decoder, post-processor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/tokenizer_json.h"
#include "engine/tokenizer/utf8.h"

enum { WHERE_MAX = 160 };

static bool is_none(const json_t *v) {
    return !v || json_is_null(v);
}

/* The "type" of a component. */
static int component(const json_t *v, const char *where, const char **type, struct err *err) {
    if (!json_is_object(v)) return err_set(err, ERR_INVALID, "%s: not an object", where);
    return json_text(v, where, "type", type, err);
}

static int unknown_type(const char *where, const char *type, const char *known, struct err *err) {
    return err_set(err, ERR_INVALID, "%s.type \"%.60s\" is not supported; known are %s", where,
                   type, known);
}

/* "pattern": {"Regex": "..."} or {"String": "..."}. */
static int read_pattern(const json_t *v, const char *where, struct pattern **out, struct err *err) {
    const json_t *p = json_object_get(v, "pattern");
    const json_t *regex = json_object_get(p, "Regex"), *text = json_object_get(p, "String");
    if (json_object_size(p) == 1 && json_is_string(regex))
        return pattern_regex(json_string_value(regex), json_string_length(regex), where, out, err);
    if (json_object_size(p) == 1 && json_is_string(text))
        return pattern_literal(json_string_value(text), json_string_length(text), where, out, err);
    return err_set(err, ERR_INVALID, "%s.pattern: neither {\"Regex\": ..} nor {\"String\": ..}",
                   where);
}

/* ---- normaliser -------------------------------------------------------------------------------- */

static int read_content(const json_t *v, const char *where, const char *key,
                        struct normalizer_op *op, struct err *err) {
    const char *text = NULL;
    int rc = json_text(v, where, key, &text, err);
    if (rc) return rc;
    op->content_len = strlen(text);
    if (op->content_len > VOCAB_TEXT_BYTES_MAX)
        return err_set(err, ERR_TOO_LONG, "%s.%s: %zu bytes, allowed are %d", where, key,
                       op->content_len, VOCAB_TEXT_BYTES_MAX);
    op->content = strdup(text);
    return op->content ? OK : err_set(err, ERR_NOMEM, "%s: no memory", where);
}

static int normalizer_op_from(const json_t *v, const char *type, const char *where,
                              struct normalizer_op *op, struct err *err) {
    static const struct {
        const char *name;
        enum normalizer_kind kind;
        const char *keys[4];
    } known[] = {
        {"NFC", NORMALIZE_NFC, {"type"}},
        {"NFD", NORMALIZE_NFD, {"type"}},
        {"NFKC", NORMALIZE_NFKC, {"type"}},
        {"NFKD", NORMALIZE_NFKD, {"type"}},
        {"Lowercase", NORMALIZE_LOWERCASE, {"type"}},
        {"Strip", NORMALIZE_STRIP, {"type", "strip_left", "strip_right"}},
        {"Prepend", NORMALIZE_PREPEND, {"type", "prepend"}},
        {"Replace", NORMALIZE_REPLACE, {"type", "pattern", "content"}},
    };
    size_t k = 0;
    while (k < ARRAY_LEN(known) && strcmp(known[k].name, type) != 0)
        k++;
    if (k == ARRAY_LEN(known))
        return unknown_type(where, type,
                            "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
                            "Prepend, Replace",
                            err);
    int rc = json_known_keys(v, where, known[k].keys, err);
    if (rc) return rc;
    op->kind = known[k].kind;
    if (op->kind == NORMALIZE_STRIP) {
        rc = json_flag(v, where, "strip_left", true, &op->left, err);
        return rc ? rc : json_flag(v, where, "strip_right", true, &op->right, err);
    }
    if (op->kind == NORMALIZE_PREPEND) return read_content(v, where, "prepend", op, err);
    if (op->kind != NORMALIZE_REPLACE) return OK;
    rc = read_pattern(v, where, &op->pattern, err);
    return rc ? rc : read_content(v, where, "content", op, err);
}

/* A component or a sequence of them, flattened. */
static int add_normalizer(struct tokenizer *t, const json_t *v, const char *where,
                          struct err *err) {
    static const char *const keys[] = {"type", "normalizers", NULL};
    const char *type = NULL;
    int rc = component(v, where, &type, err);
    if (rc) return rc;
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(v, "normalizers"), *item;
        size_t i;
        rc = json_known_keys(v, where, keys, err);
        if (rc == OK && !json_is_array(list))
            rc = err_set(err, ERR_INVALID, "%s.normalizers: not an array", where);
        if (rc) return rc;
        json_array_foreach(list, i, item) {
            char inner[WHERE_MAX];
            snprintf(inner, sizeof inner, "%.100s.normalizers[%zu]", where, i);
            rc = add_normalizer(t, item, inner, err);
            if (rc) return rc;
        }
        return OK;
    }
    if (t->normalizer.n_ops == NORMALIZER_OPS_MAX)
        return err_set(err, ERR_TOO_LONG, "%s: more than %d steps", where, NORMALIZER_OPS_MAX);
    /* Counted first, so that whatever the step owns is released with the tokenizer. */
    struct normalizer_op *op = &t->normalizer.ops[t->normalizer.n_ops++];
    return normalizer_op_from(v, type, where, op, err);
}

int json_normalizer(struct tokenizer *t, const json_t *v, struct err *err) {
    return is_none(v) ? OK : add_normalizer(t, v, "tokenizer.json: normalizer", err);
}

/* ---- pre-tokeniser ----------------------------------------------------------------------------- */

static int read_behavior(const json_t *v, const char *where, enum split_behavior *out,
                         struct err *err) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    int rc = json_text(v, where, "behavior", &name, err);
    if (rc) return rc;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = (enum split_behavior)i;
        return OK;
    }
    return err_set(err, ERR_INVALID, "%s.behavior \"%.60s\" is not supported", where, name);
}

static int op_split(const json_t *v, const char *where, struct pretokenizer_op *op,
                    struct err *err) {
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    int rc = json_known_keys(v, where, keys, err);
    if (rc == OK) rc = read_behavior(v, where, &op->behavior, err);
    if (rc == OK) rc = json_flag(v, where, "invert", false, &op->invert, err);
    return rc ? rc : read_pattern(v, where, &op->pattern, err);
}

static int op_digits(const json_t *v, const char *where, struct pretokenizer_op *op,
                     struct err *err) {
    static const char *const keys[] = {"type", "individual_digits", NULL};
    bool individual;
    int rc = json_known_keys(v, where, keys, err);
    if (rc == OK) rc = json_flag(v, where, "individual_digits", false, &individual, err);
    if (rc) return rc;
    op->behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return pattern_class(utf8_is_numeric, &op->pattern, err);
}

static int op_punctuation(const json_t *v, const char *where, struct pretokenizer_op *op,
                          struct err *err) {
    static const char *const keys[] = {"type", "behavior", NULL};
    int rc = json_known_keys(v, where, keys, err);
    op->behavior = SPLIT_ISOLATED;
    if (rc == OK && json_object_get(v, "behavior"))
        rc = read_behavior(v, where, &op->behavior, err);
    return rc ? rc : pattern_class(utf8_is_punctuation, &op->pattern, err);
}

static int op_whitespace(const json_t *v, const char *where, struct pretokenizer_op *op,
                         struct err *err) {
    static const char *const keys[] = {"type", NULL};
    /* Written for Rust's regex, whose \w holds the two joiners as well. */
    static const char regex[] = "[\\w\\x{200C}\\x{200D}]+|[^\\w\\s\\x{200C}\\x{200D}]+";
    int rc = json_known_keys(v, where, keys, err);
    op->behavior = SPLIT_REMOVED;
    op->invert = true;
    return rc ? rc : pattern_regex(regex, sizeof regex - 1, where, &op->pattern, err);
}

static int op_whitespace_split(const json_t *v, const char *where, struct pretokenizer_op *op,
                               struct err *err) {
    static const char *const keys[] = {"type", NULL};
    int rc = json_known_keys(v, where, keys, err);
    op->behavior = SPLIT_REMOVED;
    return rc ? rc : pattern_class(utf8_is_space, &op->pattern, err);
}

static int op_byte_level(const json_t *v, const char *where, struct pretokenizer_op *op,
                         struct err *err) {
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                       NULL};
    bool use_regex;
    int rc = json_known_keys(v, where, keys, err);
    if (rc == OK) rc = json_flag(v, where, "add_prefix_space", true, &op->prefix_space, err);
    if (rc == OK) rc = json_flag(v, where, "use_regex", true, &use_regex, err);
    if (rc) return rc;
    op->behavior = SPLIT_ISOLATED;
    op->no_split = !use_regex;
    if (!use_regex) return OK;
    return pattern_regex(TOKENIZER_GPT2_REGEX, strlen(TOKENIZER_GPT2_REGEX), where, &op->pattern,
                         err);
}

static int add_pre_tokenizer(struct tokenizer *t, const json_t *v, const char *where,
                             bool *byte_level, struct err *err);

static int add_pre_sequence(struct tokenizer *t, const json_t *v, const char *where,
                            bool *byte_level, struct err *err) {
    static const char *const keys[] = {"type", "pretokenizers", NULL};
    const json_t *list = json_object_get(v, "pretokenizers"), *item;
    int rc = json_known_keys(v, where, keys, err);
    if (rc == OK && !json_is_array(list))
        rc = err_set(err, ERR_INVALID, "%s.pretokenizers: not an array", where);
    size_t i;
    if (rc) return rc;
    json_array_foreach(list, i, item) {
        char inner[WHERE_MAX];
        snprintf(inner, sizeof inner, "%.100s.pretokenizers[%zu]", where, i);
        rc = add_pre_tokenizer(t, item, inner, byte_level, err);
        if (rc) return rc;
    }
    return OK;
}

static int add_pre_tokenizer(struct tokenizer *t, const json_t *v, const char *where,
                             bool *byte_level, struct err *err) {
    static const struct {
        const char *name;
        int (*read)(const json_t *v, const char *where, struct pretokenizer_op *op,
                    struct err *err);
    } known[] = {
        {"ByteLevel", op_byte_level},  {"Split", op_split},
        {"Digits", op_digits},         {"Punctuation", op_punctuation},
        {"Whitespace", op_whitespace}, {"WhitespaceSplit", op_whitespace_split},
    };
    const char *type = NULL;
    int rc = component(v, where, &type, err);
    if (rc) return rc;
    if (strcmp(type, "Sequence") == 0) return add_pre_sequence(t, v, where, byte_level, err);
    size_t k = 0;
    while (k < ARRAY_LEN(known) && strcmp(known[k].name, type) != 0)
        k++;
    if (k == ARRAY_LEN(known))
        return unknown_type(where, type,
                            "Sequence, ByteLevel, Split, Digits, Punctuation, "
                            "Whitespace, WhitespaceSplit",
                            err);
    if (*byte_level)
        return err_set(err, ERR_INVALID, "%s: %s after ByteLevel is not supported", where, type);
    if (t->pretokenizer.n_ops == PRETOKENIZER_OPS_MAX)
        return err_set(err, ERR_TOO_LONG, "%s: more than %d steps", where, PRETOKENIZER_OPS_MAX);
    struct pretokenizer_op *op = &t->pretokenizer.ops[t->pretokenizer.n_ops++];
    *byte_level = known[k].read == op_byte_level;
    return known[k].read(v, where, op, err);
}

int json_pre_tokenizer(struct tokenizer *t, const json_t *v, bool *byte_level, struct err *err) {
    *byte_level = false;
    return is_none(v) ? OK
                      : add_pre_tokenizer(t, v, "tokenizer.json: pre_tokenizer", byte_level, err);
}

/* ---- decoder ----------------------------------------------------------------------------------- */

int json_decoder(const json_t *v, const bool *byte_level, struct err *err) {
    const char *where = "tokenizer.json: decoder", *type = NULL;
    if (is_none(v)) return OK;
    int rc = component(v, where, &type, err);
    if (rc) return rc;
    if (strcmp(type, "ByteLevel") != 0) return unknown_type(where, type, "ByteLevel", err);
    if (!*byte_level)
        return err_set(err, ERR_INVALID,
                       "%s: ByteLevel without a ByteLevel pre_tokenizer is not "
                       "supported",
                       where);
    return OK;
}

/* ---- post-processor ---------------------------------------------------------------------------- */

/* The ids that a special token of a template stands for. */
static int template_ids(const struct tokenizer *t, const json_t *v, const json_t *piece,
                        const char *where, int32_t *ids, uint32_t *n, struct err *err) {
    const char *name = NULL;
    int rc = json_text(piece, where, "id", &name, err);
    if (rc) return rc;
    const json_t *special = json_object_get(json_object_get(v, "special_tokens"), name);
    const json_t *list = json_object_get(special, "ids"), *id;
    if (!json_is_array(list))
        return err_set(err, ERR_INVALID, "%s: special_tokens has no ids for \"%.60s\"", where,
                       name);
    size_t i;
    json_array_foreach(list, i, id) {
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= (json_int_t)t->vocab.n)
            return err_set(err, ERR_INVALID, "%s: \"%.60s\" has an id outside the vocabulary",
                           where, name);
        if (*n == TEMPLATE_IDS_MAX)
            return err_set(err, ERR_TOO_LONG, "%s: more than %d ids on one side", where,
                           TEMPLATE_IDS_MAX);
        ids[(*n)++] = (int32_t)value;
    }
    return OK;
}

static int read_template(struct tokenizer *t, const json_t *v, const char *where, struct err *err) {
    static const char *const keys[] = {"type", "single", "pair", "special_tokens", NULL};
    const json_t *single = json_object_get(v, "single"), *item;
    int rc = json_known_keys(v, where, keys, err);
    if (rc) return rc;
    if (t->n_prefix || t->n_suffix)
        return err_set(err, ERR_INVALID, "%s: a second template is not supported", where);
    bool seen = false;
    size_t i;
    json_array_foreach(single, i, item) {
        const json_t *sequence = json_object_get(item, "Sequence");
        const json_t *special = json_object_get(item, "SpecialToken");
        const char *id = json_string_value(json_object_get(sequence, "id"));
        if (sequence && (seen || !id || strcmp(id, "A") != 0))
            return err_set(err, ERR_INVALID, "%s.single[%zu]: only one sequence, A, is supported",
                           where, i);
        if (!sequence && !special)
            return err_set(err, ERR_INVALID, "%s.single[%zu]: neither SpecialToken nor Sequence",
                           where, i);
        if (sequence) seen = true;
        if (special && seen) rc = template_ids(t, v, special, where, t->suffix, &t->n_suffix, err);
        if (special && !seen) rc = template_ids(t, v, special, where, t->prefix, &t->n_prefix, err);
        if (rc) return rc;
    }
    return seen ? OK : err_set(err, ERR_INVALID, "%s.single: the sequence A is missing", where);
}

static int add_post_processor(struct tokenizer *t, const json_t *v, const char *where,
                              struct err *err) {
    static const char *const sequence_keys[] = {"type", "processors", NULL};
    const char *type = NULL;
    int rc = component(v, where, &type, err);
    if (rc) return rc;
    if (strcmp(type, "ByteLevel") == 0) return OK; /* changes offsets only */
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, v, where, err);
    if (strcmp(type, "Sequence") != 0)
        return unknown_type(where, type, "Sequence, ByteLevel, TemplateProcessing", err);
    const json_t *list = json_object_get(v, "processors"), *item;
    rc = json_known_keys(v, where, sequence_keys, err);
    if (rc == OK && !json_is_array(list))
        rc = err_set(err, ERR_INVALID, "%s.processors: not an array", where);
    size_t i;
    if (rc) return rc;
    json_array_foreach(list, i, item) {
        char inner[WHERE_MAX];
        snprintf(inner, sizeof inner, "%.100s.processors[%zu]", where, i);
        rc = add_post_processor(t, item, inner, err);
        if (rc) return rc;
    }
    return OK;
}

int json_post_processor(struct tokenizer *t, const json_t *v, struct err *err) {
    return is_none(v) ? OK : add_post_processor(t, v, "tokenizer.json: post_processor", err);
}
