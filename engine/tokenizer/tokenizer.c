#include "engine/tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/utf8.h"

/* ---- building ---------------------------------------------------------------------------------- */

int tokenizer_add_token(struct tokenizer *t, const struct added_spec *spec, struct err *err) {
    unsigned flags =
        TOKEN_ADDED | (spec->special ? TOKEN_SPECIAL : 0) | (spec->repeats ? TOKEN_REPEATS : 0);
    int rc = vocab_set(&t->vocab, spec->id, spec->text, spec->len, flags, err);
    if (rc) return rc;
    struct added_token token = {(int32_t)spec->id, spec->special, spec->single_word, spec->lstrip,
                                spec->rstrip};
    if (!spec->normalized) {
        rc = added_tokens_add(&t->added_raw, spec->text, spec->len, token);
        return rc ? err_set(err, rc, "no memory for the added tokens") : OK;
    }
    struct marked_text text = {0};
    struct matcher matcher = {0};
    rc = marked_text_add(&text, spec->text, spec->len, true);
    if (rc == OK) rc = normalizer_apply(&t->normalizer, &matcher, &text, err);
    if (rc == OK && text.len)
        rc = added_tokens_add(&t->added_normalized, text.text, text.len, token);
    if (rc == ERR_NOMEM) err_set(err, rc, "no memory for the added tokens");
    marked_text_free(&text);
    matcher_free(&matcher);
    return rc;
}

int tokenizer_set_named(struct tokenizer *t, const char *name, const char *text, size_t len,
                        struct err *err) {
    size_t name_len = strlen(name);
    if (t->n_named == NAMED_MAX || name_len >= NAME_BYTES_MAX) return OK;
    char *copy = strndup(text, len);
    if (!copy) return err_set(err, ERR_NOMEM, "no memory for %s", name);
    struct named_special *named = &t->named[t->n_named++];
    memcpy(named->name, name, name_len + 1);
    named->text = copy;
    return OK;
}

int tokenizer_split_at(struct tokenizer *t, const char *regex, struct err *err) {
    if (t->pretokenizer.n_ops == PRETOKENIZER_OPS_MAX)
        return err_set(err, ERR_TOO_LONG, "pre_tokenizer: more than %d steps",
                       PRETOKENIZER_OPS_MAX);
    struct pretokenizer_op op = {.behavior = SPLIT_ISOLATED};
    int rc = pattern_regex(regex, strlen(regex), "pre_tokenizer", &op.pattern, err);
    if (rc == OK) t->pretokenizer.ops[t->pretokenizer.n_ops++] = op;
    return rc;
}

/* Byte-level text to bytes; false when a character is outside the alphabet. */
static bool decode_byte_level(const char *text, size_t len, char *out, size_t *n) {
    if (utf8_valid_len(text, len) != len) return false;
    *n = 0;
    for (size_t i = 0, size; i < len; i += size) {
        int byte = bpe_char_byte(utf8_char(text + i, &size));
        if (byte < 0) return false;
        out[(*n)++] = (char)byte;
    }
    return true;
}

int tokenizer_make_pieces(struct tokenizer *t, bool byte_level, struct err *err) {
    const struct vocab *v = &t->vocab;
    t->piece_bytes = malloc(v->n_bytes + 1);
    t->piece_at = calloc(v->n + 1u, sizeof *t->piece_at);
    t->piece_len = calloc(v->n + 1u, sizeof *t->piece_len);
    if (!t->piece_bytes || !t->piece_at || !t->piece_len)
        return err_set(err, ERR_NOMEM, "no memory for %u tokens", v->n);
    size_t used = 0;
    for (uint32_t id = 0; id < v->n; id++) {
        const char *text = vocab_text(v, id);
        size_t len = v->len[id], n = len;
        if (!byte_level || !decode_byte_level(text, len, t->piece_bytes + used, &n)) {
            memcpy(t->piece_bytes + used, text, len);
            n = len;
        }
        t->piece_at[id] = (uint32_t)used;
        t->piece_len[id] = (uint32_t)n;
        used += n;
        if (n > t->max_piece) t->max_piece = n;
    }
    return OK;
}

int tokenizer_from_pieces(const char *const *pieces, const size_t *lens, const bool *special,
                          uint32_t n, struct tokenizer **out, struct err *err) {
    if (n == 0 || n > VOCAB_IDS_MAX)
        return err_set(err, ERR_INVALID, "vocabulary of %u pieces, allowed are 1 to %d", n,
                       VOCAB_IDS_MAX);
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) return err_set(err, ERR_NOMEM, "no memory for a tokenizer");
    t->plain_pieces = true;
    t->bos = t->eos = -1;
    int rc = vocab_init(&t->vocab, n);
    if (rc) rc = err_set(err, rc, "no memory for %u pieces", n);
    for (uint32_t i = 0; rc == OK && i < n; i++) {
        if (lens[i] == 0) continue; /* an id without a piece */
        struct added_spec spec = {i, pieces[i], lens[i], special && special[i], .repeats = true};
        rc = tokenizer_add_token(t, &spec, err);
    }
    if (rc == OK) rc = tokenizer_make_pieces(t, false, err);
    if (rc) {
        tokenizer_destroy(t);
        return rc;
    }
    *out = t;
    return OK;
}

void tokenizer_destroy(struct tokenizer *t) {
    if (!t) return;
    bpe_fini(&t->bpe);
    pretokenizer_fini(&t->pretokenizer);
    normalizer_fini(&t->normalizer);
    added_tokens_fini(&t->added_raw);
    added_tokens_fini(&t->added_normalized);
    vocab_fini(&t->vocab);
    for (uint32_t i = 0; i < t->n_named; i++)
        free(t->named[i].text);
    free(t->piece_bytes);
    free(t->piece_at);
    free(t->piece_len);
    free(t);
}

/* ---- text to ids ------------------------------------------------------------------------------- */

struct encoding {
    const struct tokenizer *tokenizer;
    struct matcher matcher;
    struct bpe_scratch scratch;
    struct tokens ids; /* of this text; joined to the caller's at the end */
    struct err *err;
};

static int encode_word(void *arg, const char *word, size_t len) {
    struct encoding *e = arg;
    int rc = bpe_encode(&e->tokenizer->bpe, &e->scratch, word, len, &e->ids);
    return rc ? err_set(e->err, rc, "cannot encode a word of %zu bytes", len) : OK;
}

static int push_id(struct encoding *e, int32_t id) {
    int rc = tokens_push(&e->ids, id);
    return rc ? err_set(e->err, rc, "no memory for %u token ids", e->ids.n) : OK;
}

/* Cut a text at added tokens and hand what lies between to plain(). */
static int cut(struct encoding *e, const struct added_tokens *added, const char *text,
               const uint8_t *trust, size_t len,
               int (*plain)(struct encoding *e, const char *text, const uint8_t *trust,
                            size_t len)) {
    struct added_walk walk = {0};
    const struct added_token *token;
    size_t done = 0, start, end;
    while ((token = added_tokens_next(added, text, trust, len, &walk, &start, &end))) {
        int rc = start > done ? plain(e, text + done, trust + done, start - done) : OK;
        if (rc == OK) rc = push_id(e, token->id);
        if (rc) return rc;
        done = end;
    }
    return done < len ? plain(e, text + done, trust + done, len - done) : OK;
}

static int encode_words(struct encoding *e, const char *text, const uint8_t *trust, size_t len) {
    (void)trust;
    return pretokenize(&e->tokenizer->pretokenizer, &e->matcher, text, len, encode_word, e, e->err);
}

/* A stretch of raw text without tokens of added_raw. */
static int encode_raw(struct encoding *e, const char *text, const uint8_t *trust, size_t len) {
    const struct tokenizer *t = e->tokenizer;
    if (t->normalizer.n_ops == 0)
        return cut(e, &t->added_normalized, text, trust, len, encode_words);
    struct marked_text normal = {0};
    int rc = marked_text_add(&normal, text, len, true);
    if (rc) rc = err_set(e->err, rc, "no memory to normalise a text of %zu bytes", len);
    if (rc == OK) {
        memcpy(normal.trust, trust, len);
        rc = normalizer_apply(&t->normalizer, &e->matcher, &normal, e->err);
    }
    if (rc == OK)
        rc = cut(e, &t->added_normalized, normal.text, normal.trust, normal.len, encode_words);
    marked_text_free(&normal);
    return rc;
}

/* Longest pieces; a byte that starts none is id 0. */
static int encode_pieces(struct encoding *e, const char *text, const uint8_t *trust, size_t len) {
    for (size_t i = 0, end; i < len; i = end) {
        end = i + 1;
        const struct added_token *piece =
            added_tokens_at(&e->tokenizer->added_raw, text, trust, len, i, &end);
        int rc = push_id(e, piece ? piece->id : 0);
        if (rc) return rc;
    }
    return OK;
}

static bool starts_with(const struct tokens *ids, const int32_t *prefix, uint32_t n) {
    return ids->n >= n && memcmp(ids->ids, prefix, n * sizeof *prefix) == 0;
}

/* Join what the post-processor adds and the ids of the text to out, all or nothing. */
static int append(struct encoding *e, bool add_special, struct tokens *out) {
    const struct tokenizer *t = e->tokenizer;
    uint32_t before = out->n;
    bool prefix = add_special && t->n_prefix && !starts_with(&e->ids, t->prefix, t->n_prefix);
    int rc = OK;
    for (uint32_t i = 0; rc == OK && prefix && i < t->n_prefix; i++)
        rc = tokens_push(out, t->prefix[i]);
    for (uint32_t i = 0; rc == OK && i < e->ids.n; i++)
        rc = tokens_push(out, e->ids.ids[i]);
    for (uint32_t i = 0; rc == OK && add_special && i < t->n_suffix; i++)
        rc = tokens_push(out, t->suffix[i]);
    if (rc == OK) return OK;
    out->n = before;
    return err_set(e->err, rc, "no memory for %u token ids", e->ids.n);
}

/* One buffer of all runs and the origin of each byte. */
static int join_runs(const struct text_run *runs, size_t n_runs, struct marked_text *out,
                     struct err *err) {
    for (size_t i = 0; i < n_runs; i++)
        if (marked_text_add(out, runs[i].text, runs[i].len, runs[i].trusted))
            return err_set(err, ERR_NOMEM, "no memory for a text of %zu bytes", runs[i].len);
    size_t valid = utf8_valid_len(out->text, out->len);
    if (valid != out->len)
        return err_set(err, ERR_INVALID, "text is not valid UTF-8 at byte %zu", valid);
    return OK;
}

int tokenizer_encode(const struct tokenizer *t, const struct text_run *runs, size_t n_runs,
                     bool add_special, struct tokens *out, struct err *err) {
    struct encoding e = {.tokenizer = t, .err = err};
    struct marked_text text = {0};
    int rc = join_runs(runs, n_runs, &text, err);
    if (rc == OK && text.len)
        rc = t->plain_pieces ? encode_pieces(&e, text.text, text.trust, text.len)
                             : cut(&e, &t->added_raw, text.text, text.trust, text.len, encode_raw);
    if (rc == OK) rc = append(&e, add_special, out);
    marked_text_free(&text);
    matcher_free(&e.matcher);
    bpe_scratch_free(&e.scratch);
    tokens_free(&e.ids);
    return rc;
}

/* ---- what is known of ids ---------------------------------------------------------------------- */

uint32_t tokenizer_n_tokens(const struct tokenizer *t) {
    return t->vocab.n;
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, bool skip_special, size_t *len) {
    *len = 0;
    if (id < 0 || (uint32_t)id >= t->vocab.n) return "";
    if (skip_special && t->vocab.flags[id] & TOKEN_SPECIAL) return "";
    *len = t->piece_len[id];
    return t->piece_bytes + t->piece_at[id];
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->vocab.n && t->vocab.flags[id] & TOKEN_SPECIAL;
}

size_t tokenizer_max_piece(const struct tokenizer *t) {
    return t->max_piece;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len) {
    return vocab_find(&t->vocab, text, len);
}

int32_t tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t) {
    return t->bos >= 0 && t->n_prefix && t->prefix[0] == t->bos;
}

const char *tokenizer_named_special(const struct tokenizer *t, const char *name) {
    for (uint32_t i = 0; i < t->n_named; i++)
        if (strcmp(t->named[i].name, name) == 0) return t->named[i].text;
    return NULL;
}
