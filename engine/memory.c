#include "engine/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/cgroup.h"

static uint64_t meminfo_available(const char *root) {
    char path[2048], line[128];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    uint64_t kib = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1) break;
    fclose(f);
    return kib * 1024;
}

/* File pages that nobody used lately: charged to the group, but given back before its limit hurts.
 * A checkpoint just read in would otherwise look like memory in use. */
static uint64_t reclaimable(const char *dir, const char *key) {
    char path[4096], line[128];
    size_t len = strlen(key);
    uint64_t n = 0;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, len) && sscanf(line + len, " %" SCNu64, &n) == 1) break;
    fclose(f);
    return n;
}

/* Room below the limit of one group: the smaller of *arg and limit - used. */
static void apply_limit(void *arg, const char *dir, bool is_v2) {
    uint64_t *room = arg, limit, used;
    if (!cgroup_read(dir, is_v2 ? "memory.max" : "memory.limit_in_bytes", &limit)) return;
    if (!cgroup_read(dir, is_v2 ? "memory.current" : "memory.usage_in_bytes", &used)) used = 0;
    uint64_t cached = reclaimable(dir, is_v2 ? "inactive_file " : "total_inactive_file ");
    used = used > cached ? used - cached : 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < *room) *room = left;
}

uint64_t memory_available_in(const char *root) {
    uint64_t room = meminfo_available(root);
    if (!room) return 0;
    cgroup_walk(root, "memory", apply_limit, &room);
    return room ? room : 1;
}

uint64_t memory_available(void) {
    return memory_available_in("");
}
