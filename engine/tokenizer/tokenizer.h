/* tokenizer.h: text to token ids and back, as Hugging Face `tokenizers` does it for byte-level BPE.
 * Immutable after creation: any thread may use it. */
#ifndef GERYON_TOKENIZER_H
#define GERYON_TOKENIZER_H

#include "engine/engine.h"

struct tokenizer;

/* From the bytes of tokenizer.json, with tokenizer_config.json (may be NULL) for bos, eos and the
 * names of special tokens. Anything that would change ids and is not understood is refused by
 * name. */
int tokenizer_from_json(const char *json, size_t len, const char *config, size_t config_len,
                        struct tokenizer **out, struct err *err);

/* From GGUF metadata. model: "gpt2" only; pre: tokenizer.ggml.pre, refused by name if unknown. */
struct gguf_vocab {
    const char *model, *pre;
    uint32_t n_tokens;
    const char *const *tokens; /* byte-level text, NUL-terminated */
    const size_t *token_lens;
    const int32_t *types; /* 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte */
    uint32_t n_merges;
    const char *const *merges; /* "left right" */
    int32_t bos_id, eos_id;    /* -1: none */
    int add_bos, add_eos;      /* -1: absent, then the default of `pre` */
};
int tokenizer_from_gguf(const struct gguf_vocab *vocab, struct tokenizer **out, struct err *err);

/* The same tokenizer as the texts of tokenizer.json and tokenizer_config.json, malloc'd. They are
 * read back and held against tokenizer_from_gguf's; what they cannot say is refused by name.
 * max_length: the model's context. */
int tokenizer_gguf_to_json(const struct gguf_vocab *vocab, uint32_t max_length, char **json,
                           char **config, struct err *err);

/* Plain pieces, longest match over bytes; bytes that match nothing become id 0 (the scripted
 * model). special[i]: a control token. Of equal pieces the first is matched; an empty one is an id
 * without text. Copies everything. */
int tokenizer_from_pieces(const char *const *pieces, const size_t *lens, const bool *special,
                          uint32_t n, struct tokenizer **out, struct err *err);

void tokenizer_destroy(struct tokenizer *tokenizer); /* NULL is fine */

/* A run of text with one origin. */
struct text_run {
    const char *text;
    size_t len;
    bool trusted; /* control tokens in it are parsed */
};

/* The runs joined are one text (borders between runs split nothing); a special token is recognised
 * only where all its bytes are trusted. add_special: run the post-processor; a start token is not
 * added where the text already begins with it. Ids are appended to out. */
int tokenizer_encode(const struct tokenizer *tokenizer, const struct text_run *runs, size_t n_runs,
                     bool add_special, struct tokens *out, struct err *err);

uint32_t tokenizer_n_tokens(const struct tokenizer *tokenizer);
/* The bytes of one id (not NUL-terminated; any bytes, perhaps half a character); *len = 0 where the
 * id has no piece, or is special and skip_special. Lives as long as the tokenizer. */
const char *tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, bool skip_special,
                            size_t *len);
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
/* Longest piece in bytes. */
size_t tokenizer_max_piece(const struct tokenizer *tokenizer);
/* The id of a token's exact text as its file spells it (byte-level tokens in their printable
 * alphabet; special tokens too), or -1. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t len);
/* Start and end tokens, -1 where there is none, and whether encode adds the start by itself. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
bool tokenizer_adds_bos(const struct tokenizer *tokenizer);
/* The named special tokens ("bos_token", "eos_token", "pad_token", "unk_token", ...) as text, or
 * NULL where unset. */
const char *tokenizer_named_special(const struct tokenizer *tokenizer, const char *name);

#endif
