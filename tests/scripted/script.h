/* script.h: the script of a scripted model: parsed JSON, and the logits it states. Immutable. */
#ifndef GERYON_SCRIPT_H
#define GERYON_SCRIPT_H

#include <stdbool.h>

#include "kernels/kernels.h"

struct script_piece {
    char *bytes;
    size_t len;
    bool special;
};

/* What follows where the history ends with this key. */
struct script_entry {
    int32_t *key;
    uint32_t n_key;
    struct script_logit {
        int32_t id;
        float logit;
    } * logits;
    uint32_t n_logits;
};

/* A source of logits: a sequence of ids, or a table. */
struct script_source {
    bool given;
    int32_t *sequence; /* NULL: a table */
    uint32_t n_sequence;
    struct script_entry *entries; /* longest key first */
    uint32_t n_entries;
};

enum script_fail { FAIL_NEVER, FAIL_REQUEST, FAIL_DEVICE };

struct script {
    struct script_piece *vocab;
    uint32_t n_vocab;
    int32_t eos[32]; /* as many as a model holds */
    uint32_t n_eos;
    uint32_t context;
    uint32_t block_size;
    bool state;                         /* beyond the KV: state.h */
    struct script_source target, draft; /* draft not given: as target */
    float default_logit;
    double prefill_ms_per_token, step_ms, row_ms, load_ms;
    enum script_fail fail;
    uint32_t fail_at; /* output position */
};

int script_parse(const char *json, size_t len, struct script **out, struct err *err);
void script_destroy(struct script *script); /* NULL is fine */

/* Logits [n_vocab] after a history. Positions inside the prompt follow no sequence: all -10. */
void script_logits(const struct script *script, bool draft, const int32_t *history,
                   uint32_t n_history, uint32_t prompt_len, float *logits);

#endif
