/* tokenizer_golden.h: runs a tests/golden/tokenizer-*.json against a model's text side. */
#ifndef GERYON_TOKENIZER_GOLDEN_H
#define GERYON_TOKENIZER_GOLDEN_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "tests/harness.h"

static inline void assert_ids(const struct tokens *got, const json_t *want, const char *text) {
    bool same = got->n == json_array_size(want);
    for (uint32_t i = 0; same && i < got->n; i++)
        same = got->ids[i] == json_integer_value(json_array_get(want, i));
    if (same) return;
    char *dump = json_dumps(want, JSON_COMPACT);
    print_message("text: %s\nwant %s\ngot  ", text, dump);
    for (uint32_t i = 0; i < got->n; i++)
        print_message("%d,", got->ids[i]);
    free(dump);
    fail_msg("ids differ");
}

static inline void assert_tokenizes(const struct model *model, const char *text, size_t len,
                                    unsigned flags, const json_t *want) {
    struct tokens ids = {0};
    struct err err = {0};
    if (model_tokenize(model, text, len, flags, &ids, &err)) fail_msg("%s", err.msg);
    assert_ids(&ids, want, text);
    tokens_free(&ids);
}

static inline void assert_detokenizes(const struct model *model, const json_t *ids, bool skip,
                                      const json_t *want) {
    uint32_t n = (uint32_t)json_array_size(ids);
    int32_t *list = malloc((n + 1) * sizeof *list);
    for (uint32_t i = 0; i < n; i++)
        list[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    char *text = NULL;
    size_t len = 0;
    struct err err = {0};
    if (model_detokenize(model, list, n, skip, &text, &len, &err)) fail_msg("%s", err.msg);
    assert_string_equal(text, json_string_value(want));
    assert_int_equal(len, json_string_length(want));
    free(text);
    free(list);
}

static inline void run_golden(const struct model *model, const char *file) {
    size_t len;
    char *bytes = read_file(golden_path(file), &len);
    json_t *golden = json_loadb(bytes, len, JSON_ALLOW_NUL, NULL), *e;
    assert_non_null(golden);
    size_t i;
    json_array_foreach(json_object_get(golden, "encode"), i, e) {
        const char *text = json_string_value(json_object_get(e, "text"));
        size_t text_len = json_string_length(json_object_get(e, "text"));
        const json_t *ids = json_object_get(e, "ids");
        const json_t *special = json_object_get(e, "ids_with_special");
        /* Hugging Face adds a start token even before one that is there; we do not (S10-06). */
        int32_t bos = tokenizer_bos(model->tokenizer);
        if (bos >= 0 && json_array_size(ids) && json_integer_value(json_array_get(ids, 0)) == bos)
            special = ids;
        const json_t *skipped = json_object_get(e, "decoded_skip_special");
        assert_tokenizes(model, text, text_len, TOKENIZE_PARSE_SPECIAL, ids);
        assert_tokenizes(model, text, text_len, TOKENIZE_PARSE_SPECIAL | TOKENIZE_ADD_SPECIAL,
                         special ? special : ids);
        assert_detokenizes(model, ids, false, json_object_get(e, "decoded"));
        assert_detokenizes(model, ids, true, skipped ? skipped : json_object_get(e, "decoded"));
    }
    assert_true(i > 80);
    json_array_foreach(json_object_get(golden, "decode"), i, e)
        assert_detokenizes(model, json_object_get(e, "ids"), false, json_object_get(e, "decoded"));
    assert_true(i > 30);
    json_array_foreach(json_object_get(golden, "chat"), i, e) {
        const json_t *text = json_object_get(e, "text");
        assert_tokenizes(model, json_string_value(text), json_string_length(text),
                         TOKENIZE_PARSE_SPECIAL, json_object_get(e, "ids"));
    }
    json_decref(golden);
    free(bytes);
}

#endif
