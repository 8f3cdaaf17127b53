/* Small conversations, rendered at load; what shows in the text decides.
 *
 *   words that no template holds:  zquser zqsystem zqanswer zqcall zqvalue zqresult zqthought
 *   [user: zquser, system: zqsystem]  ->  text  ->  holds zqsystem?  fails?
 *
 * The order matters: how a user's text is read is asked first, as every other conversation holds
 * one; calls come before reasoning, which some templates show only beside them. */
#include "engine/chat/chat_probe.h"

#include <stdio.h>
#include <string.h>

#include "engine/chat/chat_internal.h"

enum {
    POOL_VALUES = 128, /* of one conversation */
    MEMBERS_MAX = 6,   /* of one object */
    MESSAGES_CAP = 6,
    PROBE_STEPS_MAX = 100000, /* of one conversation; real templates take a few thousand */
    PROBE_STEPS_ALL = CHAT_STEPS_MAX / 5,
};

#define CALL_NAME  "zqcall"
#define CALL_VALUE "zqvalue"

struct probe {
    const struct chat_template *tmpl;
    const struct chat_variable *variables;
    size_t n_variables;
    struct chat_traits *traits;
    uint64_t steps_left;
    /* the conversation being built */
    struct value values[POOL_VALUES];
    struct value_key keys[POOL_VALUES];
    size_t n_values;
    struct value messages[MESSAGES_CAP];
    size_t n_messages;
    bool with_tools;
    struct rendered seen;
};

/* ---- building a conversation ------------------------------------------------------------------- */

static struct value text_of(const char *text) {
    return (struct value){.kind = VALUE_STRING, .text = text, .len = strlen(text)};
}

static struct value *take(struct probe *p, size_t n) {
    ASSERT(n <= POOL_VALUES - p->n_values);
    p->n_values += n;
    return p->values + (p->n_values - n);
}

static struct value object(struct probe *p) {
    struct value v = {.kind = VALUE_OBJECT};
    v.items = take(p, MEMBERS_MAX);
    v.keys = p->keys + (v.items - p->values);
    return v;
}

static void put(struct value *object, const char *name, struct value member) {
    ASSERT(object->n_items < MEMBERS_MAX);
    object->keys[object->n_items] = (struct value_key){name, strlen(name)};
    object->items[object->n_items++] = member;
}

static struct value array(struct probe *p, const struct value *items, size_t n) {
    struct value v = {.kind = VALUE_ARRAY, .n_items = n};
    v.items = take(p, n);
    for (size_t i = 0; i < n; i++)
        v.items[i] = items[i];
    return v;
}

static void begin(struct probe *p) {
    p->n_values = p->n_messages = 0;
    p->with_tools = false;
}

static struct value part_of(struct probe *p, const char *type, const char *text) {
    struct value part = object(p);
    put(&part, "type", text_of(type));
    put(&part, type, text_of(text));
    return part;
}

/* A text as the template reads it from this role. */
static struct value content_of(struct probe *p, enum chat_role role, const char *text) {
    if (!p->traits->parts[role]) return text_of(text);
    struct value part = part_of(p, "text", text);
    return array(p, &part, 1);
}

static struct value *add(struct probe *p, const char *role) {
    ASSERT(p->n_messages < MESSAGES_CAP);
    struct value *message = &p->messages[p->n_messages++];
    *message = object(p);
    put(message, "role", text_of(role));
    return message;
}

static void add_text(struct probe *p, const char *role, enum chat_role form, const char *text) {
    struct value content = content_of(p, form, text);
    put(add(p, role), "content", content);
}

static void add_user(struct probe *p) {
    add_text(p, "user", CHAT_ROLE_USER, "zquser");
}

/* A tool whose name is not that of any call. */
static struct value tools_of(struct probe *p) {
    struct value type = object(p), properties = object(p), parameters = object(p);
    put(&type, "type", text_of("string"));
    put(&properties, "zqfield", type);
    put(&parameters, "type", text_of("object"));
    put(&parameters, "properties", properties);
    struct value function = object(p), tool = object(p);
    put(&function, "name", text_of("zqtool"));
    put(&function, "description", text_of("zqabout"));
    put(&function, "parameters", parameters);
    put(&tool, "type", text_of("function"));
    put(&tool, "function", function);
    return array(p, &tool, 1);
}

/* ---- asking ------------------------------------------------------------------------------------ */

/* Render what was built into seen; false when the template fails or refuses. */
static bool ask(struct probe *p) {
    rendered_free(&p->seen);
    uint64_t steps = p->steps_left < PROBE_STEPS_MAX ? p->steps_left : PROBE_STEPS_MAX;
    const struct chat_render_options options = {.steps_left = &steps};
    struct value messages = {.kind = VALUE_ARRAY, .n_items = p->n_messages}, tools = {0};
    messages.items = p->messages;
    struct chat chat = {
        .messages = &messages, .add_generation_prompt = true, .now = 1764000000 /* any day */};
    if (p->with_tools) {
        tools = tools_of(p);
        chat.tools = &tools;
    }
    struct err err;
    uint64_t before = steps;
    int rc = chat_template_render_with(p->tmpl, &chat, p->variables, p->n_variables, &options,
                                       &p->seen, &err);
    p->steps_left -= before - steps;
    return rc == OK;
}

static bool shows(const struct probe *p, const char *word) {
    return p->seen.text && memmem(p->seen.text, p->seen.len, word, strlen(word)) != NULL;
}

/* A list printed as it stands shows every word, but is not read as parts. */
static bool shows_parts(const struct probe *p) {
    return shows(p, "'type': 'text'") || shows(p, "'type': 'thinking'") ||
           shows(p, "\"type\": \"text\"") || shows(p, "\"type\": \"thinking\"") ||
           shows(p, "\"type\":\"text\"") || shows(p, "\"type\":\"thinking\"");
}

static size_t count(const struct probe *p, const char *word) {
    size_t n = 0, len = strlen(word);
    const char *at = p->seen.text, *end = at ? at + p->seen.len : NULL;
    while (at && (at = memmem(at, (size_t)(end - at), word, len)) != NULL) {
        at += len;
        n++;
    }
    return n;
}

/* ---- texts and roles --------------------------------------------------------------------------- */

/* One role's text as a string, and where that does not show, as a list of parts. */
static bool ask_form(struct probe *p, enum chat_role form, void (*build)(struct probe *p),
                     const char *word) {
    for (int parts = 0; parts < 2; parts++) {
        p->traits->parts[form] = parts;
        begin(p);
        build(p);
        if (ask(p) && shows(p, word) && !shows_parts(p)) return true;
    }
    p->traits->parts[form] = false;
    return false;
}

static void build_system(struct probe *p) {
    add_text(p, "system", CHAT_ROLE_SYSTEM, "zqsystem");
    add_user(p);
}

static void build_turns(struct probe *p) {
    add_user(p);
    add_text(p, "assistant", CHAT_ROLE_ASSISTANT, "zqanswer");
    add_user(p);
}

static void ask_systems(struct probe *p) {
    struct chat_traits *t = p->traits;
    t->system = ask_form(p, CHAT_ROLE_SYSTEM, build_system, "zqsystem") && shows(p, "zquser");
    if (!t->system) t->parts[CHAT_ROLE_SYSTEM] = false;

    begin(p);
    add_text(p, "system", CHAT_ROLE_SYSTEM, "zqsystem");
    add_text(p, "system", CHAT_ROLE_SYSTEM, "zqsecond");
    add_user(p);
    t->several_systems = t->system && ask(p) && shows(p, "zqsystem") && shows(p, "zqsecond");

    begin(p);
    if (t->system) add_text(p, "system", CHAT_ROLE_SYSTEM, "zqsystem");
    build_turns(p);
    struct value last = p->messages[--p->n_messages];
    add_text(p, "system", CHAT_ROLE_SYSTEM, "zqsecond");
    p->messages[p->n_messages++] = last;
    t->drops_late_systems = ask(p) && !shows(p, "zqsecond");
}

static bool ask_role(struct probe *p, const char *role) {
    begin(p);
    add_text(p, role, CHAT_ROLE_SYSTEM, "zqsystem");
    add_user(p);
    return ask(p) && shows(p, "zqsystem");
}

/* A template that writes any role down knows none by name: those are told apart by a made-up role,
 * for which the text then differs in nothing but that word. */
static void ask_developer(struct probe *p) {
    static const char role[] = "developer", other[] = "zqdevelop"; /* of one length */
    if (!ask_role(p, role)) return;
    struct rendered known = p->seen;
    p->seen = (struct rendered){0};
    bool same = ask_role(p, other) && p->seen.len == known.len;
    for (size_t i = 0; same && i < known.len; i++) {
        if (known.len - i >= sizeof role - 1 &&
            memcmp(known.text + i, role, sizeof role - 1) == 0 &&
            memcmp(p->seen.text + i, other, sizeof other - 1) == 0)
            i += sizeof role - 2;
        else
            same = known.text[i] == p->seen.text[i];
    }
    rendered_free(&known);
    p->traits->developer = !same;
}

/* ---- tools and calls --------------------------------------------------------------------------- */

static void ask_tools(struct probe *p) {
    for (int with_system = 0; with_system < 2 && !p->traits->tools; with_system++) {
        begin(p);
        if (with_system) add_text(p, "system", CHAT_ROLE_SYSTEM, "zqsystem");
        add_user(p);
        p->with_tools = true;
        p->traits->tools = ask(p) && shows(p, "zqtool");
    }
}

/* One way to show a call. */
struct way {
    bool tools, result; /* tools declared, the call answered */
    enum chat_ids ids;
    bool text;
    enum chat_empty empty;
};

static const char *id_of(enum chat_ids ids, int index) {
    static const char *const all[][2] = {
        [CHAT_IDS_AS_SENT] = {"call_zq0123456789abcdefABCDEF", "call_zq1123456789abcdefABCDEF"},
        [CHAT_IDS_SHORT] = {"zq0123456", "zq1123456"},
        [CHAT_IDS_INDEXED] = {"functions." CALL_NAME ":0", "functions.zqother:1"},
    };
    return all[ids][index];
}

static struct value call_of(struct probe *p, const struct way *way, int index) {
    static const char *const names[] = {CALL_NAME, "zqother"};
    struct value arguments = text_of("{\"zqkey\": \"" CALL_VALUE "\"}");
    if (!way->text) {
        arguments = object(p);
        put(&arguments, "zqkey", text_of(CALL_VALUE));
    }
    struct value function = object(p), call = object(p);
    put(&function, "name", text_of(names[index]));
    put(&function, "arguments", arguments);
    put(&call, "id", text_of(id_of(way->ids, index)));
    put(&call, "type", text_of("function"));
    put(&call, "function", function);
    return call;
}

static void add_result(struct probe *p, const struct way *way) {
    struct value content = content_of(p, CHAT_ROLE_TOOL, "zqresult");
    struct value *result = add(p, "tool");
    put(result, "tool_call_id", text_of(id_of(way->ids, 0)));
    put(result, "name", text_of(CALL_NAME));
    put(result, "content", content);
}

/* user, an assistant that calls n tools, the first one's result. Returns the assistant's message. */
static struct value *build_calls(struct probe *p, const struct way *way, size_t n) {
    begin(p);
    p->with_tools = way->tools;
    add_user(p);
    struct value calls[2];
    for (size_t i = 0; i < n; i++)
        calls[i] = call_of(p, way, (int)i);
    struct value list = array(p, calls, n);
    struct value *message = add(p, "assistant");
    if (way->empty == CHAT_EMPTY_TEXT) put(message, "content", text_of(""));
    if (way->empty == CHAT_EMPTY_NULL) put(message, "content", (struct value){.kind = VALUE_NULL});
    put(message, "tool_calls", list);
    if (way->result) add_result(p, way);
    return message;
}

/* What a conversation without calls holds of the signs of trouble. */
struct before {
    size_t escapes, nones;
};

static bool count_before(struct probe *p, bool tools, struct before *out) {
    begin(p);
    p->with_tools = tools;
    add_user(p);
    bool ok = ask(p);
    *out = (struct before){count(p, "\\\""), count(p, "None")};
    return ok;
}

/* The call's name and value show, not escaped twice, and no content as None. */
static bool way_works(struct probe *p, const struct way *way, const struct before *before) {
    build_calls(p, way, 1);
    return ask(p) && shows(p, CALL_NAME) && shows(p, CALL_VALUE) &&
           count(p, "\\\"") <= before->escapes && count(p, "None") <= before->nones;
}

/* The first way that works: arguments before content, objects before text, both before ids. */
static bool find_way(struct probe *p, struct way *way) {
    for (int shape = 0; shape < 4; shape++) {
        struct before before;
        if (!count_before(p, shape % 2 == 0, &before)) continue;
        for (int ids = CHAT_IDS_AS_SENT; ids <= CHAT_IDS_INDEXED; ids++)
            for (int text = 0; text < 2; text++)
                for (int empty = CHAT_EMPTY_TEXT; empty <= CHAT_EMPTY_ABSENT; empty++) {
                    *way = (struct way){.tools = shape % 2 == 0,
                                        .result = shape < 2,
                                        .ids = (enum chat_ids)ids,
                                        .text = text,
                                        .empty = (enum chat_empty)empty};
                    if (way_works(p, way, &before)) return true;
                }
    }
    return false;
}

static bool mentions(const struct probe *p, const char *word) {
    return memmem(p->tmpl->source, p->tmpl->source_len, word, strlen(word)) != NULL;
}

static void ask_calls(struct probe *p, struct way *way) {
    struct chat_traits *t = p->traits;
    t->calls = find_way(p, way);
    if (!t->calls) {
        if (mentions(p, "<|tool_call_start|>") || mentions(p, "<|tool_list_start|>"))
            t->written_calls = CHAT_SYNTAX_PYTHONIC;
        else if (mentions(p, "<tool_call>"))
            t->written_calls = CHAT_SYNTAX_TAGGED;
        return;
    }
    t->ids = way->ids;
    t->arguments_text = way->text;
    t->empty = way->empty;
    build_calls(p, way, 2);
    t->several_calls = ask(p) && shows(p, CALL_NAME) && shows(p, "zqother");
    if (!way->result) return;
    for (int parts = 0; parts < 2; parts++) {
        t->parts[CHAT_ROLE_TOOL] = parts;
        build_calls(p, way, 1);
        if (ask(p) && shows(p, "zqresult") && !shows_parts(p)) return;
    }
    t->parts[CHAT_ROLE_TOOL] = false;
}

/* ---- reasoning --------------------------------------------------------------------------------- */

static void put_reasoning(struct probe *p, struct value *message, enum chat_reasoning where,
                          const char *text) {
    static const char *const names[] = {[CHAT_REASONING_CONTENT] = "reasoning_content",
                                        [CHAT_REASONING_THINKING] = "thinking",
                                        [CHAT_REASONING_REASONING] = "reasoning"};
    if (where != CHAT_REASONING_PART) {
        if (text) put(message, "content", content_of(p, CHAT_ROLE_ASSISTANT, text));
        put(message, names[where], text_of("zqthought"));
        return;
    }
    struct value parts[2] = {part_of(p, "thinking", "zqthought")};
    if (text) parts[1] = part_of(p, "text", text);
    put(message, "content", array(p, parts, text ? 2 : 1));
}

/* In an answer of the history, or beside a call after the last user's turn: many templates show
 * reasoning only there. */
static bool reasoning_shows(struct probe *p, enum chat_reasoning where, const struct way *way) {
    begin(p);
    add_user(p);
    put_reasoning(p, add(p, "assistant"), where, "zqanswer");
    add_user(p);
    if (ask(p) && shows(p, "zqthought") && shows(p, "zqanswer") && !shows_parts(p)) return true;
    if (!p->traits->calls) return false;
    struct value *message = build_calls(p, way, 1);
    if (where == CHAT_REASONING_PART) {
        if (way->empty != CHAT_EMPTY_ABSENT) { /* the content makes room */
            message->n_items = 1;
            put(message, "tool_calls", message->items[2]);
        }
    }
    put_reasoning(p, message, where, NULL);
    return ask(p) && shows(p, "zqthought") && shows(p, CALL_NAME) && !shows_parts(p);
}

static void ask_reasoning(struct probe *p, const struct way *way) {
    for (int where = CHAT_REASONING_CONTENT; where <= CHAT_REASONING_PART; where++) {
        if (!reasoning_shows(p, (enum chat_reasoning)where, way)) continue;
        p->traits->reasoning = (enum chat_reasoning)where;
        return;
    }
}

/* ---- all of it --------------------------------------------------------------------------------- */

static void build_user(struct probe *p) {
    add_user(p);
}

void chat_traits_defaults(struct chat_traits *traits) {
    *traits = (struct chat_traits){.system = true, .several_systems = true, .tools = true};
}

void chat_probe(const struct chat_template *tmpl, const struct chat_variable *variables,
                size_t n_variables, struct chat_traits *traits) {
    chat_traits_defaults(traits);
    struct probe p = {.tmpl = tmpl,
                      .variables = variables,
                      .n_variables = n_variables,
                      .traits = traits,
                      .steps_left = PROBE_STEPS_ALL};
    struct way way;
    /* A template that shows no plain question says nothing by failing on others. */
    if (ask_form(&p, CHAT_ROLE_USER, build_user, "zquser")) {
        traits->tools = false;
        ask_form(&p, CHAT_ROLE_ASSISTANT, build_turns, "zqanswer");
        ask_systems(&p);
        ask_developer(&p);
        ask_tools(&p);
        ask_calls(&p, &way);
        ask_reasoning(&p, &way);
    }
    rendered_free(&p.seen);
}

/* ---- for people -------------------------------------------------------------------------------- */

struct line {
    char *out;
    size_t cap, n;
};

static void say(struct line *line, bool wanted, const char *text) {
    if (!wanted) return;
    int n = snprintf(line->out + line->n, line->cap - line->n, "%s%s", line->n ? ", " : "", text);
    if (n > 0) line->n += (size_t)n < line->cap - line->n ? (size_t)n : line->cap - line->n - 1;
}

void chat_traits_describe(const struct chat_traits *t, char *out, size_t cap) {
    static const char *const reasoning[] = {
        [CHAT_REASONING_UNSEEN] = "",
        [CHAT_REASONING_CONTENT] = "reasoning shown",
        [CHAT_REASONING_THINKING] = "reasoning shown from thinking",
        [CHAT_REASONING_REASONING] = "reasoning shown from reasoning",
        [CHAT_REASONING_PART] = "reasoning shown from parts",
    };
    struct line line = {.out = out, .cap = cap};
    out[0] = '\0';
    say(&line, !t->system, "system goes into the user's text");
    say(&line, t->system && !t->several_systems, "one system message");
    say(&line, t->drops_late_systems, "late system messages move to the start");
    say(&line, t->developer, "developer role");
    say(&line, t->parts[CHAT_ROLE_USER], "texts as parts");
    say(&line, t->tools, "tools");
    say(&line, t->calls, "calls");
    say(&line, t->calls && !t->several_calls, "one call a message");
    say(&line, t->arguments_text, "arguments as text");
    say(&line, t->empty == CHAT_EMPTY_NULL, "null content beside calls");
    say(&line, t->empty == CHAT_EMPTY_ABSENT, "no content beside calls");
    say(&line, t->ids == CHAT_IDS_SHORT, "call ids of 9 characters");
    say(&line, t->ids == CHAT_IDS_INDEXED, "call ids by name and index");
    say(&line, t->written_calls != CHAT_SYNTAX_NONE, "calls written into the content");
    say(&line, t->reasoning != CHAT_REASONING_UNSEEN, reasoning[t->reasoning]);
}
