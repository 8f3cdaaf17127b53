#include "engine/tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/utf8.h"

struct trie_node {
    uint32_t child, sibling; /* 0 = none */
    uint32_t token;          /* index + 1, 0 = none ends here */
    uint8_t byte;
};

void added_tokens_fini(struct added_tokens *a) {
    free(a->tokens);
    free(a->nodes);
    *a = (struct added_tokens){0};
}

static uint32_t find_child(const struct added_tokens *a, uint32_t node, uint8_t byte) {
    uint32_t c = a->nodes[node].child;
    while (c && a->nodes[c].byte != byte)
        c = a->nodes[c].sibling;
    return c;
}

/* A new node; node 0 is never used, so that 0 can mean none. */
static uint32_t new_node(struct added_tokens *a, uint8_t byte) {
    if (a->n_nodes == a->nodes_cap) {
        uint32_t cap = a->nodes_cap ? a->nodes_cap * 2 : 64;
        struct trie_node *nodes =
            cap > a->nodes_cap ? realloc(a->nodes, cap * sizeof *nodes) : NULL;
        if (!nodes) return 0;
        a->nodes = nodes;
        a->nodes_cap = cap;
    }
    if (a->n_nodes == 0) a->nodes[a->n_nodes++] = (struct trie_node){0};
    a->nodes[a->n_nodes] = (struct trie_node){.byte = byte};
    return a->n_nodes++;
}

static uint32_t insert_path(struct added_tokens *a, const char *text, size_t len) {
    uint8_t byte = (uint8_t)text[0];
    if (!a->first[byte]) a->first[byte] = new_node(a, byte);
    uint32_t node = a->first[byte];
    for (size_t i = 1; node && i < len; i++) {
        byte = (uint8_t)text[i];
        uint32_t next = find_child(a, node, byte);
        if (!next && (next = new_node(a, byte))) {
            a->nodes[next].sibling = a->nodes[node].child;
            a->nodes[node].child = next;
        }
        node = next;
    }
    return node;
}

int added_tokens_add(struct added_tokens *a, const char *text, size_t len,
                     struct added_token token) {
    ASSERT(len > 0);
    if (a->n_tokens == a->tokens_cap) {
        uint32_t cap = a->tokens_cap ? a->tokens_cap * 2 : 16;
        struct added_token *tokens = realloc(a->tokens, cap * sizeof *tokens);
        if (!tokens) return ERR_NOMEM;
        a->tokens = tokens;
        a->tokens_cap = cap;
    }
    uint32_t node = insert_path(a, text, len);
    if (!node) return ERR_NOMEM;
    if (a->nodes[node].token) return OK;
    a->tokens[a->n_tokens++] = token;
    a->nodes[node].token = a->n_tokens;
    return OK;
}

const struct added_token *added_tokens_at(const struct added_tokens *a, const char *text,
                                          const uint8_t *trust, size_t len, size_t at,
                                          size_t *end) {
    const struct added_token *best = NULL;
    bool trusted = true;
    uint32_t node = a->first[(uint8_t)text[at]];
    for (size_t i = at; node; node = find_child(a, node, (uint8_t)text[i])) {
        trusted = trusted && trust[i];
        i++;
        const struct added_token *token =
            a->nodes[node].token ? &a->tokens[a->nodes[node].token - 1] : NULL;
        if (token && (trusted || !token->special)) {
            best = token;
            *end = i;
        }
        if (i == len) break;
    }
    return best;
}

static uint32_t char_before(const char *text, size_t at) {
    size_t size;
    do
        at--;
    while ((text[at] & 0xC0) == 0x80);
    return utf8_char(text + at, &size);
}

/* A word character on either side forbids a single_word token. */
static bool inside_word(const char *text, size_t len, size_t start, size_t end) {
    size_t size;
    return (start > 0 && utf8_is_word(char_before(text, start))) ||
           (end < len && utf8_is_word(utf8_char(text + end, &size)));
}

static size_t blanks_before(const char *text, size_t at) {
    while (at > 0 && utf8_is_space(char_before(text, at))) {
        do
            at--;
        while ((text[at] & 0xC0) == 0x80);
    }
    return at;
}

static size_t blanks_after(const char *text, size_t len, size_t at) {
    size_t size;
    while (at < len && utf8_is_space(utf8_char(text + at, &size)))
        at += size;
    return at;
}

const struct added_token *added_tokens_next(const struct added_tokens *a, const char *text,
                                            const uint8_t *trust, size_t len,
                                            struct added_walk *walk, size_t *start, size_t *end) {
    while (walk->from < len) {
        size_t lo = walk->from, hi = 0;
        const struct added_token *token = NULL;
        while (lo < len && !(token = added_tokens_at(a, text, trust, len, lo, &hi)))
            lo++;
        if (!token) break;
        walk->from = hi; /* the search goes on behind the bare match, whatever is swallowed */
        if (token->single_word && inside_word(text, len, lo, hi)) continue;
        if (token->lstrip) {
            lo = blanks_before(text, lo);
            if (lo < walk->taken) lo = walk->taken;
        }
        if (token->rstrip) hi = blanks_after(text, len, hi);
        walk->taken = hi;
        *start = lo;
        *end = hi;
        return token;
    }
    walk->from = len;
    return NULL;
}
