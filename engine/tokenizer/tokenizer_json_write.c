/* The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json. Splits are written as the
 * regular expressions that tokenizer_gguf.c knows, not under the names that the model's own file may
 * have had for them (Digits, ByteLevel's own split). */
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/tokenizer_json.h"
#include "engine/tokenizer/utf8.h"

/* ---- parts of tokenizer.json ------------------------------------------------------------------- */

/* jansson takes a NULL value as a failure, so out of memory needs one check at the end of a part. */
static bool put(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0;
}

static bool is_kind(const struct gguf_vocab *g, uint32_t id, int32_t kind) {
    return g->types && g->types[id] == kind;
}

static int check_text(const struct gguf_vocab *g, uint32_t id, struct err *err) {
    const char *text = g->tokens[id];
    size_t len = g->token_lens[id];
    if (utf8_valid_len(text, len) == len && !memchr(text, 0, len)) return OK;
    return err_set(err, ERR_INVALID,
                   "tokenizer.ggml.tokens: element %u is no UTF-8 text, so tokenizer.json cannot "
                   "hold it",
                   id);
}

/* Every token that is one; ids without a token stay holes. */
static int make_vocab(const struct gguf_vocab *g, json_t *vocab, struct err *err) {
    for (uint32_t id = 0; id < g->n_tokens; id++) {
        if (is_kind(g, id, GGUF_UNUSED)) continue;
        int rc = check_text(g, id, err);
        if (rc) return rc;
        if (!put(vocab, g->tokens[id], json_integer(id)))
            return err_set(err, ERR_NOMEM, "no memory for %u tokens", g->n_tokens);
    }
    return OK;
}

/* Pairs: a line "left right" may look like a comment (#version). */
static int make_merges(const struct gguf_vocab *g, json_t *merges, struct err *err) {
    for (uint32_t i = 0; i < g->n_merges; i++) {
        const char *line = g->merges[i], *blank = strchr(line, ' ');
        if (!blank || strchr(blank + 1, ' '))
            return err_set(err, ERR_INVALID,
                           "tokenizer.ggml.merges: element %u is no pair with one blank between",
                           i);
        json_t *pair = json_pack("[s%, s]", line, (size_t)(blank - line), blank + 1);
        if (json_array_append_new(merges, pair))
            return err_set(err, ERR_NOMEM, "no memory for %u merges", g->n_merges);
    }
    return OK;
}

static int make_added(const struct gguf_vocab *g, json_t *added, struct err *err) {
    for (uint32_t id = 0; id < g->n_tokens; id++) {
        bool control = is_kind(g, id, GGUF_CONTROL);
        if (!control && !is_kind(g, id, GGUF_USER_DEFINED)) continue;
        json_t *token = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)id, "content",
                                  g->tokens[id], "single_word", 0, "lstrip", 0, "rstrip", 0,
                                  "normalized", 0, "special", control);
        if (json_array_append_new(added, token))
            return err_set(err, ERR_NOMEM, "no memory for the added tokens");
    }
    return OK;
}

static json_t *make_byte_level(void) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", 0);
}

static json_t *make_pre_tokenizer(const struct gguf_pre *pre) {
    json_t *list = json_array();
    for (size_t i = 0; i < ARRAY_LEN(pre->regex) && pre->regex[i]; i++)
        json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split",
                                              "pattern", "Regex", pre->regex[i], "behavior",
                                              "Isolated", "invert", 0));
    json_array_append_new(list, make_byte_level());
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
}

/* {"SpecialToken": ..} of one id into the template and the table behind it. */
static void add_special(const struct gguf_vocab *g, int32_t id, json_t *single, json_t *specials) {
    const char *text = g->tokens[id];
    json_array_append_new(single,
                          json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", 0));
    put(specials, text, json_pack("{s:s, s:[i], s:[s]}", "id", text, "ids", id, "tokens", text));
}

static json_t *make_post_processor(const struct gguf_vocab *g, const struct tokenizer *t) {
    if (t->n_prefix + t->n_suffix == 0) return make_byte_level();
    json_t *single = json_array(), *specials = json_object();
    if (t->n_prefix) add_special(g, t->prefix[0], single, specials);
    json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
    if (t->n_suffix) add_special(g, t->suffix[0], single, specials);
    /* A pair of texts is never encoded here; the file wants an entry for it all the same. */
    json_t *pair = json_pack("[{s:{s:s, s:i}}, {s:{s:s, s:i}}]", "Sequence", "id", "A", "type_id",
                             0, "Sequence", "id", "B", "type_id", 1);
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", specials);
}

static int make_json(const struct gguf_vocab *g, const struct gguf_pre *pre,
                     const struct tokenizer *t, json_t **out, struct err *err) {
    json_t *vocab = json_object(), *merges = json_array(), *added = json_array();
    int rc = make_vocab(g, vocab, err);
    if (!rc) rc = make_merges(g, merges, err);
    if (!rc) rc = make_added(g, added, err);
    json_t *normalizer = pre->nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
    json_t *model = json_pack(
        "{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
        "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
        "ignore_merges", pre->ignore_merges, "vocab", vocab, "merges", merges);
    json_t *root = json_pack(
        "{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
        "added_tokens", added, "normalizer", normalizer, "pre_tokenizer", make_pre_tokenizer(pre),
        "post_processor", make_post_processor(g, t), "decoder", make_byte_level(), "model", model);
    if (!rc && !root) rc = err_set(err, ERR_NOMEM, "no memory for tokenizer.json");
    if (rc) {
        json_decref(root);
        return rc;
    }
    *out = root;
    return OK;
}

/* ---- tokenizer_config.json --------------------------------------------------------------------- */

/* Naming an ordinary token would make it a special one, which changes ids. */
static int put_named(const struct gguf_vocab *g, const char *name, const char *key, int32_t id,
                     json_t *config, struct err *err) {
    if (id < 0) return put(config, name, json_null()) ? OK : ERR_NOMEM;
    if (!is_kind(g, (uint32_t)id, GGUF_CONTROL) && !is_kind(g, (uint32_t)id, GGUF_USER_DEFINED))
        return err_set(err, ERR_INVALID,
                       "tokenizer.ggml.%s_token_id: token %d is no control token, so "
                       "tokenizer_config.json cannot name it",
                       key, id);
    return put(config, name, json_string(g->tokens[id])) ? OK : ERR_NOMEM;
}

static int make_config(const struct gguf_vocab *g, uint32_t max_length, json_t **out,
                       struct err *err) {
    json_t *config = json_pack("{s:s, s:I, s:b, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                               "model_max_length", (json_int_t)max_length, "add_prefix_space", 0,
                               "clean_up_tokenization_spaces", 0);
    int rc = config ? OK : ERR_NOMEM;
    if (!rc) rc = put_named(g, "bos_token", "bos", g->bos_id, config, err);
    if (!rc) rc = put_named(g, "eos_token", "eos", g->eos_id, config, err);
    if (rc == ERR_NOMEM) err_set(err, rc, "no memory for tokenizer_config.json");
    if (rc) {
        json_decref(config);
        return rc;
    }
    *out = config;
    return OK;
}

/* ---- the check --------------------------------------------------------------------------------- */

static bool same_piece(const struct tokenizer *a, const struct tokenizer *b, int32_t id) {
    size_t n, m;
    const char *p = tokenizer_piece(a, id, false, &n), *q = tokenizer_piece(b, id, false, &m);
    return n == m && memcmp(p, q, n) == 0 &&
           (n == 0 || tokenizer_is_special(a, id) == tokenizer_is_special(b, id));
}

static bool same_ends(const struct tokenizer *a, const struct tokenizer *b) {
    return a->bos == b->bos && a->eos == b->eos && a->n_prefix == b->n_prefix &&
           a->n_suffix == b->n_suffix &&
           memcmp(a->prefix, b->prefix, a->n_prefix * sizeof *a->prefix) == 0 &&
           memcmp(a->suffix, b->suffix, a->n_suffix * sizeof *a->suffix) == 0;
}

/* Words, digits, blanks, marks, other scripts: one text through both. */
static bool same_ids(const struct tokenizer *a, const struct tokenizer *b) {
    static const char text[] =
        "Hello, world! It's 12345.67 don't WE'LL\n\n  tabs\t\tand\r\n blanks   "
        "caf\xC3\xA9 e\xCC\x81 \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E "
        "\xD0\x9C\xD0\xB8\xD1\x80 \xF0\x9F\x98\x80 f(x)=[x*2];//end...  ";
    struct text_run run = {text, sizeof text - 1, true};
    struct tokens x = {0}, y = {0};
    /* A vocabulary that lacks letters may refuse the text: then both must. */
    bool same = tokenizer_encode(a, &run, 1, true, &x, NULL) ==
                    tokenizer_encode(b, &run, 1, true, &y, NULL) &&
                x.n == y.n && (x.n == 0 || memcmp(x.ids, y.ids, x.n * sizeof *x.ids) == 0);
    tokens_free(&x);
    tokens_free(&y);
    return same;
}

static int check_same(const struct tokenizer *ours, const char *json, const char *config,
                      struct err *err) {
    struct tokenizer *again = NULL;
    struct err why = {0};
    int rc = tokenizer_from_json(json, strlen(json), config, strlen(config), &again, &why);
    if (rc) return err_set(err, rc, "the tokenizer cannot be carried over: %.200s", why.msg);
    for (uint32_t id = 0; !rc && id < ours->vocab.n; id++)
        if (!same_piece(ours, again, (int32_t)id))
            rc = err_set(err, ERR_INVALID, "the tokenizer cannot be carried over: token %u changes",
                         id);
    if (!rc && !same_ends(ours, again))
        rc = err_set(err, ERR_INVALID,
                     "the tokenizer cannot be carried over: its start and end tokens change");
    if (!rc && !same_ids(ours, again))
        rc = err_set(err, ERR_INVALID,
                     "the tokenizer cannot be carried over: a text gets other ids");
    tokenizer_destroy(again);
    return rc;
}

/* ---- all of it --------------------------------------------------------------------------------- */

int tokenizer_gguf_to_json(const struct gguf_vocab *g, uint32_t max_length, char **json_out,
                           char **config_out, struct err *err) {
    const struct gguf_pre *pre = NULL;
    struct tokenizer *ours = NULL;
    json_t *root = NULL, *config = NULL;
    char *text = NULL, *config_text = NULL;
    int rc = tokenizer_gguf_pre(g, &pre, err);
    if (!rc) rc = tokenizer_from_gguf(g, &ours, err);
    if (!rc) rc = make_json(g, pre, ours, &root, err);
    if (!rc) rc = make_config(g, max_length, &config, err);
    if (!rc) {
        text = json_dumps(root, JSON_INDENT(1));
        config_text = json_dumps(config, JSON_INDENT(2));
        if (!text || !config_text) rc = err_set(err, ERR_NOMEM, "no memory for tokenizer.json");
    }
    if (!rc) rc = check_same(ours, text, config_text, err);
    json_decref(root);
    json_decref(config);
    tokenizer_destroy(ours);
    if (rc) {
        free(text);
        free(config_text);
        return rc;
    }
    *json_out = text;
    *config_out = config_text;
    return OK;
}
