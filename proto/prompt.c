#include <stdio.h>

#include "proto/request_internal.h"

/* The forms of a prompt, told apart by its first element:
 *
 *   "text"      ["text", "text"]      [1, 2, 3]      [[1, 2], [3]]
 *   one text    two texts             one of ids     two of ids
 *
 * param is `prompt[i]` where the i-th prompt is at fault, else `prompt`. */

static int check_ids_types(const struct value *ids, const char *path, struct api_error *err) {
    for (size_t i = 0; i < ids->n_items; i++) {
        int rc = fields_want(&ids->items[i], TYPE_INT, err, "%s", path);
        if (rc) return rc;
    }
    return OK;
}

int prompt_check_types(const struct value *prompt, struct api_error *err) {
    if (prompt->kind == VALUE_STRING || prompt->n_items == 0) return OK;
    switch (prompt->items[0].kind) {
    case VALUE_INT:
    case VALUE_REAL:
        return check_ids_types(prompt, "prompt", err);
    case VALUE_STRING:
    case VALUE_ARRAY:
        break;
    default:
        return api_error_set(err, API_INVALID_TYPE, "prompt",
                             "prompt must hold strings, token ids or arrays of token ids");
    }
    unsigned types = prompt->items[0].kind == VALUE_STRING ? TYPE_STRING : TYPE_ARRAY;
    for (size_t i = 0; i < prompt->n_items; i++) {
        char path[32];
        snprintf(path, sizeof path, "prompt[%zu]", i);
        int rc = fields_want(&prompt->items[i], types, err, "%s", path);
        if (!rc && types == TYPE_ARRAY) rc = check_ids_types(&prompt->items[i], path, err);
        if (rc) return rc;
    }
    return OK;
}

int prompt_store_ids(const struct value *ids, const char *path, const struct proto_limits *limits,
                     struct arena *arena, struct prompt *out, struct api_error *err) {
    if (ids->n_items == 0)
        return api_error_set(err, API_INVALID_VALUE, path, "%s must not be an empty array", path);
    int32_t *to = arena_alloc(arena, ids->n_items * sizeof *to);
    if (!to) return request_no_memory(err);
    for (size_t i = 0; i < ids->n_items; i++) {
        int64_t id;
        char got[CHARS_NUMBER_CAP];
        if (!fields_int(&ids->items[i], &id) || id < 0 || id >= (int64_t)limits->vocab_size)
            return api_error_set(err, API_INVALID_VALUE, path,
                                 "%s must hold token ids between 0 and %u, got %s", path,
                                 limits->vocab_size - 1, fields_describe(&ids->items[i], got));
        to[i] = (int32_t)id;
    }
    *out = (struct prompt){.ids = to, .n_ids = (uint32_t)ids->n_items};
    return OK;
}

static int store_one(const struct value *prompt, const char *path,
                     const struct proto_limits *limits, struct api_request *request,
                     struct prompt *out, struct api_error *err) {
    if (prompt->kind == VALUE_ARRAY)
        return prompt_store_ids(prompt, path, limits, request->arena, out, err);
    if (prompt->len == 0 && !(limits->tokenizer_adds_bos && request->add_special_tokens))
        return api_error_set(err, API_INVALID_VALUE, path,
                             "%s must not be empty: no start token would be added", path);
    *out = (struct prompt){.text = prompt->text, .text_len = prompt->len};
    return OK;
}

int prompt_store(const struct value *prompt, const struct proto_limits *limits,
                 struct api_request *request, struct api_error *err) {
    bool is_list = prompt->kind == VALUE_ARRAY && prompt->n_items > 0 &&
                   (prompt->items[0].kind == VALUE_STRING || prompt->items[0].kind == VALUE_ARRAY);
    size_t n = is_list ? prompt->n_items : 1;
    if (n > limits->max_choices)
        return api_error_set(err, API_INVALID_VALUE, "prompt",
                             "prompt must hold at most %u prompts, got %zu", limits->max_choices,
                             n);
    request->prompts = arena_alloc(request->arena, n * sizeof *request->prompts);
    if (!request->prompts) return request_no_memory(err);
    request->n_prompts = (uint32_t)n;
    if (!is_list) return store_one(prompt, "prompt", limits, request, request->prompts, err);
    for (size_t i = 0; i < n; i++) {
        char path[32];
        snprintf(path, sizeof path, "prompt[%zu]", i);
        int rc = store_one(&prompt->items[i], path, limits, request, &request->prompts[i], err);
        if (rc) return rc;
    }
    return OK;
}
