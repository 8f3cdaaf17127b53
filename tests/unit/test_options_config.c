/* --config: the file's grammar, its checks, and who wins over whom; and that every flag of serve can
 * be given in all three ways. */
#include "tests/harness.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/options_table.h"

static char path[512];
static const char *env_name, *env_value;

static const char *fake_env(const char *name) {
    return env_name && !strcmp(env_name, name) ? env_value : NULL;
}

static int make_path(void **state) {
    (void)state;
    snprintf(path, sizeof path, "%s/config", scratch_dir());
    return 0;
}

/* `geryon serve --config FILE` with up to two words more. */
static int parse(struct options *options, const char *text, char *word1, char *word2,
                 struct err *err) {
    write_file(path, text, strlen(text));
    static char program[] = "geryon", serve[] = "serve", flag[] = "--config";
    char *argv[] = {program, serve, flag, path, word1, word2};
    return options_parse(options, 4 + (word1 != NULL) + (word2 != NULL), argv, fake_env, err);
}

static void keys_are_flags_without_dashes(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    const char *text = "# a server\r\n"
                       "model = /models/a model   # with a blank\n"
                       "\n"
                       "  max-num-seqs=8\n"
                       "ctx-size = 2048\n"
                       "kv-memory = 512M\n"
                       "\tstrict-params = true\n"
                       "shutdown-timeout = 2.5\n"
                       "drafts = off#not a comment"; /* ... so that is no draft length */
    assert_int_equal(parse(&o, text, NULL, NULL, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, ":9: drafts: \"off#not a comment\""));
    options_fini(&o);
    text = "model = /models/a model   # with a blank\n  max-num-seqs=8\r\nctx-size = 2048\n"
           "kv-memory = 512M\n\tstrict-params = true\nshutdown-timeout = 2.5\ndrafts = off # none";
    assert_int_equal(parse(&o, text, NULL, NULL, &err), OK);
    assert_string_equal(o.model, "/models/a model");
    assert_int_equal(o.max_num_seqs, 8);
    assert_int_equal(o.max_model_len, 2048);
    assert_true(o.kv_memory == 512u << 20);
    assert_true(o.strict_params);
    assert_true(o.shutdown_timeout == 2.5);
    assert_int_equal(o.drafts, 0);
    assert_int_equal(o.port, 8080); /* the default of what nobody gave */
    options_fini(&o);
}

static void quotes_keep_what_they_hold(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    const char *text = "model = \" a # b \"  # comment\napi-key = \"q\\\"\\\\\\n\"\napi-key=k#2\n";
    assert_int_equal(parse(&o, text, NULL, NULL, &err), OK);
    assert_string_equal(o.model, " a # b ");
    assert_int_equal(o.api_keys.n, 2);
    assert_string_equal(o.api_keys.items[0], "q\"\\\\n");
    assert_string_equal(o.api_keys.items[1], "k#2");
    options_fini(&o);
}

static void flag_then_variable_then_file(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    static char flag[] = "--max-num-seqs=3", name[] = "--served-model-name=flag";
    const char *text = "model = m\nmax-num-seqs = 5\nport = 5\nserved-model-name = a\n"
                       "served-model-name = b\n";
    env_name = "GERYON_MAX_NUM_SEQS";
    env_value = "4";
    assert_int_equal(parse(&o, text, flag, name, &err), OK);
    assert_int_equal(o.max_num_seqs, 3);
    assert_int_equal(o.port, 5);
    assert_int_equal(o.served_model_names.n, 1); /* a flag replaces the file's whole list */
    options_fini(&o);
    assert_int_equal(parse(&o, text, NULL, NULL, &err), OK);
    assert_int_equal(o.max_num_seqs, 4);
    assert_int_equal(o.served_model_names.n, 2);
    options_fini(&o);
    env_name = NULL;
    assert_int_equal(parse(&o, text, NULL, NULL, &err), OK);
    assert_int_equal(o.max_num_seqs, 5);
    options_fini(&o);
}

static void the_file_may_come_from_its_variable(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    static char program[] = "geryon", serve[] = "serve";
    char *argv[] = {program, serve};
    const char *text = "model = m\nmax-connections = 77\n";
    write_file(path, text, strlen(text));
    env_name = "GERYON_CONFIG";
    env_value = path;
    assert_int_equal(options_parse(&o, 2, argv, fake_env, &err), OK);
    assert_int_equal(o.max_connections, 77);
    assert_true(o.max_connections_set);
    env_name = NULL;
    options_fini(&o);
}

static void faults_name_file_and_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } CASES[] = {
        {"model = m\nport = 70000\n", ":2: port: \"70000\" is not a whole number from 0 to 65535"},
        {"\n\nno-such = 1\n", ":3: unknown key \"no-such\""},
        {"temperature = 1\n", ":1: unknown key"}, /* a flag of another command */
        {"config = other\n", ":1: unknown key"},
        {"--port = 1\n", ":1: unknown key"},
        {"port\n", ":1: expected `key = value`"},
        {"port 1\n", ":1: expected `key = value`"},
        {"= 1\n", ":1: expected `key = value`"},
        {"port =\n", ":1: port: \"\" is not"},
        {"model = \"m\n", ":1: the quoted value does not end"},
        {"model = \"m\" n\n", ":1: text behind the quoted value"},
        {"port = 1\nport = 2\n", ":2: port is set already in line 1"},
        {"strict-params = maybe\n", ":1: strict-params: \"maybe\" is not true or false"},
        {"port = 1\n", "--model is required"},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct options o;
        struct err err = {0};
        assert_int_equal(parse(&o, CASES[i].text, NULL, NULL, &err), ERR_INVALID);
        if (!strstr(err.msg, CASES[i].says)) fail_msg("%s: %s", CASES[i].text, err.msg);
        options_fini(&o);
    }
}

static void overridden_lines_are_checked_too(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    static char flag[] = "--port=1";
    assert_int_equal(parse(&o, "model = m\nport = x\n", flag, NULL, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, ":2: port"));
    options_fini(&o);
}

static void files_that_are_none_are_refused(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    static char program[] = "geryon", serve[] = "serve", flag[] = "--config", no[] = "/nonexistent";
    char *argv[] = {program, serve, flag, no};
    assert_int_equal(options_parse(&o, 4, argv, fake_env, &err), ERR_IO);
    assert_non_null(strstr(err.msg, "/nonexistent"));
    options_fini(&o);
    argv[3] = path;
    write_file(path, "model = m\0\n", 11);
    assert_int_equal(options_parse(&o, 4, argv, fake_env, &err), ERR_INVALID);
    options_fini(&o);
    char *large = malloc((1 << 20) + 1);
    assert_non_null(large);
    memset(large, '\n', (1 << 20) + 1);
    write_file(path, large, (1 << 20) + 1);
    assert_int_equal(options_parse(&o, 4, argv, fake_env, &err), ERR_INVALID);
    write_file(path, large, 1 << 20); /* the limit itself: no key in it, so --model is missing */
    options_fini(&o);
    assert_int_equal(options_parse(&o, 4, argv, fake_env, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "--model"));
    options_fini(&o);
    free(large);
}

/* A value that the row accepts and that is not its default. */
static const char *other_value(const struct option *opt, char out[64]) {
    switch (opt->kind) {
    case KIND_TEXT:
    case KIND_LIST:
        return "other";
    case KIND_CHOICE: {
        const char *last = strrchr(opt->choices, '|');
        return last ? last + 1 : opt->choices;
    }
    case KIND_SWITCH:
        return "yes";
    case KIND_DRAFTS:
        return "off";
    default:
        break;
    }
    double v = opt->lo == opt->hi ? 7 : opt->lo + 1 < opt->hi ? opt->lo + 1 : opt->hi;
    if (opt->fallback && strtod(opt->fallback, NULL) == v) v = opt->lo;
    snprintf(out, 64, "%.0f", v);
    return out;
}

static bool same_field(const struct option *opt, const struct options *a, const struct options *b) {
    const void *x = (const char *)a + opt->offset, *y = (const char *)b + opt->offset;
    const struct option_list *list_x = x, *list_y = y;
    switch (opt->kind) {
    case KIND_TEXT:
    case KIND_CHOICE:
        return !strcmp(*(char *const *)x, *(char *const *)y);
    case KIND_LIST:
        return list_x->n == 1 && list_y->n == 1 && !strcmp(list_x->items[0], list_y->items[0]);
    case KIND_SWITCH:
        return *(const bool *)x && *(const bool *)y;
    case KIND_SIZE:
        return *(const uint64_t *)x == *(const uint64_t *)y;
    case KIND_REAL:
        return *(const double *)x == *(const double *)y;
    case KIND_INT:
        return !memcmp(x, y, sizeof(struct option_int));
    case KIND_COUNTS:
        return !memcmp(x, y, sizeof(struct option_counts));
    case KIND_COUNT:
    case KIND_DRAFTS:
        return *(const uint32_t *)x == *(const uint32_t *)y;
    }
    return false;
}

static void every_flag_of_serve_has_its_twins(void **state) {
    (void)state;
    static char program[] = "geryon", serve[] = "serve", model[] = "--model=other";
    for (size_t i = 0; i < options_table_rows; i++) {
        const struct option *opt = &options_table[i];
        if (!(opt->commands & COMMAND_SERVE) || !strcmp(opt->name, "--config")) continue;
        struct options by_flag, by_env, by_file;
        struct err err = {0};
        char number[64], flag[128], twin[64] = "GERYON_", line[160];
        const char *value = other_value(opt, number);
        size_t n = strlen(twin);
        for (const char *c = opt->name + 2; *c; c++)
            twin[n++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        twin[n] = 0;
        snprintf(flag, sizeof flag, "%s=%s", opt->name, value);
        char *argv[] = {program, serve, model, flag};
        bool is_model = !strcmp(opt->name, "--model");
        assert_int_equal(options_parse(&by_flag, 4, argv, fake_env, &err), OK);
        env_name = twin;
        env_value = value;
        assert_int_equal(options_parse(&by_env, is_model ? 2 : 3, argv, fake_env, &err), OK);
        env_name = NULL;
        snprintf(line, sizeof line, "%s = %s\n", opt->name + 2, value);
        if (parse(&by_file, line, is_model ? NULL : model, NULL, &err) != OK)
            fail_msg("%s: %s", line, err.msg);
        if (!same_field(opt, &by_flag, &by_env)) fail_msg("%s is not its flag", twin);
        if (!same_field(opt, &by_flag, &by_file)) fail_msg("%s in a file is not its flag", line);
        options_fini(&by_flag);
        options_fini(&by_env);
        options_fini(&by_file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_flags_without_dashes),
        cmocka_unit_test(quotes_keep_what_they_hold),
        cmocka_unit_test(flag_then_variable_then_file),
        cmocka_unit_test(the_file_may_come_from_its_variable),
        cmocka_unit_test(faults_name_file_and_line),
        cmocka_unit_test(overridden_lines_are_checked_too),
        cmocka_unit_test(files_that_are_none_are_refused),
        cmocka_unit_test(every_flag_of_serve_has_its_twins),
    };
    return cmocka_run_group_tests_name("options_config", tests, make_path, NULL);
}
