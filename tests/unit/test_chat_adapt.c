/* Templates of many families, the conversations that clients send, and what must come out: texts by
 * jinja2 from messages in the form that each template reads. Everything goes the way of a request:
 * body, validation, probe, adaptation, template. */
#include "tests/unit/proto_requests.h"

#include <jansson.h>

#include "engine/chat/chat_adapt.h"
#include "engine/model.h"

static const int64_t NOON = 1772366400; /* 2026-03-01 12:00 UTC */

static const struct chat_variable specials[] = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};

struct family {
    struct chat_template *tmpl;
    struct chat_traits traits;
};

static struct family family_of(const char *source) {
    struct family f;
    struct err err;
    if (chat_template_create(source, strlen(source), &f.tmpl, &err)) fail_msg("%s", err.msg);
    chat_probe(f.tmpl, specials, ARRAY_LEN(specials), &f.traits);
    return f;
}

static void family_free(struct family *f) {
    chat_template_destroy(f->tmpl);
}

/* ---- a request --------------------------------------------------------------------------------- */

static struct api_request request_of(const json_t *messages) {
    json_t *body = json_pack("{s:O}", "messages", messages);
    char *text = json_dumps(body, JSON_PRESERVE_ORDER);
    struct api_request request = accepted(ROUTE_CHAT, text);
    free(text);
    json_decref(body);
    return request;
}

static struct api_request request_text(const char *messages) {
    json_t *json = json_loads(messages, 0, NULL);
    if (!json) fail_msg("test JSON: %s", messages);
    struct api_request request = request_of(json);
    json_decref(json);
    return request;
}

static struct chat chat_of(const struct api_request *request, bool generate) {
    return (struct chat){.messages = request->messages,
                         .arguments = request->call_arguments,
                         .add_generation_prompt = generate,
                         .now = NOON};
}

/* Every byte that the value reaches: to see that nothing of an input changed. */
static uint64_t digest(const struct value *v, uint64_t h) {
    h = (h ^ (uint64_t)v->kind) * 0x100000001b3u;
    if (v->kind == VALUE_BOOL || v->kind == VALUE_INT)
        return (h ^ (v->kind == VALUE_BOOL ? v->boolean : (uint64_t)v->integer)) * 0x100000001b3u;
    if (v->kind == VALUE_STRING) {
        for (size_t i = 0; i < v->len; i++)
            h = (h ^ (unsigned char)v->text[i]) * 0x100000001b3u;
        return h;
    }
    for (size_t i = 0; v->kind >= VALUE_ARRAY && i < v->n_items; i++) {
        if (v->kind == VALUE_OBJECT)
            for (size_t k = 0; k < v->keys[i].len; k++)
                h = (h ^ (unsigned char)v->keys[i].text[k]) * 0x100000001b3u;
        h = digest(&v->items[i], h);
    }
    return h;
}

static int render(const struct family *f, const struct chat *chat, struct rendered *out,
                  struct err *err) {
    uint64_t before = digest(chat->messages, 1);
    int rc = chat_adapt_render(f->tmpl, &f->traits, chat, specials, ARRAY_LEN(specials), out, err);
    assert_true(digest(chat->messages, 1) == before);
    return rc;
}

/* ---- the files --------------------------------------------------------------------------------- */

static json_t *load(const char *name) {
    size_t len;
    char *text = read_file(golden_path(name), &len);
    json_t *json = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    free(text);
    assert_true(json_is_array(json));
    return json;
}

/* In the expected text @0000000N stands for an id of nine letters and digits of our making: the same
 * N the same, another N another. */
static bool equals(const char *got, size_t len, const char *wanted) {
    char ids[10][10] = {{0}};
    if (len != strlen(wanted)) return false;
    for (size_t i = 0; i < len; i++) {
        if (wanted[i] != '@' || strncmp(wanted + i, "@0000000", 8) != 0) {
            if (got[i] != wanted[i]) return false;
            continue;
        }
        char *id = ids[wanted[i + 8] - '0'];
        if (!id[0]) {
            memcpy(id, got + i, 9);
            for (int k = 0; k < 9; k++)
                assert_non_null(strchr(
                    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", id[k]));
        }
        if (memcmp(id, got + i, 9) != 0) return false;
        i += 8;
    }
    return !ids[1][0] || strcmp(ids[0], ids[1]) != 0;
}

static void check_case(const char *name, const struct family *f, const json_t *c) {
    struct api_request request = request_of(json_object_get(c, "messages"));
    struct chat chat = chat_of(&request, true);
    struct rendered r = {0};
    struct err err = {0};
    const char *wanted = json_string_value(json_object_get(c, "text"));
    int rc = render(f, &chat, &r, &err);
    if (!wanted) {
        assert_int_equal(rc, ERR_INVALID);
        assert_string_equal(err.msg, json_string_value(json_object_get(c, "error")));
    } else if (rc) {
        fail_msg("%s: %s", name, err.msg);
    } else if (!equals(r.text, r.len, wanted)) {
        fail_msg("%s: got\n%s\nexpected\n%s", name, r.text, wanted);
    }
    rendered_free(&r);
    api_request_free(&request);
}

static void each_family_gets_messages_as_it_reads_them(void **state) {
    (void)state;
    json_t *families = load("chat-families.json"), *family, *c;
    size_t i, k;
    assert_true(json_array_size(families) >= 19);
    json_array_foreach(families, i, family) {
        const char *name = json_string_value(json_object_get(family, "name"));
        struct family f = family_of(json_string_value(json_object_get(family, "template")));
        char traits[400];
        chat_traits_describe(&f.traits, traits, sizeof traits);
        if (strcmp(traits, json_string_value(json_object_get(family, "traits"))) != 0)
            fail_msg("%s: probed as '%s'", name, traits);
        json_array_foreach(json_object_get(family, "cases"), k, c) check_case(name, &f, c);
        family_free(&f);
    }
    json_decref(families);
}

static void smollm2_renders_like_transformers(void **state) {
    (void)state;
    char *source = read_file(golden_path("smollm2-template.jinja"), NULL);
    struct family f = family_of(source);
    json_t *chats = load("smollm2-chats.json"), *c;
    size_t i;
    assert_true(json_array_size(chats) >= 17);
    json_array_foreach(chats, i, c) {
        struct api_request request = request_of(json_object_get(c, "messages"));
        struct chat chat =
            chat_of(&request, json_is_true(json_object_get(c, "add_generation_prompt")));
        struct rendered r = {0};
        struct err err = {0};
        if (render(&f, &chat, &r, &err)) fail_msg("%s", err.msg);
        assert_string_equal(r.text, json_string_value(json_object_get(c, "text")));
        rendered_free(&r);
        api_request_free(&request);
    }
    json_decref(chats);
    family_free(&f);
    free(source);
}

/* The template and the tokenizer of the file itself; GERYON_TEST_GGUF names it. */
static void smollm2_file_renders_like_transformers(void **state) {
    (void)state;
    const char *path = getenv("GERYON_TEST_GGUF");
    if (!path) skip();
    struct model *model;
    struct err err = {0};
    const struct model_options options = {.path = path, .n_threads = 1};
    if (model_load(&options, &model, &err)) fail_msg("%s", err.msg);
    json_t *chats = load("smollm2-chats.json"), *c;
    size_t i;
    json_array_foreach(chats, i, c) {
        struct api_request request = request_of(json_object_get(c, "messages"));
        struct chat chat =
            chat_of(&request, json_is_true(json_object_get(c, "add_generation_prompt")));
        struct tokens ids = {0};
        char *text, *back;
        size_t len, back_len;
        if (model_render_chat(model, &chat, &ids, &text, &len, &err)) fail_msg("%s", err.msg);
        assert_string_equal(text, json_string_value(json_object_get(c, "text")));
        assert_int_equal(model_detokenize(model, ids.ids, ids.n, false, &back, &back_len, &err),
                         OK);
        assert_string_equal(back, text);
        free(text);
        free(back);
        tokens_free(&ids);
        api_request_free(&request);
    }
    json_decref(chats);
    model_destroy(model);
}

/* ---- tools ------------------------------------------------------------------------------------- */

static struct value tools_of(struct arena *arena) {
    static const char text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    struct value tools;
    struct api_error err;
    assert_int_equal(proto_parse_json(text, strlen(text), arena, &tools, &err), OK);
    return tools;
}

static void tools_that_no_template_shows_are_refused(void **state) {
    (void)state;
    struct arena *arena = arena_create(1 << 16);
    struct value tools = tools_of(arena), none = {.kind = VALUE_ARRAY};
    struct api_request request = request_text("[{\"role\":\"user\",\"content\":\"Hi\"}]");
    struct chat chat = chat_of(&request, true);
    struct family deaf = family_of("{% for m in messages %}{{ m.content }}{% endfor %}");
    struct family able = family_of("{{ tools | tojson }}{{ messages[0].content }}");
    struct rendered r = {0};
    struct err err = {0};
    chat.tools = &tools;
    assert_int_equal(render(&deaf, &chat, &r, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "tools"));
    assert_int_equal(render(&able, &chat, &r, &err), OK);
    assert_string_equal(r.text, "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]Hi");
    rendered_free(&r);
    chat.tools = &none;
    assert_int_equal(render(&deaf, &chat, &r, &err), OK);
    rendered_free(&r);
    family_free(&deaf);
    family_free(&able);
    api_request_free(&request);
    arena_destroy(arena);
}

/* ---- provenance -------------------------------------------------------------------------------- */

/* Whether the text's one occurrence lies wholly within trusted runs. */
static bool is_trusted(const struct rendered *r, const char *needle) {
    const char *at = memmem(r->text, r->len, needle, strlen(needle));
    if (!at) fail_msg("'%s' is not in '%s'", needle, r->text);
    for (size_t i = 0; i < r->n_runs; i++)
        if (at >= r->runs[i].text && at < r->runs[i].text + r->runs[i].len)
            return r->runs[i].trusted && at + strlen(needle) <= r->runs[i].text + r->runs[i].len;
    return false;
}

static void moved_texts_stay_the_clients(void **state) {
    (void)state;
    struct family f = family_of("{% for m in messages %}{% if m.role == 'user' %}<|user|>"
                                "{{ m.content }}{% endif %}{% endfor %}");
    struct api_request request =
        request_text("[{\"role\":\"system\",\"content\":\"<|a|>\"},{\"role\":\"user\",\"content\":["
                     "{\"type\":\"text\",\"text\":\"<|b\"},{\"type\":\"text\",\"text\":\"|>\"}]}]");
    struct chat chat = chat_of(&request, true);
    struct rendered r = {0};
    struct err err;
    assert_int_equal(render(&f, &chat, &r, &err), OK);
    assert_string_equal(r.text, "<|user|><|a|>\n\n<|b|>");
    assert_true(is_trusted(&r, "<|user|>"));
    assert_false(is_trusted(&r, "<|a|>"));
    assert_false(is_trusted(&r, "<|b|>"));
    rendered_free(&r);
    api_request_free(&request);
    family_free(&f);
}

/* What a model wrote as control tokens it reads as such again; what would end a turn stays text. */
static void markers_of_the_assistant_are_its_own(void **state) {
    (void)state;
    struct family f = family_of("{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}"
                                "{{ m.content }};{% endfor %}");
    struct api_request request =
        request_text("[{\"role\":\"user\",\"content\":\"[THINK]</think>\"},"
                     "{\"role\":\"assistant\",\"reasoning\":\"<think>[/THINK]\",\"content\":"
                     "\"<tool_call>x</tool_call><|im_end|><|tool_call_begin|>\\u00e9\"}]");
    struct chat chat = chat_of(&request, true);
    struct rendered r = {0};
    struct err err;
    assert_int_equal(render(&f, &chat, &r, &err), OK);
    assert_string_equal(r.text,
                        "user:[THINK]</think>;assistant:<think>[/THINK]<tool_call>x</tool_call>"
                        "<|im_end|><|tool_call_begin|>\xC3\xA9;");
    assert_false(is_trusted(&r, "[THINK]"));
    assert_false(is_trusted(&r, "</think>"));
    assert_true(is_trusted(&r, "<think>"));
    assert_true(is_trusted(&r, "[/THINK]"));
    assert_true(is_trusted(&r, "<tool_call>"));
    assert_false(is_trusted(&r, "x"));
    assert_true(is_trusted(&r, "</tool_call>"));
    assert_false(is_trusted(&r, "<|im_end|>"));
    assert_true(is_trusted(&r, "<|tool_call_begin|>"));
    assert_false(is_trusted(&r, "\xC3\xA9"));
    rendered_free(&r);
    api_request_free(&request);

    f.traits.written_calls = CHAT_SYNTAX_PYTHONIC; /* as parts too, and where calls are written */
    f.traits.parts[CHAT_ROLE_ASSISTANT] = true;
    request = request_text("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                           "\"arguments\":\"{\\\"k\\\":\\\"<|im_end|>\\\"}\"}}]}]");
    chat = chat_of(&request, true);
    assert_int_equal(render(&f, &chat, &r, &err), OK);
    assert_true(is_trusted(&r, "<|tool_call_start|>"));
    assert_false(is_trusted(&r, "<|im_end|>"));
    rendered_free(&r);
    api_request_free(&request);
    family_free(&f);
}

/* ---- bounds ------------------------------------------------------------------------------------ */

static char *many(const char *item, size_t n) {
    size_t len = strlen(item);
    char *text = malloc(n * (len + 1) + 2), *at = text;
    assert_non_null(text);
    *at++ = '[';
    for (size_t i = 0; i < n; i++) {
        memcpy(at, item, len);
        at += len;
        *at++ = i + 1 < n ? ',' : ']';
    }
    *at = '\0';
    return text;
}

static void long_conversations_take_linear_time(void **state) {
    (void)state;
    struct family f = family_of("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}"
                                "{% endif %}{% endfor %}");
    static const char *const items[] = {
        "{\"role\":\"system\",\"content\":\"a system text of some length, to be moved\"},"
        "{\"role\":\"user\",\"content\":\"x\"}",
        "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"x\"}",
    };
    f.traits.ids = CHAT_IDS_SHORT;
    for (size_t i = 0; i < ARRAY_LEN(items); i++) {
        char *text = many(items[i], 2048);
        struct api_request request = request_text(text);
        struct chat chat = chat_of(&request, false);
        struct rendered r = {0};
        struct err err;
        assert_int_equal(render(&f, &chat, &r, &err), OK);
        rendered_free(&r);
        api_request_free(&request);
        free(text);
    }
    family_free(&f);
}

static void deep_arguments_are_refused(void **state) {
    (void)state;
    struct family f = family_of("{{ messages[0].content }}");
    struct value deep[66]; /* 64 are allowed */
    for (size_t i = 0; i < ARRAY_LEN(deep); i++) {
        deep[i] = (struct value){.kind = VALUE_ARRAY, .n_items = i ? 1 : 0};
        if (i) deep[i].items = &deep[i - 1];
    }
    struct api_request request =
        request_text("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                     "\"arguments\":\"{\\\"k\\\":1}\"}}]}]");
    struct value *calls =
        (struct value *)(uintptr_t)value_get(&request.messages->items[0], "tool_calls");
    const struct value *function = value_get(&calls->items[0], "function");
    struct value *arguments = (struct value *)(uintptr_t)value_get(function, "arguments");
    arguments->items[0] = deep[ARRAY_LEN(deep) - 1];
    struct chat chat = chat_of(&request, false);
    struct rendered r = {0};
    struct err err = {0};
    chat.arguments = NULL; /* so that the text must be written out */
    f.traits.arguments_text = true;
    assert_int_equal(render(&f, &chat, &r, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "nested too deep"));
    arguments->items[0] = deep[40];
    assert_int_equal(render(&f, &chat, &r, &err), OK);
    rendered_free(&r);
    api_request_free(&request);
    family_free(&f);
}

static void assert_probed(const char *source, const char *wanted) {
    struct family f = family_of(source);
    char traits[400];
    chat_traits_describe(&f.traits, traits, sizeof traits);
    assert_string_equal(traits, wanted);
    family_free(&f);
}

/* A template that takes all its steps costs one rendering's bound in all. Where not even a plain
 * question shows, nothing is known, and the defaults stand. */
static void endless_templates_are_probed_within_the_bound(void **state) {
    (void)state;
#define ENDLESS "{% for i in range(100000) %}{% for k in range(100000) %}{% endfor %}{% endfor %}"
    assert_probed(ENDLESS "{{ messages[0].content }}", "tools");
    assert_probed("{{ raise_exception('never') }}", "tools");
    assert_probed("", "tools");
    assert_probed("{{ messages[0].content }}{% if messages|length > 1 or tools %}" ENDLESS
                  "{% endif %}",
                  "system goes into the user's text");
#undef ENDLESS
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_family_gets_messages_as_it_reads_them),
        cmocka_unit_test(smollm2_renders_like_transformers),
        cmocka_unit_test(smollm2_file_renders_like_transformers),
        cmocka_unit_test(tools_that_no_template_shows_are_refused),
        cmocka_unit_test(moved_texts_stay_the_clients),
        cmocka_unit_test(markers_of_the_assistant_are_its_own),
        cmocka_unit_test(long_conversations_take_linear_time),
        cmocka_unit_test(deep_arguments_are_refused),
        cmocka_unit_test(endless_templates_are_probed_within_the_bound),
    };
    return cmocka_run_group_tests_name("chat_adapt", tests, NULL, NULL);
}
