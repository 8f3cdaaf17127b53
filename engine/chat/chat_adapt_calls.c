/* Tool calls of the history: their arguments as text, their ids, and how they are written into the
 * content where the template leaves them out. */
#include <stdio.h>
#include <string.h>

#include "engine/chat/chat_adapt_internal.h"

/* ---- values as text ---------------------------------------------------------------------------- */

/* Without memory it measures. */
struct sink {
    char *out;
    size_t n;
    bool python;   /* True, False, None */
    bool too_deep; /* beyond CHAT_INPUT_DEPTH_MAX */
};

static void put(struct sink *s, const char *text, size_t len) {
    if (s->out && len) memcpy(s->out + s->n, text, len);
    s->n += len;
}

static void put_str(struct sink *s, const char *text) {
    put(s, text, strlen(text));
}

static void put_string(struct sink *s, const char *text, size_t len) {
    static const char plain[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    put_str(s, "\"");
    for (size_t i = 0; i < len; i++) {
        const char *known = text[i] ? strchr(plain, text[i]) : NULL;
        char escape[8] = {'\\', known ? letters[known - plain] : 'u', '\0'};
        if (known) {
            put(s, escape, 2);
        } else if ((unsigned char)text[i] < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)text[i]);
            put_str(s, escape);
        } else {
            put(s, text + i, 1);
        }
    }
    put_str(s, "\"");
}

static void put_value(struct sink *s, const struct value *v, uint32_t depth);

static void put_items(struct sink *s, const struct value *v, uint32_t depth) {
    bool array = v->kind == VALUE_ARRAY;
    if (depth > CHAT_INPUT_DEPTH_MAX) {
        s->too_deep = true;
        return;
    }
    put_str(s, array ? "[" : "{");
    for (size_t i = 0; i < v->n_items; i++) {
        if (i) put_str(s, ", ");
        if (!array) {
            put_string(s, v->keys[i].text, v->keys[i].len);
            put_str(s, ": ");
        }
        put_value(s, &v->items[i], depth + 1);
    }
    put_str(s, array ? "]" : "}");
}

static void put_value(struct sink *s, const struct value *v, uint32_t depth) {
    char number[32];
    switch (v->kind) {
    case VALUE_NULL:
        put_str(s, s->python ? "None" : "null");
        break;
    case VALUE_BOOL:
        if (s->python)
            put_str(s, v->boolean ? "True" : "False");
        else
            put_str(s, v->boolean ? "true" : "false");
        break;
    case VALUE_INT:
        snprintf(number, sizeof number, "%lld", (long long)v->integer);
        put_str(s, number);
        break;
    case VALUE_REAL:
        put(s, number, chat_format_real(v->real, number));
        break;
    case VALUE_STRING:
        put_string(s, v->text, v->len);
        break;
    case VALUE_ARRAY:
    case VALUE_OBJECT:
        put_items(s, v, depth);
        break;
    }
}

/* Run write twice: to measure, then into memory of that size. */
struct job {
    struct adapt *a;
    const struct value *content, *calls; /* calls NULL: the one value content */
    size_t first;
};

static void write_job(struct sink *s, const struct job *job);

static struct value text_of(const struct job *job) {
    struct sink s = {0};
    write_job(&s, job);
    if (s.too_deep) {
        chat_adapt_fail(job->a, "arguments of a tool call are nested too deep");
        return adapt_text("", 0);
    }
    char *out = chat_adapt_alloc(job->a, s.n + 1, 1);
    if (!out) return adapt_text("", 0);
    s = (struct sink){.out = out};
    write_job(&s, job);
    return adapt_text(out, s.n);
}

struct value chat_adapt_arguments_text(struct adapt *a, const struct value *arguments, size_t at) {
    const struct value *sent = a->chat->arguments;
    if (sent && at < sent->n_items && sent->items[at].kind == VALUE_STRING) return sent->items[at];
    if (arguments && arguments->kind == VALUE_STRING) return *arguments;
    if (!arguments || arguments->kind == VALUE_NULL) return adapt_text("{}", 2);
    return text_of(&(struct job){.a = a, .content = arguments});
}

/* ---- calls as content -------------------------------------------------------------------------- */

static void put_name(struct sink *s, const struct value *function) {
    const struct value *name = value_get(function, "name");
    if (name && name->kind == VALUE_STRING) put(s, name->text, name->len);
}

/* <tool_call>
 * {"name": "f", "arguments": {"x": 1}}
 * </tool_call> */
static void put_tagged(struct sink *s, const struct job *job, const struct value *function,
                       size_t at) {
    const struct value *name = value_get(function, "name");
    const struct value *arguments = value_get(function, "arguments");
    const struct value *sent = job->a->chat->arguments;
    put_str(s, "<tool_call>\n{\"name\": ");
    if (name) put_value(s, name, 1);
    put_str(s, ", \"arguments\": ");
    if (sent && at < sent->n_items && sent->items[at].kind == VALUE_STRING)
        put(s, sent->items[at].text, sent->items[at].len);
    else if (arguments && arguments->kind == VALUE_STRING)
        put(s, arguments->text, arguments->len);
    else if (arguments)
        put_value(s, arguments, 1);
    else
        put_str(s, "{}");
    put_str(s, "}\n</tool_call>");
}

/* f(x=1, y="a") */
static void put_pythonic(struct sink *s, const struct value *function) {
    const struct value *arguments = value_get(function, "arguments");
    put_name(s, function);
    put_str(s, "(");
    s->python = true;
    for (size_t i = 0; arguments && arguments->kind == VALUE_OBJECT && i < arguments->n_items;
         i++) {
        if (i) put_str(s, ", ");
        put(s, arguments->keys[i].text, arguments->keys[i].len);
        put_str(s, "=");
        put_value(s, &arguments->items[i], 1);
    }
    s->python = false;
    put_str(s, ")");
}

static void write_job(struct sink *s, const struct job *job) {
    if (!job->calls) {
        put_value(s, job->content, 1);
        return;
    }
    bool tagged = job->a->traits->written_calls == CHAT_SYNTAX_TAGGED;
    if (tagged) put(s, job->content->text, job->content->len);
    if (!tagged) put_str(s, "<|tool_call_start|>[");
    for (size_t i = 0; i < job->calls->n_items; i++) {
        const struct value *function = value_get(&job->calls->items[i], "function");
        if (tagged) {
            if (s->n) put_str(s, "\n");
            put_tagged(s, job, function, job->first + i);
        } else {
            if (i) put_str(s, ", ");
            put_pythonic(s, function);
        }
    }
    if (tagged) return;
    put_str(s, "]<|tool_call_end|>");
    put(s, job->content->text, job->content->len);
}

struct value chat_adapt_write_calls(struct adapt *a, struct value content,
                                    const struct value *calls, size_t first) {
    return text_of(&(struct job){.a = a, .content = &content, .calls = calls, .first = first});
}

/* ---- ids --------------------------------------------------------------------------------------- */

enum { SHORT_ID = 9 };

static bool is_short_id(const struct value *id) {
    if (!id || id->len != SHORT_ID) return false;
    for (size_t i = 0; i < SHORT_ID; i++) {
        char c = id->text[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
            return false;
    }
    return true;
}

/* The same id gives the same nine, in every request: a call and its result stay together. */
static struct value short_id(struct adapt *a, const struct value *id, size_t at) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz"
                                 "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    if (is_short_id(id)) return (struct value){.kind = VALUE_NULL};
    uint64_t h = 0xcbf29ce484222325u ^ (id ? 0 : at + 1);
    for (size_t i = 0; id && i < id->len; i++)
        h = (h ^ (unsigned char)id->text[i]) * 0x100000001b3u;
    h = (h ^ h >> 32) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    char *out = chat_adapt_alloc(a, SHORT_ID + 1, 1);
    if (!out) return (struct value){.kind = VALUE_NULL};
    for (size_t i = 0; i < SHORT_ID; i++, h /= sizeof digits - 1)
        out[i] = digits[h % (sizeof digits - 1)];
    return adapt_text(out, SHORT_ID);
}

static struct value indexed_id(struct adapt *a, const struct value *name, size_t at) {
    int name_len = name && name->len < INT32_MAX / 2 ? (int)name->len : 0;
    size_t cap = (size_t)name_len + 40;
    char *out = chat_adapt_alloc(a, cap, 1);
    if (!out) return (struct value){.kind = VALUE_NULL};
    snprintf(out, cap, "functions.%.*s:%zu", name_len, name ? name->text : "", at);
    return adapt_text(out, strlen(out));
}

struct value chat_adapt_id(struct adapt *a, const struct value *id, const struct value *name,
                           size_t at) {
    if (a->traits->ids == CHAT_IDS_SHORT) return short_id(a, id, at);
    if (a->traits->ids == CHAT_IDS_INDEXED) return indexed_id(a, name, at);
    return (struct value){.kind = VALUE_NULL};
}
