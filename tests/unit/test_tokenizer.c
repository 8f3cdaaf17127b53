#include <stdio.h>

#include "tests/unit/tokenizer_golden.h"

/* ---- helpers ----------------------------------------------------------------------------------- */

static struct tokenizer *from_text(const char *json, const char *config) {
    struct tokenizer *t = NULL;
    struct err err = {0};
    if (tokenizer_from_json(json, strlen(json), config, config ? strlen(config) : 0, &t, &err))
        fail_msg("%s\n%s", err.msg, json);
    return t;
}

static void assert_refused(const char *json, const char *config, const char *words) {
    struct tokenizer *t = NULL;
    struct err err = {0};
    int rc = tokenizer_from_json(json, strlen(json), config, config ? strlen(config) : 0, &t, &err);
    assert_true(rc < 0);
    assert_null(t);
    if (!strstr(err.msg, words)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, words);
}

static struct model load_golden(const char *dir) {
    char path[256];
    size_t len, config_len;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    char *json = read_file(golden_path(path), &len);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    char *config = read_file(golden_path(path), &config_len);
    struct model model = {.info.vocab_size = 320};
    struct err err = {0};
    if (tokenizer_from_json(json, len, config, config_len, &model.tokenizer, &err))
        fail_msg("%s", err.msg);
    free(json);
    free(config);
    return model;
}

/* Ids of runs as text: "1 2 3". */
static const char *encode_runs(const struct tokenizer *t, const struct text_run *runs, size_t n,
                               bool add_special) {
    static char out[4096];
    struct tokens ids = {0};
    struct err err = {0};
    if (tokenizer_encode(t, runs, n, add_special, &ids, &err)) fail_msg("%s", err.msg);
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < ids.n; i++)
        used += (size_t)snprintf(out + used, sizeof out - used, i ? " %d" : "%d", ids.ids[i]);
    assert_true(used < sizeof out);
    tokens_free(&ids);
    return out;
}

static const char *encode(const struct tokenizer *t, const char *text, bool trusted) {
    struct text_run run = {text, strlen(text), trusted};
    return encode_runs(t, &run, 1, false);
}

/* A file with this model and these other members (each with a comma before it). */
static const char *file_of(const char *model, const char *members) {
    static char out[8192];
    int n = snprintf(out, sizeof out, "{\"model\":{\"type\":\"BPE\",%s}%s}", model, members);
    assert_in_range(n, 1, sizeof out - 1);
    return out;
}

/* The vocabulary of single characters from ' ' to '~', id = character - 32, then a..: texts given. */
static const char *ascii_model(const char *extra_vocab, const char *merges, const char *flags) {
    static char out[6144];
    size_t n = (size_t)snprintf(out, sizeof out, "\"vocab\":{");
    for (int c = 33; c < 127; c++)
        n += (size_t)snprintf(out + n, sizeof out - n, "\"%s%c\":%d,",
                              c == '"' || c == '\\' ? "\\" : "", c, c - 32);
    snprintf(out + n, sizeof out - n, "\"\\u0120\":0%s},\"merges\":[%s]%s", extra_vocab, merges,
             flags);
    return out;
}

#define BYTE_LEVEL                                                                               \
    ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}," \
    "\"decoder\":{\"type\":\"ByteLevel\"}"

/* ---- goldens ----------------------------------------------------------------------------------- */

static void ids_and_texts_of_the_qwen_tokenizer_are_those_of_hugging_face(void **state) {
    (void)state;
    struct model model = load_golden("qwen3-single-standard-none");
    run_golden(&model, "tokenizer-qwen.json");
    assert_int_equal(tokenizer_n_tokens(model.tokenizer), 318);
    assert_int_equal(tokenizer_bos(model.tokenizer), -1);
    assert_int_equal(tokenizer_eos(model.tokenizer), 314);
    assert_false(tokenizer_adds_bos(model.tokenizer));
    assert_string_equal(tokenizer_named_special(model.tokenizer, "pad_token"), "<|endoftext|>");
    assert_null(tokenizer_named_special(model.tokenizer, "bos_token"));
    assert_true(tokenizer_is_special(model.tokenizer, 313));
    assert_false(tokenizer_is_special(model.tokenizer, 316)); /* <think> */
    assert_int_equal(tokenizer_find(model.tokenizer, "<think>", 7), 316);
    tokenizer_destroy(model.tokenizer);
}

static void ids_and_texts_of_the_llama3_tokenizer_are_those_of_hugging_face(void **state) {
    (void)state;
    struct model model = load_golden("llama-orthros-standard-none");
    run_golden(&model, "tokenizer-llama3.json");
    assert_int_equal(tokenizer_bos(model.tokenizer), 313);
    assert_true(tokenizer_adds_bos(model.tokenizer));
    tokenizer_destroy(model.tokenizer);
}

static void ids_outside_the_vocabulary_have_no_text_or_are_errors(void **state) {
    (void)state;
    struct model model = load_golden("qwen3-single-standard-none");
    const int32_t padded[] = {39, 319, 0}, negative[] = {-1}, beyond[] = {320};
    char *text = NULL;
    size_t len;
    struct err err = {0};
    assert_int_equal(model_detokenize(&model, padded, 3, false, &text, &len, &err), OK);
    assert_string_equal(text, "H!"); /* S11-07: an id of the padding decodes to nothing */
    free(text);
    assert_int_equal(model_detokenize(&model, negative, 1, false, &text, &len, &err), ERR_INVALID);
    assert_int_equal(model_detokenize(&model, beyond, 1, false, &text, &len, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "320"));
    tokenizer_destroy(model.tokenizer);
}

/* ---- cases ------------------------------------------------------------------------------------- */

static void S10_01_merges_as_pairs_and_as_strings(void **state) {
    (void)state;
    static const char vocab[] = "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"abab\":3},\"merges\":";
    static const char *const lists[] = {"[\"a b\",\"ab ab\"]", "[[\"a\",\"b\"],[\"ab\",\"ab\"]]"};
    char model[256];
    for (size_t i = 0; i < 2; i++) {
        snprintf(model, sizeof model, "%s%s", vocab, lists[i]);
        struct tokenizer *t = from_text(file_of(model, ""), NULL);
        assert_string_equal(encode(t, "abab", true), "3");
        assert_string_equal(encode(t, "aba", true), "2 0");
        tokenizer_destroy(t);
    }
    static const char *const bad[] = {"[\"a b\",[\"ab\",\"ab\"]]",
                                      "[[\"a\",\"b\"],\"ab ab\"]",
                                      "[[\"a\",\"b\",\"a\"]]",
                                      "[[\"a\"]]",
                                      "[\"ab\"]",
                                      "[7]",
                                      "[[\"a\",\"z\"]]",
                                      "[[\"b\",\"a\"]]",
                                      "[\"a z\"]",
                                      "{}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        snprintf(model, sizeof model, "%s%s", vocab, bad[i]);
        assert_refused(file_of(model, ""), NULL, "merge");
    }
}

static void S10_02_merge_parts_that_hold_a_space(void **state) {
    (void)state;
    static const char vocab[] = "\"vocab\":{\"x\":0,\" \":1,\"y\":2,\"z\":3,\"x \":4,\"x y\":5,"
                                "\"x yz\":6},\"merges\":";
    static const char *const lists[] = {
        "[[\"x\",\" \"],[\"x \",\"y\"],[\"x y\",\"z\"]]",
        "[\"x  \",\"x  y\",\"x y z\"]",
    };
    char model[256];
    for (size_t i = 0; i < 2; i++) {
        snprintf(model, sizeof model, "%s%s", vocab, lists[i]);
        struct tokenizer *t = from_text(file_of(model, ""), NULL);
        assert_string_equal(encode(t, "x yz", true), "6");
        tokenizer_destroy(t);
    }
    assert_refused(file_of("\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"a b\":3,\"b c\":4,\"a b c\":5},"
                           "\"merges\":[\"a b c\"]",
                           ""),
                   NULL, "no split");
    assert_refused(file_of("\"vocab\":{\" \":0,\"  \":1,\"   \":2},\"merges\":[\"    \"]", ""),
                   NULL, "more than one split");
}

static void S10_03_pre_tokenizers_are_obeyed_or_refused_by_name(void **state) {
    (void)state;
    const char *model = ascii_model(",\"!!\":95,\"20\":96,\"\\u0120y\":97,\"26\":98",
                                    "\"! !\",\"2 0\",\"\\u0120 y\",\"2 6\"", "");
    struct tokenizer *t = from_text(
        file_of(model,
                ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                "{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"Punctuation\"},"
                "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}"),
        NULL);
    assert_string_equal(encode(t, "x!!2026 y", true), "88 1 1 18 16 18 22 97");
    tokenizer_destroy(t);
    t = from_text(file_of(model, BYTE_LEVEL), NULL);
    assert_string_equal(encode(t, "x!!2026 y", true), "88 95 96 98 97");
    tokenizer_destroy(t);
    static const char *const bad[][2] = {
        {",\"pre_tokenizer\":{\"type\":\"NoSuch\"}", "NoSuch"},
        {",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Metaspace\"}]}",
         "pretokenizers[0].type \"Metaspace\""},
        {",\"pre_tokenizer\":{\"type\":\"Digits\",\"surprise\":1}", "surprise"},
        {",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
         "{\"type\":\"Digits\"}]}",
         "Digits after ByteLevel"},
        {",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":"
         "\"Odd\"}",
         "Odd"},
        {",\"normalizer\":{\"type\":\"BertNormalizer\"}", "BertNormalizer"},
        {",\"decoder\":{\"type\":\"WordPiece\"}", "WordPiece"},
        {",\"post_processor\":{\"type\":\"BertProcessing\"}", "BertProcessing"},
        {",\"something\":1", "something"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_refused(file_of(model, bad[i][0]), NULL, bad[i][1]);
    assert_refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", NULL, "Unigram");
    assert_refused(file_of(ascii_model("", "", ",\"dropout\":0.1"), ""), NULL, "dropout");
    assert_refused(file_of(ascii_model("", "", ",\"end_of_word_suffix\":\"</w>\""), ""), NULL,
                   "end_of_word_suffix");
}

static void S10_04_normalizer_acts_exactly_when_named(void **state) {
    (void)state;
    /* C3 A9 = Ã ©, 65 CC 81 = e Ì ģ; the jamo and the syllable they make. */
    const char *model =
        "\"vocab\":{\"e\":0,\"\\u00e9\":1,\"\\u0301\":2,\"\\u1100\":3,\"\\u1161\":4,"
        "\"\\uac00\":5},\"merges\":[]";
    struct tokenizer *nfc = from_text(file_of(model, ",\"normalizer\":{\"type\":\"NFC\"}"), NULL);
    assert_string_equal(encode(nfc, "e\xCC\x81", true), "1");
    assert_string_equal(encode(nfc, "\xC3\xA9", true), "1");
    assert_string_equal(encode(nfc, "\xE1\x84\x80\xE1\x85\xA1", true), "5");
    struct tokenizer *none = from_text(file_of(model, ",\"normalizer\":null"), NULL);
    assert_string_equal(encode(none, "e\xCC\x81", true), "0 2");
    assert_string_equal(encode(none, "\xC3\xA9", true), "1");
    assert_string_equal(encode(none, "\xE1\x84\x80\xE1\x85\xA1", true), "3 4");
    struct tokenizer *nfd = from_text(
        file_of(model,
                ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"}]}"),
        NULL);
    assert_string_equal(encode(nfd, "\xC3\xA9", true), "0 2");
    assert_string_equal(encode(nfd, "e\xEA\xB0\x80", true), "0 3 4");
    tokenizer_destroy(nfc);
    tokenizer_destroy(none);
    tokenizer_destroy(nfd);
}

static void S10_05_control_tokens_need_trust_for_every_byte(void **state) {
    (void)state;
    struct model model = load_golden("qwen3-single-standard-none");
    const struct tokenizer *t = model.tokenizer;
    const char *end = "<|im_end|>";
    assert_string_equal(encode(t, end, true), "314");
    char typed[128];
    strcpy(typed, encode(t, end, false));
    assert_null(strstr(typed, "314"));
    for (size_t i = 1; i < strlen(end); i++) { /* any byte from elsewhere spoils it */
        struct text_run runs[] = {{end, i, true}, {end + i, strlen(end) - i, false}};
        assert_string_equal(encode_runs(t, runs, 2, false), typed);
        runs[0].trusted = false, runs[1].trusted = true;
        assert_string_equal(encode_runs(t, runs, 2, false), typed);
        runs[0].trusted = true;
        assert_string_equal(encode_runs(t, runs, 2, false), "314");
    }
    /* Text that is not trusted neither makes nor hides a token beside it; added tokens that are
     * not special are found in it. */
    struct text_run mixed[] = {{"<|im_", 5, false}, {end, 10, true}, {"<think>", 7, false}};
    const char *ids = encode_runs(t, mixed, 3, false);
    assert_non_null(strstr(ids, "314 316"));
    tokenizer_destroy(model.tokenizer);
}

/* With ignore_merges a whole word is looked up; a control token in it was not to be parsed. */
static void untrusted_words_never_become_control_tokens_by_lookup_or_merge(void **state) {
    (void)state;
    const char *model =
        ascii_model(",\"<e>\":95,\"<e\":96", "\"< e\",\"<e >\"", ",\"ignore_merges\":true");
    const char *added = ",\"added_tokens\":[{\"id\":95,\"content\":\"<e>\",\"special\":true,"
                        "\"normalized\":false}],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                        "\"add_prefix_space\":false,\"use_regex\":false}";
    struct tokenizer *t = from_text(file_of(model, added), NULL);
    assert_string_equal(encode(t, "<e>", true), "95");
    assert_string_equal(encode(t, "<e>", false), "96 30");
    assert_string_equal(encode(t, "<e", false), "96");
    tokenizer_destroy(t);
}

static void S10_06_start_token_is_added_once(void **state) {
    (void)state;
    struct model model = load_golden("llama-orthros-standard-none");
    struct text_run plain = {"he", 2, true}, marked = {"<|begin_of_text|>he", 19, true};
    assert_string_equal(encode_runs(model.tokenizer, &plain, 1, true), "313 256");
    assert_string_equal(encode_runs(model.tokenizer, &marked, 1, true), "313 256");
    assert_string_equal(encode_runs(model.tokenizer, &marked, 1, false), "313 256");
    assert_string_equal(encode_runs(model.tokenizer, NULL, 0, true), "313");
    tokenizer_destroy(model.tokenizer);
}

static void S10_08_half_a_character_is_an_error_to_encode_and_a_byte_to_decode(void **state) {
    (void)state;
    struct model model = load_golden("qwen3-single-standard-none");
    struct tokens ids = {0};
    struct err err = {0};
    assert_int_equal(model_tokenize(&model, "ab\xE6\xAD", 4, 0, &ids, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "byte 2"));
    assert_int_equal(ids.n, 0);
    for (int byte = 0; byte < 256; byte++) { /* every single byte has an id, and it decodes */
        char piece[2] = {0};
        int32_t found = -1;
        for (int32_t id = 0; id < 256 && found < 0; id++) {
            size_t len;
            const char *p = tokenizer_piece(model.tokenizer, id, true, &len);
            if (len == 1 && (uint8_t)p[0] == byte) found = id, piece[0] = p[0];
        }
        assert_true(found >= 0 && (uint8_t)piece[0] == byte);
    }
    tokens_free(&ids);
    tokenizer_destroy(model.tokenizer);
}

static void S2_02_typed_byte_names_stay_text(void **state) {
    (void)state;
    const char *model = "\"vocab\":{\"<\":0,\"0\":1,\"x\":2,\"4\":3,\"1\":4,\">\":5,\"<0x41>\":6,"
                        "\"<0xC3>\":7,\"<0xA9>\":8},\"merges\":[],\"byte_fallback\":true";
    struct tokenizer *t = from_text(file_of(model, ""), NULL);
    assert_string_equal(encode(t, "<0x41>", true), "0 1 2 3 4 5");
    assert_string_equal(encode(t, "A", true), "6");
    assert_string_equal(encode(t, "\xC3\xA9", true), "7 8");
    tokenizer_destroy(t);
}

/* ---- added tokens ------------------------------------------------------------------------------ */

static void flags_of_added_tokens_are_honoured(void **state) {
    (void)state;
    const char *added =
        ",\"added_tokens\":["
        "{\"id\":95,\"content\":\"<a>\",\"special\":true,\"normalized\":false},"
        "{\"id\":96,\"content\":\"<a>b\",\"special\":true,\"normalized\":false},"
        "{\"id\":97,\"content\":\"<l>\",\"lstrip\":true,\"normalized\":false,\"special\":false},"
        "{\"id\":98,\"content\":\"<r>\",\"rstrip\":true,\"normalized\":false,\"special\":false},"
        "{\"id\":99,\"content\":\"word\",\"single_word\":true,\"normalized\":false,"
        "\"special\":false},"
        "{\"id\":100,\"content\":\"FOLD\",\"normalized\":true,\"special\":false}],"
        "\"normalizer\":{\"type\":\"Lowercase\"}" BYTE_LEVEL;
    struct tokenizer *t = from_text(file_of(ascii_model("", "", ""), added), NULL);
    assert_string_equal(encode(t, "<a>b<a>c", true), "96 95 67");
    assert_string_equal(encode(t, "x  <l> y", true), "88 97 0 89");
    assert_string_equal(encode(t, "x <r>  y", true), "88 0 98 89");
    assert_string_equal(encode(t, "<r> <l>", true), "98 97");
    assert_string_equal(encode(t, "a word,", true), "65 0 99 12");
    assert_string_equal(encode(t, "words", true), "87 79 82 68 83");
    assert_string_equal(encode(t, "word_ word-", true), "87 79 82 68 63 0 99 13");
    assert_string_equal(encode(t, "fold Fold", true), "100 0 100");
    assert_string_equal(encode(t, "ABC", true), "65 66 67"); /* lowercased: a b c */
    tokenizer_destroy(t);
}

static void named_special_tokens_of_the_config_become_special(void **state) {
    (void)state;
    const char *file = file_of(ascii_model(",\"<end>\":95", "", ""), BYTE_LEVEL);
    struct tokenizer *t = from_text(file, NULL);
    assert_string_equal(encode(t, "<end>", true), "28 69 78 68 30");
    assert_int_equal(tokenizer_eos(t), -1);
    tokenizer_destroy(t);
    t = from_text(file, "{\"eos_token\":{\"content\":\"<end>\"},\"pad_token\":\"<nowhere>\"}");
    assert_string_equal(encode(t, "<end>", true), "95");
    assert_int_equal(tokenizer_eos(t), 95);
    assert_true(tokenizer_is_special(t, 95));
    assert_string_equal(tokenizer_named_special(t, "pad_token"), "<nowhere>");
    tokenizer_destroy(t);
}

static void tokenizer_classes_with_their_own_template_obey_add_bos_token(void **state) {
    (void)state;
    const char *file = file_of(ascii_model(",\"<s>\":95", "", ""), BYTE_LEVEL);
    struct text_run run = {"a", 1, true};
    static const struct {
        const char *config, *ids;
    } cases[] = {
        {"{\"bos_token\":\"<s>\",\"tokenizer_class\":\"LlamaTokenizerFast\"}", "95 65"},
        {"{\"bos_token\":\"<s>\",\"tokenizer_class\":\"LlamaTokenizer\",\"add_bos_token\":false}",
         "65"},
        {"{\"bos_token\":\"<s>\",\"eos_token\":\"<s>\",\"tokenizer_class\":\"LlamaTokenizer\","
         "\"add_bos_token\":false,\"add_eos_token\":true}",
         "65 95"},
        {"{\"bos_token\":\"<s>\",\"tokenizer_class\":\"PreTrainedTokenizerFast\","
         "\"add_bos_token\":true}",
         "65"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tokenizer *t = from_text(file, cases[i].config);
        assert_string_equal(encode_runs(t, &run, 1, true), cases[i].ids);
        assert_int_equal(tokenizer_bos(t), 95);
        tokenizer_destroy(t);
    }
    assert_refused(file, "{\"tokenizer_class\":\"LlamaTokenizer\"}", "add_bos_token");
}

/* ---- hostile files ----------------------------------------------------------------------------- */

static void malformed_files_are_refused_with_a_place(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"", "line 1"},
        {"[]", "not an object"},
        {"{", "line 1"},
        {"{\"model\":{},\"model\":{}}", "duplicate"},
        {"{\"model\":7}", "model"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]}}", "empty"},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "empty"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":-1},\"merges\":[]}}", "-1"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "two tokens"},
        {"{\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", "not an id"},
        {"{\"model\":{\"vocab\":{\"a\":4000000000},\"merges\":[]}}", "4000000000"},
        {"{\"model\":{\"vocab\":{\"a\":100000},\"merges\":[]}}", "100000"},
        {"{\"model\":{\"vocab\":{\"\":0},\"merges\":[]}}", "0 bytes"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"?\"}}", "unk_token"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":0,"
         "\"content\":\"b\"}]}",
         "added_tokens[0]"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":1,"
         "\"content\":\"a\"}]}",
         "two ids"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"post_processor\":{\"type\":"
         "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":"
         "{\"id\":\"A\"}}],\"special_tokens\":{\"x\":{\"ids\":[9]}}}}",
         "outside the vocabulary"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_refused(bad[i][0], NULL, bad[i][1]);
    char *deep = malloc(200001);
    memset(deep, '[', 200000);
    deep[200000] = '\0';
    assert_refused(deep, NULL, "nested");
    free(deep);
}

/* Every prefix of a real file, flush against unreadable memory. */
static void files_cut_anywhere_are_refused(void **state) {
    (void)state;
    size_t len;
    char *json = read_file(golden_path("qwen3-single-standard-none/tokenizer.json"), &len);
    for (size_t cut = 0; cut + 1 < len; cut += cut < 300 || cut + 300 > len ? 1 : 97) {
        if (len - cut < 3 && strspn(json + cut, " \r\n") == len - cut) continue;
        char *copy = guard_copy(json, cut);
        struct tokenizer *t = NULL;
        struct err err = {0};
        assert_true(tokenizer_from_json(copy, cut, NULL, 0, &t, &err) < 0);
        assert_null(t);
        guard_free(copy, cut);
    }
    free(json);
}

static void regular_expressions_are_rewritten_or_refused(void **state) {
    (void)state;
    static const struct {
        const char *regex, *text, *ids; /* ids NULL: refused */
    } cases[] = {
        {"\\\\h+", "xfFz", "88 95 90"}, /* Ruby: hexadecimal digits */
        {"(?i:F)+", "xfFz", "88 95 90"},
        {"f{,2}+", "ff", NULL},
        {"[a[b]]", "a", NULL},
        {"[a-z&&[^b]]", "a", NULL},
        {"(?<n>a)", "a", NULL},
        {"(?R)", "a", NULL},
        {"(*LIMIT_MATCH=1)a", "a", NULL},
        {"\\\\1", "a", NULL},
        {"\\\\G", "a", NULL},
        {"(a", "a", NULL},
        {"a(?i)b|c", "a", NULL},
        {"\\\\p{NoSuchScript}", "a", NULL},
        {"[", "a", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char members[512];
        snprintf(
            members, sizeof members,
            ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
            "\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
            "\"add_prefix_space\":false,\"use_regex\":false}]}",
            cases[i].regex);
        const char *model =
            ascii_model(",\"fF\":95,\"xf\":96,\"Fz\":97", "\"x f\",\"F z\",\"f F\"", "");
        if (!cases[i].ids) {
            assert_refused(file_of(model, members), NULL, "regular expression");
            continue;
        }
        struct tokenizer *t = from_text(file_of(model, members), NULL);
        assert_string_equal(encode(t, cases[i].text, true), cases[i].ids);
        tokenizer_destroy(t);
    }
}

static void hostile_expressions_end_in_an_error(void **state) {
    (void)state;
    const char *members =
        ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+$\"},"
        "\"behavior\":\"Isolated\"}";
    struct tokenizer *t = from_text(file_of(ascii_model("", "", ""), members), NULL);
    char text[64];
    memset(text, 'a', sizeof text);
    text[63] = 'b';
    struct text_run run = {text, sizeof text, true};
    struct tokens ids = {0};
    struct err err = {0};
    assert_int_equal(tokenizer_encode(t, &run, 1, false, &ids, &err), ERR_TOO_LONG);
    assert_int_equal(ids.n, 0);
    tokenizer_destroy(t);
}

static void long_words_take_time_in_proportion(void **state) {
    (void)state;
    struct model model = load_golden("qwen3-single-standard-none");
    size_t n = 1 << 20;
    char *text = malloc(n);
    static const char *const fills[] = {"he", " ", "a", "\n", "!"};
    for (size_t f = 0; f < ARRAY_LEN(fills); f++) {
        for (size_t i = 0; i < n; i++)
            text[i] = fills[f][i % strlen(fills[f])];
        struct tokens ids = {0};
        struct err err = {0};
        if (model_tokenize(&model, text, n, 0, &ids, &err)) fail_msg("%s", err.msg);
        char *back = NULL;
        size_t len = 0;
        assert_int_equal(model_detokenize(&model, ids.ids, ids.n, false, &back, &len, &err), OK);
        assert_int_equal(len, n);
        assert_memory_equal(back, text, n);
        free(back);
        tokens_free(&ids);
    }
    free(text);
    tokenizer_destroy(model.tokenizer);
}

/* ---- GGUF and plain pieces --------------------------------------------------------------------- */

static int gguf(const char *model, const char *pre, struct tokenizer **t, struct err *err) {
    static const char *const tokens[] = {"<s>", "a", "b", "1", "2", "ab", "12", "\xC4\xA0", "+x+"};
    static const size_t lens[] = {3, 1, 1, 1, 1, 2, 2, 2, 3};
    static const int32_t types[] = {3, 1, 1, 1, 1, 1, 1, 1, 4};
    static const char *const merges[] = {"a b", "1 2"};
    struct gguf_vocab vocab = {.model = model,
                               .pre = pre,
                               .n_tokens = 9,
                               .tokens = tokens,
                               .token_lens = lens,
                               .types = types,
                               .n_merges = 2,
                               .merges = merges,
                               .bos_id = 0,
                               .eos_id = -1,
                               .add_bos = -1,
                               .add_eos = -1};
    return tokenizer_from_gguf(&vocab, t, err);
}

static void gguf_vocabularies_follow_their_pre_or_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *pre, *ids;
    } cases[] = {{"smollm", "5 3 4 8 0"},
                 {"gpt-2", "5 6 8 0"},
                 {"llama-bpe", "0 5 6 8 0"},
                 {"qwen2", "5 3 4 8 0"}};
    struct text_run run = {"ab12+x+<s>", 10, true};
    struct err err = {0};
    struct tokenizer *t = NULL;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (gguf("gpt2", cases[i].pre, &t, &err)) fail_msg("%s", err.msg);
        assert_string_equal(encode_runs(t, &run, 1, true), cases[i].ids);
        assert_string_equal(tokenizer_named_special(t, "bos_token"), "<s>");
        tokenizer_destroy(t);
    }
    assert_int_equal(gguf("gpt2", "no-such-pre", &t, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "no-such-pre"));
    assert_int_equal(gguf("gpt2", NULL, &t, &err), ERR_INVALID);
    assert_int_equal(gguf("llama", "default", &t, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "llama"));
}

static void plain_pieces_match_longest_and_fall_back_to_id_0(void **state) {
    (void)state;
    static const char *const pieces[] = {"?", "a", "ab", "abc", "<eos>", "\xF0\x9F", "", "ab"};
    static const size_t lens[] = {1, 1, 2, 3, 5, 2, 0, 2};
    static const bool special[] = {false, false, false, false, true, false, false, false};
    struct tokenizer *t = NULL;
    struct err err = {0};
    assert_int_equal(tokenizer_from_pieces(pieces, lens, special, 8, &t, &err), OK);
    assert_string_equal(encode(t, "abcabxa", true), "3 2 0 1");
    assert_string_equal(encode(t, "a<eos>", true), "1 4");
    assert_string_equal(encode(t, "a<eos>", false), "1 0 0 0 0 0");
    assert_int_equal(tokenizer_n_tokens(t), 8);
    assert_int_equal(tokenizer_max_piece(t), 5);
    size_t len;
    tokenizer_piece(t, 6, false, &len);
    assert_int_equal(len, 0);
    tokenizer_piece(t, 4, true, &len);
    assert_int_equal(len, 0);
    assert_memory_equal(tokenizer_piece(t, 7, true, &len), "ab", 2); /* a text may repeat */
    assert_memory_equal(tokenizer_piece(t, 5, true, &len), "\xF0\x9F", 2);
    assert_int_equal(len, 2);
    tokenizer_destroy(t);
    tokenizer_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_texts_of_the_qwen_tokenizer_are_those_of_hugging_face),
        cmocka_unit_test(ids_and_texts_of_the_llama3_tokenizer_are_those_of_hugging_face),
        cmocka_unit_test(ids_outside_the_vocabulary_have_no_text_or_are_errors),
        cmocka_unit_test(S10_01_merges_as_pairs_and_as_strings),
        cmocka_unit_test(S10_02_merge_parts_that_hold_a_space),
        cmocka_unit_test(S10_03_pre_tokenizers_are_obeyed_or_refused_by_name),
        cmocka_unit_test(S10_04_normalizer_acts_exactly_when_named),
        cmocka_unit_test(S10_05_control_tokens_need_trust_for_every_byte),
        cmocka_unit_test(untrusted_words_never_become_control_tokens_by_lookup_or_merge),
        cmocka_unit_test(S10_06_start_token_is_added_once),
        cmocka_unit_test(S10_08_half_a_character_is_an_error_to_encode_and_a_byte_to_decode),
        cmocka_unit_test(S2_02_typed_byte_names_stay_text),
        cmocka_unit_test(flags_of_added_tokens_are_honoured),
        cmocka_unit_test(named_special_tokens_of_the_config_become_special),
        cmocka_unit_test(tokenizer_classes_with_their_own_template_obey_add_bos_token),
        cmocka_unit_test(malformed_files_are_refused_with_a_place),
        cmocka_unit_test(files_cut_anywhere_are_refused),
        cmocka_unit_test(regular_expressions_are_rewritten_or_refused),
        cmocka_unit_test(hostile_expressions_end_in_an_error),
        cmocka_unit_test(long_words_take_time_in_proportion),
        cmocka_unit_test(gguf_vocabularies_follow_their_pre_or_are_refused_by_name),
        cmocka_unit_test(plain_pieces_match_longest_and_fall_back_to_id_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
