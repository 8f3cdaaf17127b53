/* convert_internal.h: the parts of model_convert: convert.c (weights, order of the work) and
 * convert_texts.c (every file that is not weights). */
#ifndef GERYON_CONVERT_INTERNAL_H
#define GERYON_CONVERT_INTERNAL_H

#include "engine/load/checkpoint.h"
#include "engine/load/out_dir.h"

enum { CONVERT_TEXTS_MAX = 12 };

/* A small file, whole in memory. */
struct convert_text {
    const char *name; /* static */
    char *data;       /* owned */
    size_t len;
};

struct convert_texts {
    struct convert_text items[CONVERT_TEXTS_MAX];
    size_t n;
    char *config; /* config.json, which is written last */
    size_t config_len;
};

/* What changes in the configuration. */
struct convert_changes {
    const char *torch_dtype; /* "float32", .., or NULL: as it is */
    uint32_t window, block;  /* 0: as it is */
    int32_t mask_token;
};

/* Every text of the new directory. config: the checkpoint's own, before the changes. A GGUF file's are
 * made from its metadata. Each is read back: what cannot be said is refused by name. */
int convert_texts_make(struct checkpoint *ck, const struct config *config,
                       const struct tokenizer *tokenizer, const struct convert_changes *changes,
                       struct convert_texts *out, struct err *err);
int convert_texts_write(const struct convert_texts *texts, struct out_dir *dir, struct err *err);
void convert_texts_free(struct convert_texts *texts);

#endif
