/* bench_perplexity.c: how well a model foretells a given text. */
#include <math.h>

#include "server/bench.h"

struct scoring {
    const int32_t *ids; /* of the window */
    uint32_t n_ids, vocab_size, n_scored;
    double nll;
};

static void score_row(void *arg, uint32_t position, const float *logits) {
    struct scoring *s = arg;
    if (position + 1 >= s->n_ids) return;
    float most = logits[0];
    for (uint32_t i = 1; i < s->vocab_size; i++)
        if (logits[i] > most) most = logits[i];
    double sum = 0;
    for (uint32_t i = 0; i < s->vocab_size; i++)
        sum += exp((double)logits[i] - most);
    s->nll += log(sum) + most - logits[s->ids[position + 1]];
    s->n_scored++;
}

int bench_perplexity(struct engine *engine, uint32_t vocab_size, const struct tokens *ids,
                     uint32_t window, struct bench_perplexity *out, struct err *err) {
    struct scoring scoring = {.vocab_size = vocab_size};
    if (window > engine_info(engine)->max_model_len) window = engine_info(engine)->max_model_len;
    for (uint32_t at = 0; at < ids->n; at += window) {
        scoring.ids = ids->ids + at;
        scoring.n_ids = ids->n - at < window ? ids->n - at : window;
        struct logits_job job = {.tokens = scoring.ids, .n_tokens = scoring.n_ids, .all = true};
        int rc = engine_logits(engine, &job, score_row, &scoring, err);
        if (rc) return rc;
    }
    if (!scoring.n_scored)
        return err_set(err, ERR_INVALID, "--perplexity: %u tokens, at least 2 are needed", ids->n);
    out->n_tokens = ids->n;
    out->n_scored = scoring.n_scored;
    out->window = window;
    out->mean_nll = scoring.nll / scoring.n_scored;
    out->perplexity = exp(out->mean_nll);
    return OK;
}
