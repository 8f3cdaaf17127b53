/* tokenizer_json.h: what the two files that read tokenizer.json share. */
#ifndef GERYON_TOKENIZER_JSON_H
#define GERYON_TOKENIZER_JSON_H

#include <jansson.h>

#include "engine/tokenizer/tokenizer_internal.h"

/* ERR_INVALID naming a key of object that is not among keys (NULL-terminated). */
int json_known_keys(const json_t *object, const char *where, const char *const *keys,
                    struct err *err);
/* A boolean member; absent or null: fallback. */
int json_flag(const json_t *object, const char *where, const char *key, bool fallback, bool *out,
              struct err *err);
/* A string member that must be there. */
int json_text(const json_t *object, const char *where, const char *key, const char **out,
              struct err *err);

/* The components of tokenizer.json; v may be NULL or null, then there is none. */
int json_normalizer(struct tokenizer *tokenizer, const json_t *v, struct err *err);
/* *byte_level: words reach the model as bytes in the printable alphabet. */
int json_pre_tokenizer(struct tokenizer *tokenizer, const json_t *v, bool *byte_level,
                       struct err *err);
/* Only ByteLevel, or none. It must fit the pre-tokeniser. */
int json_decoder(const json_t *v, const bool *byte_level, struct err *err);
/* Fills prefix and suffix. */
int json_post_processor(struct tokenizer *tokenizer, const json_t *v, struct err *err);

#endif
