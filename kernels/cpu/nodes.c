#include "kernels/cpu/nodes.h"

#include <ctype.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/base.h"

enum {
    WORD_BITS = 8 * sizeof(unsigned long),
    CPUS_MAX = 1 << 16,
    LINE_BYTES = 1 << 14, /* a list of all nodes, or of the processors of one */
};

/* ---- lists of numbers -------------------------------------------------------------------------- */

/* The next "7" or "2-5" of a list, and the comma behind it. False at its end, or where it is none
 * (*text is then not at the end). */
static bool next_range(const char **text, unsigned long *lo, unsigned long *hi) {
    char *end;
    const char *at = *text;
    if (!isdigit((unsigned char)*at)) return false;
    *lo = *hi = strtoul(at, &end, 10);
    if (*end == '-') {
        if (!isdigit((unsigned char)end[1])) return false;
        *hi = strtoul(end + 1, &end, 10);
    }
    if (*hi < *lo) return false;
    if (*end == ',') {
        if (!isdigit((unsigned char)end[1])) return false;
        end++;
    } else if (*end && *end != '\n') {
        return false;
    }
    *text = end;
    return true;
}

static bool parse(const char *text, unsigned long *bits, size_t n_bits) {
    unsigned long lo, hi;
    memset(bits, 0, n_bits / 8);
    while (isspace((unsigned char)*text))
        text++;
    while (next_range(&text, &lo, &hi))
        for (unsigned long i = lo; i <= hi && i < n_bits; i++)
            bits[i / WORD_BITS] |= 1ul << i % WORD_BITS;
    if (*text == 0 || *text == '\n') return true;
    memset(bits, 0, n_bits / 8);
    return false;
}

bool nodes_parse(const char *text, struct nodes *out) {
    return parse(text, out->bits, NODES_MAX);
}

uint32_t nodes_count(const struct nodes *nodes) {
    uint32_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(nodes->bits); i++)
        n += (uint32_t)__builtin_popcountl(nodes->bits[i]);
    return n;
}

/* ---- what the system says ---------------------------------------------------------------------- */

struct reading {
    char line[LINE_BYTES];
    unsigned long own[CPUS_MAX / WORD_BITS], of_node[CPUS_MAX / WORD_BITS];
};

/* The first line of the file that begins with `key`, without it, into r->line. */
static bool find_line(struct reading *r, const char *root, const char *path, const char *key) {
    char name[4096];
    size_t n = strlen(key);
    snprintf(name, sizeof name, "%s%s", root, path);
    FILE *f = fopen(name, "re");
    if (!f) return false;
    bool found = false;
    while (!found && fgets(r->line, sizeof r->line, f))
        found = strncmp(r->line, key, n) == 0;
    fclose(f);
    if (found) memmove(r->line, r->line + n, strlen(r->line + n) + 1);
    return found;
}

static bool has_own_cpu(struct reading *r, const char *root, unsigned node) {
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%u/cpulist", node);
    if (!find_line(r, root, path, "") || !parse(r->line, r->of_node, CPUS_MAX)) return false;
    for (size_t i = 0; i < ARRAY_LEN(r->own); i++)
        if (r->own[i] & r->of_node[i]) return true;
    return false;
}

void nodes_find(const char *root, struct nodes *out) {
    const char *status = "/proc/self/status";
    struct nodes allowed;
    *out = (struct nodes){0};
    struct reading *r = malloc(sizeof *r);
    if (!r) return;
    if (find_line(r, root, "/sys/devices/system/node/online", "") && nodes_parse(r->line, out) &&
        find_line(r, root, status, "Mems_allowed_list:") && nodes_parse(r->line, &allowed) &&
        find_line(r, root, status, "Cpus_allowed_list:") && parse(r->line, r->own, CPUS_MAX)) {
        for (unsigned i = 0; i < NODES_MAX; i++) {
            unsigned long bit = 1ul << i % WORD_BITS, *word = &out->bits[i / WORD_BITS];
            bool use = *word & allowed.bits[i / WORD_BITS] & bit;
            if (!use || !has_own_cpu(r, root, i)) *word &= ~bit;
        }
    } else {
        *out = (struct nodes){0};
    }
    free(r);
}

/* ---- spreading ---------------------------------------------------------------------------------- */

/* By the system calls themselves: their library is not everywhere. The number of bits they are told is
 * one more than there are. */
bool nodes_interleave(const struct nodes *nodes, void *at, size_t bytes) {
    int mode = MPOL_DEFAULT;
    if (syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0) == 0 && mode != MPOL_DEFAULT)
        return false;
    return syscall(SYS_mbind, at, bytes, MPOL_INTERLEAVE, nodes->bits, (unsigned long)NODES_MAX + 1,
                   0) == 0;
}
