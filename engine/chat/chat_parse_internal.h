/* chat_parse_internal.h: what the two halves of the template parser share. After a failure
 * (p->failed) everything returns NULL or false. */
#ifndef GERYON_CHAT_PARSE_INTERNAL_H
#define GERYON_CHAT_PARSE_INTERNAL_H

#include <stdarg.h>
#include <stdio.h>

#include "engine/chat/chat_internal.h"

/* Which implicit variables the macro bodies being parsed mention. */
struct macro_uses {
    bool caller, varargs, kwargs;
    struct macro_uses *outer;
};

struct parser {
    struct chat_template *tmpl;
    const struct token *tokens, *at;
    struct err *err;
    bool failed;
    uint32_t n_nodes, depth;
    uint32_t soft; /* inside of an if or inline if: unknown filters wait until they run */
    const struct token *deferred; /* the last unknown filter or test that was let pass */
    uint32_t loops;               /* open loops of this macro: break needs one */
    struct macro_uses *uses;
    const struct str **names; /* open addressing, cap a power of two */
    uint32_t n_names, names_cap;
};

struct node_list {
    struct node **items;
    uint32_t n, cap;
};

bool chat_parse_fail(struct parser *p, uint32_t line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool chat_parse_fail_memory(struct parser *p);
bool chat_parse_unexpected(struct parser *p, const char *wanted);

struct node *chat_parse_node(struct parser *p, enum node_kind kind, uint32_t line);
bool chat_parse_adopt(struct parser *p, struct node *parent, const struct node *child);
bool chat_parse_push(struct parser *p, struct node_list *list, struct node *node);
bool chat_parse_give_items(struct parser *p, struct node *node, const struct node_list *list);
const struct str *chat_parse_intern(struct parser *p, const char *text, size_t len);

bool chat_parse_is_name(const struct parser *p, const struct token *t, const char *text);
bool chat_parse_is_op(const struct parser *p, int op);
bool chat_parse_skip_op(struct parser *p, int op);
bool chat_parse_skip_name(struct parser *p, const char *name);
bool chat_parse_expect_op(struct parser *p, int op, const char *text);

struct node *chat_parse_expression(struct parser *p);
enum tuple_kind { TUPLE_PLAIN, TUPLE_NO_COND, TUPLE_PARENS };
/* One expression, or a tuple where commas follow. end_name also ends it. TUPLE_NO_COND leaves an
 * `if` to the caller; TUPLE_PARENS allows the empty tuple. */
struct node *chat_parse_tuple(struct parser *p, enum tuple_kind kind, const char *end_name);
/* Names, namespace attributes and tuples of them; end_name ends an unpacking list. */
struct node *chat_parse_target(struct parser *p, const char *end_name);
struct node *chat_parse_name_target(struct parser *p);
/* | f | g(x) after operand (NULL: a block's text); inline_first: the first has no bar. */
struct node *chat_parse_filters(struct parser *p, struct node *operand, bool inline_first);

#endif
