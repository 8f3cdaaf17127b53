/* The scripted model, driven by hand as the engine drives it: what its scripts say, that its pages
 * tell right block tables from wrong ones, and its failures and costs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/harness.h"
#include "tests/scripted/device.h"
#include "tests/scripted/scripted.h"

enum { VOCAB = 5, EOS = 4, CONTEXT = 96, N_PAGES = 16, BLOCK = 8 };

#define HEAD "{\"vocab\":[\"a\",\"b\",\" c\",{\"hex\":\"F09f\"},{\"special\":\"<eos>\"}],"

static struct script *parse(const char *json) {
    struct script *script = NULL;
    struct err err;
    if (script_parse(json, strlen(json), &script, &err) != OK) fail_msg("%s", err.msg);
    return script;
}

/* ---- scripts ----------------------------------------------------------------------------------- */

static void a_script_is_read_whole(void **state) {
    (void)state;
    struct script *s =
        parse(HEAD "\"eos\":[4,3],\"context\":64,\"block_size\":8,\"sequence\":[0,1],"
                   "\"draft_sequence\":[1],\"step_ms\":1.5,\"row_ms\":2,"
                   "\"prefill_ms_per_token\":3,\"load_ms\":4,"
                   "\"fail\":{\"at_output\":2,\"kind\":\"device\"}}");
    assert_int_equal(s->n_vocab, 5);
    assert_memory_equal(s->vocab[2].bytes, " c", 2);
    assert_int_equal(s->vocab[3].len, 2);
    assert_memory_equal(s->vocab[3].bytes, "\xF0\x9F", 2);
    assert_true(s->vocab[4].special && !s->vocab[3].special);
    assert_int_equal(s->n_eos, 2);
    assert_int_equal(s->eos[1], 3);
    assert_int_equal(s->context, 64);
    assert_int_equal(s->block_size, 8);
    assert_true(s->step_ms == 1.5 && s->row_ms == 2 && s->prefill_ms_per_token == 3);
    assert_true(s->load_ms == 4 && s->fail == FAIL_DEVICE && s->fail_at == 2);
    script_destroy(s);
}

static void a_wrong_script_names_key_and_expectation(void **state) {
    (void)state;
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"[]", "object"},
        {"{\"vocab\":[]}", "vocab: expected an array"},
        {"{\"vocab\":[5]}", "vocab[0]"},
        {"{\"vocab\":[\"a\",{\"hex\":\"F\"}]}", "vocab[1]: expected pairs of hex"},
        {"{\"vocab\":[\"a\",{\"hex\":\"0\",\"special\":\"x\"}]}", "vocab[1]"},
        {"{\"vocab\":[\"a\"]", "line 1"},
        {"{\"vocab\":[\"a\"],\"vocab\":[\"a\"]}", "duplicate"},
        {HEAD "\"sequence\":[0],\"contxt\":3}", "unknown key contxt"},
        {HEAD "\"sequence\":[5],\"eos\":[4]}", "sequence: expected token ids from 0 to 4"},
        {HEAD "\"sequence\":[]}", "sequence: expected an array of ids, at least one"},
        {HEAD "\"sequence\":[0],\"target\":{}}", "exclude"},
        {HEAD "\"eos\":[9],\"sequence\":[0]}", "eos: expected token ids"},
        {HEAD "\"eos\":4,\"sequence\":[0]}", "eos: expected an array"},
        {HEAD "\"context\":1,\"sequence\":[0]}", "context: expected an integer from 2"},
        {HEAD "\"block_size\":65,\"sequence\":[0]}",
         "block_size: expected an integer from 0 to 64"},
        {HEAD "\"eos\":[4]}", "a sequence or a target"},
        {HEAD "\"target\":{\"0,\":{}}}", "target: key \"0,\""},
        {HEAD "\"target\":{\",0\":{}}}", "target: key \",0\""},
        {HEAD "\"target\":{\"0, 1\":{}}}", "target: key"},
        {HEAD "\"target\":{\"0,5\":{}}}", "ids from 0 to 4"},
        {HEAD "\"target\":{\"0\":{\"7\":1}}}", "id \"7\", expected 0 to 4"},
        {HEAD "\"target\":{\"0\":{\"1\":\"inf\"}}}", "expected a number or \"-inf\""},
        {HEAD "\"target\":{\"0\":1}}", "expected an object of logits"},
        {HEAD "\"sequence\":[0],\"draft\":3}", "draft: expected an object"},
        {HEAD "\"target\":{},\"default\":\"x\"}", "default: expected"},
        {HEAD "\"sequence\":[0],\"step_ms\":-1}", "step_ms: expected milliseconds"},
        {HEAD "\"sequence\":[0],\"fail\":{\"at_output\":-1,\"kind\":\"device\"}}", "at_output"},
        {HEAD "\"sequence\":[0],\"fail\":{\"at_output\":1,\"kind\":\"x\"}}", "kind: expected"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct script *script = NULL;
        struct err err = {.code = OK};
        assert_int_equal(script_parse(cases[i].json, strlen(cases[i].json), &script, &err),
                         ERR_INVALID);
        if (!strstr(err.msg, cases[i].says)) fail_msg("%s: %s", cases[i].json, err.msg);
    }
}

static void expect_logits(const struct script *s, bool draft, const int32_t *history, uint32_t n,
                          uint32_t prompt_len, const float *want) {
    float got[VOCAB];
    script_logits(s, draft, history, n, prompt_len, got);
    assert_memory_equal(got, want, sizeof got);
}

static void the_longest_key_that_ends_the_history_wins(void **state) {
    (void)state;
    struct script *s =
        parse(HEAD "\"target\":{\"\":{\"0\":3},\"1\":{\"1\":4},\"0,1\":{\"2\":\"-inf\"},"
                   "\"1,1\":{}},\"draft\":{\"2\":{\"3\":1}},\"default\":-7}");
    static const int32_t history[] = {0, 0, 1, 1, 2};
    expect_logits(s, false, history, 1, 0, (float[]){3, -7, -7, -7, -7});
    expect_logits(s, false, history, 3, 0, (float[]){-7, -7, -INFINITY, -7, -7});
    expect_logits(s, false, history, 4, 0, (float[]){-7, -7, -7, -7, -7});
    expect_logits(s, false, history + 2, 1, 0, (float[]){-7, 4, -7, -7, -7});
    expect_logits(s, false, history, 5, 0, (float[]){3, -7, -7, -7, -7});
    expect_logits(s, true, history, 5, 0, (float[]){-7, -7, -7, 1, -7});
    expect_logits(s, true, history, 4, 0, (float[]){-7, -7, -7, -7, -7});
    script_destroy(s);
}

static void a_sequence_counts_from_the_prompts_end(void **state) {
    (void)state;
    static const int32_t history[9] = {0};
    struct script *s = parse(HEAD "\"eos\":[4],\"sequence\":[2,0]}");
    for (int draft = 0; draft < 2; draft++) {
        expect_logits(s, draft, history, 3, 3, (float[]){-10, -10, 10, -10, -10});
        expect_logits(s, draft, history, 4, 3, (float[]){10, -10, -10, -10, -10});
        expect_logits(s, draft, history, 5, 3, (float[]){-10, -10, -10, -10, 10});
        expect_logits(s, draft, history, 2, 3, (float[]){-10, -10, -10, -10, -10});
    }
    script_destroy(s);
    s = parse(HEAD "\"sequence\":[2,0],\"draft_sequence\":[1]}"); /* no eos: over and over */
    expect_logits(s, false, history, 7, 3, (float[]){-10, -10, 10, -10, -10});
    expect_logits(s, true, history, 8, 3, (float[]){-10, 10, -10, -10, -10});
    script_destroy(s);
}

/* ---- a sequence driven by hand ----------------------------------------------------------------- */

struct run {
    const struct kernels *k;
    struct device *dev;
    struct script *script;
    bool orthros;
    uint32_t slot;
    uint32_t pages[CONTEXT / PAGE_TOKENS];
    int32_t tokens[CONTEXT];
    uint32_t n_prompt, n_tokens, n_kv;
    struct rules rules;
};

static struct run run_open(const char *json, bool orthros) {
    struct run run = {.k = kernels_scripted(), .script = parse(json), .orthros = orthros};
    struct err err;
    struct model_shape shape = {
        .n_layers = 2,
        .vocab_size = VOCAB,
        .block_size = BLOCK,
        .max_position = CONTEXT,
        .orthros = orthros,
        .window = orthros ? 4 : 0,
    };
    struct device_limits limits = {
        .n_pages = N_PAGES, .n_slots = 2, .max_rows = 64, .max_logit_rows = 16, .max_proposed = 15};
    assert_int_equal(run.k->open(&shape, 1, &run.dev, &err), OK);
    device_set_script(run.dev, run.script);
    assert_int_equal(run.k->reserve(run.dev, &limits, &err), OK);
    run.rules = (struct rules){.temperature = 0, .top_p = 1};
    return run;
}

/* Give the sequence a prompt and pages out of order, beginning at first_page. */
static void run_start(struct run *run, uint32_t slot, uint32_t n_prompt, uint32_t first_page) {
    run->slot = slot;
    run->n_prompt = run->n_tokens = n_prompt;
    run->n_kv = 0;
    for (uint32_t i = 0; i < n_prompt; i++)
        run->tokens[i] = (int32_t)((i * 7 + i / PAGE_TOKENS) % 4); /* no page like another */
    for (uint32_t i = 0; i < ARRAY_LEN(run->pages); i++)
        run->pages[i] = (first_page + 5 * i) % N_PAGES;
    run->k->pages_clear(run->dev, run->pages, ARRAY_LEN(run->pages));
    run->k->slot_set(run->dev, slot, &run->rules);
}

static int forward(const struct run *run, const struct segment *segments, uint32_t n) {
    struct forward fwd = {.n_segments = n, .segments = segments};
    int rc = run->k->begin(run->dev, &fwd);
    if (rc == OK) rc = run->k->embed(run->dev);
    for (uint32_t layer = 0; rc == OK && layer < 2; layer++) {
        rc = run->k->qkv(run->dev, layer);
        if (rc == OK) rc = run->k->attend(run->dev, layer);
        if (rc == OK) rc = run->k->out_residual(run->dev, layer);
        if (rc == OK) rc = run->k->mlp(run->dev, layer);
    }
    return rc == OK ? run->k->lm_head(run->dev) : rc;
}

static struct segment base_segment(const struct run *run, uint32_t n_rows) {
    return (struct segment){
        .slot = run->slot,
        .view = VIEW_BASE,
        .pos = run->n_kv,
        .n_rows = n_rows,
        .out_pos = run->n_tokens - run->n_prompt,
        .prompt_len = run->n_prompt,
        .tokens = run->tokens + run->n_kv,
        .history = run->tokens,
        .pages = run->pages,
    };
}

static int run_prefill(struct run *run, uint32_t chunk) {
    int rc = OK;
    while (rc == OK && run->n_kv + 1 < run->n_tokens) {
        uint32_t left = run->n_tokens - 1 - run->n_kv;
        struct segment s = base_segment(run, left < chunk ? left : chunk);
        rc = forward(run, &s, 1);
        run->n_kv += s.n_rows;
    }
    return rc;
}

static int run_draft(struct run *run, uint32_t n_draft) {
    int32_t tokens[BLOCK] = {run->tokens[run->n_kv]};
    struct segment s = base_segment(run, n_draft + 1);
    s.view = VIEW_DRAFT;
    s.pick = PICK_PROPOSE;
    s.n_logits = n_draft;
    s.tokens = tokens;
    int rc = forward(run, &s, 1);
    return rc == OK ? run->k->sample(run->dev) : rc;
}

/* The main forward over the newest token and its proposals; the new tokens. */
static int run_main(struct run *run, const struct segment *base, struct outcome *out) {
    struct segment s[2] = {*base, *base};
    s[1].view = VIEW_OUTPUT;
    struct segment *speaks = run->orthros ? &s[1] : &s[0];
    speaks->pick = PICK_ACCEPT;
    speaks->n_logits = base->n_proposed + 1;
    int rc = forward(run, s, run->orthros ? 2 : 1);
    if (rc == OK) rc = run->k->accept(run->dev);
    if (rc == OK) rc = run->k->end(run->dev, out);
    if (rc != OK || out->status != OK) return rc;
    assert_int_equal(out->slot, run->slot);
    for (uint32_t i = 0; i < out->n_tokens && run->n_tokens < CONTEXT; i++)
        run->tokens[run->n_tokens++] = out->tokens[i];
    run->n_kv = run->n_tokens - 1;
    return OK;
}

/* One cycle: drafts, verification. */
static int run_cycle(struct run *run, uint32_t n_draft, struct outcome *out) {
    int rc = n_draft ? run_draft(run, n_draft) : OK;
    if (rc != OK) return rc;
    struct segment base = base_segment(run, n_draft + 1);
    base.n_proposed = n_draft;
    return run_main(run, &base, out);
}

/* The same with proposals from elsewhere. */
static int run_given(struct run *run, const int32_t *proposals, uint32_t n, struct outcome *out) {
    int32_t tokens[BLOCK] = {run->tokens[run->n_kv]};
    memcpy(tokens + 1, proposals, n * sizeof *tokens);
    struct segment base = base_segment(run, n + 1);
    base.n_proposed = n;
    base.given = true;
    base.tokens = tokens;
    return run_main(run, &base, out);
}

static void run_close(struct run *run) {
    run->k->close(run->dev); /* and the script with it */
}

static float table_logit(struct rng *rng) {
    return (float)(rng_below(rng, 100)) / 25;
}

/* A table for every last token; the drafter's differs a little. */
static void random_script(char *json, size_t size, uint64_t seed) {
    struct rng rng;
    rng_seed(&rng, seed);
    size_t n = (size_t)snprintf(json, size, HEAD "\"eos\":[4],\"block_size\":8,");
    for (int draft = 0; draft < 2; draft++) {
        n += (size_t)snprintf(json + n, size - n, "\"%s\":{\"\":{\"0\":1}",
                              draft ? "draft" : "target");
        rng_seed(&rng, seed);
        for (int key = 0; key < VOCAB; key++) {
            n += (size_t)snprintf(json + n, size - n, ",\"%d\":{", key);
            for (int id = 0; id < VOCAB; id++) {
                double logit = (double)table_logit(&rng) + (draft && (key + id) % 3 == 0 ? 1.2 : 0);
                n +=
                    (size_t)snprintf(json + n, size - n, "%s\"%d\":%.2f", id ? "," : "", id, logit);
            }
            n += (size_t)snprintf(json + n, size - n, "}");
        }
        n += (size_t)snprintf(json + n, size - n, "}%s", draft ? "}" : ",");
    }
    assert_true(n < size);
}

/* The text that one-token decoding gives, without a device. */
static void expected_text(const struct run *run, int32_t *tokens, uint32_t n) {
    float logits[VOCAB], probs[VOCAB], draft[VOCAB];
    uint32_t ids[VOCAB], counts[VOCAB] = {0}, counted[VOCAB];
    struct sample_scratch scratch = {VOCAB, probs, draft, ids, counts, counted, 0};
    for (uint32_t i = run->n_prompt; i < n; i++) {
        script_logits(run->script, false, tokens, i, run->n_prompt, logits);
        struct history h = {.tokens = tokens, .n_prompt = run->n_prompt, .n_tokens = i};
        tokens[i] = sample_token(&run->rules, logits, &h, DRAW_GUMBEL, &scratch);
    }
}

/* By turns plain rules, and all that a text can be counted for. */
static void rules_of_round(struct rules *rules, uint32_t round) {
    static const struct bias bias[] = {{1, 0.5f}, {4, -INFINITY}};
    if (round % 3) rules->temperature = 1, rules->seeded = true, rules->seed = round;
    if (round / 3 % 2) {
        rules->frequency = 0.4f, rules->presence = -0.3f, rules->repetition = 1.2f;
        rules->n_bias = 2, rules->bias = bias;
    }
}

static void texts_equal_one_token_decoding(void **state) {
    (void)state;
    char json[4096];
    uint32_t kept = 0, proposed = 0;
    for (uint32_t round = 0; round < 60; round++) {
        random_script(json, sizeof json, round);
        struct run run = run_open(json, round % 2);
        rules_of_round(&run.rules, round);
        run_start(&run, round % 2, 1 + round % 40, round);
        int32_t want[CONTEXT];
        memcpy(want, run.tokens, sizeof want);
        expected_text(&run, want, CONTEXT - BLOCK);
        assert_int_equal(run_prefill(&run, 1 + round % 19), OK);
        while (run.n_tokens < CONTEXT - BLOCK) {
            struct outcome out;
            assert_int_equal(run_cycle(&run, round % BLOCK, &out), OK);
            assert_int_equal(out.n_proposed, round % BLOCK);
            kept += out.n_accepted;
            proposed += out.n_proposed;
        }
        assert_memory_equal(run.tokens, want, (CONTEXT - BLOCK) * sizeof *want);
        run_close(&run);
    }
    assert_true(kept > proposed / 10 && kept < proposed);
}

static void given_proposals_are_verified_like_others(void **state) {
    (void)state;
    char json[4096];
    for (uint32_t round = 0; round < 60; round++) {
        random_script(json, sizeof json, round);
        struct run run = run_open(json, round % 2);
        rules_of_round(&run.rules, round);
        run_start(&run, round % 2, 1 + round % 40, round);
        int32_t want[CONTEXT];
        memcpy(want, run.tokens, sizeof want);
        expected_text(&run, want, CONTEXT);
        assert_int_equal(run_prefill(&run, 1 + round % 19), OK);
        for (uint32_t wrong = 0; run.n_tokens < CONTEXT - BLOCK; wrong++) {
            int32_t given[BLOCK];
            uint32_t n = 1 + (round + wrong) % (BLOCK - 1), at = wrong % (n + 1);
            memcpy(given, want + run.n_tokens, n * sizeof *given);
            if (at < n) given[at] = (given[at] + 1) % VOCAB; /* else all are right */
            struct outcome out;
            assert_int_equal(run_given(&run, given, n, &out), OK);
            assert_int_equal(out.n_drafted, n);
            assert_int_equal(out.n_proposed, n);
            assert_memory_equal(out.proposed, given, n * sizeof *given);
            assert_int_equal(out.n_accepted, at);
        }
        assert_memory_equal(run.tokens, want, run.n_tokens * sizeof *want);
        int32_t more[BLOCK] = {0}; /* a cycle has one source of proposals */
        struct outcome out;
        assert_int_equal(run_draft(&run, 2), OK);
        assert_trips(run_given(&run, more, 2, &out));
        run_close(&run);
    }
}

static void s9_06_drafts_count_the_text_before_them(void **state) {
    (void)state;
    for (uint32_t n_draft = 0; n_draft < BLOCK; n_draft++) {
        struct run run =
            run_open(HEAD "\"target\":{\"\":{\"0\":3,\"1\":2}},\"default\":-9}", false);
        run.rules.frequency = 0.6f;
        run_start(&run, 0, 5, 0);
        assert_int_equal(run_prefill(&run, 16), OK);
        while (run.n_tokens < 5 + 7) {
            struct outcome out;
            assert_int_equal(run_cycle(&run, n_draft, &out), OK);
            assert_int_equal(out.n_accepted, n_draft); /* drafted under the same rules */
        }
        for (uint32_t i = 0; i < 7; i++)
            assert_int_equal(run.tokens[5 + i], "aababab"[i] - 'a');
        run_close(&run);
    }
}

static void a_given_proposal_is_kept_as_often_as_it_is_likely(void **state) {
    (void)state;
    enum { DRAWS = 4000 };
    struct run run =
        run_open(HEAD "\"target\":{\"\":{\"0\":0.5,\"1\":1,\"2\":0}},\"default\":\"-inf\"}", false);
    run.rules.temperature = 1;
    run.rules.presence = 0.4f;
    double kept = 0,
           p = exp(1) / (exp(0.5) + exp(1) + 1); /* at the first place, where none counts */
    for (run.rules.seed = 0; run.rules.seed < DRAWS; run.rules.seed++) {
        struct outcome out;
        run_start(&run, 0, 3, 0);
        assert_int_equal(run_prefill(&run, 16), OK);
        assert_int_equal(run_given(&run, (int32_t[]){1}, 1, &out), OK);
        assert_true(out.n_accepted == (out.tokens[0] == 1)); /* refused: from the others */
        kept += out.n_accepted;
    }
    assert_true(fabs(kept / DRAWS - p) < 5 * sqrt(p * (1 - p) / DRAWS));
    run_close(&run);
}

static void drafts_of_a_sequence_are_perfect_or_as_written(void **state) {
    (void)state;
    for (int useless = 0; useless < 2; useless++) {
        struct run run = run_open(useless ? HEAD "\"sequence\":[0,1,2],\"draft_sequence\":[1,2,0]}"
                                          : HEAD "\"sequence\":[0,1,2]}",
                                  false);
        run_start(&run, 0, 20, 3);
        assert_int_equal(run_prefill(&run, 7), OK);
        for (int i = 0; i < 5; i++) {
            struct outcome out;
            assert_int_equal(run_cycle(&run, 7, &out), OK);
            assert_int_equal(out.n_accepted, useless ? 0 : 7);
        }
        for (uint32_t i = 20; i < run.n_tokens; i++)
            assert_int_equal(run.tokens[i], (i - 20) % 3);
        run_close(&run);
    }
}

static void draft_rows_follow_the_drafters_own_choices(void **state) {
    (void)state;
    struct run run = run_open(HEAD "\"target\":{\"\":{\"0\":1}},\"draft\":{\"\":{\"0\":1},"
                                   "\"0\":{\"1\":5,\"2\":4.9},\"1\":{\"2\":5},\"2\":{\"3\":5}}}",
                              false);
    run_start(&run, 0, 5, 0); /* the prompt ends with 4 * 7 % 4 = 0 */
    assert_int_equal(run_prefill(&run, 9), OK);
    run.rules.temperature = 2; /* what is drawn (often 2 first) must not matter */
    for (uint64_t seed = 0; seed < 20; seed++) {
        run.rules.seed = seed;
        run.k->slot_set(run.dev, 0, &run.rules);
        run.n_kv = 0;
        assert_int_equal(run_prefill(&run, 9), OK);
        assert_int_equal(run_draft(&run, 3), OK);
        static const float want[3][VOCAB] = {
            {-20, 5, 4.9f, -20, -20}, {-20, -20, 5, -20, -20}, {-20, -20, -20, 5, -20}};
        for (uint32_t row = 0; row < 3; row++) {
            float got[VOCAB];
            run.k->read_logits(run.dev, row, got);
            assert_memory_equal(got, want[row], sizeof got);
        }
    }
    run_close(&run);
}

static void two_sequences_share_a_forward(void **state) {
    (void)state;
    struct run run =
        run_open(HEAD "\"target\":{\"0\":{\"1\":9},\"1\":{\"2\":9},\"2\":{\"0\":9}}}", false);
    struct run other = run;
    run_start(&run, 0, 9, 0);
    run_start(&other, 1, 11, 1); /* pages 1, 6, 11 .. do not meet 0, 5, 10 .. */
    assert_int_equal(run_prefill(&run, 4), OK);
    assert_int_equal(run_prefill(&other, 5), OK);
    struct segment s[2] = {base_segment(&run, 1), base_segment(&other, 1)};
    s[0].pick = s[1].pick = PICK_ACCEPT;
    s[0].n_logits = s[1].n_logits = 1;
    struct outcome out[2];
    assert_int_equal(forward(&run, s, 2), OK);
    assert_int_equal(run.k->accept(run.dev), OK);
    assert_int_equal(run.k->end(run.dev, out), OK);
    assert_int_equal(out[0].slot, 0);
    assert_int_equal(out[1].slot, 1);
    assert_int_equal(out[0].tokens[0], (run.tokens[8] + 1) % 3);
    assert_int_equal(out[1].tokens[0], (other.tokens[10] + 1) % 3);
    run_close(&run);
}

static void a_masked_draft_row_ends_the_proposals(void **state) {
    (void)state;
    struct run run = run_open(HEAD "\"default\":\"-inf\",\"target\":{\"\":{\"0\":1}},\"draft\":{"
                                   "\"3\":{\"1\":1},\"1\":{}}}",
                              false);
    run_start(&run, 0, 6, 0); /* ends with 5 * 7 % 4 = 3 */
    assert_int_equal(run_prefill(&run, 9), OK);
    struct outcome out;
    assert_int_equal(run_cycle(&run, 4, &out), OK);
    assert_int_equal(out.n_proposed, 1);
    assert_int_equal(out.n_accepted, 0);
    assert_int_equal(out.tokens[0], 0);
    run_close(&run);
}

/* ---- faults of a scheduler are loud ------------------------------------------------------------- */

static void wrong_block_tables_assert(void **state) {
    (void)state;
    struct outcome out;
    struct run run = run_open(HEAD "\"sequence\":[0,1,2]}", false);
    run_start(&run, 0, 40, 0);
    assert_int_equal(run_prefill(&run, 16), OK);

    struct run swapped = run;
    swapped.pages[0] = run.pages[1], swapped.pages[1] = run.pages[0];
    assert_trips(run_cycle(&swapped, 0, &out));

    struct run never_written = run;
    never_written.pages[1] = run.pages[5];
    assert_trips(run_cycle(&never_written, 0, &out));

    struct run outside = run;
    outside.pages[1] = N_PAGES;
    assert_trips(run_cycle(&outside, 0, &out));

    struct run gap = run;
    gap.n_kv = gap.n_tokens = run.n_tokens + 1;
    assert_trips(run_cycle(&gap, 0, &out));

    struct run miscounted = run;
    miscounted.n_prompt--; /* out_pos then belongs to another position */
    struct segment s = base_segment(&miscounted, 1);
    s.pick = PICK_ACCEPT, s.n_logits = 1, s.out_pos = 0;
    assert_trips(forward(&run, &s, 1));

    assert_int_equal(run_cycle(&run, 3, &out), OK); /* the right table still works */
    run.k->pages_clear(run.dev, &run.pages[0], 1);  /* given away under the sequence */
    assert_trips(run_cycle(&run, 0, &out));
    run_close(&run);
}

static void anothers_tokens_in_a_page_assert(void **state) {
    (void)state;
    struct outcome out;
    struct run run = run_open(HEAD "\"sequence\":[0,1,2]}", false);
    struct run other = run;
    run_start(&run, 0, 30, 0);
    assert_int_equal(run_prefill(&run, 16), OK);
    run_start(&other, 1, 12, 0); /* the same pages, and other tokens */
    for (uint32_t i = 0; i < 12; i++)
        other.tokens[i] = 3;
    assert_int_equal(run_prefill(&other, 16), OK);
    assert_trips(run_cycle(&run, 0, &out));
    run_close(&run);
}

static void a_copied_page_serves_as_well(void **state) {
    (void)state;
    struct outcome out;
    struct run run = run_open(HEAD "\"sequence\":[0,1,2]}", false);
    run_start(&run, 0, 20, 0);
    assert_int_equal(run_prefill(&run, 16), OK);
    run.k->page_copy(run.dev, run.pages[1], 15);
    run.k->pages_clear(run.dev, &run.pages[1], 1);
    run.pages[1] = 15;
    assert_int_equal(run_cycle(&run, 2, &out), OK);
    assert_int_equal(out.n_tokens, 3);
    run_close(&run);
}

/* ---- failures and costs ------------------------------------------------------------------------- */

static void a_script_fails_at_its_output_position(void **state) {
    (void)state;
    static const uint32_t drafts[] = {0, 1, 3};
    for (size_t i = 0; i < ARRAY_LEN(drafts); i++)
        for (int device = 0; device < 2; device++) {
            char json[512];
            snprintf(json, sizeof json,
                     HEAD "\"sequence\":[0,1,2],\"fail\":{\"at_output\":2,\"kind\":\"%s\"}}",
                     device ? "device" : "request");
            struct run run = run_open(json, false);
            run_start(&run, 0, 4, 0);
            assert_int_equal(run_prefill(&run, 16), OK);
            struct outcome out = {.status = OK};
            int rc = OK;
            while (rc == OK && out.status == OK) {
                assert_true(run.n_tokens - run.n_prompt <= 2);
                rc = run_cycle(&run, drafts[i], &out);
            }
            assert_int_equal(rc, device ? ERR_DEVICE : OK);
            if (!device) assert_int_equal(out.status, ERR_INVALID);
            assert_int_equal(run.n_tokens - run.n_prompt, drafts[i] == 3 ? 0 : 2);
            run_close(&run);
        }
    /* A text that ends before it is none of its business. */
    struct run run = run_open(
        HEAD "\"eos\":[4],\"sequence\":[0],\"fail\":{\"at_output\":2,\"kind\":\"device\"}}", false);
    run.rules.n_end_ids = 1, run.rules.end_ids[0] = EOS;
    run_start(&run, 0, 4, 0);
    struct outcome out;
    assert_int_equal(run_prefill(&run, 16), OK);
    assert_int_equal(run_cycle(&run, 5, &out), OK);
    run_close(&run);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1000.0 * (double)t.tv_sec + (double)t.tv_nsec / 1e6;
}

static void costs_are_paid(void **state) {
    (void)state;
    struct run run = run_open(
        HEAD "\"sequence\":[0],\"step_ms\":20,\"row_ms\":4,\"prefill_ms_per_token\":3}", false);
    run_start(&run, 0, 6, 0);
    double start = now_ms();
    assert_int_equal(run_prefill(&run, 16), OK);
    double prefilled = now_ms();
    assert_true(prefilled - start >= 20 + 5 * (4 + 3));
    struct outcome out;
    run.n_prompt = 5, run.n_tokens = 6; /* a row of output costs no prefill */
    assert_int_equal(run_cycle(&run, 1, &out), OK);
    assert_true(now_ms() - prefilled >= 20 + 4 * 4);
    run_close(&run);
}

/* ---- models ------------------------------------------------------------------------------------ */

static void a_model_is_made_from_json(void **state) {
    (void)state;
    static const char json[] = HEAD "\"eos\":[4],\"context\":64,\"block_size\":8,\"sequence\":[2]}";
    struct model *model;
    struct err err;
    if (scripted_model_from_json(json, strlen(json), &model, &err) != OK) fail_msg("%s", err.msg);
    const struct model_info *info = model_info(model);
    assert_string_equal(info->architecture, "scripted");
    assert_string_equal(info->kernel_table, "scripted");
    assert_int_equal(info->vocab_size, VOCAB);
    assert_int_equal(info->context_length, 64);
    assert_int_equal(info->block_size, 8);
    assert_int_equal(info->n_eos_ids, 1);
    assert_int_equal(info->eos_ids[0], EOS);
    assert_true(info->has_chat_template && !info->adds_bos);
    size_t len;
    assert_memory_equal(tokenizer_piece(model->tokenizer, 2, true, &len), " c", 2);
    float logits[VOCAB];
    scripted_logits(model, (int32_t[]){1, 1}, 2, 2, logits);
    assert_true(logits[2] == 10);
    scripted_draft_logits(model, (int32_t[]){1, 1, 2}, 3, 2, logits);
    assert_true(logits[EOS] == 10);
    model_destroy(model);
    assert_int_equal(scripted_model_from_json("{}", 2, &model, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "vocab"));
}

static void a_file_is_loaded_with_progress_and_can_be_cancelled(void **state) {
    (void)state;
    static const char json[] = HEAD "\"sequence\":[0],\"load_ms\":60}";
    char path[512];
    snprintf(path, sizeof path, "%s/tiny.json", scratch_dir());
    write_file(path, json, strlen(json));
    struct load_progress progress = {0};
    struct model_options options = {.path = path, .window = 7, .progress = &progress};
    struct model *model;
    struct err err;
    double start = now_ms();
    if (model_load(&options, &model, &err) != OK) fail_msg("%s", err.msg);
    assert_true(now_ms() - start >= 60);
    assert_int_equal(atomic_load(&progress.phase), LOAD_WEIGHTS);
    assert_true(atomic_load(&progress.permille) > 0);
    assert_string_equal(model_info(model)->name, "tiny");
    assert_int_equal(model_info(model)->window, 7);
    assert_true(model->shape.orthros);
    model_destroy(model);
    atomic_store(&progress.cancel, true);
    assert_int_equal(model_load(&options, &model, &err), ERR_CANCELLED);
    options.path = "/nonexistent/x.json";
    assert_int_equal(model_load(&options, &model, &err), ERR_IO);
    assert_non_null(strstr(err.msg, "x.json"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_script_is_read_whole),
        cmocka_unit_test(a_wrong_script_names_key_and_expectation),
        cmocka_unit_test(the_longest_key_that_ends_the_history_wins),
        cmocka_unit_test(a_sequence_counts_from_the_prompts_end),
        cmocka_unit_test(texts_equal_one_token_decoding),
        cmocka_unit_test(given_proposals_are_verified_like_others),
        cmocka_unit_test(s9_06_drafts_count_the_text_before_them),
        cmocka_unit_test(a_given_proposal_is_kept_as_often_as_it_is_likely),
        cmocka_unit_test(drafts_of_a_sequence_are_perfect_or_as_written),
        cmocka_unit_test(draft_rows_follow_the_drafters_own_choices),
        cmocka_unit_test(two_sequences_share_a_forward),
        cmocka_unit_test(a_masked_draft_row_ends_the_proposals),
        cmocka_unit_test(wrong_block_tables_assert),
        cmocka_unit_test(anothers_tokens_in_a_page_assert),
        cmocka_unit_test(a_copied_page_serves_as_well),
        cmocka_unit_test(a_script_fails_at_its_output_position),
        cmocka_unit_test(costs_are_paid),
        cmocka_unit_test(a_model_is_made_from_json),
        cmocka_unit_test(a_file_is_loaded_with_progress_and_can_be_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
