/* The draft view and whole cycles: draft, sample, verify, accept, on a tiny random model. */
#include "tests/unit/tiny_model.h"

static struct tiny_options drafting(void) {
    struct tiny_options o = tiny_defaults();
    tiny_on_tiles(&o);
    o.block_size = 8;
    return o;
}

/* Positions lo .. hi - 1. */
static void prefill(struct tiny *t, const struct tiny_sequence *s, uint32_t lo, uint32_t hi) {
    for (uint32_t pos = lo; pos < hi; pos += 64) {
        struct segment chunk = tiny_segment(s, VIEW_BASE, pos, hi - pos < 64 ? hi - pos : 64, 0);
        tiny_forward(t, &chunk, 1);
        tiny_end(t);
    }
}

static struct segment draft_segment(const struct tiny_sequence *s, uint32_t pos, uint32_t n_rows) {
    static const int32_t tokens[8] = {17, 3, 3, 3, 3, 3, 3, 3};
    struct segment segment = tiny_segment(s, VIEW_DRAFT, pos, n_rows, n_rows);
    segment.tokens = tokens;
    return segment;
}

/* Blocks that begin at, before and behind borders of pages and of softmax blocks. */
static const uint32_t borders[] = {0, 1, 5, 15, 16, 120, 125, 128, 131, 300};

/* Draft logits of a block of n rows at pos. */
static void draft_on(struct tiny *t, const struct tiny_sequence *s, uint32_t pos, uint32_t n,
                     float *out) {
    struct segment block = draft_segment(s, pos, n);
    tiny_forward(t, &block, 1);
    tiny_logits(t, 0, n, out);
    tiny_end(t);
}

/* As in test_forward: the first fast table is close to ref, the others have its bits. */
static void compare_drafts(const struct tiny_options *o, const char *what) {
    uint32_t first = tables[0] == kernels_ref();
    if (n_tables == first) skip();
    struct tiny ref = tiny_open(kernels_ref(), o), t[TABLES_MAX];
    for (uint32_t k = first; k < n_tables; k++)
        t[k] = tiny_open(tables[k], o);
    struct tiny_sequence s = tiny_sequence(0, 301, 9, 0, 1);
    float want[8 * 320], got[TABLES_MAX][8 * 320];
    for (size_t i = 0; i < ARRAY_LEN(borders); i++) {
        uint32_t lo = i ? borders[i - 1] : 0;
        prefill(&ref, &s, lo, borders[i]);
        for (uint32_t k = first; k < n_tables; k++)
            prefill(&t[k], &s, lo, borders[i]);
        for (uint32_t n = 1; n <= 8; n += 7) {
            draft_on(&ref, &s, borders[i], n, want);
            for (uint32_t k = first; k < n_tables; k++) {
                draft_on(&t[k], &s, borders[i], n, got[k]);
                if (k == first)
                    assert_close(got[k], want, (size_t)n * 320, 2e-4, 2e-4, what);
                else
                    assert_same_bits(got[k], got[first], (size_t)n * 320, what);
            }
        }
    }
    tiny_close(&ref);
    for (uint32_t k = first; k < n_tables; k++)
        tiny_close(&t[k]);
}

static void fast_drafts_match_ref(void **state) {
    (void)state;
    struct tiny_options o = drafting();
    compare_drafts(&o, "standard");
    o.orthros = true;
    o.window = 12;
    o.biases = true;
    compare_drafts(&o, "orthros");
    o.msar_streams = 4;
    o.msar_branches = 3;
    compare_drafts(&o, "orthros, msar");
}

/* Draft rows write their K and V into scratch pages, with their products or in a phase of their own
 * (test_forward.c); the first page begins with what the cache holds of it. */
static void heads_of_drafts_are_finished_with_their_products_or_after(void **state) {
    (void)state;
    if (tables_are_cuda()) skip();
    float with[8 * 320], after[8 * 320];
    for (uint32_t i = 0; i < n_tables; i++) {
        struct tiny_options o = drafting();
        o.head_dim = 64;
        o.biases = true;
        struct tiny one = tiny_open(tables[i], &o);
        o.n_threads = 8;
        struct tiny eight = tiny_open(tables[i], &o);
        struct tiny_sequence s = tiny_sequence(0, 301, 9, 0, 1);
        for (size_t b = 0; b < ARRAY_LEN(borders); b++) {
            uint32_t lo = b ? borders[b - 1] : 0;
            prefill(&one, &s, lo, borders[b]);
            prefill(&eight, &s, lo, borders[b]);
            draft_on(&one, &s, borders[b], 8, with);
            draft_on(&eight, &s, borders[b], 8, after);
            assert_same_bits(after, with, ARRAY_LEN(with), tables[i]->name);
        }
        tiny_close(&one);
        tiny_close(&eight);
    }
}

/* With *_diff weights equal to the plain ones, a block of one row sees just what a base row sees, so
 * scratch pages and cached pages must be the same to attention. */
static void one_plain_draft_row_equals_a_base_row(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 2 * n_tables; i++) {
        struct tiny_options o = drafting();
        if (i >= n_tables) o.kv = DTYPE_Q8_0;
        o.plain_diff = true;
        struct tiny t = tiny_open(tables[i % n_tables], &o);
        struct tiny_sequence s = tiny_sequence(0, 200, 9, 0, 1);
        for (size_t k = 0; k < ARRAY_LEN(borders) - 1; k++) {
            float draft[320], base[320];
            prefill(&t, &s, k ? borders[k - 1] : 0, borders[k]);
            struct segment block = tiny_segment(&s, VIEW_DRAFT, borders[k], 1, 1);
            tiny_forward(&t, &block, 1);
            tiny_logits(&t, 0, 1, draft);
            tiny_end(&t);
            block = tiny_segment(&s, VIEW_BASE, borders[k], 1, 1);
            tiny_forward(&t, &block, 1);
            tiny_logits(&t, 0, 1, base);
            tiny_end(&t);
            assert_same_bits(draft, base, 320, tables[i % n_tables]->name);
        }
        tiny_close(&t);
    }
}

static void drafts_leave_the_cache_as_it_was(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 2 * n_tables; i++) {
        struct tiny_options o = drafting();
        if (i >= n_tables) o.kv = DTYPE_Q8_0;
        struct tiny t = tiny_open(tables[i % n_tables], &o);
        struct tiny_sequence s = tiny_sequence(0, 45, 9, 0, 1);
        prefill(&t, &s, 0, 45);
        char *before = tiny_read_pages(&t, 0, TINY_PAGES);
        struct segment block = draft_segment(&s, 45, 8);
        tiny_forward(&t, &block, 1);
        tiny_end(&t);
        char *after = tiny_read_pages(&t, 0, TINY_PAGES);
        assert_memory_equal(before, after, TINY_PAGES * tiny_page_bytes(&t));
        free(before);
        free(after);
        tiny_close(&t);
    }
}

static void draft_blocks_do_not_see_each_other(void **state) {
    (void)state;
    for (uint32_t i = 0; i < n_tables; i++) {
        struct tiny_options o = drafting();
        struct tiny t = tiny_open(tables[i], &o);
        struct tiny_sequence a = tiny_sequence(0, 45, 9, 0, 1), b = tiny_sequence(3, 30, 8, 20, 2);
        prefill(&t, &a, 0, 45);
        prefill(&t, &b, 0, 30);
        float alone[8 * 320], together[8 * 320];
        struct segment blocks[2] = {draft_segment(&b, 30, 5), draft_segment(&a, 45, 8)};
        tiny_forward(&t, blocks + 1, 1);
        tiny_logits(&t, 0, 8, alone);
        tiny_end(&t);
        tiny_forward(&t, blocks, 2);
        tiny_logits(&t, 5, 8, together);
        tiny_end(&t);
        assert_same_bits(together, alone, (size_t)8 * 320, tables[i]->name);
        tiny_close(&t);
    }
}

/* ---- cycles ----------------------------------------------------------------------------------- */

/* A generating sequence: tokens so far, the last of which is not yet in the KV. */
struct writer {
    struct tiny_sequence s;
    uint32_t prompt_len;
};

static struct writer writer_of(uint32_t slot, uint32_t prompt_len, uint64_t seed, uint32_t first) {
    struct writer w = {.s = tiny_sequence(slot, prompt_len, seed, first, 1),
                       .prompt_len = prompt_len};
    return w;
}

/* Rows for the last token and k proposals: one segment, or base and output; returns how many. */
static uint32_t main_segments(const struct tiny *t, const struct writer *w, uint32_t pos,
                              uint32_t k, struct segment *base, struct segment *output) {
    uint32_t n = w->s.n_tokens - pos + k;
    *base = tiny_segment(&w->s, VIEW_BASE, pos, n, t->shape.orthros ? 0 : k + 1);
    *output = tiny_segment(&w->s, VIEW_OUTPUT, w->s.n_tokens - 1, k + 1, k + 1);
    base->n_proposed = output->n_proposed = k;
    base->prompt_len = output->prompt_len = w->prompt_len;
    base->out_pos = output->out_pos = w->s.n_tokens - w->prompt_len;
    base->history = output->history = w->s.tokens;
    *(t->shape.orthros ? &output->pick : &base->pick) = PICK_ACCEPT;
    return t->shape.orthros ? 2 : 1;
}

static void accept_into(struct tiny *t, struct writer *writers, uint32_t n) {
    struct outcome out[TINY_SLOTS];
    assert_int_equal(t->k->accept(t->dev), OK);
    assert_int_equal(t->k->end(t->dev, out), OK);
    for (uint32_t i = 0; i < n; i++) {
        struct writer *w = &writers[i];
        assert_int_equal(out[i].status, OK);
        assert_int_equal(out[i].slot, w->s.slot);
        assert_int_equal(out[i].n_tokens, out[i].n_accepted + 1);
        memcpy(w->s.tokens + w->s.n_tokens, out[i].tokens, out[i].n_tokens * sizeof(int32_t));
        w->s.n_tokens += out[i].n_tokens;
    }
}

/* First token from the prompt, the rest one by one. */
static void write_plainly(struct tiny *t, struct writer *w, uint32_t n) {
    uint32_t pos = 0;
    while (w->s.n_tokens < w->prompt_len + n) {
        struct segment segments[2];
        uint32_t count = main_segments(t, w, pos, 0, &segments[0], &segments[1]);
        tiny_forward(t, segments, count);
        pos = w->s.n_tokens;
        accept_into(t, w, 1);
    }
}

/* All writers in cycles of draft and verify, drafts of `rows` rows. */
static void write_in_cycles(struct tiny *t, struct writer *writers, uint32_t n_writers, uint32_t n,
                            uint32_t rows) {
    struct segment base[TINY_SLOTS], output[TINY_SLOTS], all[2 * TINY_SLOTS];
    for (uint32_t i = 0; i < n_writers; i++) {
        uint32_t count = main_segments(t, &writers[i], 0, 0, &all[0], &all[1]);
        tiny_forward(t, all, count);
        accept_into(t, &writers[i], 1);
    }
    while (writers[0].s.n_tokens < writers[0].prompt_len + n) {
        static const int32_t masks[8] = {0, 3, 3, 3, 3, 3, 3, 3};
        int32_t tokens[TINY_SLOTS][8];
        for (uint32_t i = 0; i < n_writers; i++) {
            struct writer *w = &writers[i];
            memcpy(tokens[i], masks, sizeof masks);
            tokens[i][0] = w->s.tokens[w->s.n_tokens - 1];
            all[i] = tiny_segment(&w->s, VIEW_DRAFT, w->s.n_tokens - 1, rows, rows - 1);
            all[i].n_logits = rows; /* rows proposals: every row proposes one */
            all[i].tokens = tokens[i];
            all[i].pick = PICK_PROPOSE;
            all[i].out_pos = w->s.n_tokens - w->prompt_len;
            all[i].prompt_len = w->prompt_len;
            all[i].history = w->s.tokens;
        }
        tiny_forward(t, all, n_writers);
        assert_int_equal(t->k->sample(t->dev), OK);
        for (uint32_t i = 0; i < n_writers; i++)
            main_segments(t, &writers[i], writers[i].s.n_tokens - 1, rows, &base[i], &output[i]);
        memcpy(all, base, n_writers * sizeof *all);
        memcpy(all + n_writers, output, n_writers * sizeof *all);
        tiny_forward(t, all, t->shape.orthros ? 2 * n_writers : n_writers);
        accept_into(t, writers, n_writers);
    }
}

/* Greedy or seeded, and with everything that a text is counted for. */
static struct rules rules_of_kind(int kind) {
    static const struct bias bias[] = {{7, 3}, {11, -INFINITY}, {300, -2}};
    struct rules rules = {.top_p = 0.95f, .seed = 11};
    if (kind == 3 || kind == 7) rules.temperature = 0.8f, rules.seeded = true;
    if (kind >= 5) {
        rules.frequency = 0.7f, rules.presence = 0.5f, rules.repetition = 1.3f;
        rules.n_bias = 3, rules.bias = bias;
    }
    return rules;
}

static void cycles_write_what_single_steps_write(void **state) {
    (void)state;
    uint32_t n_output = tables_are_cuda() ? 14 : 40;
    for (uint32_t i = 0; i < n_tables; i++)
        for (int kind = 0; kind < 11; kind++) {
            struct tiny_options o = drafting();
            if (kind > 7) o.msar_streams = 4, o.msar_branches = (uint32_t)kind - 6;
            o.weights = kind & 1 ? DTYPE_Q4_1 : DTYPE_BF16;
            o.kv = kind & 1 ? DTYPE_BF16 : kind > 3 ? DTYPE_Q8_0 : DTYPE_F32;
            o.orthros = kind & 2;
            o.n_threads = 1 + (kind & 1);
            if (kind == 4 || kind == 5)
                o.activations = tiny_rounded(), o.weights = kind & 1 ? DTYPE_Q8_0 : DTYPE_Q4_0;
            o.window = 10;
            struct tiny t = tiny_open(tables[i], &o);
            struct rules rules = rules_of_kind(kind);
            struct writer plain[2] = {writer_of(0, 30, 1, 0), writer_of(1, 9, 2, 10)};
            struct writer cycles[2] = {writer_of(4, 30, 1, 50), writer_of(2, 9, 2, 70)};
            for (int w = 0; w < 2; w++) {
                t.k->slot_set(t.dev, plain[w].s.slot, &rules);
                t.k->slot_set(t.dev, cycles[w].s.slot, &rules);
                write_plainly(&t, &plain[w], n_output);
            }
            write_in_cycles(&t, cycles, 2, n_output, 6);
            for (int w = 0; w < 2; w++) {
                uint32_t n = cycles[w].s.n_tokens < plain[w].s.n_tokens ? cycles[w].s.n_tokens
                                                                        : plain[w].s.n_tokens;
                assert_memory_equal(cycles[w].s.tokens, plain[w].s.tokens, n * sizeof(int32_t));
            }
            tiny_close(&t);
        }
}

/* The slot's proposals are put there by hand: the true continuation, then one that goes wrong. What a
 * CUDA device keeps of them is its own: there given proposals alone show it. */
static void perfect_proposals_are_all_accepted(void **state) {
    (void)state;
    if (tables_are_cuda()) skip();
    for (uint32_t i = 0; i < n_tables; i++)
        for (uint32_t wrong = 0; wrong <= 5; wrong++) {
            struct tiny_options o = drafting();
            o.orthros = wrong % 2;
            o.window = 9;
            struct tiny t = tiny_open(tables[i], &o);
            struct writer plain = writer_of(0, 20, 1, 0), w = writer_of(1, 20, 1, 10);
            write_plainly(&t, &plain, 8);
            struct segment segments[2];
            struct outcome out;
            tiny_forward(&t, segments, main_segments(&t, &w, 0, 0, &segments[0], &segments[1]));
            accept_into(&t, &w, 1);
            struct slot *slot = &t.dev->slots[1];
            slot->n_asked = slot->n_proposals = 5;
            memcpy(slot->proposals, plain.s.tokens + 21, 5 * sizeof(int32_t));
            if (wrong < 5) slot->proposals[wrong] ^= 1;
            tiny_forward(&t, segments, main_segments(&t, &w, 20, 5, &segments[0], &segments[1]));
            t.k->accept(t.dev);
            t.k->end(t.dev, &out);
            assert_int_equal(out.n_proposed, 5);
            assert_int_equal(out.n_accepted, wrong);
            assert_int_equal(out.n_tokens, wrong + 1);
            assert_memory_equal(out.tokens, plain.s.tokens + 21, (wrong + 1) * sizeof(int32_t));
            tiny_close(&t);
        }
}

/* Proposals of the engine's own: the true continuation, or with one token wrong. Rows behind the
 * wrong one hold NaN, which is nobody's text. */
static void given_proposals_are_verified_without_drafts(void **state) {
    (void)state;
    enum { K = 5 };
    for (uint32_t i = 0; i < n_tables; i++)
        for (uint32_t wrong = 0; wrong <= K; wrong++) {
            struct tiny_options o = drafting();
            o.block_size = wrong == 1 ? 0 : 8; /* a model without a draft view verifies as well */
            o.orthros = wrong % 2;
            o.window = 9;
            struct tiny t = tiny_open(tables[i], &o);
            struct rules rules = rules_of_kind(wrong % 3 ? 6 : 7);
            t.k->slot_set(t.dev, 0, &rules);
            t.k->slot_set(t.dev, 1, &rules);
            struct writer plain = writer_of(0, 20, 1, 0), w = writer_of(1, 20, 1, 10);
            write_plainly(&t, &plain, 8);
            struct segment segments[2];
            struct outcome out;
            tiny_forward(&t, segments, main_segments(&t, &w, 0, 0, &segments[0], &segments[1]));
            accept_into(&t, &w, 1);
            int32_t tokens[1 + K];
            memcpy(tokens, plain.s.tokens + 20, sizeof tokens);
            if (wrong < K) tokens[1 + wrong] ^= 1;
            uint32_t n = main_segments(&t, &w, 20, K, &segments[0], &segments[1]);
            for (uint32_t s = 0; s < n; s++)
                segments[s].given = true, segments[s].tokens = tokens;
            tiny_forward(&t, segments, n);
            for (uint32_t row = wrong + 1; row <= K; row++)
                tiny_put_logit(&t, row, 0, NAN);
            t.k->accept(t.dev);
            t.k->end(t.dev, &out);
            assert_int_equal(out.status, OK);
            assert_int_equal(out.n_drafted, K);
            assert_int_equal(out.n_proposed, K);
            assert_memory_equal(out.proposed, tokens + 1, K * sizeof *tokens);
            assert_int_equal(out.n_accepted, wrong);
            assert_int_equal(out.n_tokens, wrong + 1);
            assert_memory_equal(out.tokens, plain.s.tokens + 21, (wrong + 1) * sizeof(int32_t));
            tiny_close(&t);
        }
}

static void a_given_proposal_is_kept_as_often_as_it_is_likely(void **state) {
    (void)state;
    enum { DRAWS = 4000 };
    if (tables_are_cuda()) skip(); /* test_sample: draws equal the CPU's */
    struct tiny_options o = drafting();
    struct tiny t = tiny_open(tables[n_tables - 1], &o);
    struct writer w = writer_of(1, 20, 1, 10);
    struct segment segments[2];
    float z[320];
    int32_t best = 0;
    double total = 0, kept = 0;
    main_segments(&t, &w, 0, 1, &segments[0], &segments[1]);
    int32_t tokens[21];
    memcpy(tokens, w.s.tokens, 20 * sizeof *tokens);
    tokens[20] = 5;
    segments[0].given = true, segments[0].tokens = tokens;
    tiny_forward(&t, segments, 1);
    tiny_logits(&t, 0, 1, z);
    for (int32_t id = 0; id < 320; id++)
        best = z[id] > z[best] ? id : best;
    for (int32_t id = 0; id < 320; id++)
        total += exp(((double)z[id] - (double)z[best]) / 4);
    tokens[20] = best; /* what is judged, whatever row followed */
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        t.k->slot_set(t.dev, 1, &(struct rules){.temperature = 4, .top_p = 1, .seed = seed});
        assert_int_equal(t.k->accept(t.dev), OK);
        const struct outcome *out = &t.dev->outcomes[0];
        assert_true(out->n_accepted == (out->tokens[0] == best));
        kept += out->n_accepted;
    }
    double p = 1 / total;
    assert_true(p > 0.01 && p < 0.9);
    assert_true(fabs(kept / DRAWS - p) < 5 * sqrt(p * (1 - p) / DRAWS));
    tiny_close(&t);
}

static void a_broken_row_that_is_reached_fails(void **state) {
    (void)state;
    for (uint32_t wrong = 0; wrong <= 2; wrong++) {
        struct tiny_options o = drafting();
        struct tiny t = tiny_open(tables[n_tables - 1], &o);
        struct writer plain = writer_of(0, 20, 1, 0), w = writer_of(1, 20, 1, 10);
        write_plainly(&t, &plain, 8);
        struct segment segments[2];
        struct outcome out;
        tiny_forward(&t, segments, main_segments(&t, &w, 0, 0, &segments[0], &segments[1]));
        accept_into(&t, &w, 1);
        main_segments(&t, &w, 20, 2, &segments[0], &segments[1]);
        segments[0].given = true, segments[0].tokens = plain.s.tokens + 20;
        tiny_forward(&t, segments, 1);
        tiny_put_logit(&t, wrong, 3, INFINITY);
        t.k->accept(t.dev);
        t.k->end(t.dev, &out);
        assert_int_equal(out.status, ERR_INVALID);
        assert_int_equal(out.n_tokens, 0);
        tiny_close(&t);
    }
}

static void all_masked_rows_propose_nothing(void **state) {
    (void)state;
    struct tiny_options o = drafting();
    o.vocab = 100;
    o.untied = true;
    struct tiny t = tiny_open(tables[n_tables - 1], &o);
    struct rules rules = {.top_p = 1, .min_tokens = 2, .n_end_ids = 100};
    for (int32_t id = 0; id < 100; id++)
        rules.end_ids[id] = id;
    t.k->slot_set(t.dev, 0, &rules);
    struct writer w = writer_of(0, 10, 1, 0);
    for (int i = 0; i < 10; i++)
        w.s.tokens[i] %= 100;
    w.s.n_tokens = 10;
    prefill(&t, &w.s, 0, 9);
    struct segment block = draft_segment(&w.s, 9, 4), segments[2];
    block.pick = PICK_PROPOSE;
    tiny_forward(&t, &block, 1);
    t.k->sample(t.dev);
    if (!tables_are_cuda()) assert_int_equal(t.dev->slots[0].n_proposals, 0);
    tiny_forward(&t, segments, main_segments(&t, &w, 9, 4, &segments[0], &segments[1]));
    struct outcome out;
    t.k->accept(t.dev);
    t.k->end(t.dev, &out);
    assert_int_equal(out.n_proposed, 0);
    assert_int_equal(out.n_tokens, 0);
    assert_true(out.exhausted);
    tiny_close(&t);
}

static void a_poisoned_sequence_fails_alone(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 3 * n_tables; i++) {
        struct tiny_options o = drafting();
        if (i / n_tables == 1) o.activations = tiny_rounded(), o.weights = DTYPE_Q4_1;
        if (i / n_tables == 2) o.kv = DTYPE_Q8_0;
        struct tiny t = tiny_open(tables[i % n_tables], &o);
        struct writer a = writer_of(0, 20, 1, 0), b = writer_of(1, 20, 2, 10);
        prefill(&t, &a.s, 0, 19);
        prefill(&t, &b.s, 0, 19);
        tiny_poison_pages(&t, b.s.pages[0], 1);
        struct segment segments[3];
        main_segments(&t, &b, 19, 0, &segments[0], &segments[2]);
        main_segments(&t, &a, 19, 0, &segments[1], &segments[2]);
        tiny_forward(&t, segments, 2);
        struct outcome out[2];
        t.k->accept(t.dev);
        t.k->end(t.dev, out);
        assert_int_equal(out[0].status, ERR_INVALID);
        assert_int_equal(out[0].n_tokens, 0);
        assert_int_equal(out[1].status, OK);
        assert_int_equal(out[1].n_tokens, 1);
        tiny_close(&t);
    }
}

int main(void) {
    tables_find();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_drafts_match_ref),
        cmocka_unit_test(heads_of_drafts_are_finished_with_their_products_or_after),
        cmocka_unit_test(one_plain_draft_row_equals_a_base_row),
        cmocka_unit_test(drafts_leave_the_cache_as_it_was),
        cmocka_unit_test(draft_blocks_do_not_see_each_other),
        cmocka_unit_test(cycles_write_what_single_steps_write),
        cmocka_unit_test(perfect_proposals_are_all_accepted),
        cmocka_unit_test(given_proposals_are_verified_without_drafts),
        cmocka_unit_test(a_given_proposal_is_kept_as_often_as_it_is_likely),
        cmocka_unit_test(a_broken_row_that_is_reached_fails),
        cmocka_unit_test(all_masked_rows_propose_nothing),
        cmocka_unit_test(a_poisoned_sequence_fails_alone),
    };
    const struct CMUnitTest on_tiles[] = {
        cmocka_unit_test(one_plain_draft_row_equals_a_base_row),
        cmocka_unit_test(drafts_leave_the_cache_as_it_was),
        cmocka_unit_test(draft_blocks_do_not_see_each_other),
        cmocka_unit_test(cycles_write_what_single_steps_write),
        cmocka_unit_test(perfect_proposals_are_all_accepted),
        cmocka_unit_test(given_proposals_are_verified_without_drafts),
        cmocka_unit_test(a_broken_row_that_is_reached_fails),
        cmocka_unit_test(a_poisoned_sequence_fails_alone),
    };
    if (tiles_are_emulated()) return cmocka_run_group_tests(on_tiles, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
