/* pattern_translate.h: a regular expression in Oniguruma's Ruby syntax rewritten for PCRE2. */
#ifndef GERYON_PATTERN_TRANSLATE_H
#define GERYON_PATTERN_TRANSLATE_H

#include <stddef.h>

#include "kernels/base.h"

enum { PATTERN_SOURCE_BYTES_MAX = 8192 };

/* malloc'd, NUL-terminated. ERR_INVALID (naming where, construct and byte offset) for anything that
 * PCRE2 would read differently and that has no rewriting here; ERR_TOO_LONG over
 * PATTERN_SOURCE_BYTES_MAX; ERR_NOMEM. */
int pattern_translate(const char *source, size_t len, const char *where, char **out,
                      size_t *out_len, struct err *err);

#endif
