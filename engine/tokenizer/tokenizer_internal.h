/* tokenizer_internal.h: the parts of a tokenizer, for the files that build one. */
#ifndef GERYON_TOKENIZER_INTERNAL_H
#define GERYON_TOKENIZER_INTERNAL_H

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/normalize.h"
#include "engine/tokenizer/pretokenize.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocab.h"

enum {
    TEMPLATE_IDS_MAX = 16, /* ids the post-processor puts on each side */
    NAMED_MAX = 64,
    NAME_BYTES_MAX = 64,
};

struct named_special {
    char name[NAME_BYTES_MAX];
    char *text; /* malloc'd */
};

/* How text becomes ids:
 *   raw text --added_raw--> pieces --normalizer--> --added_normalized--> pieces
 *     --pretokenizer--> words --bpe--> ids --prefix, suffix--> ids
 * A tokenizer of plain pieces has only added_raw, and id 0 for what matches nothing. */
struct tokenizer {
    struct vocab vocab;
    bool plain_pieces;
    struct added_tokens added_raw, added_normalized;
    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    struct bpe bpe;
    int32_t prefix[TEMPLATE_IDS_MAX], suffix[TEMPLATE_IDS_MAX];
    uint32_t n_prefix, n_suffix;
    int32_t bos, eos;
    struct named_special named[NAMED_MAX];
    uint32_t n_named;
    /* id -> bytes of its text once decoded */
    char *piece_bytes;
    uint32_t *piece_at, *piece_len;
    size_t max_piece;
};

/* An added token while a tokenizer is being built. */
struct added_spec {
    int64_t id;
    const char *text;
    size_t len;
    bool special, single_word, lstrip, rstrip, normalized;
    bool repeats; /* another token may have the same text */
};

/* Enter an added token into vocabulary and matchers; the normaliser must be complete. Of two with
 * one text the first counts. */
int tokenizer_add_token(struct tokenizer *tokenizer, const struct added_spec *spec,
                        struct err *err);

/* Remember a named special token ("eos_token"); names over the limits are dropped. ERR_NOMEM. */
int tokenizer_set_named(struct tokenizer *tokenizer, const char *name, const char *text, size_t len,
                        struct err *err);

/* Append the split at a regular expression that keeps its matches as pieces. */
int tokenizer_split_at(struct tokenizer *tokenizer, const char *regex, struct err *err);

/* The split of GPT-2, which ByteLevel brings along. */
#define TOKENIZER_GPT2_REGEX \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* What the name of a pre-tokeniser in a GGUF file stands for. */
struct gguf_pre {
    const char *name;
    const char *regex[2]; /* splits one after the other; NULL: no more */
    bool nfc, ignore_merges, add_bos;
};
int tokenizer_gguf_pre(const struct gguf_vocab *vocab, const struct gguf_pre **out,
                       struct err *err);

/* Kinds of tokens in a GGUF file (gguf_vocab.types) that are not like the rest. */
enum { GGUF_CONTROL = 3, GGUF_USER_DEFINED = 4, GGUF_UNUSED = 5 };

/* The last step: the bytes of every id. byte_level: texts are in the printable alphabet where all
 * their characters are; others stand for themselves. */
int tokenizer_make_pieces(struct tokenizer *tokenizer, bool byte_level, struct err *err);

#endif
