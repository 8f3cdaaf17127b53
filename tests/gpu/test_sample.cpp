/* test_sample.cpp: stages `sample` and `accept` of the CUDA backend against the CPU's sampler, draft row
 * for draft row and outcome for outcome. In the simulator logarithms and exponentials are the host's, so
 * everything must be equal; on a device their last bits are its own, and a draw may turn on one:
 * there greedy texts must be equal, and nearly all others. */
#include "tests/gpusim/gpusim_test.h"

#include <vector>

#include <math.h>

#include "kernels/cuda/cuda.h"

typedef std::vector<float> floats;
typedef std::vector<int32_t> tokens;

// ---- a sequence, and what the CPU makes of it

struct text {
    struct rules rules;
    std::vector<struct bias> bias;
    uint32_t slot, n_prompt;
    tokens history;
    uint32_t n_asked;    /* draft rows; 0: none */
    uint32_t n_proposed; /* verified in the main forward */
    bool given;
    tokens given_tokens;
    floats draft, target; /* logits: [n_asked][vocab], [n_proposed + 1][vocab] */
    struct outcome want;
    tokens proposals;
};

static bool finite_row(const float *z, uint32_t vocab) {
    for (uint32_t i = 0; i < vocab; i++)
        if (!isfinite(z[i])) return false;
    return true;
}

struct host_scratch {
    floats probs, draft;
    std::vector<uint32_t> ids, counts, counted;
    struct sample_scratch scratch;
};
static struct sample_scratch *scratch_for(struct host_scratch *h, uint32_t vocab) {
    h->probs.resize(vocab);
    h->draft.resize(vocab);
    h->ids.resize(vocab);
    h->counted.resize(vocab);
    h->counts.assign(vocab, 0);
    h->scratch = {};
    h->scratch.vocab = vocab;
    h->scratch.probs = h->probs.data();
    h->scratch.draft = h->draft.data();
    h->scratch.ids = h->ids.data();
    h->scratch.counts = h->counts.data();
    h->scratch.counted = h->counted.data();
    return &h->scratch;
}

/* As kernels/cpu/draws.c. */
static void host_draws(struct text *t, uint32_t vocab) {
    struct host_scratch h;
    struct sample_scratch *scratch = scratch_for(&h, vocab);
    struct history history = {t->history.data(), t->n_prompt, (uint32_t)t->history.size(), NULL, 0};
    t->rules.bias = t->bias.data();
    t->rules.n_bias = (uint32_t)t->bias.size();
    uint32_t n = 0;
    while (n < t->n_asked && finite_row(&t->draft[(size_t)n * vocab], vocab))
        n++;
    t->proposals.assign(DRAFT_MAX, 0);
    n = sample_propose(&t->rules, t->draft.data(), n, &history, scratch, t->proposals.data());
    t->proposals.resize(n);

    const int32_t *draft = t->given ? t->given_tokens.data() : t->proposals.data();
    n = t->given || t->n_proposed < n ? t->n_proposed : n;
    struct outcome *out = &t->want;
    *out = {};
    out->slot = t->slot;
    sample_accept(&t->rules, draft, n, t->target.data(),
                  t->given || n == 0 ? NULL : t->draft.data(), &history, scratch, out);
    for (uint32_t i = 0; i < out->n_tokens + out->exhausted; i++)
        if (!finite_row(&t->target[(size_t)i * vocab], vocab)) out->status = ERR_INVALID;
    if (out->status != OK) {
        *out = {};
        out->slot = t->slot;
        out->status = ERR_INVALID;
    } else if (t->n_proposed > 0 && !t->given) {
        out->n_drafted = (uint32_t)t->proposals.size();
        for (uint32_t i = 0; i < out->n_drafted; i++)
            out->proposed[i] = t->proposals[i];
    }
}

// ---- the device

struct fixture {
    struct device dev;
    uint32_t max_rows, n_slots;
};
enum { MAX_TOKENS = 1 << 14 };

template <class T> static T *zeros(size_t n) {
    T *p = device_copy((T *)NULL, n);
    check_cuda(cudaMemset(p, 0, n * sizeof(T)));
    return p;
}
static struct fixture fixture_make(uint32_t vocab, uint32_t max_rows, uint32_t n_slots) {
    struct fixture f = {};
    struct device *dev = &f.dev;
    f.max_rows = max_rows;
    f.n_slots = n_slots;
    dev->shape.vocab_size = vocab;
    dev->n_sms = 132;
    dev->batch.counts = zeros<struct counts>(1);
    dev->batch.segments = zeros<struct seg>(2 * n_slots);
    dev->batch.logit_segments = zeros<uint32_t>(max_rows);
    dev->batch.tokens = zeros<int32_t>(MAX_TOKENS);
    dev->logits = device_copy((float *)NULL, (size_t)max_rows * vocab);
    dev->draft_logits = device_copy((float *)NULL, (size_t)max_rows * vocab);
    dev->slots = zeros<struct gpu_slot>(n_slots);
    dev->outcomes = device_copy((struct outcome *)NULL, n_slots);
    dev->scores = device_copy((float *)NULL, (size_t)2 * SAMPLE_BLOCKS * vocab);
    dev->seen = zeros<uint32_t>((size_t)n_slots * vocab);
    dev->draws = (struct draw *)device_copy((char *)NULL, gpu_draw_bytes() * max_rows);
    return f;
}
static void fixture_free(struct fixture *f) {
    struct device *dev = &f->dev;
    void *all[] = {dev->batch.counts, dev->batch.segments, dev->batch.logit_segments,
                   dev->batch.tokens, dev->logits,         dev->draft_logits,
                   dev->slots,        dev->outcomes,       dev->scores,
                   dev->seen,         dev->draws};
    for (void *p : all)
        check_cuda(cudaFree(p));
}

static struct gpu_slot slot_of(const struct text *t) {
    struct gpu_slot s = {};
    const struct rules *r = &t->rules;
    s.repetition = r->repetition;
    s.frequency = r->frequency;
    s.presence = r->presence;
    s.temperature = r->temperature;
    s.top_p = r->top_p;
    s.min_p = r->min_p;
    s.top_k = r->top_k;
    s.seeded = r->seeded;
    s.choice = r->choice;
    s.min_tokens = r->min_tokens;
    s.n_end_ids = r->n_end_ids;
    s.n_bias = (uint32_t)t->bias.size();
    s.seed = r->seed;
    memcpy(s.end_ids, r->end_ids, sizeof s.end_ids);
    for (size_t i = 0; i < t->bias.size(); i++)
        s.bias[i] = t->bias[i];
    return s;
}

/* One forward's segments and logits; idle: a segment whose logits nobody samples comes first. slack:
 * the grid is larger than what there is. */
static void put_forward(struct fixture *f, const std::vector<struct text> &texts, enum pick pick,
                        bool idle, uint32_t slack) {
    struct device *dev = &f->dev;
    const uint32_t vocab = dev->shape.vocab_size;
    std::vector<struct seg> segs;
    std::vector<uint32_t> rows;
    tokens all;
    floats logits;
    struct counts counts = {};
    if (idle) {
        struct seg s = {};
        s.n_logits = 1;
        s.pick = PICK_NONE;
        rows.push_back(0);
        logits.resize(vocab, NAN);
        segs.push_back(s);
    }
    for (const struct text &t : texts) {
        if (pick == PICK_PROPOSE && t.n_asked == 0) continue;
        const floats &own = pick == PICK_PROPOSE ? t.draft : t.target;
        struct seg s = {};
        s.slot = t.slot;
        s.pick = pick;
        s.n_logits = pick == PICK_PROPOSE ? t.n_asked : t.n_proposed + 1;
        s.n_proposed = pick == PICK_PROPOSE ? 0 : t.n_proposed;
        s.given = pick == PICK_ACCEPT && t.given;
        s.n_rows = s.n_logits;
        s.first_logit = (uint32_t)rows.size();
        s.prompt_len = t.n_prompt;
        s.out_pos = (uint32_t)t.history.size() - t.n_prompt;
        s.tokens = (uint32_t)all.size();
        all.insert(all.end(), t.given_tokens.begin(), t.given_tokens.end());
        s.history = (uint32_t)all.size();
        all.insert(all.end(), t.history.begin(), t.history.end());
        s.outcome = pick == PICK_ACCEPT ? counts.n_accept++ : 0;
        counts.n_propose += pick == PICK_PROPOSE ? s.n_logits : 0;
        for (uint32_t i = 0; i < s.n_logits; i++)
            rows.push_back((uint32_t)segs.size());
        logits.insert(logits.end(), own.begin(), own.begin() + (ptrdiff_t)s.n_logits * vocab);
        segs.push_back(s);
    }
    counts.n_segments = (uint32_t)segs.size();
    counts.n_logit_rows = (uint32_t)rows.size();
    assert_true(rows.size() <= f->max_rows);
    assert_true(segs.size() <= 2 * f->n_slots);
    assert_true(all.size() <= MAX_TOKENS);
    dev->grid = {};
    dev->grid.logit_rows = counts.n_logit_rows + slack;
    dev->grid.segments = counts.n_segments + slack;
    dev->grid.accept = counts.n_accept + (pick == PICK_ACCEPT ? slack : 0);
    dev->grid.propose = counts.n_propose + (pick == PICK_PROPOSE ? slack : 0);
    float *at = pick == PICK_PROPOSE ? dev->draft_logits : dev->logits;
    check_cuda(cudaMemcpy(at, logits.data(), logits.size() * 4, cudaMemcpyHostToDevice));
    check_cuda(cudaMemcpy(dev->batch.counts, &counts, sizeof counts, cudaMemcpyHostToDevice));
    check_cuda(cudaMemcpy(dev->batch.segments, segs.data(), segs.size() * sizeof segs[0],
                          cudaMemcpyHostToDevice));
    check_cuda(cudaMemcpy(dev->batch.logit_segments, rows.data(), rows.size() * 4,
                          cudaMemcpyHostToDevice));
    if (!all.empty())
        check_cuda(
            cudaMemcpy(dev->batch.tokens, all.data(), all.size() * 4, cudaMemcpyHostToDevice));
}

static void assert_nothing_seen(struct fixture *f) {
    std::vector<uint32_t> seen((size_t)f->n_slots * f->dev.shape.vocab_size);
    host_copy(seen.data(), f->dev.seen, seen.size());
    for (uint32_t n : seen)
        assert_int_equal(n, 0);
}

/* Both forwards of a cycle; outcomes in the order of the texts. */
struct cycle {
    std::vector<struct gpu_slot> slots; /* after the draft forward */
    std::vector<struct outcome> outcomes;
};
static struct cycle run_cycle(struct fixture *f, const std::vector<struct text> &texts, bool idle,
                              uint32_t slack) {
    struct device *dev = &f->dev;
    struct cycle c;
    c.slots.resize(f->n_slots);
    c.outcomes.resize(texts.size());
    bool any = false;
    for (const struct text &t : texts) {
        c.slots[t.slot] = slot_of(&t);
        any |= t.n_asked > 0;
    }
    check_cuda(cudaMemcpy(dev->slots, c.slots.data(), f->n_slots * sizeof c.slots[0],
                          cudaMemcpyHostToDevice));
    if (any) {
        put_forward(f, texts, PICK_PROPOSE, idle, slack);
        check_cuda(gpu_sample(dev, NULL));
        check_cuda(cudaDeviceSynchronize());
        assert_nothing_seen(f);
    }
    host_copy(c.slots.data(), dev->slots, f->n_slots);
    put_forward(f, texts, PICK_ACCEPT, idle, slack);
    check_cuda(gpu_accept(dev, NULL));
    check_cuda(cudaDeviceSynchronize());
    assert_nothing_seen(f);
    host_copy(c.outcomes.data(), dev->outcomes, texts.size());
    std::vector<struct gpu_slot> after(f->n_slots);
    host_copy(after.data(), dev->slots, f->n_slots);
    for (const struct text &t : texts) {
        assert_int_equal(after[t.slot].n_asked, 0);
        assert_int_equal(after[t.slot].n_proposals, 0);
    }
    return c;
}

// ---- comparison

/* Whether a text came out as the CPU has it. */
static bool same(const struct text *t, const struct gpu_slot *slot, const struct outcome *got,
                 const char **what) {
    const struct outcome *want = &t->want;
#define SAME(condition)                 \
    do {                                \
        *what = #condition;             \
        if (!(condition)) return false; \
    } while (0)
    SAME(slot->n_asked == t->n_asked);
    SAME(slot->n_proposals == t->proposals.size());
    for (uint32_t i = 0; i < slot->n_proposals; i++)
        SAME(slot->proposals[i] == t->proposals[i]);
    SAME(got->slot == want->slot);
    SAME(got->status == want->status);
    SAME(got->n_drafted == want->n_drafted);
    SAME(got->n_proposed == want->n_proposed);
    SAME(got->n_accepted == want->n_accepted);
    SAME(got->n_tokens == want->n_tokens);
    SAME(got->exhausted == want->exhausted);
    for (uint32_t i = 0; i < want->n_tokens; i++)
        SAME(got->tokens[i] == want->tokens[i]);
    for (uint32_t i = 0; i < want->n_drafted; i++)
        SAME(got->proposed[i] == want->proposed[i]);
#undef SAME
    return true;
}

static unsigned n_texts, n_off, n_accepted, n_failed, n_exhausted;
static void compare(const std::vector<struct text> &texts, const struct cycle *c, uint32_t vocab) {
    for (size_t i = 0; i < texts.size(); i++) {
        const struct text *t = &texts[i];
        const char *what;
        n_texts++;
        n_accepted += t->want.n_accepted;
        n_failed += t->want.status != OK;
        n_exhausted += t->want.exhausted;
        if (same(t, &c->slots[t->slot], &c->outcomes[i], &what)) continue;
        n_off++;
#ifndef GERYON_GPUSIM
        if (t->rules.temperature >= 1e-4f) continue;
#endif
        fail_msg("vocab %u, text %zu: not %s; T %g, top_k %u, top_p %.9g, min_p %g, seeded %d, "
                 "penalties %g %g %g, %zu bias, given %d, asked %u, proposed %u; got status %d, %u "
                 "tokens, first %d, wanted %d, %u, %d",
                 vocab, i, what, (double)t->rules.temperature, t->rules.top_k,
                 (double)t->rules.top_p, (double)t->rules.min_p, t->rules.seeded,
                 (double)t->rules.repetition, (double)t->rules.frequency, (double)t->rules.presence,
                 t->bias.size(), t->given, t->n_asked, t->n_proposed, c->outcomes[i].status,
                 c->outcomes[i].n_tokens, c->outcomes[i].tokens[0], t->want.status,
                 t->want.n_tokens, t->want.tokens[0]);
    }
}

// ---- random texts

static uint32_t below(struct rng *rng, uint32_t n) {
    return rng_below(rng, n);
}
static bool chance(struct rng *rng, uint32_t one_in) {
    return rng_below(rng, one_in) == 0;
}
template <size_t N> static float one_of(struct rng *rng, const float (&list)[N]) {
    return list[rng_below(rng, N)];
}

/* A row of some temper: spread, peaked, flat, with many ties, at the ends of float32. */
static void fill_row(struct rng *rng, float *z, uint32_t vocab) {
    const uint32_t kind = below(rng, 12);
    const float scale = one_of(rng, {0.3f, 2.0f, 8.0f});
    for (uint32_t i = 0; i < vocab; i++) {
        z[i] = rng_normal(rng) * scale;
        if (kind == 0) z[i] = rintf(z[i]);
        if (kind == 1) z[i] = 1.5f;
        if (kind == 2) z[i] *= 1e38f;
        if (kind == 3) z[i] = chance(rng, 3) ? -0.0f : 0.0f;
        if (kind == 2 && !isfinite(z[i])) z[i] = z[i] > 0 ? 3.4e38f : -3.4e38f;
    }
    if (kind == 4) z[below(rng, vocab)] += 20;
}

static struct rules random_rules(struct rng *rng, uint32_t vocab) {
    struct rules r = {};
    r.temperature = one_of(rng, {0.0f, 0.0f, 9e-5f, 1e-3f, 0.3f, 1.0f, 1.0f, 2.0f});
    r.top_p = one_of(rng, {1.0f, 1.0f, 0.95f, 0.9f, 0.3f, 0.0f, 0.9999f, 0.99999994f});
    r.min_p = one_of(rng, {0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-30f});
    const uint32_t ks[] = {0, 0, 0, 1, 3, 20, vocab / 2, vocab - 1, vocab + 5};
    r.top_k = ks[below(rng, ARRAY_LEN(ks))];
    if (chance(rng, 3)) r.repetition = one_of(rng, {1.0f, 1.2f, 0.8f, 5.0f});
    if (chance(rng, 3)) r.frequency = one_of(rng, {0.5f, -0.3f, 2.0f});
    if (chance(rng, 3)) r.presence = one_of(rng, {0.7f, -1.0f});
    r.seeded = chance(rng, 2);
    r.seed = rng_u64(rng);
    r.choice = below(rng, 3);
    r.min_tokens = chance(rng, 3) ? below(rng, 8) : 0;
    r.n_end_ids = below(rng, 4);
    for (uint32_t i = 0; i < r.n_end_ids; i++)
        r.end_ids[i] = (int32_t)((below(rng, vocab) / 4 * 4 + i) % (vocab + 2));
    return r;
}

static struct text random_text(struct rng *rng, uint32_t vocab, uint32_t slot, uint32_t max_draft) {
    struct text t = {};
    t.slot = slot;
    t.rules = random_rules(rng, vocab);
    if (chance(rng, 4)) {
        const uint32_t step = chance(rng, 8) ? 1 : 1 + below(rng, vocab);
        const float fixed = chance(rng, 2) ? -INFINITY : 0;
        for (uint32_t id = below(rng, step); id < vocab && t.bias.size() < MAX_BIAS; id += step)
            t.bias.push_back({(int32_t)id, fixed != 0 ? fixed : rng_normal(rng) * 3});
    }
    if (t.bias.size() > 0 && chance(rng, 8)) t.bias[0].value = 3e38f;
    t.n_prompt = 1 + below(rng, 12);
    t.history.resize(t.n_prompt + below(rng, 10));
    for (int32_t &id : t.history)
        id = (int32_t)below(rng, chance(rng, 2) ? vocab : 1 + vocab / 4);
    if (chance(rng, 2)) t.n_asked = 1 + below(rng, max_draft);
    t.given = t.n_asked == 0 && chance(rng, 2);
    t.n_proposed = t.given ? 1 + below(rng, max_draft) : t.n_asked;
    if (!t.given && t.n_proposed > 0 && chance(rng, 4)) t.n_proposed = below(rng, t.n_proposed + 1);
    t.draft.resize((size_t)t.n_asked * vocab);
    t.target.resize((size_t)(t.n_proposed + 1) * vocab);
    for (uint32_t i = 0; i < t.n_asked; i++)
        fill_row(rng, &t.draft[(size_t)i * vocab], vocab);
    /* Drafts know their target: the same row, nearly the same, or another. */
    const float apart = one_of(rng, {0.0f, 0.1f, 1.0f, -1.0f});
    for (uint32_t i = 0; i <= t.n_proposed; i++) {
        float *z = &t.target[(size_t)i * vocab];
        fill_row(rng, z, vocab);
        for (uint32_t j = 0; j < vocab && i < t.n_asked && apart >= 0; j++) {
            const float q = t.draft[(size_t)i * vocab + j];
            z[j] = fabsf(q) < 1e30f ? q + rng_normal(rng) * apart : q;
        }
    }
    for (uint32_t i = 0; t.given && i < t.n_proposed; i++) {
        const float *z = &t.target[(size_t)i * vocab];
        int32_t id = (int32_t)below(rng, vocab);
        if (!chance(rng, 4))
            for (uint32_t j = 0; j < vocab; j++)
                if (z[j] > z[id]) id = (int32_t)j;
        if (chance(rng, 20)) id = chance(rng, 2) ? -1 : (int32_t)vocab;
        t.given_tokens.push_back(id);
    }
    const float broken = one_of(rng, {NAN, INFINITY, -INFINITY});
    if (chance(rng, 10)) t.target[below(rng, (uint32_t)t.target.size())] = broken;
    if (t.n_asked > 0 && chance(rng, 10)) t.draft[below(rng, (uint32_t)t.draft.size())] = broken;
    host_draws(&t, vocab);
    return t;
}

static void random_cycles(uint32_t vocab, uint32_t n_cycles, uint32_t max_texts,
                          uint32_t max_draft) {
    struct rng rng;
    rng_seed(&rng, test_seed() + vocab);
    struct fixture f = fixture_make(vocab, max_texts * (max_draft + 1) + 1, max_texts + 3);
    n_texts = n_off = n_accepted = n_failed = n_exhausted = 0;
    for (uint32_t i = 0; i < n_cycles; i++) {
        use_order((int)(i % N_ORDERS), rng_u64(&rng));
        std::vector<struct text> texts;
        const uint32_t n = 1 + below(&rng, max_texts), first = below(&rng, 4);
        for (uint32_t j = 0; j < n; j++)
            texts.push_back(random_text(&rng, vocab, (j * 2 + first) % f.n_slots, max_draft));
        if (f.n_slots % 2 == 0)
            for (uint32_t j = 0; j < n; j++) /* steps of two would meet */
                texts[j].slot = texts[j].want.slot = (j + first) % f.n_slots;
        const struct cycle c = run_cycle(&f, texts, chance(&rng, 2), below(&rng, 3));
        compare(texts, &c, vocab);
    }
    fixture_free(&f);
    if (n_texts > 400) assert_true(n_accepted > 0 && n_failed > 0 && n_exhausted > 0);
    assert_true(n_off * 50 <= n_texts); /* 0 in the simulator: compare has failed */
    print_message("# vocab %u: %u texts, %u accepted, %u failed, %u exhausted, %u off\n", vocab,
                  n_texts, n_accepted, n_failed, n_exhausted, n_off);
}

static void draws_are_the_host_s_in_a_vocabulary_of_7(void **) {
    random_cycles(7, WITH_ASAN ? 200 : 400, 8, 6);
}
static void draws_are_the_host_s_in_a_vocabulary_of_33(void **) {
    random_cycles(33, WITH_ASAN ? 200 : 400, 8, 5);
}
static void draws_are_the_host_s_in_a_vocabulary_of_320(void **) {
    random_cycles(320, WITH_ASAN ? 60 : 150, 6, 4);
}
static void draws_are_the_host_s_in_a_vocabulary_of_1000(void **) {
    random_cycles(1000, WITH_ASAN ? 20 : 60, 5, 3);
}
static void draws_are_the_host_s_where_rows_are_searched(void **) {
    random_cycles(1501, WITH_ASAN ? 10 : 40, 3, 2);
}
static void draws_are_the_host_s_in_a_vocabulary_of_5000(void **) {
    random_cycles(5000, WITH_ASAN ? 8 : 24, 3, 2);
}

static void more_rows_than_blocks_take_turns(void **) {
    random_cycles(7, WITH_ASAN ? 6 : 12, 14, 62); /* 14 x 32 rows or so, SAMPLE_BLOCKS = 256 */
}

/* Rows that several blocks share, and texts: the vocabulary is no multiple of 4. */
static void long_rows_and_texts_are_shared_out(void **) {
    enum { LONG_VOCAB = 20003, N = 3, N_DRAFT = 2, N_TEXT = 2500 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct fixture f = fixture_make(LONG_VOCAB, N * (N_DRAFT + 1), N);
    for (int round = 0; round < 2; round++) {
        use_order(5 * round, rng_u64(&rng));
        std::vector<struct text> texts(N);
        for (uint32_t i = 0; i < N; i++) {
            struct text &t = texts[i];
            t = random_text(&rng, LONG_VOCAB, i, 1);
            t.bias.clear();
            t.rules = {};
            t.rules.top_p = 1;
            if (i == 2) t.rules.repetition = 1.3f, t.rules.frequency = 0.1f;
            t.n_asked = t.n_proposed = N_DRAFT;
            t.given = false;
            t.given_tokens.clear();
            t.draft.resize((size_t)N_DRAFT * LONG_VOCAB);
            t.target.resize((size_t)(N_DRAFT + 1) * LONG_VOCAB);
            for (float &z : t.target)
                z = rng_normal(&rng);
            /* Two best, in different parts of a row: the first wins. Then the last of all. */
            for (uint32_t k = 0; k <= N_DRAFT; k++)
                for (uint32_t id : {3000 + k, 17000 + k})
                    t.target[(size_t)k * LONG_VOCAB + id] = 9;
            t.target[(size_t)2 * LONG_VOCAB + LONG_VOCAB - 1] = 10;
            memcpy(t.draft.data(), t.target.data(), t.draft.size() * 4);
            if (i == 1) t.target[(size_t)(round + 1) * LONG_VOCAB + LONG_VOCAB - 1] = NAN;
            t.n_prompt = N_TEXT / 2;
            t.history.resize(N_TEXT);
            for (int32_t &id : t.history)
                id = (int32_t)below(&rng, 4000);
            host_draws(&t, LONG_VOCAB);
            assert_int_equal(t.want.status, i == 1 ? ERR_INVALID : OK);
            if (i == 0) assert_int_equal(t.want.tokens[1], 3001);
            if (i == 0) assert_int_equal(t.want.tokens[2], LONG_VOCAB - 1);
        }
        const struct cycle c = run_cycle(&f, texts, false, 0);
        compare(texts, &c, LONG_VOCAB);
    }
    fixture_free(&f);
}

/* The height of a grid ends at 65535, the rows that a forward may have do not. */
static void a_grid_may_have_any_number_of_rows(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct fixture f = fixture_make(7, 16, 1);
    std::vector<struct text> texts = {random_text(&rng, 7, 0, 2)};
    host_draws(&texts[0], 7);
    const struct cycle c = run_cycle(&f, texts, false, 65536);
    compare(texts, &c, 7);
    fixture_free(&f);
}

/* Whoever shares the forward, and whatever the grid: the same bits. */
static void a_text_alone_is_the_text_in_a_batch(void **) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (uint32_t vocab : {33u, 1501u}) {
        const uint32_t n = vocab == 33 ? 24 : 6;
        struct fixture f = fixture_make(vocab, n * 4 + 1, n);
        std::vector<struct text> texts;
        for (uint32_t i = 0; i < n; i++)
            texts.push_back(random_text(&rng, vocab, i, 3));
        use_order(0, 1);
        const struct cycle all = run_cycle(&f, texts, true, 5);
        for (uint32_t i = 0; i < n; i++) {
            use_order((int)(i % N_ORDERS), i);
            const struct cycle one = run_cycle(&f, {texts[i]}, false, 0);
            assert_memory_equal(&one.outcomes[0], &all.outcomes[i], sizeof one.outcomes[0]);
            assert_int_equal(one.slots[i].n_proposals, all.slots[i].n_proposals);
            assert_memory_equal(one.slots[i].proposals, all.slots[i].proposals,
                                sizeof one.slots[i].proposals);
        }
        fixture_free(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_the_host_s_in_a_vocabulary_of_7),
        cmocka_unit_test(draws_are_the_host_s_in_a_vocabulary_of_33),
        cmocka_unit_test(draws_are_the_host_s_in_a_vocabulary_of_320),
        cmocka_unit_test(draws_are_the_host_s_in_a_vocabulary_of_1000),
        cmocka_unit_test(draws_are_the_host_s_where_rows_are_searched),
        cmocka_unit_test(draws_are_the_host_s_in_a_vocabulary_of_5000),
        cmocka_unit_test(more_rows_than_blocks_take_turns),
        cmocka_unit_test(long_rows_and_texts_are_shared_out),
        cmocka_unit_test(a_grid_may_have_any_number_of_rows),
        cmocka_unit_test(a_text_alone_is_the_text_in_a_batch),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
