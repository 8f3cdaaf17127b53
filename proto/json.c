#include "proto/json.h"

#include <jansson.h>
#include <string.h>

#include "proto/chars.h"

static int json_fail(struct api_error *err, size_t line, size_t column, const char *what) {
    return api_error_set(err, API_INVALID_JSON, NULL,
                         "the body is not valid JSON: %s at line %zu, column %zu", what, line,
                         column);
}

/* Fail at a byte of the text; line and column count from 1, a column is a character. */
static int fail_at(struct api_error *err, const char *text, size_t at, const char *what) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)text[i] & 0xC0) != 0x80) {
            column++;
        }
    }
    return json_fail(err, line, column, what);
}

/* ---- before parsing: bounds that keep the parser's memory and recursion small ------------------- */

struct scan {
    size_t depth, values;
    bool in_string, escaped, in_word;
};

/* Account for one ASCII byte; a word is a number or a literal. A key is taken back at its colon:
 * text with colons in other places may count too low, but the parser ends at the first of them. */
static void scan_byte(struct scan *scan, char c) {
    if (scan->in_string) {
        if (scan->escaped)
            scan->escaped = false;
        else if (c == '\\')
            scan->escaped = true;
        else if (c == '"')
            scan->in_string = false;
        return;
    }
    bool was_word = scan->in_word;
    scan->in_word = false;
    switch (c) {
    case ' ':
    case '\t':
    case '\n':
    case '\r':
    case ',':
        break;
    case '"':
        scan->in_string = true;
        scan->values++;
        break;
    case '[':
    case '{':
        scan->depth++;
        scan->values++;
        break;
    case ']':
    case '}':
        if (scan->depth) scan->depth--;
        break;
    case ':':
        if (scan->values) scan->values--;
        break;
    default:
        scan->in_word = true;
        if (!was_word) scan->values++;
    }
}

/* UTF-8, nesting and number of values in one walk, without allocating. */
static int scan_text(const char *text, size_t len, size_t *values_left, struct api_error *err) {
    struct scan scan = {0};
    for (size_t at = 0; at < len;) {
        bool valid;
        size_t n = chars_next(text + at, len - at, &valid);
        if (!valid) return fail_at(err, text, at, "invalid UTF-8");
        if (n == 1)
            scan_byte(&scan, text[at]);
        else
            scan.escaped = false; /* outside a string the parser refuses it */
        if (scan.depth > JSON_DEPTH_MAX)
            return fail_at(err, text, at, "more than 64 levels of nesting");
        /* One above the bound may still be a key. */
        if (scan.values > *values_left + 1)
            return fail_at(err, text, at, "more than 1000000 values");
        at += n;
    }
    if (scan.values > *values_left) return fail_at(err, text, len, "more than 1000000 values");
    *values_left -= scan.values;
    return OK;
}

/* ---- parsing ------------------------------------------------------------------------------------ */

/* The parser's text quotes the body, so only its beginning is recognised and our own words go out. */
static const char *parse_fault(const json_error_t *fault) {
    static const struct {
        const char *starts, *says;
    } faults[] = {
        {"duplicate object key", "duplicate object key"},
        {"too big", "an integer outside signed 64 bits"},
        {"real number overflow", "a number too large for a double"},
        {"invalid Unicode escape", "an invalid \\u escape"},
        {"invalid Unicode", "a lone surrogate in a \\u escape"},
        {"invalid escape", "an invalid escape"},
        {"NUL byte", "a NUL in an object key"},
        {"unexpected newline", "a line break inside a string"},
        {"control character", "a control character inside a string"},
        {"unable to decode", "invalid UTF-8"},
        {"end of file expected", "more bytes after the value"},
        {"string or '}' expected", "expected a string or '}'"},
        {"':' expected", "expected ':'"},
        {"']' expected", "expected ',' or ']'"},
        {"'}' expected", "expected ',' or '}'"},
        {"premature end", "the text ends too early"},
    };
    if (json_error_code(fault) == json_error_premature_end_of_input)
        return "the text ends too early";
    for (size_t i = 0; i < ARRAY_LEN(faults); i++)
        if (strncmp(fault->text, faults[i].starts, strlen(faults[i].starts)) == 0)
            return faults[i].says;
    return "an invalid token";
}

static bool convert(json_t *json, struct arena *arena, struct value *out);

static bool convert_array(json_t *json, struct arena *arena, struct value *out) {
    size_t n = json_array_size(json);
    out->kind = VALUE_ARRAY;
    out->n_items = n;
    out->keys = NULL;
    out->items = arena_alloc(arena, n * sizeof *out->items);
    for (size_t i = 0; out->items && i < n; i++)
        if (!convert(json_array_get(json, i), arena, &out->items[i])) return false;
    return out->items != NULL;
}

static bool convert_object(json_t *json, struct arena *arena, struct value *out) {
    size_t n = json_object_size(json), i = 0;
    out->kind = VALUE_OBJECT;
    out->n_items = n;
    out->items = arena_alloc(arena, n * sizeof *out->items);
    out->keys = arena_alloc(arena, n * sizeof *out->keys);
    if (!out->items || !out->keys) return false;
    const char *key;
    json_t *member;
    json_object_foreach(json, key, member) { /* in the order of the text */
        struct value_key *to = &out->keys[i];
        to->len = strlen(key);
        to->text = arena_strndup(arena, key, to->len);
        if (!to->text || !convert(member, arena, &out->items[i])) return false;
        i++;
    }
    ASSERT(i == n);
    return true;
}

/* Recursion is bounded by the scan. False: the arena is full. */
static bool convert(json_t *json, struct arena *arena, struct value *out) {
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return convert_object(json, arena, out);
    case JSON_ARRAY:
        return convert_array(json, arena, out);
    case JSON_STRING:
        out->kind = VALUE_STRING;
        out->len = json_string_length(json);
        out->text = arena_strndup(arena, json_string_value(json), out->len);
        return out->text != NULL;
    case JSON_INTEGER:
        out->kind = VALUE_INT;
        out->integer = json_integer_value(json);
        return true;
    case JSON_REAL:
        out->kind = VALUE_REAL;
        out->real = json_real_value(json);
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        out->kind = VALUE_BOOL;
        out->boolean = json_is_true(json);
        return true;
    case JSON_NULL:
        break;
    }
    out->kind = VALUE_NULL;
    return true;
}

int json_parse_counted(const char *text, size_t len, size_t *values_left, struct arena *arena,
                       struct value *out, struct api_error *err) {
    int rc = scan_text(text, len, values_left, err);
    if (rc) return rc;
    json_error_t fault;
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *json = json_loadb(text ? text : "", len, flags, &fault);
    if (!json) {
        if (json_error_code(&fault) == json_error_out_of_memory)
            return api_error_set(err, API_INTERNAL_ERROR, NULL, "out of memory");
        return json_fail(err, fault.line > 0 ? (size_t)fault.line : 1,
                         fault.column > 0 ? (size_t)fault.column : 1, parse_fault(&fault));
    }
    struct value value;
    bool converted = convert(json, arena, &value);
    json_decref(json);
    if (!converted) return api_error_set(err, API_INTERNAL_ERROR, NULL, "out of memory");
    *out = value;
    return OK;
}

int proto_parse_json(const char *text, size_t len, struct arena *arena, struct value *out,
                     struct api_error *err) {
    size_t values_left = JSON_VALUES_MAX;
    return json_parse_counted(text, len, &values_left, arena, out, err);
}
