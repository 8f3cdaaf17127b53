/* A GGUF vocabulary written as tokenizer.json and tokenizer_config.json: the same ids for every kind of
 * pre-tokeniser, and what the files cannot say is refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/harness.h"

enum { TOKENS_MAX = 320, MERGES_MAX = 16, BOS = 256, EOS, WORD, HOLE, AFTER_HOLE };

/* The 256 letters of byte-level text, control tokens, a user's word, an unused id, merged tokens. */
struct toy {
    char texts[TOKENS_MAX][32];
    const char *tokens[TOKENS_MAX];
    size_t lens[TOKENS_MAX];
    int32_t types[TOKENS_MAX];
    const char *merges[MERGES_MAX];
    struct gguf_vocab vocab;
};

static void set(struct toy *t, uint32_t id, const char *text, int32_t type) {
    snprintf(t->texts[id], sizeof t->texts[id], "%s", text);
    t->tokens[id] = t->texts[id];
    t->lens[id] = strlen(text);
    t->types[id] = type;
    if (id >= t->vocab.n_tokens) t->vocab.n_tokens = id + 1;
}

static void merge(struct toy *t, const char *line) {
    char joined[32], *blank;
    snprintf(joined, sizeof joined, "%s", line);
    blank = strchr(joined, ' ');
    memmove(blank, blank + 1, strlen(blank));
    t->merges[t->vocab.n_merges++] = line;
    set(t, t->vocab.n_tokens, joined, 1);
}

static struct toy *make(const char *pre) {
    static struct toy toys[2];
    static int turn;
    struct toy *t = &toys[turn++ % 2];
    memset(t, 0, sizeof *t);
    uint32_t n = 0;
    for (uint32_t c = 0x21; c < 0x180; c++) {
        if (bpe_char_byte(c) < 0) continue;
        char text[3] = {(char)c, 0, 0};
        if (c >= 0x80) text[0] = (char)(0xc0 | c >> 6), text[1] = (char)(0x80 | (c & 0x3f));
        set(t, n++, text, 1);
    }
    assert_int_equal(n, 256);
    set(t, BOS, "<|begin|>", 3);
    set(t, EOS, "<|end|>", 3);
    set(t, WORD, "think!", 4);
    set(t, HOLE, "[PAD259]", 5);
    set(t, AFTER_HOLE, "\xC4\xA0\xC4\xA0\xC4\xA0", 1); /* three blanks, made by no merge */
    merge(t, "h e");
    merge(t, "\xC4\xA0 he");
    merge(t, "1 2");
    merge(t, "12 3");
    merge(t, "# version");
    set(t, t->vocab.n_tokens, "version", 1);
    t->vocab.model = "gpt2";
    t->vocab.pre = pre;
    t->vocab.tokens = t->tokens;
    t->vocab.token_lens = t->lens;
    t->vocab.types = t->types;
    t->vocab.merges = t->merges;
    t->vocab.bos_id = BOS;
    t->vocab.eos_id = EOS;
    t->vocab.add_bos = t->vocab.add_eos = -1;
    return t;
}

static struct tokenizer *from_json(const char *json, const char *config) {
    struct tokenizer *t = NULL;
    struct err err = {0};
    if (tokenizer_from_json(json, strlen(json), config, config ? strlen(config) : 0, &t, &err))
        fail_msg("%s", err.msg);
    return t;
}

static struct tokenizer *from_gguf(const struct gguf_vocab *vocab) {
    struct tokenizer *t = NULL;
    struct err err = {0};
    if (tokenizer_from_gguf(vocab, &t, &err)) fail_msg("%s", err.msg);
    return t;
}

static void same_text(const struct tokenizer *a, const struct tokenizer *b, const char *text,
                      size_t len, bool trusted) {
    struct tokens x = {0}, y = {0};
    struct err err = {0};
    struct text_run run = {text, len, trusted};
    if (tokenizer_encode(a, &run, 1, true, &x, &err) ||
        tokenizer_encode(b, &run, 1, true, &y, &err))
        fail_msg("%s", err.msg);
    if (x.n != y.n || (x.n && memcmp(x.ids, y.ids, x.n * sizeof *x.ids) != 0))
        fail_msg("other ids for \"%.*s\"", (int)len, text);
    tokens_free(&x);
    tokens_free(&y);
}

/* Texts of the words that the vocabulary and the splits care about. */
static void random_texts(const struct tokenizer *a, const struct tokenizer *b, uint64_t seed) {
    static const char *const words[] = {"he",
                                        " he",
                                        "12345",
                                        " ",
                                        "   ",
                                        "\n",
                                        "\t",
                                        "don't",
                                        "WE'LL",
                                        "#",
                                        "version",
                                        "#version",
                                        "think!",
                                        "<|end|>",
                                        "<|begin|>",
                                        "caf\xC3\xA9",
                                        "e\xCC\x81",
                                        "\xC2\xBD",
                                        "\xE6\x97\xA5\xE6\x9C\xAC",
                                        "\xF0\x9F\x98\x80",
                                        "...",
                                        "\r\n",
                                        "[PAD259]"};
    struct rng rng;
    rng_seed(&rng, seed);
    for (int i = 0; i < 300; i++) {
        char text[512];
        size_t n = 0;
        for (uint32_t k = rng_below(&rng, 14); k > 0; k--)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s",
                                  words[rng_below(&rng, ARRAY_LEN(words))]);
        same_text(a, b, text, n, i % 2);
    }
}

static void every_pre_tokeniser_gives_the_same_ids(void **state) {
    (void)state;
    static const char *const pres[] = {"gpt-2",     "smollm", "starcoder", "refact",
                                       "llama-bpe", "llama3", "llama-v3",  "qwen2"};
    for (size_t i = 0; i < ARRAY_LEN(pres); i++)
        for (int adds = 0; adds < 4; adds++) {
            struct toy *t = make(pres[i]);
            if (adds) t->vocab.add_bos = adds & 1, t->vocab.add_eos = adds >> 1;
            char *json = NULL, *config = NULL;
            struct err err = {0};
            if (tokenizer_gguf_to_json(&t->vocab, 2048, &json, &config, &err))
                fail_msg("%s: %s", pres[i], err.msg);
            struct tokenizer *was = from_gguf(&t->vocab), *is = from_json(json, config);
            random_texts(was, is, test_seed() + i);
            assert_int_equal(tokenizer_bos(is), BOS);
            assert_int_equal(tokenizer_eos(is), EOS);
            assert_int_equal(tokenizer_adds_bos(is), tokenizer_adds_bos(was));
            assert_string_equal(tokenizer_named_special(is, "eos_token"), "<|end|>");
            assert_true(tokenizer_is_special(is, BOS) && !tokenizer_is_special(is, WORD));
            assert_null(strstr(json, "[PAD259]"));
            tokenizer_destroy(was);
            tokenizer_destroy(is);
            free(json);
            free(config);
        }
}

static void ends_may_be_missing(void **state) {
    (void)state;
    struct toy *t = make("qwen2");
    t->vocab.bos_id = -1;
    char *json = NULL, *config = NULL;
    struct err err = {0};
    if (tokenizer_gguf_to_json(&t->vocab, 2048, &json, &config, &err)) fail_msg("%s", err.msg);
    struct tokenizer *is = from_json(json, config);
    assert_int_equal(tokenizer_bos(is), -1);
    assert_null(tokenizer_named_special(is, "bos_token"));
    tokenizer_destroy(is);
    free(json);
    free(config);
}

static void refused(const struct toy *t, const char *word) {
    char *json = NULL, *config = NULL;
    struct err err = {0};
    if (tokenizer_gguf_to_json(&t->vocab, 2048, &json, &config, &err) == OK)
        fail_msg("accepted: no \"%s\"", word);
    assert_null(json);
    assert_null(config);
    if (!strstr(err.msg, word)) fail_msg("\"%s\" is not in: %s", word, err.msg);
}

static void what_the_files_cannot_say_is_refused(void **state) {
    (void)state;
    struct toy *t = make("no-such-pre");
    refused(t, "no-such-pre");
    t = make("gpt-2");
    set(t, AFTER_HOLE, "\xE6\x97", 1);
    refused(t, "element 260 is no UTF-8");
    t = make("gpt-2");
    t->texts[AFTER_HOLE][1] = 0; /* a NUL inside: no key of a JSON object */
    t->texts[AFTER_HOLE][0] = 'x';
    t->texts[AFTER_HOLE][2] = 'y';
    t->lens[AFTER_HOLE] = 3;
    refused(t, "element 260");
    t = make("gpt-2");
    t->types[EOS] = 1; /* naming it would make it special */
    refused(t, "tokenizer.ggml.eos_token_id: token 257");
    t = make("gpt-2");
    t->types[BOS] = 1;
    refused(t, "tokenizer.ggml.bos_token_id: token 256");
    t = make("gpt-2");
    set(t, AFTER_HOLE, "a b", 1); /* a blank of its own, and merges with two */
    set(t, t->vocab.n_tokens, "a bhe", 1);
    t->merges[t->vocab.n_merges++] = "a b he";
    refused(t, "tokenizer.ggml.merges: element 5");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pre_tokeniser_gives_the_same_ids),
        cmocka_unit_test(ends_may_be_missing),
        cmocka_unit_test(what_the_files_cannot_say_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
