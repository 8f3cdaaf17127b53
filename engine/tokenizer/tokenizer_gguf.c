/* A tokenizer from GGUF metadata. The file names its pre-tokeniser; what the name stands for is
 * fixed here, with the normaliser that the models' own tokenizer.json has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/tokenizer_internal.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define REST         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3       {CONTRACTIONS "|\\p{N}{1,3}" REST, NULL}, false, true, true
#define DIGITS_GPT2  {"\\p{N}", TOKENIZER_GPT2_REGEX}, false, false, false

static const struct gguf_pre PRE_KINDS[] = {
    {"gpt-2", {TOKENIZER_GPT2_REGEX, NULL}, false, false, false},
    {"smollm", DIGITS_GPT2},
    {"starcoder", DIGITS_GPT2},
    {"refact", DIGITS_GPT2},
    {"llama-bpe", LLAMA3},
    {"llama3", LLAMA3},
    {"llama-v3", LLAMA3},
    {"qwen2", {CONTRACTIONS "|\\p{N}" REST, NULL}, true, false, false},
};

int tokenizer_gguf_pre(const struct gguf_vocab *g, const struct gguf_pre **out, struct err *err) {
    if (!g->model || strcmp(g->model, "gpt2") != 0)
        return err_set(err, ERR_INVALID,
                       "tokenizer.ggml.model is \"%.64s\"; only \"gpt2\" is supported",
                       g->model ? g->model : "");
    if (!g->pre)
        return err_set(err, ERR_INVALID,
                       "tokenizer.ggml.pre is missing: the way to split text "
                       "into words is unknown");
    char known[160] = "";
    for (size_t i = 0; i < ARRAY_LEN(PRE_KINDS); i++) {
        if (strcmp(PRE_KINDS[i].name, g->pre) == 0) {
            *out = &PRE_KINDS[i];
            return OK;
        }
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", PRE_KINDS[i].name);
    }
    return err_set(err, ERR_INVALID, "tokenizer.ggml.pre \"%.64s\" is not supported; known are %s",
                   g->pre, known);
}

static int add_vocabulary(struct tokenizer *t, const struct gguf_vocab *g, struct err *err) {
    if (g->n_tokens == 0 || g->n_tokens > VOCAB_IDS_MAX)
        return err_set(err, ERR_INVALID, "tokenizer.ggml.tokens: %u tokens, allowed are 1 to %d",
                       g->n_tokens, VOCAB_IDS_MAX);
    if (vocab_init(&t->vocab, g->n_tokens))
        return err_set(err, ERR_NOMEM, "no memory for %u tokens", g->n_tokens);
    for (uint32_t i = 0; i < g->n_tokens; i++) {
        int32_t type = g->types ? g->types[i] : 1;
        const char *text = g->tokens[i];
        size_t len = g->token_lens[i];
        if (type == GGUF_UNUSED) continue;
        int rc = vocab_set(&t->vocab, i, text, len, TOKEN_MODEL, err);
        struct added_spec spec = {i, text, len, .special = type == GGUF_CONTROL};
        if (rc == OK && (type == GGUF_CONTROL || type == GGUF_USER_DEFINED))
            rc = tokenizer_add_token(t, &spec, err);
        if (rc) return rc;
    }
    return OK;
}

static int add_merges(struct tokenizer *t, const struct gguf_vocab *g, struct err *err) {
    if (bpe_init(&t->bpe, &t->vocab, true, g->n_merges))
        return err_set(err, ERR_NOMEM, "no memory for %u merges", g->n_merges);
    for (uint32_t i = 0; i < g->n_merges; i++) {
        int rc = bpe_add_merge_line(&t->bpe, i, g->merges[i], strlen(g->merges[i]), err);
        if (rc) return rc;
    }
    return OK;
}

static int check_id(const struct tokenizer *t, const char *key, int32_t id, struct err *err) {
    if (id < -1 || id >= (int64_t)t->vocab.n)
        return err_set(err, ERR_INVALID, "tokenizer.ggml.%s_token_id is %d, outside 0..%lld", key,
                       id, (long long)t->vocab.n - 1);
    return OK;
}

static int add_ends(struct tokenizer *t, const struct gguf_vocab *g, const struct gguf_pre *pre,
                    struct err *err) {
    int rc = check_id(t, "bos", g->bos_id, err);
    if (rc == OK) rc = check_id(t, "eos", g->eos_id, err);
    if (rc) return rc;
    t->bos = g->bos_id;
    t->eos = g->eos_id;
    bool add_bos = g->add_bos < 0 ? pre->add_bos : g->add_bos > 0;
    if (add_bos && t->bos >= 0) t->prefix[t->n_prefix++] = t->bos;
    if (g->add_eos > 0 && t->eos >= 0) t->suffix[t->n_suffix++] = t->eos;
    if (t->bos >= 0)
        rc = tokenizer_set_named(t, "bos_token", vocab_text(&t->vocab, (uint32_t)t->bos),
                                 t->vocab.len[t->bos], err);
    if (rc == OK && t->eos >= 0)
        rc = tokenizer_set_named(t, "eos_token", vocab_text(&t->vocab, (uint32_t)t->eos),
                                 t->vocab.len[t->eos], err);
    return rc;
}

static int build(struct tokenizer *t, const struct gguf_vocab *g, const struct gguf_pre *pre,
                 struct err *err) {
    if (pre->nfc)
        t->normalizer.ops[t->normalizer.n_ops++] = (struct normalizer_op){.kind = NORMALIZE_NFC};
    int rc = add_vocabulary(t, g, err);
    for (size_t i = 0; rc == OK && i < ARRAY_LEN(pre->regex) && pre->regex[i]; i++)
        rc = tokenizer_split_at(t, pre->regex[i], err);
    if (rc == OK) rc = add_merges(t, g, err);
    if (rc) return rc;
    t->bpe.ignore_merges = pre->ignore_merges;
    rc = add_ends(t, g, pre, err);
    return rc ? rc : tokenizer_make_pieces(t, true, err);
}

int tokenizer_from_gguf(const struct gguf_vocab *g, struct tokenizer **out, struct err *err) {
    const struct gguf_pre *pre = NULL;
    int rc = tokenizer_gguf_pre(g, &pre, err);
    if (rc) return rc;
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) return err_set(err, ERR_NOMEM, "no memory for a tokenizer");
    t->bos = t->eos = -1;
    rc = build(t, g, pre, err);
    if (rc) {
        tokenizer_destroy(t);
        return rc;
    }
    *out = t;
    return OK;
}
