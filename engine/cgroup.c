#include "engine/cgroup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 3072 };

bool cgroup_read(const char *dir, const char *name, uint64_t *out) {
    char path[PATH_BYTES], text[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    if (!ok || text[0] < '0' || text[0] > '9') return false;
    errno = 0;
    unsigned long long n = strtoull(text, NULL, 10);
    if (errno) return false;
    *out = n;
    return true;
}

/* base/a/b, base/a, base. Cuts group up. */
static void walk_up(const char *base, char *group, bool is_v2, cgroup_visit_fn *visit, void *arg) {
    char dir[PATH_BYTES];
    size_t len = strlen(group);
    while (len && group[len - 1] == '/')
        group[--len] = 0;
    for (;;) {
        snprintf(dir, sizeof dir, "%s%s", base, group);
        visit(arg, dir, is_v2);
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = 0;
    }
}

/* Whether a comma-separated list of controllers has this one. */
static bool lists(const char *list, const char *controller) {
    size_t len = strlen(controller);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, controller, len) && (at[len] == ',' || !at[len])) return true;
    return false;
}

void cgroup_walk(const char *root, const char *controller, cgroup_visit_fn *visit, void *arg) {
    char path[PATH_BYTES / 2], v1[PATH_BYTES / 2], line[LINE_BYTES];
    bool seen = false;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    snprintf(v1, sizeof v1, "%s/sys/fs/cgroup/%s", root, controller);
    FILE *f = fopen(path, "re");
    snprintf(path, sizeof path, "%s/sys/fs/cgroup", root);
    while (f && fgets(line, sizeof line, f)) { /* "ID:CONTROLLERS:GROUP" */
        line[strcspn(line, "\n")] = 0;
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group) continue;
        *list++ = *group++ = 0;
        bool is_v2 = !*list;
        if (!is_v2 && !lists(list, controller)) continue;
        walk_up(is_v2 ? path : v1, group, is_v2, visit, arg);
        seen = true;
    }
    if (f) fclose(f);
    if (seen) return;
    visit(arg, path, true);
    visit(arg, v1, false);
}
