/* draws.c: stages `sample` and `accept`: one task a segment, each with its thread's own scratch.
 * What a draw is lives in sample.c. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static const float GREEDY_BELOW = 1e-4f; /* temperature */

/* A row with NaN or an infinity comes of broken weights; its sequence fails alone. */
static bool row_finite(const float *logits, uint32_t vocab) {
    bool finite = true;
    for (uint32_t i = 0; i < vocab; i++)
        finite &= isfinite(logits[i]) != 0;
    return finite;
}

static void sample_task(void *arg, uint32_t task, uint32_t thread) {
    struct device *dev = arg;
    const struct segment *s = &dev->fwd.segments[task];
    if (s->pick != PICK_PROPOSE) return;
    struct slot *slot = &dev->slots[s->slot];
    uint32_t vocab = dev->shape.vocab_size;
    slot->n_asked = s->n_logits;
    slot->n_proposals = 0;
    slot->draft_logits = dev->segment_logit[task];
    const float *logits = dev->draft_logits + (size_t)slot->draft_logits * vocab;
    /* Greedy and seeded texts are matched token by token, so drafts share the target's noise. */
    bool coupled = slot->rules.seeded || slot->rules.temperature < GREEDY_BELOW;
    for (uint32_t i = 0; i < s->n_logits; i++, logits += vocab) {
        if (!row_finite(logits, vocab)) break;
        int32_t token =
            sample_token(&slot->rules, logits, s->out_pos + i, coupled ? DRAW_GUMBEL : DRAW_DRAFT,
                         &dev->thread_sample[thread]);
        if (token < 0) break; /* all masked: nothing to propose from here on */
        slot->proposals[slot->n_proposals++] = token;
    }
}

int cpu_sample(struct device *dev) {
    ASSERT(dev->drafting);
    pool_run(dev->pool, sample_task, dev, dev->fwd.n_segments);
    return OK;
}

/* segment_scratch is idle in a main forward: it holds each segment's place among the outcomes. */
static void accept_task(void *arg, uint32_t task, uint32_t thread) {
    struct device *dev = arg;
    const struct segment *s = &dev->fwd.segments[task];
    if (s->pick != PICK_ACCEPT) return;
    const struct slot *slot = &dev->slots[s->slot];
    struct outcome *out = &dev->outcomes[dev->segment_scratch[task]];
    uint32_t vocab = dev->shape.vocab_size;
    uint32_t n = slot->n_proposals < s->n_proposed ? slot->n_proposals : s->n_proposed;
    const float *target = dev->logits + (size_t)dev->segment_logit[task] * vocab;
    const float *draft = n > 0 ? dev->draft_logits + (size_t)slot->draft_logits * vocab : NULL;
    *out = (struct outcome){.slot = s->slot, .status = OK};
    for (uint32_t i = 0; i <= n; i++)
        if (!row_finite(target + (size_t)i * vocab, vocab)) out->status = ERR_INVALID;
    if (out->status != OK) return;
    sample_accept(&slot->rules, slot->proposals, n, target, draft, s->out_pos,
                  &dev->thread_sample[thread], out);
    if (s->n_proposed > 0) { /* also those that a token limit left unverified */
        out->n_drafted = slot->n_proposals;
        memcpy(out->proposed, slot->proposals, slot->n_proposals * sizeof *slot->proposals);
    }
}

int cpu_accept(struct device *dev) {
    ASSERT(!dev->drafting);
    uint32_t n = 0;
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        if (s->pick != PICK_ACCEPT) continue;
        ASSERT(s->n_logits == s->n_proposed + 1);
        ASSERT(n < dev->limits.n_slots);
        dev->segment_scratch[i] = n++;
    }
    pool_run(dev->pool, accept_task, dev, dev->fwd.n_segments);
    dev->accepted = true;
    return OK;
}
