#include <stdlib.h>

#include "engine/engine.h"

int tokens_push(struct tokens *tokens, int32_t id) {
    if (tokens->n == tokens->cap) {
        if (tokens->cap > UINT32_MAX / 2) return ERR_NOMEM;
        uint32_t cap = tokens->cap ? tokens->cap * 2 : 64;
        int32_t *ids = realloc(tokens->ids, cap * sizeof *ids);
        if (!ids) return ERR_NOMEM;
        tokens->ids = ids;
        tokens->cap = cap;
    }
    tokens->ids[tokens->n++] = id;
    return OK;
}

void tokens_free(struct tokens *tokens) {
    free(tokens->ids);
    *tokens = (struct tokens){0};
}
