#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/json.h"
#include "proto/request_internal.h"

/* The conversation, checked, and freed of what the wire allows to say in two ways. Changed in place
 * (the tree is the request's own); what else a template wants of it is known to the engine.
 *
 *   content null, absent             -> ""           only beside tool_calls
 *   arguments "{\"city\":\"P\"}"     -> {"city":"P"} "" and null -> {}; the text is kept too
 *   "reasoning"                      -> "reasoning_content", unless that is there
 *   "tool_calls": [], any key: null  -> no such key
 *
 * Other keys of a message pass on to the template in the client's order. */

enum {
    MESSAGES_MAX = 4096,
};

/* The place of a fault, such as messages[2].tool_calls[0].function.arguments. */
struct path {
    char text[128];
};

static struct path path_make(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static struct path path_make(const char *fmt, ...) {
    struct path path;
    va_list args;
    va_start(args, fmt);
    vsnprintf(path.text, sizeof path.text, fmt, args);
    va_end(args);
    return path;
}

static int missing(struct api_error *err, const char *of, const char *leaf) {
    struct path path = path_make("%s.%s", of, leaf);
    return api_error_set(err, API_MISSING_REQUIRED_PARAMETER, path.text, "%s is required",
                         path.text);
}

/* ---- objects that change ------------------------------------------------------------------------ */

/* Put a member in its place, or behind the last one. */
static bool object_set(struct arena *arena, struct value *object, const char *name,
                       struct value member) {
    size_t n = object->n_items, len = strlen(name);
    for (size_t i = 0; i < n; i++) {
        if (object->keys[i].len == len && memcmp(object->keys[i].text, name, len) == 0) {
            object->items[i] = member;
            return true;
        }
    }
    struct value *items = arena_alloc(arena, (n + 1) * sizeof *items);
    struct value_key *keys = arena_alloc(arena, (n + 1) * sizeof *keys);
    if (!items || !keys) return false;
    if (n) {
        memcpy(items, object->items, n * sizeof *items);
        memcpy(keys, object->keys, n * sizeof *keys);
    }
    items[n] = member;
    keys[n] = (struct value_key){.text = name, .len = len};
    object->items = items;
    object->keys = keys;
    object->n_items = n + 1;
    return true;
}

static bool is_empty_calls(const struct value_key *key, const struct value *v) {
    return v->kind == VALUE_ARRAY && v->n_items == 0 && key->len == strlen("tool_calls") &&
           memcmp(key->text, "tool_calls", key->len) == 0;
}

/* Templates ask `is defined` and `in`, for which null and [] are there. */
static void drop_absent(struct value *message) {
    size_t n = 0;
    for (size_t i = 0; i < message->n_items; i++) {
        if (message->items[i].kind == VALUE_NULL) continue;
        if (is_empty_calls(&message->keys[i], &message->items[i])) continue;
        message->items[n] = message->items[i];
        message->keys[n++] = message->keys[i];
    }
    message->n_items = n;
}

static struct value text_value(const char *text, size_t len) {
    return (struct value){.kind = VALUE_STRING, .text = text, .len = len};
}

/* ---- types -------------------------------------------------------------------------------------- */

/* A member that may be absent, else must have one of the types. */
static int want_member(struct value *object, const char *name, unsigned types, const char *of,
                       struct api_error *err) {
    const struct value *v = fields_member(object, name);
    return v ? fields_want(v, types, err, "%s.%s", of, name) : OK;
}

/* A member that must be there. */
static int need_member(struct value *object, const char *name, unsigned types, const char *of,
                       struct api_error *err) {
    if (!fields_member(object, name)) return missing(err, of, name);
    return want_member(object, name, types, of, err);
}

static int check_parts_types(struct value *content, const char *of, struct api_error *err) {
    if (content->kind != VALUE_ARRAY) return OK;
    for (size_t i = 0; i < content->n_items; i++) {
        struct value *part = &content->items[i];
        struct path path = path_make("%s.content[%zu]", of, i);
        int rc = fields_want(part, TYPE_OBJECT, err, "%s", path.text);
        if (!rc) rc = need_member(part, "type", TYPE_STRING, path.text, err);
        if (!rc && fields_equal(fields_member(part, "type"), "text"))
            rc = need_member(part, "text", TYPE_STRING, path.text, err);
        if (rc) return rc;
    }
    return OK;
}

static int check_function_types(struct value *function, const char *of, struct api_error *err) {
    int rc = need_member(function, "name", TYPE_STRING, of, err);
    return rc ? rc : want_member(function, "arguments", TYPE_STRING, of, err);
}

static bool is_function_call(struct value *call) {
    const struct value *type = fields_member(call, "type");
    return !type || fields_equal(type, "function");
}

static int check_calls_types(struct value *calls, const char *of, struct api_error *err) {
    for (size_t i = 0; i < calls->n_items; i++) {
        struct value *call = &calls->items[i];
        struct path path = path_make("%s.tool_calls[%zu]", of, i);
        struct path function = path_make("%s.function", path.text);
        int rc = fields_want(call, TYPE_OBJECT, err, "%s", path.text);
        if (!rc) rc = want_member(call, "id", TYPE_STRING, path.text, err);
        if (!rc) rc = want_member(call, "type", TYPE_STRING, path.text, err);
        if (!rc && is_function_call(call)) { /* others are refused with the values */
            rc = need_member(call, "function", TYPE_OBJECT, path.text, err);
            if (!rc) rc = check_function_types(fields_member(call, "function"), function.text, err);
        }
        if (rc) return rc;
    }
    return OK;
}

static int check_message_types(struct value *message, const char *path, struct api_error *err) {
    static const char *const strings[] = {"name", "tool_call_id", "reasoning_content", "reasoning"};
    int rc = fields_want(message, TYPE_OBJECT, err, "%s", path);
    if (!rc) rc = need_member(message, "role", TYPE_STRING, path, err);
    if (!rc) rc = want_member(message, "content", TYPE_STRING | TYPE_ARRAY, path, err);
    if (!rc) rc = want_member(message, "tool_calls", TYPE_ARRAY, path, err);
    for (size_t i = 0; !rc && i < ARRAY_LEN(strings); i++)
        rc = want_member(message, strings[i], TYPE_STRING, path, err);
    if (rc) return rc;
    struct value *content = fields_member(message, "content");
    struct value *calls = fields_member(message, "tool_calls");
    if (content) rc = check_parts_types(content, path, err);
    if (!rc && calls) rc = check_calls_types(calls, path, err);
    return rc;
}

int messages_check_types(struct value *messages, struct api_error *err) {
    for (size_t i = 0; i < messages->n_items; i++) {
        struct path path = path_make("messages[%zu]", i);
        int rc = check_message_types(&messages->items[i], path.text, err);
        if (rc) return rc;
    }
    return OK;
}

/* ---- values ------------------------------------------------------------------------------------- */

static int check_role(struct value *message, const char *of, struct api_error *err) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    struct value *role = fields_member(message, "role");
    for (size_t i = 0; i < ARRAY_LEN(roles); i++)
        if (fields_equal(role, roles[i])) return OK;
    char quoted[CHARS_QUOTE_CAP];
    struct path path = path_make("%s.role", of);
    return api_error_set(err, API_INVALID_VALUE, path.text,
                         "%s must be system, developer, user, assistant or tool, got %s", path.text,
                         chars_quote(quoted, role->text, role->len));
}

static int check_parts(struct value *content, const char *of, struct api_error *err) {
    for (size_t i = 0; i < content->n_items; i++) {
        struct value *part = &content->items[i];
        const struct value *type = fields_member(part, "type");
        if (fields_equal(type, "text")) continue;
        char quoted[CHARS_QUOTE_CAP];
        struct path path = path_make("%s.content[%zu]", of, i);
        return api_error_set(err, API_UNSUPPORTED_PARAMETER, path.text,
                             "%s has the type %s, but only text is supported", path.text,
                             chars_quote(quoted, type->text, type->len));
    }
    return OK;
}

static int store_content(struct value *message, const char *of, struct arena *arena,
                         struct api_error *err) {
    struct value *content = fields_member(message, "content");
    struct value *calls = fields_member(message, "tool_calls");
    if (content) return content->kind == VALUE_ARRAY ? check_parts(content, of, err) : OK;
    if (!calls || calls->n_items == 0) return missing(err, of, "content");
    return object_set(arena, message, "content", text_value("", 0)) ? OK : request_no_memory(err);
}

/* What storing calls needs besides them. */
struct call_store {
    size_t *values_left;
    struct arena *arena;
    struct value *texts; /* of the arguments as sent, of all calls so far */
};

/* The arguments of one call: JSON text to the object it holds. */
static int store_arguments(struct value *function, const char *of, struct call_store *store,
                           struct api_error *err) {
    const struct value *text = fields_member(function, "arguments");
    struct value object = {.kind = VALUE_OBJECT};
    struct value *sent = &store->texts->items[store->texts->n_items++];
    *sent = text && text->len ? *text : text_value("{}", 2);
    struct api_error fault;
    if (text && text->len > 0) {
        int rc = json_parse_counted(text->text, text->len, store->values_left, store->arena,
                                    &object, &fault);
        if (rc && fault.status >= 500) {
            *err = fault;
            return rc;
        }
        if (rc || object.kind != VALUE_OBJECT) {
            struct path path = path_make("%s.arguments", of);
            return api_error_set(err, API_INVALID_VALUE, path.text,
                                 "%s must be a string that holds a JSON object", path.text);
        }
    }
    return object_set(store->arena, function, "arguments", object) ? OK : request_no_memory(err);
}

static int store_calls(struct value *message, const char *of, struct call_store *store,
                       struct api_error *err) {
    struct value *calls = fields_member(message, "tool_calls");
    if (!calls || calls->n_items == 0) return OK;
    if (!fields_equal(fields_member(message, "role"), "assistant")) {
        struct path path = path_make("%s.tool_calls", of);
        return api_error_set(err, API_INVALID_VALUE, path.text,
                             "%s belongs only in an assistant message", path.text);
    }
    for (size_t i = 0; i < calls->n_items; i++) {
        struct value *call = &calls->items[i];
        if (!is_function_call(call)) {
            const struct value *type = fields_member(call, "type");
            char quoted[CHARS_QUOTE_CAP];
            struct path path = path_make("%s.tool_calls[%zu].type", of, i);
            return api_error_set(err, API_UNSUPPORTED_PARAMETER, path.text,
                                 "%s must be function, got %s", path.text,
                                 chars_quote(quoted, type->text, type->len));
        }
        struct path path = path_make("%s.tool_calls[%zu].function", of, i);
        struct value *function = fields_member(call, "function");
        int rc = store_arguments(function, path.text, store, err);
        if (rc) return rc;
    }
    return OK;
}

/* Parts of OpenAI's messages that are no text and that no template reads. */
static int refuse_others(struct value *message, const char *of, struct api_error *err) {
    static const char *const refused[] = {"audio", "function_call"};
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        if (!fields_member(message, refused[i])) continue;
        struct path path = path_make("%s.%s", of, refused[i]);
        return api_error_set(err, API_UNSUPPORTED_PARAMETER, path.text,
                             "%s is not supported by this server", path.text);
    }
    return OK;
}

static void rename_reasoning(struct value *message) {
    if (fields_member(message, "reasoning_content")) return;
    for (size_t i = 0; i < message->n_items; i++)
        if (message->keys[i].len == strlen("reasoning") &&
            memcmp(message->keys[i].text, "reasoning", message->keys[i].len) == 0)
            message->keys[i] =
                (struct value_key){.text = "reasoning_content", .len = strlen("reasoning_content")};
}

static int store_message(struct value *message, const char *path, struct call_store *store,
                         struct api_error *err) {
    int rc = check_role(message, path, err);
    if (!rc) rc = refuse_others(message, path, err);
    if (!rc) rc = store_content(message, path, store->arena, err);
    if (!rc && fields_equal(fields_member(message, "role"), "tool") &&
        !fields_member(message, "tool_call_id"))
        rc = missing(err, path, "tool_call_id");
    if (!rc) rc = store_calls(message, path, store, err);
    if (rc) return rc;
    drop_absent(message);
    rename_reasoning(message);
    return OK;
}

static size_t count_calls(struct value *messages) {
    size_t n = 0;
    for (size_t i = 0; i < messages->n_items; i++) {
        const struct value *calls = fields_member(&messages->items[i], "tool_calls");
        if (calls) n += calls->n_items;
    }
    return n;
}

int messages_store(struct value *messages, const struct proto_limits *limits, size_t *values_left,
                   struct api_request *request, struct api_error *err) {
    if (!limits->has_chat_template && limits->chat_template_error)
        return api_error_set(err, API_INVALID_VALUE, "messages", "messages cannot be rendered: %s",
                             limits->chat_template_error);
    if (!limits->has_chat_template)
        return api_error_set(err, API_INVALID_VALUE, "messages",
                             "messages cannot be rendered: the model has no chat template");
    if (messages->n_items < 1 || messages->n_items > MESSAGES_MAX)
        return api_error_set(err, API_INVALID_VALUE, "messages",
                             "messages must hold 1 to %d messages, got %zu", MESSAGES_MAX,
                             messages->n_items);
    struct value *texts = arena_alloc(request->arena, sizeof *texts);
    size_t n_calls = count_calls(messages);
    if (!texts) return request_no_memory(err);
    *texts = (struct value){.kind = VALUE_ARRAY};
    texts->items = arena_alloc(request->arena, (n_calls + 1) * sizeof *texts->items);
    if (!texts->items) return request_no_memory(err);
    struct call_store store = {values_left, request->arena, texts};
    for (size_t i = 0; i < messages->n_items; i++) {
        struct path path = path_make("messages[%zu]", i);
        int rc = store_message(&messages->items[i], path.text, &store, err);
        if (rc) return rc;
    }
    request->messages = messages;
    request->call_arguments = texts;
    return OK;
}

/* ---- template variables ------------------------------------------------------------------------- */

static int check_effort(const struct value *effort, struct api_error *err) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
    for (size_t i = 0; i < ARRAY_LEN(efforts); i++)
        if (fields_equal(effort, efforts[i])) return OK;
    char quoted[CHARS_QUOTE_CAP];
    return api_error_set(err, API_INVALID_VALUE, "reasoning_effort",
                         "reasoning_effort must be none, minimal, low, medium, high, xhigh or max, "
                         "got %s",
                         chars_quote(quoted, effort->text, effort->len));
}

/* A variable the client has not set itself: what stands in chat_template_kwargs is the nearer wish. */
static bool add_kwarg(struct arena *arena, struct value *kwargs, const char *name,
                      struct value member) {
    return fields_member(kwargs, name) || object_set(arena, kwargs, name, member);
}

int messages_store_kwargs(struct value *kwargs, const struct value *effort,
                          struct api_request *request, struct api_error *err) {
    static const char *const reserved[] = {"messages", "tools", "add_generation_prompt"};
    for (size_t i = 0; kwargs && i < ARRAY_LEN(reserved); i++)
        if (value_get(kwargs, reserved[i]))
            return api_error_set(err, API_INVALID_VALUE, "chat_template_kwargs",
                                 "chat_template_kwargs must not set %s", reserved[i]);
    if (effort) {
        int rc = check_effort(effort, err);
        if (rc) return rc;
        if (!kwargs) {
            kwargs = arena_alloc(request->arena, sizeof *kwargs);
            if (!kwargs) return request_no_memory(err);
            kwargs->kind = VALUE_OBJECT;
        }
        struct value off = {.kind = VALUE_BOOL, .boolean = false};
        if (!add_kwarg(request->arena, kwargs, "reasoning_effort", *effort) ||
            (fields_equal(effort, "none") &&
             !add_kwarg(request->arena, kwargs, "enable_thinking", off)))
            return request_no_memory(err);
    }
    request->template_kwargs = kwargs;
    return OK;
}
