/* fake_root.h: a made-up root of /proc, /sys and the like, for code that is told where the root is. */
#ifndef GERYON_FAKE_ROOT_H
#define GERYON_FAKE_ROOT_H

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/harness.h"

static char root[512];

/* cmocka setup: an empty one of its own for each test. */
static inline int fresh_root(void **state) {
    (void)state;
    static int n;
    snprintf(root, sizeof root, "%s/root%d", scratch_dir(), n++);
    return mkdir(root, 0700);
}

static inline void put(const char *path, const char *text) {
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    write_file(full, text, strlen(text));
}

#endif
