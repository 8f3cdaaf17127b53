#include "proto/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum routes {
    COMPLETION = 1 << ROUTE_COMPLETION,
    CHAT = 1 << ROUTE_CHAT,
    BOTH = COMPLETION | CHAT,
    TOKENIZE = 1 << ROUTE_TOKENIZE,
    DETOKENIZE = 1 << ROUTE_DETOKENIZE,
    ALL = BOTH | TOKENIZE | DETOKENIZE,
};

enum standing {
    PLAIN,   /* checked and stored by the table alone */
    OWN,     /* its type, and an integer's range, by the table; the rest by code of its own */
    LATER,   /* accepted at its default, else unsupported_parameter */
    REFUSED, /* unsupported_parameter whatever it holds */
    FREE,    /* any value, no effect */
};

struct field {
    const char *name;
    enum routes routes;
    enum standing standing;
    unsigned types;
    double lo, hi;   /* PLAIN and OWN numbers, inclusive; INFINITY: no bound but 64 bits */
    size_t place;    /* PLAIN: offset in struct api_request */
    const char *def; /* LATER: the default as compact JSON; NULL: absent */
};

#define VOCABULARY    (-1.0) /* as hi: the vocabulary's size */
#define MAX_N         (-2.0) /* as hi: the most choices per prompt */
#define PLACE(member) offsetof(struct api_request, member)
#define FLAG(name, routes, member) \
    { name, routes, PLAIN, TYPE_BOOL, 0, 0, PLACE(member), NULL }
#define NUMBER(name, routes, lo, hi, member) \
    { name, routes, PLAIN, TYPE_NUMBER, lo, hi, PLACE(member), NULL }
#define INTEGER(name, routes, lo, hi) \
    { name, routes, OWN, TYPE_INT, lo, hi, 0, NULL }
#define OWNED(name, routes, types) \
    { name, routes, OWN, types, 0, 0, 0, NULL }
#define LATER_ON(name, routes, types, def) \
    { name, routes, LATER, types, 0, 0, 0, def }
#define REFUSE(name, routes) \
    { name, routes, REFUSED, TYPE_ANY, 0, 0, 0, NULL }
#define IGNORE(name, routes) \
    { name, routes, FREE, TYPE_ANY, 0, 0, 0, NULL }

/* Every field of the generation routes, POST /tokenize and POST /detokenize, in the order of validation.
 * Defaults of the stored ones are in request.c (request_defaults). */
/* clang-format off */
static const struct field table[] = {
    /* what is generated from */
    OWNED("model", ALL, TYPE_STRING),
    OWNED("prompt", COMPLETION, TYPE_STRING | TYPE_ARRAY),
    OWNED("prompt", TOKENIZE, TYPE_STRING),
    OWNED("content", TOKENIZE, TYPE_STRING),
    OWNED("tokens", DETOKENIZE, TYPE_ARRAY),
    FLAG("add_special_tokens", COMPLETION | TOKENIZE, add_special_tokens),
    OWNED("messages", CHAT | TOKENIZE, TYPE_ARRAY),
    OWNED("chat_template_kwargs", CHAT | TOKENIZE, TYPE_OBJECT),
    OWNED("reasoning_effort", CHAT | TOKENIZE, TYPE_STRING),
    FLAG("add_generation_prompt", CHAT | TOKENIZE, add_generation_prompt),
    FLAG("return_token_strs", TOKENIZE, return_token_strs),

    /* how it is answered */
    FLAG("stream", BOTH, stream),
    OWNED("stream_options", BOTH, TYPE_OBJECT),
    FLAG("return_token_ids", BOTH, return_token_ids),
    FLAG("return_timings", BOTH, return_timings),
    INTEGER("n", BOTH, 1, MAX_N),
    INTEGER("best_of", COMPLETION, 1, MAX_N),

    /* sampling */
    NUMBER("temperature", BOTH, 0, 2, sampling.temperature),
    NUMBER("top_p", BOTH, 0, 1, sampling.top_p),
    INTEGER("top_k", BOTH, -1, VOCABULARY),
    NUMBER("min_p", BOTH, 0, 1, sampling.min_p),
    NUMBER("frequency_penalty", BOTH, -2, 2, sampling.frequency_penalty),
    NUMBER("presence_penalty", BOTH, -2, 2, sampling.presence_penalty),
    NUMBER("repetition_penalty", BOTH, REPETITION_LEAST, 10, sampling.repetition_penalty),
    OWNED("logit_bias", BOTH, TYPE_OBJECT),
    INTEGER("seed", BOTH, -INFINITY, INFINITY),

    /* endings */
    INTEGER("max_tokens", COMPLETION, 0, INFINITY),
    INTEGER("max_completion_tokens", CHAT, 1, INFINITY),
    INTEGER("max_tokens", CHAT, 1, INFINITY),
    INTEGER("min_tokens", BOTH, 0, INFINITY),
    OWNED("stop", BOTH, TYPE_STRING | TYPE_ARRAY),
    OWNED("stop_token_ids", BOTH, TYPE_ARRAY),
    FLAG("include_stop_str_in_output", BOTH, sampling.include_stop_str_in_output),
    FLAG("ignore_eos", BOTH, sampling.ignore_eos),
    FLAG("skip_special_tokens", BOTH, sampling.skip_special_tokens),

    /* what it shares, and its turn */
    OWNED("cache_salt", BOTH, TYPE_STRING),
    INTEGER("priority", BOTH, -1000, 1000),

    /* known, and coming */
    LATER_ON("logprobs", COMPLETION, TYPE_INT, NULL),
    LATER_ON("logprobs", CHAT, TYPE_BOOL, "false"),
    LATER_ON("top_logprobs", CHAT, TYPE_INT, "0"),
    LATER_ON("echo", COMPLETION, TYPE_BOOL, "false"),
    LATER_ON("suffix", COMPLETION, TYPE_STRING, NULL),
    LATER_ON("response_format", BOTH, TYPE_OBJECT, "{\"type\":\"text\"}"),
    LATER_ON("structured_outputs", BOTH, TYPE_OBJECT, NULL),
    LATER_ON("tools", CHAT | TOKENIZE, TYPE_ARRAY, "[]"),
    LATER_ON("tool_choice", CHAT, TYPE_STRING | TYPE_OBJECT, "\"none\""),
    LATER_ON("parallel_tool_calls", CHAT, TYPE_BOOL, "true"),
    LATER_ON("prediction", CHAT, TYPE_OBJECT, NULL),
    LATER_ON("continue_final_message", CHAT | TOKENIZE, TYPE_BOOL, "false"),
    LATER_ON("return_progress", BOTH, TYPE_BOOL, "false"),
    LATER_ON("modalities", CHAT, TYPE_ARRAY, "[\"text\"]"),

    /* of OpenAI's API, not of this server */
    REFUSE("audio", CHAT),
    REFUSE("functions", CHAT),
    REFUSE("function_call", CHAT),
    REFUSE("web_search_options", CHAT),
    REFUSE("moderation", CHAT),

    /* accepted without effect */
    IGNORE("user", BOTH),
    IGNORE("metadata", BOTH),
    IGNORE("store", BOTH),
    IGNORE("service_tier", BOTH),
    IGNORE("safety_identifier", BOTH),
    IGNORE("prompt_cache_key", BOTH),
    IGNORE("prompt_cache_options", BOTH),
    IGNORE("prompt_cache_retention", BOTH),
    IGNORE("verbosity", BOTH),
};
/* clang-format on */

_Static_assert(ARRAY_LEN(table) <= FIELDS_CAP, "struct fields must hold a slot for every row");

static bool on_route(const struct field *field, enum route_kind kind) {
    return field->routes & 1u << kind;
}

static size_t find_row(enum route_kind kind, const char *name, size_t len) {
    size_t i = 0;
    for (; i < ARRAY_LEN(table); i++)
        if (on_route(&table[i], kind) && strlen(table[i].name) == len &&
            memcmp(table[i].name, name, len) == 0)
            break;
    return i;
}

void fields_collect(enum route_kind kind, struct value *body, struct fields *out) {
    *out = (struct fields){.kind = kind};
    for (size_t i = 0; i < body->n_items; i++) {
        size_t row = find_row(kind, body->keys[i].text, body->keys[i].len);
        if (row < ARRAY_LEN(table) && body->items[i].kind != VALUE_NULL)
            out->given[row] = &body->items[i];
    }
}

int fields_check_names(enum route_kind kind, const struct value *body, struct api_error *err) {
    for (size_t i = 0; i < body->n_items; i++) {
        const struct value_key *key = &body->keys[i];
        if (find_row(kind, key->text, key->len) < ARRAY_LEN(table)) continue;
        char quoted[CHARS_QUOTE_CAP];
        return api_error_set(err, API_UNKNOWN_PARAMETER, key->text,
                             "the field %s is not known on this route",
                             chars_quote(quoted, key->text, key->len));
    }
    return OK;
}

int fields_note_ignored(const struct value *body, struct api_request *request) {
    enum { NAME_BYTES_MAX = 64 };
    for (size_t i = 0; i < body->n_items; i++) {
        const struct value_key *key = &body->keys[i];
        if (find_row(request->kind, key->text, key->len) < ARRAY_LEN(table)) continue;
        if (request->n_ignored++ >= IGNORED_FIELDS_MAX) continue;
        size_t len = chars_cut(key->text, key->len, NAME_BYTES_MAX);
        const char *name = arena_strndup(request->arena, key->text, len);
        if (!name) return ERR_NOMEM;
        request->ignored[request->n_ignored - 1] = name;
    }
    return OK;
}

struct value *fields_get(const struct fields *fields, const char *name) {
    size_t row = find_row(fields->kind, name, strlen(name));
    ASSERT(row < ARRAY_LEN(table));
    return fields->given[row];
}

struct value *fields_member(struct value *object, const char *name) {
    size_t len = strlen(name);
    if (object->kind != VALUE_OBJECT) return NULL;
    for (size_t i = 0; i < object->n_items; i++)
        if (object->keys[i].len == len && memcmp(object->keys[i].text, name, len) == 0)
            return object->items[i].kind == VALUE_NULL ? NULL : &object->items[i];
    return NULL;
}

bool fields_equal(const struct value *string, const char *text) {
    return string->kind == VALUE_STRING && string->len == strlen(text) &&
           memcmp(string->text, text, string->len) == 0;
}

/* ---- types -------------------------------------------------------------------------------------- */

static bool is_whole(double real) {
    return real == trunc(real);
}

static bool has_type(const struct value *v, unsigned types) {
    switch (v->kind) {
    case VALUE_BOOL:
        return types & TYPE_BOOL;
    case VALUE_INT:
        return types & (TYPE_INT | TYPE_NUMBER);
    case VALUE_REAL:
        return types & TYPE_NUMBER || (types & TYPE_INT && is_whole(v->real));
    case VALUE_STRING:
        return types & TYPE_STRING;
    case VALUE_ARRAY:
        return types & TYPE_ARRAY;
    case VALUE_OBJECT:
        return types & TYPE_OBJECT;
    case VALUE_NULL:
        break;
    }
    return false;
}

const char *fields_describe(const struct value *v, char out[CHARS_NUMBER_CAP]) {
    static const char *const kinds[] = {
        [VALUE_NULL] = "null",       [VALUE_BOOL] = "a boolean",  [VALUE_INT] = "a number",
        [VALUE_REAL] = "a number",   [VALUE_STRING] = "a string", [VALUE_ARRAY] = "an array",
        [VALUE_OBJECT] = "an object"};
    if (v->kind == VALUE_INT) {
        snprintf(out, CHARS_NUMBER_CAP, "%lld", (long long)v->integer);
        return out;
    }
    if (v->kind == VALUE_REAL) return chars_number(out, v->real);
    return kinds[v->kind];
}

/* "a string or an array" */
static const char *wanted(unsigned types, char out[96]) {
    static const char *const names[] = {"a boolean", "an integer", "a number",
                                        "a string",  "an array",   "an object"};
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (types & 1u << i)
            at += (size_t)snprintf(out + at, 96 - at, "%s%s", at ? " or " : "", names[i]);
    return out;
}

int fields_want(const struct value *v, unsigned types, struct api_error *err, const char *path_fmt,
                ...) {
    if (has_type(v, types)) return OK;
    char path[sizeof err->param], number[CHARS_NUMBER_CAP], list[96];
    va_list args;
    va_start(args, path_fmt);
    vsnprintf(path, sizeof path, path_fmt, args);
    va_end(args);
    return api_error_set(err, API_INVALID_TYPE, path, "%s must be %s, got %s", path,
                         wanted(types, list), fields_describe(v, number));
}

int fields_check_types(const struct fields *fields, struct api_error *err) {
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (!fields->given[i]) continue;
        int rc = fields_want(fields->given[i], table[i].types, err, "%s", table[i].name);
        if (rc) return rc;
    }
    return OK;
}

/* ---- values ------------------------------------------------------------------------------------- */

bool fields_int(const struct value *v, int64_t *out) {
    if (v->kind == VALUE_INT) {
        *out = v->integer;
        return true;
    }
    if (v->kind != VALUE_REAL || !is_whole(v->real)) return false;
    if (v->real < -0x1p63 || v->real >= 0x1p63) return false;
    *out = (int64_t)v->real;
    return true;
}

double fields_number(const struct value *v) {
    return v->kind == VALUE_INT ? (double)v->integer : v->real;
}

static int check_range(const struct field *field, const struct value *v,
                       const struct proto_limits *limits, struct api_error *err) {
    double hi = field->hi == VOCABULARY ? (double)limits->vocab_size
                : field->hi == MAX_N    ? (double)limits->max_n
                                        : field->hi;
    double number = fields_number(v);
    int64_t whole;
    char got[CHARS_NUMBER_CAP], from[CHARS_NUMBER_CAP], to[CHARS_NUMBER_CAP];
    /* Written so that a NaN, could one come here, fails. */
    if (!(number >= field->lo && number <= hi)) {
        if (isinf(hi))
            return api_error_set(err, API_INVALID_VALUE, field->name,
                                 "%s must be at least %s, got %s", field->name,
                                 chars_number(from, field->lo), fields_describe(v, got));
        return api_error_set(err, API_INVALID_VALUE, field->name,
                             "%s must be between %s and %s, got %s", field->name,
                             chars_number(from, field->lo), chars_number(to, hi),
                             fields_describe(v, got));
    }
    if (field->types & TYPE_INT && !fields_int(v, &whole))
        return api_error_set(err, API_INVALID_VALUE, field->name,
                             "%s must fit a signed 64-bit integer, got %s", field->name,
                             fields_describe(v, got));
    return OK;
}

/* Compact JSON of a value, given up once it is longer than any default. */
static void print_value(struct buf *out, const struct value *v) {
    enum { LONGEST = 64 };
    if (out->len > LONGEST) return;
    char number[CHARS_NUMBER_CAP];
    switch (v->kind) {
    case VALUE_NULL:
        buf_str(out, "null");
        break;
    case VALUE_BOOL:
        buf_str(out, v->boolean ? "true" : "false");
        break;
    case VALUE_INT:
        buf_fmt(out, "%lld", (long long)v->integer);
        break;
    case VALUE_REAL:
        buf_str(out, chars_number(number, v->real));
        break;
    case VALUE_STRING:
        buf_json(out, v->text, v->len < LONGEST ? v->len : LONGEST);
        break;
    case VALUE_ARRAY:
    case VALUE_OBJECT:
        buf_str(out, v->kind == VALUE_ARRAY ? "[" : "{");
        for (size_t i = 0; i < v->n_items && out->len <= LONGEST; i++) {
            if (i) buf_str(out, ",");
            if (v->kind == VALUE_OBJECT) {
                size_t len = v->keys[i].len;
                buf_json(out, v->keys[i].text, len < LONGEST ? len : LONGEST);
                buf_str(out, ":");
            }
            print_value(out, &v->items[i]);
        }
        buf_str(out, v->kind == VALUE_ARRAY ? "]" : "}");
        break;
    }
}

static int check_default(const struct field *field, const struct value *v, struct api_error *err) {
    if (!field->def)
        return api_error_set(err, API_UNSUPPORTED_PARAMETER, field->name,
                             "%s is not supported by this server", field->name);
    struct buf text = {0};
    print_value(&text, v);
    bool failed = text.failed;
    bool same =
        !failed && text.len == strlen(field->def) && memcmp(text.data, field->def, text.len) == 0;
    buf_free(&text);
    if (failed) return api_error_set(err, API_INTERNAL_ERROR, NULL, "out of memory");
    if (same) return OK;
    return api_error_set(err, API_UNSUPPORTED_PARAMETER, field->name,
                         "%s is supported only at its default %s", field->name, field->def);
}

static int check_value(const struct field *field, const struct value *v,
                       const struct proto_limits *limits, struct api_error *err) {
    switch (field->standing) {
    case PLAIN:
    case OWN:
        if (field->types & (TYPE_INT | TYPE_NUMBER)) return check_range(field, v, limits, err);
        break;
    case LATER:
    case REFUSED:
        return check_default(field, v, err);
    case FREE:
        break;
    }
    return OK;
}

int fields_check_values(const struct fields *fields, const struct proto_limits *limits,
                        struct api_error *err) {
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (!fields->given[i]) continue;
        int rc = check_value(&table[i], fields->given[i], limits, err);
        if (rc) return rc;
    }
    return OK;
}

void fields_store(const struct fields *fields, struct api_request *request) {
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        const struct field *field = &table[i];
        if (!fields->given[i] || field->standing != PLAIN) continue;
        void *place = (char *)request + field->place;
        if (field->types == TYPE_BOOL)
            *(bool *)place = fields->given[i]->boolean;
        else
            *(double *)place = fields_number(fields->given[i]);
    }
}
