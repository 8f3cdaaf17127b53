#include <string.h>

#include "proto/json.h"
#include "proto/request_internal.h"

/* A body's way, each step over all fields before the next, the first fault reported:
 *
 *   bytes -> JSON -> model -> types -> ranges -> contradictions -> struct api_request
 *
 * The table of fields.c does what it can in each step; stop, stop_token_ids, cache_salt and
 * stream_options are here, logit_bias in bias.c, prompts in prompt.c, conversations in messages.c. */

int request_no_memory(struct api_error *err) {
    return api_error_set(err, API_INTERNAL_ERROR, NULL, "out of memory");
}

static void request_defaults(struct api_request *request, enum route_kind kind,
                             const struct sampling *defaults) {
    request->kind = kind;
    request->n = 1;
    request->cache_salt = "";
    request->max_tokens = kind == ROUTE_COMPLETION ? 16 : -1;
    request->add_special_tokens = true;
    request->add_generation_prompt = true;
    if (defaults)
        request->sampling = *defaults;
    else
        sampling_defaults(&request->sampling);
}

/* A parsed body costs at most a value, a key with its text and a string of its own, each rounded up,
 * for every two bytes or so; beyond JSON_VALUES_MAX no more of them. Texts are copied once, joined
 * contents once more. Only a bound: the arena grows as it is used. */
size_t request_arena_limit(size_t len) {
    size_t n_values = len < JSON_VALUES_MAX ? len : JSON_VALUES_MAX;
    return ((size_t)1 << 16) + n_values * 256 + len * 4;
}

int request_parse_body(const char *body, size_t len, size_t *values_left, struct arena *arena,
                       struct value *out, struct api_error *err) {
    int rc = json_parse_counted(body, len, values_left, arena, out, err);
    if (rc) return rc;
    if (out->kind != VALUE_OBJECT)
        return api_error_set(err, API_INVALID_JSON, NULL,
                             "the body must be a JSON object: another value at line 1, column 1");
    return OK;
}

/* ---- model -------------------------------------------------------------------------------------- */

int request_check_model(const struct fields *fields, const struct proto_limits *limits,
                        struct api_request *request, struct api_error *err) {
    ASSERT(limits->n_model_names > 0);
    const struct value *model = fields_get(fields, "model");
    const char *name = model ? NULL : limits->model_names[0];
    if (model) {
        int rc = fields_want(model, TYPE_STRING, err, "model");
        if (rc) return rc;
        for (size_t i = 0; i < limits->n_model_names; i++)
            if (fields_equal(model, limits->model_names[i])) name = limits->model_names[i];
    }
    if (!name) {
        char quoted[CHARS_QUOTE_CAP];
        return api_error_set(err, API_MODEL_NOT_FOUND, "model", "the model %s is not served here",
                             chars_quote(quoted, model->text, model->len));
    }
    request->model = arena_strndup(request->arena, name, strlen(name));
    return request->model ? OK : request_no_memory(err);
}

/* ---- stop, stop_token_ids, stream_options, cache_salt -------------------------------------------- */

static int check_elements(const struct value *array, unsigned types, const char *name,
                          struct api_error *err) {
    for (size_t i = 0; i < array->n_items; i++) {
        int rc = fields_want(&array->items[i], types, err, "%s", name);
        if (rc) return rc;
    }
    return OK;
}

static int check_stream_options(struct value *options, const struct proto_limits *limits,
                                struct api_error *err) {
    static const char *const known[] = {"include_usage", "continuous_usage_stats",
                                        "include_obfuscation"};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        const struct value *option = fields_member(options, known[i]);
        int rc = option ? fields_want(option, TYPE_BOOL, err, "stream_options.%s", known[i]) : OK;
        if (rc) return rc;
    }
    for (size_t i = 0; limits->strict_params && i < options->n_items; i++) {
        const struct value_key *key = &options->keys[i];
        bool found = false;
        for (size_t k = 0; k < ARRAY_LEN(known); k++)
            found |= key->len == strlen(known[k]) && !memcmp(key->text, known[k], key->len);
        if (found) continue;
        char quoted[CHARS_QUOTE_CAP];
        return api_error_set(err, API_UNKNOWN_PARAMETER, "stream_options",
                             "the field %s is not known in stream_options",
                             chars_quote(quoted, key->text, key->len));
    }
    return OK;
}

static int store_stop_string(const struct value *text, struct sampling *sampling,
                             struct api_error *err) {
    if (text->len < 1 || text->len > STOP_STRING_BYTES_MAX)
        return api_error_set(err, API_INVALID_VALUE, "stop",
                             "stop must hold strings of 1 to %d bytes, got one of %zu",
                             STOP_STRING_BYTES_MAX, text->len);
    ASSERT(sampling->n_stop < STOP_STRINGS_MAX);
    uint32_t at = sampling->n_stop++;
    sampling->stop[at].len = (uint16_t)text->len;
    memcpy(sampling->stop[at].text, text->text, text->len);
    return OK;
}

static int store_stop(const struct value *stop, struct sampling *sampling, struct api_error *err) {
    if (stop->kind == VALUE_STRING) return store_stop_string(stop, sampling, err);
    if (stop->n_items > STOP_STRINGS_MAX)
        return api_error_set(err, API_INVALID_VALUE, "stop",
                             "stop must hold at most %d strings, got %zu", STOP_STRINGS_MAX,
                             stop->n_items);
    for (size_t i = 0; i < stop->n_items; i++) {
        int rc = store_stop_string(&stop->items[i], sampling, err);
        if (rc) return rc;
    }
    return OK;
}

static int store_stop_ids(const struct value *ids, const struct proto_limits *limits,
                          struct sampling *sampling, struct api_error *err) {
    if (ids->n_items > STOP_IDS_MAX)
        return api_error_set(err, API_INVALID_VALUE, "stop_token_ids",
                             "stop_token_ids must hold at most %d ids, got %zu", STOP_IDS_MAX,
                             ids->n_items);
    for (size_t i = 0; i < ids->n_items; i++) {
        int64_t id;
        char got[CHARS_NUMBER_CAP];
        if (!fields_int(&ids->items[i], &id) || id < 0 || id >= (int64_t)limits->vocab_size)
            return api_error_set(err, API_INVALID_VALUE, "stop_token_ids",
                                 "stop_token_ids must hold token ids between 0 and %u, got %s",
                                 limits->vocab_size - 1, fields_describe(&ids->items[i], got));
        sampling->stop_ids[sampling->n_stop_ids++] = (int32_t)id;
    }
    return OK;
}

static int store_salt(const struct value *salt, struct api_request *request,
                      struct api_error *err) {
    if (salt->len > CACHE_SALT_BYTES_MAX)
        return api_error_set(err, API_INVALID_VALUE, "cache_salt",
                             "cache_salt must hold at most %d bytes, got %zu", CACHE_SALT_BYTES_MAX,
                             salt->len);
    request->cache_salt = salt->text;
    request->cache_salt_len = (uint32_t)salt->len;
    return OK;
}

/* ---- the steps ---------------------------------------------------------------------------------- */

static int check_types(const struct fields *fields, const struct value *root,
                       const struct proto_limits *limits, struct api_error *err) {
    const char *source = fields->kind == ROUTE_COMPLETION ? "prompt" : "messages";
    struct value *from = fields_get(fields, source);
    struct value *stop = fields_get(fields, "stop"), *ids = fields_get(fields, "stop_token_ids");
    struct value *options = fields_get(fields, "stream_options");
    struct value *bias = fields_get(fields, "logit_bias");
    int rc = limits->strict_params ? fields_check_names(fields->kind, root, err) : OK;
    if (rc) return rc;
    if (!from)
        return api_error_set(err, API_MISSING_REQUIRED_PARAMETER, source, "%s is required", source);
    rc = fields_check_types(fields, err);
    if (!rc && fields->kind == ROUTE_COMPLETION) rc = prompt_check_types(from, err);
    if (!rc && fields->kind == ROUTE_CHAT) rc = messages_check_types(from, err);
    if (!rc && options) rc = check_stream_options(options, limits, err);
    if (!rc && stop && stop->kind == VALUE_ARRAY)
        rc = check_elements(stop, TYPE_STRING, "stop", err);
    if (!rc && ids) rc = check_elements(ids, TYPE_INT, "stop_token_ids", err);
    if (!rc && bias) rc = bias_check_types(bias, err);
    return rc;
}

/* The integers, whose ranges the table has checked. */
static void store_integers(const struct fields *fields, struct api_request *request) {
    const bool chat = fields->kind == ROUTE_CHAT;
    const struct value *first = chat ? fields_get(fields, "max_completion_tokens") : NULL;
    const struct value *max = first ? first : fields_get(fields, "max_tokens");
    const struct value *min = fields_get(fields, "min_tokens");
    const struct value *top_k = fields_get(fields, "top_k"), *seed = fields_get(fields, "seed");
    const struct value *n = fields_get(fields, "n"), *priority = fields_get(fields, "priority");
    struct sampling *sampling = &request->sampling;
    int64_t number = 0;
    if (max && fields_int(max, &number)) request->max_tokens = number;
    if (n && fields_int(n, &number)) request->n = (uint32_t)number;
    if (priority && fields_int(priority, &number)) request->priority = (int32_t)number;
    /* No text is 2^32 tokens long, so a larger minimum says no more than this one. */
    if (min && fields_int(min, &number))
        sampling->min_tokens = number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
    if (top_k && fields_int(top_k, &number)) sampling->top_k = number > 0 ? (int32_t)number : 0;
    if (seed && fields_int(seed, &number)) {
        sampling->has_seed = true;
        sampling->seed = (uint64_t)number;
    }
}

static int store_source(const struct fields *fields, const struct proto_limits *limits,
                        size_t *values_left, struct api_request *request, struct api_error *err) {
    if (fields->kind == ROUTE_COMPLETION)
        return prompt_store(fields_get(fields, "prompt"), limits, request, err);
    int rc = messages_store(fields_get(fields, "messages"), limits, values_left, request, err);
    if (rc) return rc;
    return messages_store_kwargs(fields_get(fields, "chat_template_kwargs"),
                                 fields_get(fields, "reasoning_effort"), request, err);
}

static int store_values(const struct fields *fields, const struct proto_limits *limits,
                        size_t *values_left, struct api_request *request, struct api_error *err) {
    struct value *stop = fields_get(fields, "stop"), *ids = fields_get(fields, "stop_token_ids");
    struct value *options = fields_get(fields, "stream_options");
    struct value *bias = fields_get(fields, "logit_bias"), *salt = fields_get(fields, "cache_salt");
    int rc = fields_check_values(fields, limits, err);
    if (rc) return rc;
    fields_store(fields, request);
    store_integers(fields, request);
    if (options) {
        const struct value *usage = fields_member(options, "include_usage");
        const struct value *running = fields_member(options, "continuous_usage_stats");
        request->include_usage = usage && usage->boolean;
        request->continuous_usage_stats = running && running->boolean;
    }
    rc = store_source(fields, limits, values_left, request, err);
    if (!rc && stop) rc = store_stop(stop, &request->sampling, err);
    if (!rc && ids) rc = store_stop_ids(ids, limits, &request->sampling, err);
    if (!rc && bias) rc = bias_store(bias, limits, request, err);
    if (!rc && salt) rc = store_salt(salt, request, err);
    return rc;
}

/* Candidates are ranked by log-probabilities, so only as many as are returned for now. */
static int check_best_of(const struct value *best_of, uint32_t n, struct api_error *err) {
    int64_t number = n;
    if (best_of) fields_int(best_of, &number);
    if (number < n)
        return api_error_set(err, API_INVALID_VALUE, "best_of",
                             "best_of must not be below n, got %lld with n %u", (long long)number,
                             n);
    if (number > n)
        return api_error_set(err, API_UNSUPPORTED_PARAMETER, "best_of",
                             "best_of is supported only where it equals n, got %lld with n %u",
                             (long long)number, n);
    return OK;
}

static int check_choices(const struct fields *fields, const struct proto_limits *limits,
                         const struct api_request *request, struct api_error *err) {
    uint32_t n_prompts = fields->kind == ROUTE_COMPLETION ? request->n_prompts : 1;
    if ((uint64_t)request->n * n_prompts > limits->max_choices)
        return api_error_set(err, API_INVALID_VALUE, "n",
                             "n times prompts must not be above %u, got %u times %u",
                             limits->max_choices, request->n, n_prompts);
    return fields->kind == ROUTE_COMPLETION
               ? check_best_of(fields_get(fields, "best_of"), request->n, err)
               : OK;
}

/* Fields that are right each, but not together. */
static int check_together(const struct fields *fields, const struct proto_limits *limits,
                          const struct api_request *request, struct api_error *err) {
    const struct value *min = fields_get(fields, "min_tokens");
    int64_t min_tokens = 0; /* as sent: request has what fits 32 bits */
    if (min) fields_int(min, &min_tokens);
    int rc = check_choices(fields, limits, request, err);
    if (rc) return rc;
    if (fields_get(fields, "stream_options") && !request->stream)
        return api_error_set(err, API_INVALID_VALUE, "stream_options",
                             "stream_options is allowed only with stream: true");
    if (request->max_tokens == 0) /* with echo it would score a prompt */
        return api_error_set(err, API_INVALID_VALUE, "max_tokens",
                             "max_tokens must be at least 1 without echo, got 0");
    if (request->max_tokens > 0 && min_tokens > request->max_tokens)
        return api_error_set(err, API_INVALID_VALUE, "min_tokens",
                             "min_tokens must not be above the token limit of %lld, got %lld",
                             (long long)request->max_tokens, (long long)min_tokens);
    if (request->priority && !limits->has_priorities)
        return api_error_set(err, API_INVALID_VALUE, "priority",
                             "priority must be 0 where the server runs without --scheduling "
                             "priority, got %d",
                             request->priority);
    return OK;
}

int proto_parse_request(enum route_kind kind, const char *body, size_t len,
                        const struct proto_limits *limits, struct api_request *out,
                        struct api_error *err) {
    struct api_request request = {.arena = arena_create(request_arena_limit(len))};
    if (!request.arena) return request_no_memory(err);
    request_defaults(&request, kind, limits->defaults);
    size_t values_left = JSON_VALUES_MAX;
    struct value root;
    struct fields fields;
    int rc = request_parse_body(body, len, &values_left, request.arena, &root, err);
    if (!rc) fields_collect(kind, &root, &fields);
    if (!rc && fields_note_ignored(&root, &request)) rc = request_no_memory(err);
    if (!rc) rc = request_check_model(&fields, limits, &request, err);
    if (!rc) rc = check_types(&fields, &root, limits, err);
    if (!rc) rc = store_values(&fields, limits, &values_left, &request, err);
    if (!rc) rc = check_together(&fields, limits, &request, err);
    if (rc) {
        arena_destroy(request.arena);
        return rc;
    }
    *out = request;
    return OK;
}

void api_request_free(struct api_request *request) {
    arena_destroy(request->arena);
    *request = (struct api_request){0};
}
