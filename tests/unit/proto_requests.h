/* proto_requests.h: bodies parsed and refused, for the unit tests of proto/request.c and its parts.
 * Bodies lie flush against an unreadable page; prompts hold the word SECRET, which no error may say. */
#ifndef GERYON_TEST_PROTO_REQUESTS_H
#define GERYON_TEST_PROTO_REQUESTS_H

#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"

enum { VOCAB = 1000 };

static const char *const served[] = {"first", "second"};

static inline struct proto_limits limits_default(void) {
    return (struct proto_limits){.vocab_size = VOCAB,
                                 .max_n = 16,
                                 .max_choices = 128,
                                 .tokenizer_adds_bos = true,
                                 .has_chat_template = true,
                                 .model_names = served,
                                 .n_model_names = 2};
}

/* What every error must be, whatever caused it. */
static inline void assert_sound_error(const struct api_error *err) {
    assert_in_range(err->status, 400, 599);
    assert_true(strlen(err->message) > 0);
    assert_null(strstr(err->message, "SECRET"));
    assert_null(strstr(err->param, "SECRET"));
    struct buf body = {0};
    proto_error_body(&body, err);
    struct arena *arena = arena_create(1 << 16);
    struct value value;
    struct api_error none;
    assert_int_equal(proto_parse_json(body.data, body.len, arena, &value, &none), OK);
    assert_int_equal(value_get(&value, "error")->n_items, 4);
    arena_destroy(arena);
    buf_free(&body);
}

static inline int parse_with(enum route_kind kind, const char *body, size_t len,
                             const struct proto_limits *limits, struct api_request *out,
                             struct api_error *err) {
    char *copy = guard_copy(body, len);
    memset(err, 0x5A, sizeof *err);
    int rc = proto_parse_request(kind, copy, len, limits, out, err);
    guard_free(copy, len);
    if (rc) assert_sound_error(err);
    return rc;
}

static inline void refused_with(enum route_kind kind, const char *body,
                                const struct proto_limits *limits, const char *code,
                                const char *param) {
    struct api_request out, before;
    struct api_error err;
    memset(&out, 0x33, sizeof out);
    memset(&before, 0x33, sizeof before);
    int rc = parse_with(kind, body, strlen(body), limits, &out, &err);
    if (rc != ERR_INVALID) fail_msg("accepted: %s", body);
    if (strcmp(err.code, code) || strcmp(err.param, param))
        fail_msg("%s: %s at '%s' (%s), expected %s at '%s'", body, err.code, err.param, err.message,
                 code, param);
    assert_memory_equal(&out, &before, sizeof out); /* untouched on failure */
}

static inline void refused(enum route_kind kind, const char *body, const char *code,
                           const char *param) {
    struct proto_limits limits = limits_default();
    refused_with(kind, body, &limits, code, param);
}

static inline struct api_request accepted_with(enum route_kind kind, const char *body,
                                               const struct proto_limits *limits) {
    struct api_request out;
    struct api_error err;
    if (parse_with(kind, body, strlen(body), limits, &out, &err))
        fail_msg("%s: %s at '%s' (%s)", body, err.code, err.param, err.message);
    return out;
}

static inline struct api_request accepted(enum route_kind kind, const char *body) {
    struct proto_limits limits = limits_default();
    return accepted_with(kind, body, &limits);
}

/* A small body of the route with one more member, `"name":json`; free it. */
static inline char *body_with(enum route_kind kind, const char *name, const char *json) {
    const char *base = kind == ROUTE_CHAT
                           ? "\"messages\":[{\"role\":\"user\",\"content\":\"SECRET\"}]"
                           : "\"prompt\":\"SECRET\"";
    size_t cap = strlen(base) + strlen(name) + strlen(json) + 16;
    char *body = malloc(cap);
    assert_non_null(body);
    snprintf(body, cap, "{%s,\"%s\":%s}", base, name, json);
    return body;
}

static inline void refused_field(enum route_kind kind, const char *name, const char *json,
                                 const char *code) {
    char *body = body_with(kind, name, json);
    refused(kind, body, code, name);
    free(body);
}

static inline struct api_request accepted_field(enum route_kind kind, const char *name,
                                                const char *json) {
    char *body = body_with(kind, name, json);
    struct api_request request = accepted(kind, body);
    free(body);
    return request;
}

/* [ item, item, ... ] of n; free it. */
static inline char *list_of(const char *item, size_t n) {
    char *text = malloc(n * (strlen(item) + 1) + 3), *at = text;
    *at++ = '[';
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, "%s%s", i ? "," : "", item);
    strcpy(at, "]");
    return text;
}

static inline char *string_of(size_t n) {
    char *text = malloc(n + 3);
    text[0] = '"';
    memset(text + 1, 's', n);
    strcpy(text + 1 + n, "\"");
    return text;
}

#endif
