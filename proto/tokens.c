#include <string.h>

#include "proto/json.h"
#include "proto/request_internal.h"

/* POST /tokenize and /detokenize: the same steps as a generation request (request.c), over fewer
 * fields, and the answers of these and of the render routes. */

/* ---- requests ----------------------------------------------------------------------------------- */

/* What is to be tokenised: one of three, and which. */
static const char *source_of(const struct fields *fields, struct api_error *err) {
    static const char *const names[] = {"prompt", "content", "messages"};
    const char *found = NULL;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (!fields_get(fields, names[i])) continue;
        if (found) {
            api_error_set(err, API_INVALID_VALUE, names[i],
                          "%s and %s are both given, one of them is wanted", found, names[i]);
            return NULL;
        }
        found = names[i];
    }
    if (!found)
        api_error_set(err, API_MISSING_REQUIRED_PARAMETER, "prompt",
                      "prompt (or content, or messages) is required");
    return found;
}

static int check_types(const struct fields *fields, const struct value *root,
                       const struct proto_limits *limits, struct api_error *err) {
    int rc = limits->strict_params ? fields_check_names(fields->kind, root, err) : OK;
    if (rc) return rc;
    if (fields->kind == ROUTE_DETOKENIZE) {
        struct value *ids = fields_get(fields, "tokens");
        if (!ids)
            return api_error_set(err, API_MISSING_REQUIRED_PARAMETER, "tokens",
                                 "tokens is required");
        rc = fields_check_types(fields, err);
        for (size_t i = 0; !rc && i < ids->n_items; i++)
            rc = fields_want(&ids->items[i], TYPE_INT, err, "tokens");
        return rc;
    }
    struct value *messages = fields_get(fields, "messages");
    rc = fields_check_types(fields, err);
    return !rc && messages ? messages_check_types(messages, err) : rc;
}

static int store_tokenize(const struct fields *fields, const struct proto_limits *limits,
                          size_t *values_left, struct api_request *request, struct api_error *err) {
    const char *name = source_of(fields, err);
    if (!name) return ERR_INVALID;
    struct value *source = fields_get(fields, name);
    if (source->kind == VALUE_STRING) {
        request->prompts[0] = (struct prompt){.text = source->text, .text_len = source->len};
        return OK;
    }
    int rc = messages_store(source, limits, values_left, request, err);
    if (rc) return rc;
    return messages_store_kwargs(fields_get(fields, "chat_template_kwargs"),
                                 fields_get(fields, "reasoning_effort"), request, err);
}

static int store_detokenize(const struct fields *fields, const struct proto_limits *limits,
                            struct api_request *request, struct api_error *err) {
    const struct value *ids = fields_get(fields, "tokens");
    if (!ids->n_items) return OK; /* an empty text */
    return prompt_store_ids(ids, "tokens", limits, request->arena, &request->prompts[0], err);
}

static int store(const struct fields *fields, const struct proto_limits *limits,
                 size_t *values_left, struct api_request *request, struct api_error *err) {
    int rc = fields_check_values(fields, limits, err);
    if (rc) return rc;
    fields_store(fields, request);
    request->n_prompts = 1;
    request->prompts = arena_alloc(request->arena, sizeof *request->prompts);
    if (!request->prompts) return request_no_memory(err);
    if (fields->kind == ROUTE_DETOKENIZE) return store_detokenize(fields, limits, request, err);
    return store_tokenize(fields, limits, values_left, request, err);
}

int proto_parse_tokens(enum route_kind kind, const char *body, size_t len,
                       const struct proto_limits *limits, struct api_request *out,
                       struct api_error *err) {
    struct api_request request = {.arena = arena_create(request_arena_limit(len)),
                                  .kind = kind,
                                  .add_special_tokens = true,
                                  .add_generation_prompt = true};
    if (!request.arena) return request_no_memory(err);
    size_t values_left = JSON_VALUES_MAX;
    struct value root;
    struct fields fields;
    int rc = request_parse_body(body, len, &values_left, request.arena, &root, err);
    if (!rc) fields_collect(kind, &root, &fields);
    if (!rc && fields_note_ignored(&root, &request)) rc = request_no_memory(err);
    if (!rc) rc = request_check_model(&fields, limits, &request, err);
    if (!rc) rc = check_types(&fields, &root, limits, err);
    if (!rc) rc = store(&fields, limits, &values_left, &request, err);
    if (rc) {
        arena_destroy(request.arena);
        return rc;
    }
    *out = request;
    return OK;
}

/* ---- answers ------------------------------------------------------------------------------------ */

void proto_tokenized(struct buf *out, const int32_t *ids, uint32_t n, uint32_t max_model_len,
                     const struct token_str *strs) {
    buf_fmt(out, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":", n, max_model_len);
    buf_ids(out, ids, n);
    buf_str(out, ",\"token_strs\":");
    if (!strs) {
        buf_str(out, "null}");
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        buf_str(out, i ? "," : "[");
        buf_json(out, strs[i].text, strs[i].len);
    }
    buf_str(out, n ? "]}" : "[]}");
}

void proto_detokenized(struct buf *out, const char *text, size_t len) {
    buf_str(out, "{\"prompt\":");
    buf_json(out, text, len);
    buf_str(out, ",\"content\":");
    buf_json(out, text, len);
    buf_str(out, "}");
}

void proto_rendered(struct buf *out, const char *request_id, const int32_t *ids, uint32_t n) {
    buf_str(out, "{\"request_id\":");
    buf_json(out, request_id, strlen(request_id));
    buf_str(out, ",\"token_ids\":");
    buf_ids(out, ids, n);
    buf_str(out, "}");
}
