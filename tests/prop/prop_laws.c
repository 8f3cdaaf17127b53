/* prop_laws: drafts change speed and never the law of a text. Many texts of four tokens are drawn on
 * the scripted model with entropy of the test's own, and counted: the first three tokens must follow
 * the exact joint law, computed here in double from the script's logits and the words of the API,
 * with drafts off, in blocks of 2, 4 and 8, of adapting length, and looked up in the text itself.
 * The drafter is a bad copy of the target, so that refusals are common, and the mean number of
 * accepted proposals is an exact number too: the sum of min(p, q) over every place that is judged.
 *
 *   prompt | t1        t2          t3          t4
 *          | prefill   block, 1st  block, 2nd  bonus token, or another cycle after a refusal */
#include "tests/harness.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/scripted/scripted.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { DRAWS = 20000 };
#else
enum { DRAWS = 200000 };
#endif

enum {
    VOCAB = 5,
    BLOCK = 8,
    N_TOKENS = 4,  /* of a text; the law of the first three is asserted */
    BATCH = 500,   /* texts submitted at once */
    N_SEQS = 128,  /* and running at once */
    N_PROMPT = 14, /* ends in 0 1, which stands in it four times, each time followed otherwise */
};
static const int32_t prompt[N_PROMPT] = {0, 1, 0, 1, 1, 2, 0, 1, 2, 0, 1, 3, 0, 1};

static const double P_LEAST = 1e-6, Z_MOST = 5.5;

/* ---- chi-square -------------------------------------------------------------------------------- */

/* Upper regularised incomplete gamma function Q(a, x): by its series below a + 1, else by its
 * continued fraction (Lentz). */
static double gamma_q(double a, double x) {
    if (x <= 0) return 1;
    double front = exp(a * log(x) - x - lgamma(a));
    if (x < a + 1) {
        double term = 1 / a, sum = term;
        for (int n = 1; n < 10000 && term > sum * 1e-16; n++)
            sum += term *= x / (a + n);
        return 1 - front * sum;
    }
    double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
    for (int n = 1; n < 10000; n++) {
        double an = -n * (n - a);
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (fabs(d * c - 1) < 1e-15) break;
    }
    return front * h;
}

/* How likely counts as far from the law as these are. Cells with fewer than five expected are
 * counted as one; a count where the law has none is impossible: 0. */
static double law_p(const uint32_t *counts, const double *law, size_t n) {
    double total = 0, chi2 = 0, rare = 0, rare_law = 0;
    int df = -1;
    for (size_t i = 0; i < n; i++)
        total += counts[i];
    for (size_t i = 0; i < n; i++) {
        double expected = total * law[i], diff = counts[i] - expected;
        if (law[i] == 0 && counts[i] > 0) return 0;
        if (law[i] == 0) continue;
        if (expected < 5) {
            rare += counts[i], rare_law += expected;
            continue;
        }
        chi2 += diff * diff / expected;
        df++;
    }
    if (rare_law >= 5) chi2 += (rare - rare_law) * (rare - rare_law) / rare_law, df++;
    return df > 0 ? gamma_q(df / 2.0, chi2 / 2) : 1;
}

static void p_values_are_those_of_the_tables(void **state) {
    (void)state;
    static const struct {
        double chi2, df, p;
    } known[] = {{3.841459, 1, 0.05},     {6.634897, 1, 0.01},    {11.0705, 5, 0.05},
                 {124.342113, 100, 0.05}, {77.929465, 100, 0.95}, {23.928127, 1, 1e-6},
                 {2.705543, 1, 0.1},      {201.6, 100, 7.54e-9}};
    for (size_t i = 0; i + 1 < ARRAY_LEN(known); i++) {
        double p = gamma_q(known[i].df / 2, known[i].chi2 / 2);
        if (fabs(p - known[i].p) > 1e-4 * known[i].p)
            fail_msg("chi-square %g of %g: %g, expected %g", known[i].chi2, known[i].df, p,
                     known[i].p);
    }
}

/* ---- the model --------------------------------------------------------------------------------- */

/* Logits after every pair of last tokens. */
static float target_z[VOCAB][VOCAB][VOCAB], draft_z[VOCAB][VOCAB][VOCAB];

static float rounded(double x) {
    return (float)(round(x * 1000) / 1000);
}

static void draw_tables(void) {
    struct rng rng;
    rng_seed(&rng, 20);
    for (int a = 0; a < VOCAB; a++)
        for (int b = 0; b < VOCAB; b++)
            for (int t = 0; t < VOCAB; t++) {
                double z = 1.2 * (double)rng_normal(&rng);
                target_z[a][b][t] = rounded(z);
                draft_z[a][b][t] = rounded(z + 0.8 * (double)rng_normal(&rng));
            }
}

static size_t print_table(char *out, size_t cap, float (*z)[VOCAB][VOCAB]) {
    size_t n = (size_t)snprintf(out, cap, "{\"\":{\"0\":0}");
    for (int a = 0; a < VOCAB; a++)
        for (int b = 0; b < VOCAB; b++)
            for (int t = 0; t < VOCAB; t++) {
                if (t == 0) n += (size_t)snprintf(out + n, cap - n, ",\"%d,%d\":{", a, b);
                n += (size_t)snprintf(out + n, cap - n, "%s\"%d\":%.3f", t ? "," : "", t,
                                      (double)z[a][b][t]);
                if (t == VOCAB - 1) n += (size_t)snprintf(out + n, cap - n, "}");
            }
    n += (size_t)snprintf(out + n, cap - n, "}");
    ASSERT(n < cap);
    return n;
}

static struct model *make_model(void) {
    static char json[32768];
    struct model *model = NULL;
    struct err err;
    draw_tables();
    size_t n = (size_t)snprintf(json, sizeof json,
                                "{\"vocab\":[\"a\",\"b\",\"c\",\"d\",\"e\"],\"context\":32,"
                                "\"block_size\":%d,\"target\":",
                                BLOCK);
    n += print_table(json + n, sizeof json - n, target_z);
    n += (size_t)snprintf(json + n, sizeof json - n, ",\"draft\":");
    n += print_table(json + n, sizeof json - n, draft_z);
    n += (size_t)snprintf(json + n, sizeof json - n, "}");
    ASSERT(n < sizeof json);
    if (scripted_model_from_json(json, n, &model, &err) != OK) fail_msg("%s", err.msg);
    return model;
}

/* ---- exact laws -------------------------------------------------------------------------------- */

struct setting {
    const char *name;
    double temperature, top_p, min_p;
    int32_t top_k;
    double frequency, presence, repetition;
    bool bias; /* one token forbidden, one made likelier */
    bool seeded;
    bool all_blocks; /* under drafts of every kind; the others with none and blocks of 4, but
                        under all where GERYON_LAWS=all */
};
static const struct token_bias biases[2] = {{2, -100}, {0, 0.7}};

/* A text so far, the prompt included. */
struct so_far {
    int32_t tokens[N_PROMPT + N_TOKENS];
    uint32_t n;
};

static struct so_far with(struct so_far text, int32_t token) {
    text.tokens[text.n++] = token;
    return text;
}

static void change_logits(const struct setting *s, const struct so_far *text, double *z) {
    for (size_t i = 0; s->bias && i < ARRAY_LEN(biases); i++)
        z[biases[i].id] += biases[i].value <= -100 ? -INFINITY : biases[i].value;
    for (int t = 0; t < VOCAB; t++) {
        int all = 0, output = 0;
        for (uint32_t i = 0; i < text->n; i++) {
            all += text->tokens[i] == t;
            output += i >= N_PROMPT && text->tokens[i] == t;
        }
        if (all > 0) z[t] = z[t] > 0 ? z[t] / s->repetition : z[t] * s->repetition;
        z[t] -= s->frequency * output + (output > 0 ? s->presence : 0);
    }
}

static double total_of(const double *p) {
    double total = 0;
    for (int t = 0; t < VOCAB; t++)
        total += p[t];
    return total;
}

/* Keep the most likely tokens: at most `most` of them, or until their share reaches top_p. */
static void keep_best(double *p, int most, double top_p) {
    double kept[VOCAB] = {0}, total = total_of(p), sum = 0;
    for (int n = 0; n < most && sum < top_p; n++) {
        int best = -1;
        for (int t = 0; t < VOCAB; t++)
            if (p[t] > 0 && (best < 0 || p[t] > p[best])) best = t;
        if (best < 0) break;
        kept[best] = p[best];
        sum += p[best] / total;
        p[best] = 0;
    }
    memcpy(p, kept, sizeof kept);
}

/* The distribution after logits z, given the text that the rules count. */
static void law_of(const struct setting *s, const float *logits, const struct so_far *text,
                   double *p) {
    double most = 0, total;
    for (int t = 0; t < VOCAB; t++)
        p[t] = (double)logits[t];
    change_logits(s, text, p);
    for (int t = 0; t < VOCAB; t++) {
        p[t] = exp(p[t] / s->temperature);
        if (p[t] > most) most = p[t];
    }
    for (int t = 0; t < VOCAB; t++)
        if (p[t] < s->min_p * most) p[t] = 0;
    if (s->top_k) keep_best(p, s->top_k, INFINITY);
    if (s->top_p < 1) keep_best(p, VOCAB, s->top_p);
    total = total_of(p);
    for (int t = 0; t < VOCAB; t++)
        p[t] /= total;
}

static const float *row_after(float (*z)[VOCAB][VOCAB], const struct so_far *text) {
    return z[text->tokens[text->n - 2]][text->tokens[text->n - 1]];
}

static void target_law(const struct setting *s, const struct so_far *text, double *p) {
    law_of(s, row_after(target_z, text), text, p);
}

static struct so_far at_start(void) {
    struct so_far text = {.n = N_PROMPT};
    memcpy(text.tokens, prompt, sizeof prompt);
    return text;
}

/* The joint law of the first three tokens. */
static void joint_law(const struct setting *s, double *law) {
    double p1[VOCAB], p2[VOCAB], p3[VOCAB];
    struct so_far start = at_start();
    target_law(s, &start, p1);
    for (int a = 0; a < VOCAB; a++) {
        struct so_far one = with(start, a);
        target_law(s, &one, p2);
        for (int b = 0; b < VOCAB; b++) {
            struct so_far two = with(one, b);
            target_law(s, &two, p3);
            for (int c = 0; c < VOCAB; c++)
                law[(a * VOCAB + b) * VOCAB + c] = p1[a] * p2[b] * p3[c];
        }
    }
}

/* ---- exact acceptance -------------------------------------------------------------------------- */

static double expected_cycle(const struct setting *s, uint32_t block, struct so_far text);

/* Place `text` of a block with n_left proposals to judge. guess: the text as the drafter sees it,
 * its own best tokens in place of what was drawn. */
static double expected_place(const struct setting *s, uint32_t block, struct so_far text,
                             struct so_far guess, uint32_t n_left) {
    double p[VOCAB], q[VOCAB] = {0}, expected = 0;
    int32_t best = 0;
    target_law(s, &text, p);
    if (n_left > 0) {
        const float *z = row_after(draft_z, &guess);
        law_of(s, z, &text, q);
        for (int t = 1; t < VOCAB; t++)
            if (z[t] > z[best]) best = t;
    }
    for (int t = 0; t < VOCAB; t++) {
        double kept = fmin(p[t], q[t]), rest = p[t] - kept;
        if (kept > 0)
            expected +=
                kept * (1 + expected_place(s, block, with(text, t), with(guess, best), n_left - 1));
        if (rest > 0) expected += rest * expected_cycle(s, block, with(text, t));
    }
    return expected;
}

/* Proposals that will still be kept, given the text so far. */
static double expected_cycle(const struct setting *s, uint32_t block, struct so_far text) {
    uint32_t to_come = N_PROMPT + N_TOKENS - text.n;
    if (to_come == 0) return 0;
    bool prefill = text.n == N_PROMPT;
    uint32_t rows = block < to_come ? block : to_come;
    return expected_place(s, block, text, text, prefill || rows == 0 ? 0 : rows - 1);
}

/* ---- drawing ----------------------------------------------------------------------------------- */

struct counts {
    uint32_t first[VOCAB], second[VOCAB], third[VOCAB], pairs[VOCAB * VOCAB],
        triples[VOCAB * VOCAB * VOCAB];
    double accepted, accepted2; /* sum and sum of squares over texts */
};

/* Draft forwards are cheap and rows free, so drafts pay however short a text is; chance moves their
 * length. */
static double random_cost(void *arg, bool draft, uint32_t n_rows) {
    (void)n_rows;
    return (draft ? 100 : 1000) + rng_below(arg, 400);
}

static struct engine *make_engine(struct model *model, int32_t drafts) {
    static struct rng clock_rng;
    static struct scripted_time time;
    struct engine_config config;
    struct engine *engine = NULL;
    struct err err;
    engine_config_defaults(&config);
    config.drafts = drafts;
    config.max_num_seqs = N_SEQS;
    config.max_queued = BATCH;
    config.max_batched_rows = 4096;
    config.prefix_cache = false;
    rng_seed(&clock_rng, 3);
    time = (struct scripted_time){.now_us = 1000, .cost_us = random_cost, .arg = &clock_rng};
    scripted_set_time(model, &time);
    config.clock = scripted_clock;
    config.clock_arg = &time;
    config.kv_bytes = 4 * N_SEQS * model->kernels->page_bytes(model->device, DTYPE_F32);
    if (engine_create(model, &config, &engine, &err) != OK) fail_msg("%s", err.msg);
    return engine;
}

static void count_text(struct counts *c, const int32_t *t, const struct seq_stats *stats) {
    c->first[t[0]]++;
    c->second[t[1]]++;
    c->third[t[2]]++;
    c->pairs[t[0] * VOCAB + t[1]]++;
    c->triples[(t[0] * VOCAB + t[1]) * VOCAB + t[2]]++;
    c->accepted += stats->n_accepted;
    c->accepted2 += (double)stats->n_accepted * stats->n_accepted;
}

static void take_events(struct engine *engine, int32_t (*texts)[N_TOKENS], uint32_t *lens,
                        struct counts *counts) {
    struct event event;
    while (engine_next_event(engine, &event)) {
        ASSERT(event.kind != EVENT_FAILED);
        ASSERT(lens[event.id] + event.n_tokens <= N_TOKENS);
        memcpy(texts[event.id] + lens[event.id], event.tokens, event.n_tokens * sizeof(int32_t));
        lens[event.id] += event.n_tokens;
        if (event.kind != EVENT_FINISHED) continue;
        ASSERT(lens[event.id] == N_TOKENS);
        count_text(counts, texts[event.id], &event.stats);
    }
}

static struct sampling sampling_of(const struct setting *s) {
    struct sampling rules;
    sampling_defaults(&rules);
    rules.temperature = s->temperature;
    rules.top_p = s->top_p;
    rules.min_p = s->min_p;
    rules.top_k = s->top_k;
    rules.frequency_penalty = s->frequency;
    rules.presence_penalty = s->presence;
    rules.repetition_penalty = s->repetition;
    rules.has_seed = s->seeded;
    return rules;
}

static void draw_texts(struct model *model, const struct setting *s, int32_t drafts, uint64_t seed,
                       struct counts *counts) {
    static struct request requests[BATCH];
    static int32_t texts[BATCH][N_TOKENS];
    static uint32_t lens[BATCH];
    static struct token_bias bias[ARRAY_LEN(biases)];
    static int32_t tokens[N_PROMPT];
    struct engine *engine = make_engine(model, drafts);
    struct sampling rules = sampling_of(s);
    struct rng rng;
    struct err err;
    rng_seed(&rng, seed);
    memset(counts, 0, sizeof *counts);
    memcpy(bias, biases, sizeof bias);
    memcpy(tokens, prompt, sizeof prompt);
    rules.n_bias = s->bias ? ARRAY_LEN(bias) : 0;
    rules.bias = bias;
    for (uint32_t done = 0; done < DRAWS; done += BATCH) {
        memset(lens, 0, sizeof lens);
        for (uint32_t i = 0; i < BATCH; i++) {
            rules.seed = rng_u64(&rng);
            requests[i] = (struct request){.id = i,
                                           .max_tokens = N_TOKENS,
                                           .n_prompt = N_PROMPT,
                                           .prompt = tokens,
                                           .sampling = rules};
            if (engine_submit(engine, &requests[i], &err) != OK) fail_msg("%s", err.msg);
        }
        while (engine_step(engine, 0) > 0)
            take_events(engine, texts, lens, counts);
        take_events(engine, texts, lens, counts);
    }
    engine_destroy(engine);
}

/* ---- the laws hold ----------------------------------------------------------------------------- */

static double least(double a, double b) {
    return a < b ? a : b;
}

/* The smallest p-value of the triples and of their marginals, each with more power against another
 * fault. */
static double worst_p(const struct counts *c, const double *law) {
    double first[VOCAB] = {0}, second[VOCAB] = {0}, third[VOCAB] = {0}, pairs[VOCAB * VOCAB] = {0};
    for (int i = 0; i < VOCAB * VOCAB * VOCAB; i++) {
        pairs[i / VOCAB] += law[i];
        first[i / (VOCAB * VOCAB)] += law[i];
        second[i / VOCAB % VOCAB] += law[i];
        third[i % VOCAB] += law[i];
    }
    double p = law_p(c->triples, law, VOCAB * VOCAB * VOCAB);
    p = least(p, law_p(c->pairs, pairs, VOCAB * VOCAB));
    p = least(p, law_p(c->first, first, VOCAB));
    p = least(p, law_p(c->second, second, VOCAB));
    return least(p, law_p(c->third, third, VOCAB));
}

static double p_least_seen = 1;
static uint32_t n_laws;

static void check_law(struct model *model, const struct setting *s, int32_t drafts) {
    static uint64_t seed = 1;
    struct counts counts;
    double law[VOCAB * VOCAB * VOCAB];
    joint_law(s, law);
    draw_texts(model, s, drafts, seed++, &counts);
    n_laws++;
    double p = worst_p(&counts, law), mean = counts.accepted / DRAWS;
    p_least_seen = least(p_least_seen, p);
    printf("# %-12s drafts %2d: p %.3g, accepted %.4f a text", s->name, drafts, p, mean);
    bool exact = drafts > 0 && !s->seeded;
    double expected = exact ? expected_cycle(s, (uint32_t)drafts, at_start()) : mean;
    double sd = sqrt((counts.accepted2 / DRAWS - mean * mean) / DRAWS);
    double z = exact ? (mean - expected) / sd : 0;
    printf(exact ? ", exactly %.4f, z %.2f\n" : "\n", expected, z);
    if (!(p > P_LEAST)) fail_msg("%s, drafts %d: p %g", s->name, drafts, p);
    if (!(fabs(z) < Z_MOST))
        fail_msg("%s, drafts %d: accepted %g, not %g", s->name, drafts, mean, expected);
    if (drafts == DRAFTS_OFF) assert_true(mean == 0);
    /* The drafter is right two times in three; what the text says of itself, less often. */
    if (drafts != DRAFTS_OFF) assert_true(mean > (drafts == DRAFTS_NGRAM ? 0.3 : 0.8));
    assert_true(drafts == DRAFTS_OFF || mean < 1.9); /* of two or three: refusals are common */
}

static const struct setting settings[] = {
    {"T 1", .temperature = 1, .top_p = 1, .repetition = 1, .all_blocks = true},
    {"T 0.5", .temperature = 0.5, .top_p = 1, .repetition = 1},
    {"top_k 3", .temperature = 1, .top_p = 1, .top_k = 3, .repetition = 1},
    {"top_p 0.8", .temperature = 1, .top_p = 0.8, .repetition = 1},
    {"min_p 0.2", .temperature = 1, .top_p = 1, .min_p = 0.2, .repetition = 1},
    {"bias", .temperature = 1, .top_p = 1, .repetition = 1, .bias = true},
    {"penalties", .temperature = 1, .top_p = 1, .frequency = 0.7, .presence = 0.4,
     .repetition = 1.3},
    {"negative", .temperature = 0.8, .top_p = 1, .frequency = -0.6, .presence = -0.3,
     .repetition = 0.8},
    {"all", 0.7, 0.95, 0.03, 4, 0.7, 0.4, 1.3, .bias = true, .all_blocks = true},
    {"seeded", .temperature = 1, .top_p = 1, .repetition = 1, .seeded = true},
    {"seeded all", 0.7, 0.95, 0.03, 4, 0.7, 0.4, 1.3, .bias = true, .seeded = true,
     .all_blocks = true},
};

static bool runs(const struct setting *s, int32_t drafts) {
    const char *laws = getenv("GERYON_LAWS");
    bool all = laws && strcmp(laws, "all") == 0;
    return all || s->all_blocks || drafts == DRAFTS_OFF || drafts == 4;
}

static void laws_hold(int32_t drafts) {
    struct model *model = make_model();
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        if (runs(&settings[i], drafts)) check_law(model, &settings[i], drafts);
    model_destroy(model);
}

static void texts_follow_their_law_without_drafts(void **state) {
    (void)state;
    laws_hold(DRAFTS_OFF);
}

static void texts_follow_their_law_with_blocks_of_2(void **state) {
    (void)state;
    laws_hold(2);
}

static void texts_follow_their_law_with_blocks_of_4(void **state) {
    (void)state;
    laws_hold(4);
}

static void texts_follow_their_law_with_blocks_of_8(void **state) {
    (void)state;
    laws_hold(8);
}

static void texts_follow_their_law_with_blocks_that_adapt(void **state) {
    (void)state;
    laws_hold(DRAFTS_AUTO);
}

static void texts_follow_their_law_with_given_proposals(void **state) {
    (void)state;
    laws_hold(DRAFTS_NGRAM);
}

/* ---- the test of the test ---------------------------------------------------------------------- */

enum accept_rule { RIGHT, ARGMAX, NO_RESIDUAL, Q_WITHOUT_TEMPERATURE, N_ACCEPT_RULES };

static int32_t draw_from(struct rng *rng, const double *weights) {
    double u = rng_unit(rng) * total_of(weights);
    int32_t t = 0;
    while (t < VOCAB - 1 && (u -= weights[t]) >= 0)
        t++;
    return t;
}

/* One place by the right rule, or a wrong one. */
static int32_t judge(struct rng *rng, enum accept_rule rule, const struct setting *s,
                     const struct so_far *text) {
    double p[VOCAB], q[VOCAB], said[VOCAB], rest[VOCAB];
    struct setting plain = *s;
    plain.temperature = 1;
    target_law(s, text, p);
    law_of(s, row_after(draft_z, text), text, q);
    law_of(rule == Q_WITHOUT_TEMPERATURE ? &plain : s, row_after(draft_z, text), text, said);
    int32_t proposal = draw_from(rng, q), best = 0;
    for (int t = 0; t < VOCAB; t++) {
        rest[t] = rule == NO_RESIDUAL ? p[t] : fmax(p[t] - said[t], 0);
        if (p[t] > p[best]) best = t;
    }
    bool keep = rule == ARGMAX ? proposal == best : rng_unit(rng) * said[proposal] < p[proposal];
    return keep ? proposal : draw_from(rng, rest);
}

static double p_of_rule(enum accept_rule rule, const struct setting *s, uint64_t seed) {
    struct counts counts = {0};
    double law[VOCAB * VOCAB * VOCAB], p[VOCAB];
    struct seq_stats none = {0};
    struct rng rng;
    rng_seed(&rng, seed);
    joint_law(s, law);
    for (uint32_t i = 0; i < DRAWS; i++) {
        struct so_far text = at_start();
        target_law(s, &text, p);
        text = with(text, draw_from(&rng, p));
        text = with(text, judge(&rng, rule, s, &text));
        text = with(text, judge(&rng, rule, s, &text));
        count_text(&counts, text.tokens + N_PROMPT, &none);
    }
    return worst_p(&counts, law);
}

static void wrong_accept_rules_are_caught(void **state) {
    (void)state;
    static const char *const names[] = {"right", "argmax", "no residual", "q without temperature"};
    draw_tables();
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        for (int rule = 0; rule < N_ACCEPT_RULES && !settings[i].seeded; rule++) {
            bool same = rule == Q_WITHOUT_TEMPERATURE && settings[i].temperature == 1;
            double p = p_of_rule((enum accept_rule)rule, &settings[i], 100 + i);
            printf("# %-12s rule \"%s\": p %.3g\n", settings[i].name, names[rule], p);
            if ((rule == RIGHT || same) != (p > P_LEAST))
                fail_msg("%s, rule \"%s\": p %g", settings[i].name, names[rule], p);
        }
}

int main(void) {
    /* Sequences come and go by the million: keep their memory, or the system clears it each time. */
    mallopt(M_TRIM_THRESHOLD, 1 << 28);
    mallopt(M_MMAP_THRESHOLD, 1 << 28);
    mallopt(M_TOP_PAD, 1 << 26);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(p_values_are_those_of_the_tables),
        cmocka_unit_test(texts_follow_their_law_without_drafts),
        cmocka_unit_test(texts_follow_their_law_with_blocks_of_2),
        cmocka_unit_test(texts_follow_their_law_with_blocks_of_4),
        cmocka_unit_test(texts_follow_their_law_with_blocks_of_8),
        cmocka_unit_test(texts_follow_their_law_with_blocks_that_adapt),
        cmocka_unit_test(texts_follow_their_law_with_given_proposals),
        cmocka_unit_test(wrong_accept_rules_are_caught),
    };
    int n_failed = cmocka_run_group_tests_name("prop_laws", tests, NULL, NULL);
    printf("# %u laws, smallest p %.3g\n", n_laws, p_least_seen);
    return n_failed;
}
