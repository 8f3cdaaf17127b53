#include "engine/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number in a one-number file. False for "max", or when it cannot be read. */
static bool read_number(const char *path, uint64_t *out) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    char text[64];
    bool ok = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    if (!ok || text[0] < '0' || text[0] > '9') return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

static uint64_t meminfo_available(void) {
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return 0;
    char line[128];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    fclose(f);
    return (uint64_t)kib * 1024;
}

/* Room below one limit: the smaller of *room and limit - used. */
static void apply_limit(const char *limit_path, const char *used_path, uint64_t *room) {
    uint64_t limit, used;
    if (!read_number(limit_path, &limit)) return;
    if (!read_number(used_path, &used)) used = 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < *room) *room = left;
}

uint64_t memory_available(void) {
    uint64_t room = meminfo_available();
    if (!room) return 0;
    /* Walk from this process's group to the root: every ancestor's limit holds. */
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[512] = "";
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        bool v2 = strncmp(line, "0::", 3) == 0;
        char *v1 = strstr(line, ":memory:");
        if (!v2 && !v1) continue;
        char *group = v2 ? line + 3 : v1 + 8;
        for (;;) {
            char limit[700], used[700];
            const char *base = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
            snprintf(limit, sizeof limit, "%s%s/%s", base, group,
                     v2 ? "memory.max" : "memory.limit_in_bytes");
            snprintf(used, sizeof used, "%s%s/%s", base, group,
                     v2 ? "memory.current" : "memory.usage_in_bytes");
            apply_limit(limit, used, &room);
            char *slash = strrchr(group, '/');
            if (!slash || !group[0]) break;
            *slash = '\0';
        }
    }
    if (f) fclose(f);
    return room;
}
