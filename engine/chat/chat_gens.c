/* Lazy filters: map, select, reject, selectattr, rejectattr, items, reverse, unique. What they give
 * is true in an `if`, has no length and is used up once. A generator keeps positions and its
 * arguments, never values made on the way, so memory can be wound back between two items. */
#include <string.h>

#include "engine/chat/chat_internal.h"

static bool make_gen(struct interp *in, const struct gen *gen, struct val *out) {
    struct gen *copy = chat_alloc(in, sizeof *copy);
    if (!copy) return false;
    *copy = *gen;
    *out = (struct val){.kind = VAL_GEN, .gen = copy};
    return true;
}

/* What map and select make of anything falsy, none too. */
static bool empty_gen(struct interp *in, struct val *out) {
    struct gen gen = {.kind = GEN_LIST};
    return chat_iter_init(in, &gen.src, val_undefined(NULL)) && make_gen(in, &gen, out);
}

static bool keeps(struct interp *in, const struct gen *gen, struct val item, bool *out) {
    struct val v;
    struct val missing = {.kind = VAL_MISSING};
    if (!chat_get_path(in, item, gen->attr, missing, &v)) return false;
    if (gen->test) {
        if (!gen->test->fn(in, v, &gen->args, out)) return false;
    } else {
        *out = chat_truth(v);
    }
    *out = *out != gen->negate;
    return true;
}

/* Generators over generators over ...: each level is a call, so the depth is bounded. */
bool chat_gen_next(struct interp *in, struct gen *gen, struct val *out, bool *more) {
    if (!chat_deeper(in)) return false;
    bool ok;
    for (;;) {
        struct val item;
        ok = chat_iter_next(in, &gen->src, &item, more);
        if (!ok || !*more) break;
        *out = item;
        if (gen->kind == GEN_MAP_ATTR)
            ok = chat_get_path(in, item, gen->attr, gen->fallback, out);
        else if (gen->kind == GEN_MAP)
            ok = gen->filter->fn(in, item, &gen->args, out);
        bool keep = true;
        if (gen->kind == GEN_SELECT) ok = keeps(in, gen, item, &keep);
        if (!ok || keep) break;
    }
    chat_shallower(in);
    return ok;
}

/* Arguments without the first n positional ones. */
static struct args after(const struct args *args, uint32_t n) {
    struct args rest = *args;
    rest.pos += n;
    rest.n_pos -= n;
    return rest;
}

static bool map_attribute(struct interp *in, struct gen *gen, const struct args *args) {
    static const char *const params[] = {"attribute", "default"};
    struct val a[2];
    if (!chat_bind(in, "map", args, params, 2, 1, a)) return false;
    gen->kind = GEN_MAP_ATTR;
    gen->attr = a[0];
    gen->fallback = a[1];
    if (a[1].kind == VAL_NONE) gen->fallback.kind = VAL_MISSING;
    return true;
}

static bool filter_map(struct interp *in, struct val input, const struct args *args,
                       struct val *out) {
    struct gen gen = {.kind = GEN_MAP};
    if (!chat_truth(input)) return empty_gen(in, out);
    if (!chat_iter_init(in, &gen.src, input)) return false;
    if (args->n_pos == 0) {
        if (!map_attribute(in, &gen, args)) return false;
        return make_gen(in, &gen, out);
    }
    const struct str *name;
    if (!chat_want_str(in, "map", args->pos[0], &name)) return false;
    gen.filter = chat_filter_find(name);
    if (!gen.filter)
        return chat_fail(in, "no filter named '%.*s'", (int)(name->len < 60 ? name->len : 60),
                         name->text);
    gen.args = after(args, 1);
    return make_gen(in, &gen, out);
}

static bool select_items(struct interp *in, struct val input, const struct args *args, bool by_attr,
                         bool negate, struct val *out) {
    struct gen gen = {.kind = GEN_SELECT, .negate = negate, .attr = {.kind = VAL_MISSING}};
    struct args rest = *args;
    if (!chat_truth(input)) return empty_gen(in, out);
    if (!chat_iter_init(in, &gen.src, input)) return false;
    if (by_attr) {
        if (!args->n_pos) return chat_fail(in, "selectattr and rejectattr need an attribute");
        gen.attr = args->pos[0];
        rest = after(args, 1);
    }
    if (rest.n_pos) {
        const struct str *name;
        if (!chat_want_str(in, "the name of a test", rest.pos[0], &name)) return false;
        gen.test = chat_test_find(name);
        if (!gen.test)
            return chat_fail(in, "no test named '%.*s'", (int)(name->len < 60 ? name->len : 60),
                             name->text);
        gen.args = after(&rest, 1);
    }
    return make_gen(in, &gen, out);
}

static bool filter_select(struct interp *in, struct val input, const struct args *args,
                          struct val *out) {
    return select_items(in, input, args, false, false, out);
}

static bool filter_reject(struct interp *in, struct val input, const struct args *args,
                          struct val *out) {
    return select_items(in, input, args, false, true, out);
}

static bool filter_selectattr(struct interp *in, struct val input, const struct args *args,
                              struct val *out) {
    return select_items(in, input, args, true, false, out);
}

static bool filter_rejectattr(struct interp *in, struct val input, const struct args *args,
                              struct val *out) {
    return select_items(in, input, args, true, true, out);
}

static bool filter_items(struct interp *in, struct val input, const struct args *args,
                         struct val *out) {
    struct gen gen = {.kind = GEN_ITEMS};
    if (!chat_bind(in, "items", args, NULL, 0, 0, NULL)) return false;
    if (input.kind == VAL_DICT) {
        struct view *view = chat_alloc(in, sizeof *view);
        if (!view) return false;
        *view = (struct view){.dict = input.dict, .kind = VIEW_ITEMS};
        input = (struct val){.kind = VAL_VIEW, .view = view};
    } else if (input.kind != VAL_UNDEFINED) {
        return chat_fail(in, "items needs a mapping, not %s", chat_type_name(input));
    }
    return chat_iter_init(in, &gen.src, input) && make_gen(in, &gen, out);
}

static bool filter_reverse(struct interp *in, struct val input, const struct args *args,
                           struct val *out) {
    struct val bounds[3] = {{.kind = VAL_MISSING}, {.kind = VAL_MISSING}, val_int(-1)};
    struct gen gen = {.kind = GEN_LIST};
    if (!chat_bind(in, "reverse", args, NULL, 0, 0, NULL)) return false;
    if (input.kind == VAL_STR) return chat_get_slice(in, input, bounds, out);
    struct val list;
    if (!chat_collect(in, input, &list) || !chat_get_slice(in, list, bounds, &list)) return false;
    return chat_iter_init(in, &gen.src, list) && make_gen(in, &gen, out);
}

/* Found eagerly, handed out lazily. */
static bool filter_unique(struct interp *in, struct val input, const struct args *args,
                          struct val *out) {
    static const char *const params[] = {"case_sensitive", "attribute"};
    struct val a[2], list, missing = {.kind = VAL_MISSING};
    if (!chat_bind(in, "unique", args, params, 2, 0, a)) return false;
    if (!chat_collect(in, input, &list)) return false;
    uint32_t n = list.list->n, kept = 0;
    struct val *keys = chat_alloc_array(in, n, sizeof *keys);
    struct val *items = keys ? chat_alloc_array(in, n, sizeof *items) : NULL;
    if (!items) return false;
    for (uint32_t i = 0; i < n; i++) {
        struct val key;
        bool seen = false;
        if (!chat_get_path(in, list.list->items[i], a[1], missing, &key)) return false;
        if (key.kind == VAL_STR && !chat_truth(a[0]) && !chat_str_case(in, key.s, CASE_LOWER, &key))
            return false;
        if (!chat_hashable(in, key) || !chat_charge(in, 1 + kept / 8)) return false;
        for (uint32_t k = 0; k < kept && !seen; k++)
            if (!chat_equal(in, keys[k], key, &seen)) return false;
        if (seen) continue;
        keys[kept] = key;
        items[kept++] = list.list->items[i];
    }
    struct gen gen = {.kind = GEN_LIST};
    return chat_make_list(in, VAL_LIST, items, kept, &list) && chat_iter_init(in, &gen.src, list) &&
           make_gen(in, &gen, out);
}

const struct filter chat_gen_filters[] = {
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {"items", filter_items},
    {"reverse", filter_reverse},
    {"unique", filter_unique},
    {NULL, NULL},
};
