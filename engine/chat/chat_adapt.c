/* Messages as the template reads them, by the answers of its probe:
 *
 *   developer                     -> system, unless the template knows the role
 *   system, where it does not show -> before the first user's text, a blank line between
 *   ["A", "B"] as text parts       -> "AB"; or texts as parts, where only those are read
 *   "" beside calls               -> null, or no content
 *   arguments                     -> the object, or the text as sent
 *   reasoning_content             -> the field or the part that the template reads
 *   call ids                      -> as the template demands them, the same in the result
 *   a call without a type         -> "function"
 *   a result without a name       -> with the name of its call
 *
 * Objects that change are copied, one level deep; everything else is shared. */
#include "engine/chat/chat_adapt.h"

#include <stdlib.h>
#include <string.h>

#include "engine/chat/chat_adapt_internal.h"

enum {
    ROOM = 4,              /* members that a message may gain */
    CALLS_BACK_MAX = 1024, /* how many calls back a result may name one: bounds the search */
};

/* ---- memory ------------------------------------------------------------------------------------ */

int chat_adapt_fail(struct adapt *a, const char *why) {
    if (!a->rc) a->rc = err_set(a->err, ERR_INVALID, "messages: %s", why);
    return a->rc;
}

void *chat_adapt_alloc(struct adapt *a, size_t n, size_t size) {
    size_t bytes;
    if (mul_size(n, size, &bytes)) bytes = SIZE_MAX;
    void *p = a->rc ? NULL : arena_alloc(a->arena, bytes);
    if (p || a->rc) return p;
    if (bytes > CHAT_MEMORY_MAX - arena_used(a->arena))
        a->rc = err_set(a->err, ERR_INVALID, "messages need more than %d MiB of memory",
                        CHAT_MEMORY_MAX >> 20);
    else
        a->rc = err_set(a->err, ERR_NOMEM, "messages: no memory for %zu bytes", bytes);
    return NULL;
}

/* ---- objects ----------------------------------------------------------------------------------- */

static struct value *member(struct value *object, const char *name) {
    return (struct value *)(uintptr_t)value_get(object, name);
}

static struct value copy_object(struct adapt *a, const struct value *from, size_t room) {
    struct value to = {.kind = VALUE_OBJECT};
    to.items = chat_adapt_alloc(a, from->n_items + room, sizeof *to.items);
    to.keys = chat_adapt_alloc(a, from->n_items + room, sizeof *to.keys);
    if (!to.items || !to.keys) return (struct value){.kind = VALUE_OBJECT};
    for (size_t i = 0; i < from->n_items; i++) {
        to.items[i] = from->items[i];
        to.keys[i] = from->keys[i];
    }
    to.n_items = from->n_items;
    return to;
}

/* The caller's copy has room. Nothing after a failure, when copies are empty. */
static void put(struct adapt *a, struct value *object, const char *name, struct value v) {
    if (a->rc) return;
    struct value *old = member(object, name);
    if (old) {
        *old = v;
        return;
    }
    object->keys[object->n_items] = (struct value_key){name, strlen(name)};
    object->items[object->n_items++] = v;
}

static void drop(struct value *object, const char *name) {
    const struct value *old = value_get(object, name);
    if (!old) return;
    size_t at = (size_t)(old - object->items);
    object->n_items--;
    for (size_t i = at; i < object->n_items; i++) {
        object->items[i] = object->items[i + 1];
        object->keys[i] = object->keys[i + 1];
    }
}

static bool is_text(const struct value *v, const char *text) {
    return v && v->kind == VALUE_STRING && v->len == strlen(text) &&
           memcmp(v->text, text, v->len) == 0;
}

static bool has_role(const struct value *message, const char *role) {
    return is_text(value_get(message, "role"), role);
}

/* ---- texts and parts --------------------------------------------------------------------------- */

static struct value part_of(struct adapt *a, const char *type, struct value text) {
    struct value none = {.kind = VALUE_OBJECT}, part = copy_object(a, &none, 2);
    put(a, &part, "type", adapt_text(type, strlen(type)));
    put(a, &part, type, text);
    return part;
}

static struct value list_of(struct adapt *a, const struct value *first, const struct value *rest,
                            size_t n_rest) {
    struct value list = {.kind = VALUE_ARRAY};
    list.items = chat_adapt_alloc(a, n_rest + 1, sizeof *list.items);
    if (!list.items) return list;
    list.items[0] = *first;
    for (size_t i = 0; i < n_rest; i++)
        list.items[i + 1] = rest[i];
    list.n_items = n_rest + 1;
    return list;
}

/* The text of content, parts joined without a separator; "" for null. */
static struct value join(struct adapt *a, const struct value *content) {
    if (content && content->kind == VALUE_STRING) return *content;
    size_t n = content && content->kind == VALUE_ARRAY ? content->n_items : 0, len = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        const struct value *text = value_get(&content->items[i], "text");
        if (text && text->kind == VALUE_STRING) len += text->len;
    }
    char *out = len ? chat_adapt_alloc(a, len + 1, 1) : NULL;
    if (!out) return adapt_text("", 0);
    for (size_t i = 0; i < n; i++) {
        const struct value *text = value_get(&content->items[i], "text");
        if (!text || text->kind != VALUE_STRING || !text->len) continue;
        memcpy(out + at, text->text, text->len);
        at += text->len;
    }
    return adapt_text(out, len);
}

/* before, a blank line, after; either alone where the other is empty. */
static struct value append(struct adapt *a, struct value before, struct value after) {
    if (!before.len) return after;
    if (!after.len) return before;
    char *out = chat_adapt_alloc(a, before.len + 2 + after.len + 1, 1);
    if (!out) return before;
    memcpy(out, before.text, before.len);
    memcpy(out + before.len, "\n\n", 2);
    memcpy(out + before.len + 2, after.text, after.len);
    return adapt_text(out, before.len + 2 + after.len);
}

static struct value in_form(struct adapt *a, enum chat_role role, const struct value *content) {
    if (!a->traits->parts[role]) return join(a, content);
    if (content->kind == VALUE_ARRAY) return *content;
    struct value part = part_of(a, "text", *content);
    return list_of(a, &part, NULL, 0);
}

static void fix_content(struct adapt *a, enum chat_role role, struct value *message) {
    const struct value *content = value_get(message, "content");
    if (!content || (content->kind != VALUE_STRING && content->kind != VALUE_ARRAY)) return;
    put(a, message, "content", in_form(a, role, content));
}

/* ---- system messages --------------------------------------------------------------------------- */

static bool is_system(const struct adapt *a, const struct value *message) {
    return has_role(message, "system") || (has_role(message, "developer") && !a->traits->developer);
}

/* Which system messages are taken out of their place: all at the start, or all after it, or both. */
struct gathering {
    size_t n_leading;
    bool leading, late;
};

static struct gathering plan_systems(const struct adapt *a) {
    const struct value *messages = a->chat->messages;
    struct gathering g = {0};
    while (g.n_leading < messages->n_items && is_system(a, &messages->items[g.n_leading]))
        g.n_leading++;
    for (size_t i = g.n_leading; a->traits->drops_late_systems && i < messages->n_items; i++)
        if (is_system(a, &messages->items[i])) g.late = true;
    g.leading = g.n_leading > 0 &&
                (!a->traits->system || g.late || (g.n_leading > 1 && !a->traits->several_systems));
    return g;
}

static bool is_gathered(const struct adapt *a, const struct gathering *g, size_t i) {
    if (i < g->n_leading) return g->leading;
    return g->late && is_system(a, &a->chat->messages->items[i]);
}

/* One length first: appending one by one would cost the square. */
static void gather_systems(struct adapt *a, const struct gathering *g) {
    const struct value *messages = a->chat->messages;
    size_t len = 0, at = 0;
    for (size_t i = 0; i < messages->n_items; i++)
        if (is_gathered(a, g, i)) {
            struct value text = join(a, value_get(&messages->items[i], "content"));
            len += text.len + 2;
        }
    char *out = chat_adapt_alloc(a, len + 1, 1);
    for (size_t i = 0; out && !a->rc && i < messages->n_items; i++) {
        if (!is_gathered(a, g, i)) continue;
        struct value text = join(a, value_get(&messages->items[i], "content"));
        if (!text.len) continue;
        if (at) {
            memcpy(out + at, "\n\n", 2);
            at += 2;
        }
        memcpy(out + at, text.text, text.len);
        at += text.len;
    }
    if (out) a->system = adapt_text(out, at);
}

/* A message of the gathered text alone. */
static void emit_system(struct adapt *a, const char *role, enum chat_role form) {
    struct value none = {.kind = VALUE_OBJECT}, message = copy_object(a, &none, 2);
    put(a, &message, "role", adapt_text(role, strlen(role)));
    put(a, &message, "content", in_form(a, form, &a->system));
    a->out[a->n_out++] = message;
    a->system.kind = VALUE_NULL;
}

/* The gathered text goes before the user's. */
static void prefix_user(struct adapt *a, struct value *message) {
    struct value *content = member(message, "content");
    if (!content || a->rc) return;
    if (content->kind == VALUE_STRING) {
        *content = append(a, a->system, *content);
    } else if (content->kind == VALUE_ARRAY && a->system.len) {
        char *text = chat_adapt_alloc(a, a->system.len + 3, 1);
        if (!text) return;
        memcpy(text, a->system.text, a->system.len);
        memcpy(text + a->system.len, "\n\n", 2);
        struct value part = part_of(a, "text", adapt_text(text, a->system.len + 2));
        *content = list_of(a, &part, content->items, content->n_items);
    }
    a->system.kind = VALUE_NULL;
}

/* ---- assistant --------------------------------------------------------------------------------- */

static struct value fix_call(struct adapt *a, const struct value *call) {
    const struct value *from = value_get(call, "function");
    const struct value *id = value_get(call, "id"), *name = value_get(from, "name");
    size_t at = a->n_calls++;
    struct past_call *past = &a->calls[at];
    *past = (struct past_call){.id = id && id->kind == VALUE_STRING ? id : NULL,
                               .name = name && name->kind == VALUE_STRING ? name : NULL};
    past->new_id = chat_adapt_id(a, past->id, past->name, at);
    if (call->kind != VALUE_OBJECT) return *call;
    struct value out = copy_object(a, call, ROOM);
    if (past->new_id.kind != VALUE_NULL) put(a, &out, "id", past->new_id);
    if (!value_get(call, "type")) put(a, &out, "type", adapt_text("function", 8));
    if (a->traits->arguments_text && from && from->kind == VALUE_OBJECT) {
        struct value function = copy_object(a, from, ROOM);
        put(a, &function, "arguments",
            chat_adapt_arguments_text(a, value_get(from, "arguments"), at));
        put(a, &out, "function", function);
    }
    return out;
}

static void fix_calls(struct adapt *a, struct value *message) {
    const struct value *calls = value_get(message, "tool_calls");
    if (!calls || calls->kind != VALUE_ARRAY) return;
    if (!calls->n_items) {
        drop(message, "tool_calls");
        return;
    }
    size_t first = a->n_calls;
    struct value list = {.kind = VALUE_ARRAY, .n_items = calls->n_items};
    list.items = chat_adapt_alloc(a, calls->n_items, sizeof *list.items);
    for (size_t i = 0; list.items && i < calls->n_items; i++)
        list.items[i] = fix_call(a, &calls->items[i]);
    if (a->rc) return;
    struct value text = join(a, value_get(message, "content"));
    if (a->traits->written_calls != CHAT_SYNTAX_NONE) {
        text = chat_adapt_write_calls(a, text, calls, first);
        put(a, message, "content", in_form(a, CHAT_ROLE_ASSISTANT, &text));
        drop(message, "tool_calls");
        return;
    }
    put(a, message, "tool_calls", list);
    if (text.len) return;
    if (a->traits->empty == CHAT_EMPTY_TEXT) put(a, message, "content", adapt_text("", 0));
    if (a->traits->empty == CHAT_EMPTY_NULL)
        put(a, message, "content", (struct value){.kind = VALUE_NULL});
    if (a->traits->empty == CHAT_EMPTY_ABSENT) drop(message, "content");
}

static void rename_key(struct value *object, const char *from, const char *to) {
    const struct value *old = value_get(object, from);
    if (!old || value_get(object, to)) return;
    object->keys[old - object->items] = (struct value_key){to, strlen(to)};
}

static void fix_reasoning(struct adapt *a, struct value *message) {
    const struct value *reasoning = value_get(message, "reasoning_content");
    if (!reasoning || reasoning->kind != VALUE_STRING) return;
    if (a->traits->reasoning == CHAT_REASONING_THINKING)
        rename_key(message, "reasoning_content", "thinking");
    if (a->traits->reasoning == CHAT_REASONING_REASONING)
        rename_key(message, "reasoning_content", "reasoning");
    if (a->traits->reasoning != CHAT_REASONING_PART) return;
    if (!reasoning->len) {
        drop(message, "reasoning_content");
        return;
    }
    struct value thought = part_of(a, "thinking", *reasoning);
    const struct value *content = value_get(message, "content");
    struct value text = join(a, content), part = part_of(a, "text", text);
    if (content && content->kind == VALUE_ARRAY)
        put(a, message, "content", list_of(a, &thought, content->items, content->n_items));
    else
        put(a, message, "content", list_of(a, &thought, &part, text.len ? 1 : 0));
    drop(message, "reasoning_content");
}

static void fix_assistant(struct adapt *a, struct value *message) {
    static const char *const texts[] = {"content", "reasoning_content", "thinking", "reasoning"};
    fix_content(a, CHAT_ROLE_ASSISTANT, message);
    fix_calls(a, message);
    fix_reasoning(a, message);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct value *text = member(message, texts[i]);
        if (text) chat_adapt_trust(a, text);
    }
}

/* ---- results ----------------------------------------------------------------------------------- */

/* The last call of this id. */
static const struct past_call *find_call(const struct adapt *a, const struct value *id) {
    size_t oldest = a->n_calls > CALLS_BACK_MAX ? a->n_calls - CALLS_BACK_MAX : 0;
    for (size_t i = a->n_calls; id && id->kind == VALUE_STRING && i > oldest; i--) {
        const struct value *other = a->calls[i - 1].id;
        if (other && other->len == id->len && memcmp(other->text, id->text, id->len) == 0)
            return &a->calls[i - 1];
    }
    return NULL;
}

static void fix_result(struct adapt *a, struct value *message) {
    const struct value *id = value_get(message, "tool_call_id");
    const struct past_call *call = find_call(a, id);
    fix_content(a, CHAT_ROLE_TOOL, message);
    if (call && call->name && !value_get(message, "name")) put(a, message, "name", *call->name);
    struct value new_id = {.kind = VALUE_NULL};
    if (call)
        new_id = call->new_id;
    else if (a->traits->ids == CHAT_IDS_SHORT && id && id->kind == VALUE_STRING)
        new_id = chat_adapt_id(a, id, NULL, 0);
    if (new_id.kind != VALUE_NULL) put(a, message, "tool_call_id", new_id);
}

/* ---- all of it --------------------------------------------------------------------------------- */

static void emit(struct adapt *a, const struct value *from) {
    if (from->kind != VALUE_OBJECT) { /* the template may say what it thinks of it */
        a->out[a->n_out++] = *from;
        return;
    }
    struct value message = copy_object(a, from, ROOM);
    if (is_system(a, from)) {
        put(a, &message, "role", adapt_text("system", 6));
        fix_content(a, CHAT_ROLE_SYSTEM, &message);
    } else if (has_role(from, "developer")) {
        fix_content(a, CHAT_ROLE_SYSTEM, &message);
    } else if (has_role(from, "assistant")) {
        fix_assistant(a, &message);
    } else if (has_role(from, "tool")) {
        fix_result(a, &message);
    } else {
        fix_content(a, CHAT_ROLE_USER, &message);
        if (a->system.kind != VALUE_NULL && has_role(from, "user")) prefix_user(a, &message);
    }
    a->out[a->n_out++] = message;
}

static size_t count_calls(const struct value *messages) {
    size_t n = 0;
    for (size_t i = 0; i < messages->n_items; i++) {
        const struct value *calls = value_get(&messages->items[i], "tool_calls");
        if (calls && calls->kind == VALUE_ARRAY) n += calls->n_items;
    }
    return n;
}

static bool has_user(const struct value *messages) {
    for (size_t i = 0; i < messages->n_items; i++)
        if (has_role(&messages->items[i], "user")) return true;
    return false;
}

static void adapt_messages(struct adapt *a) {
    const struct value *messages = a->chat->messages;
    a->out = chat_adapt_alloc(a, messages->n_items + 1, sizeof *a->out);
    a->calls = chat_adapt_alloc(a, count_calls(messages), sizeof *a->calls);
    if (a->rc) return;
    struct gathering g = plan_systems(a);
    if (g.leading || g.late) {
        gather_systems(a, &g);
        if (a->traits->system)
            emit_system(a, "system", CHAT_ROLE_SYSTEM);
        else if (!has_user(messages))
            emit_system(a, "user", CHAT_ROLE_USER);
    }
    for (size_t i = 0; !a->rc && i < messages->n_items; i++)
        if (!is_gathered(a, &g, i)) emit(a, &messages->items[i]);
}

static int by_address(const void *a, const void *b) {
    const struct chat_span *x = a, *y = b;
    return ((uintptr_t)x->text > (uintptr_t)y->text) - ((uintptr_t)x->text < (uintptr_t)y->text);
}

int chat_adapt(const struct chat *chat, const struct chat_traits *traits, struct adapted *out,
               struct err *err) {
    if (chat->tools && chat->tools->n_items && !traits->tools)
        return err_set(err, ERR_INVALID,
                       "tools cannot be used: the model's chat template does not show them");
    ASSERT(chat->messages->kind == VALUE_ARRAY);
    struct adapt a = {.chat = chat, .traits = traits, .err = err};
    a.arena = arena_create(CHAT_MEMORY_MAX);
    if (!a.arena) return err_set(err, ERR_NOMEM, "messages: no memory");
    adapt_messages(&a);
    if (a.rc) {
        arena_destroy(a.arena);
        return a.rc;
    }
    if (a.n_spans) qsort(a.spans, a.n_spans, sizeof *a.spans, by_address);
    *out = (struct adapted){.arena = a.arena, .spans = a.spans, .n_spans = a.n_spans};
    out->messages = (struct value){.kind = VALUE_ARRAY, .n_items = a.n_out};
    out->messages.items = a.out;
    return OK;
}

void adapted_free(struct adapted *adapted) {
    arena_destroy(adapted->arena);
    *adapted = (struct adapted){0};
}

int chat_adapt_render(const struct chat_template *tmpl, const struct chat_traits *traits,
                      const struct chat *chat, const struct chat_variable *variables,
                      size_t n_variables, struct rendered *out, struct err *err) {
    struct adapted adapted;
    int rc = chat_adapt(chat, traits, &adapted, err);
    if (rc) return rc;
    struct chat changed = *chat;
    changed.messages = &adapted.messages;
    const struct chat_render_options options = {.spans = adapted.spans, .n_spans = adapted.n_spans};
    rc = chat_template_render_with(tmpl, &changed, variables, n_variables, &options, out, err);
    adapted_free(&adapted);
    return rc;
}
