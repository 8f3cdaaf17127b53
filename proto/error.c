#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/chars.h"
#include "proto/proto.h"

static const char REQUEST[] = "invalid_request_error";
static const char UNAVAILABLE[] = "unavailable_error";
static const char TIMEOUT[] = "timeout_error";

/* The one table from what went wrong to what the client sees. */
static const struct {
    int status;
    const char *type, *code;
} codes[API_CODE_COUNT] = {
    [API_INVALID_JSON] = {400, REQUEST, "invalid_json"},
    [API_MISSING_REQUIRED_PARAMETER] = {400, REQUEST, "missing_required_parameter"},
    [API_INVALID_TYPE] = {400, REQUEST, "invalid_type"},
    [API_INVALID_VALUE] = {400, REQUEST, "invalid_value"},
    [API_UNSUPPORTED_PARAMETER] = {400, REQUEST, "unsupported_parameter"},
    [API_MALFORMED_REQUEST] = {400, REQUEST, "malformed_request"},
    [API_HTTP_VERSION_NOT_SUPPORTED] = {505, REQUEST, "http_version_not_supported"},
    [API_UNKNOWN_PARAMETER] = {400, REQUEST, "unknown_parameter"},
    [API_CONTEXT_LENGTH_EXCEEDED] = {400, REQUEST, "context_length_exceeded"},
    [API_INVALID_SCHEMA] = {400, REQUEST, "invalid_schema"},
    [API_INVALID_API_KEY] = {401, "authentication_error", "invalid_api_key"},
    [API_MODEL_NOT_FOUND] = {404, REQUEST, "model_not_found"},
    [API_UNKNOWN_URL] = {404, REQUEST, "unknown_url"},
    [API_METHOD_NOT_ALLOWED] = {405, REQUEST, "method_not_allowed"},
    [API_REQUEST_TIMEOUT] = {408, REQUEST, "request_timeout"},
    [API_REQUEST_TOO_LARGE] = {413, REQUEST, "request_too_large"},
    [API_URI_TOO_LONG] = {414, REQUEST, "uri_too_long"},
    [API_UNSUPPORTED_MEDIA_TYPE] = {415, REQUEST, "unsupported_media_type"},
    [API_HEADERS_TOO_LARGE] = {431, REQUEST, "headers_too_large"},
    [API_QUEUE_FULL] = {429, "overloaded_error", "queue_full"},
    [API_INTERNAL_ERROR] = {500, "server_error", "internal_error"},
    [API_MODEL_LOADING] = {503, UNAVAILABLE, "model_loading"},
    [API_SHUTTING_DOWN] = {503, UNAVAILABLE, "shutting_down"},
    [API_ENGINE_FAILED] = {503, UNAVAILABLE, "engine_failed"},
    [API_TOO_MANY_CONNECTIONS] = {503, UNAVAILABLE, "too_many_connections"},
    [API_QUEUE_TIMEOUT] = {504, TIMEOUT, "queue_timeout"},
    [API_DEADLINE] = {504, TIMEOUT, "request_timeout"},
};

/* Copy a NUL-terminated text, cut at a whole character where it does not fit. */
static void copy_cut(char *out, size_t cap, const char *text) {
    size_t n = chars_cut(text, strlen(text), cap - 1);
    memcpy(out, text, n);
    out[n] = '\0';
}

int api_error_set(struct api_error *err, enum api_code code, const char *param, const char *fmt,
                  ...) {
    ASSERT(code < API_CODE_COUNT);
    /* Four bytes more than a message holds: the cut sees whether it would part a character. */
    char text[sizeof err->message + 4];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0) text[0] = '\0';
    err->status = codes[code].status;
    err->type = codes[code].type;
    err->code = codes[code].code;
    copy_cut(err->param, sizeof err->param, param ? param : "");
    copy_cut(err->message, sizeof err->message, text);
    return ERR_INVALID;
}

void proto_error_body(struct buf *out, const struct api_error *err) {
    buf_str(out, "{\"error\":{\"message\":");
    buf_json(out, err->message, strlen(err->message));
    buf_str(out, ",\"type\":");
    buf_json(out, err->type, strlen(err->type));
    buf_str(out, ",\"param\":");
    if (err->param[0])
        buf_json(out, err->param, strlen(err->param));
    else
        buf_str(out, "null");
    buf_str(out, ",\"code\":");
    buf_json(out, err->code, strlen(err->code));
    buf_str(out, "}}");
}
