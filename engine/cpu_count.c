/* cpu_count.c: see cpu_count.h. */
#include "engine/cpu_count.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cgroup.h"

uint32_t cpu_count_quota(const char *cpu_max) {
    unsigned long long quota, period;
    if (sscanf(cpu_max, "%llu %llu", &quota, &period) != 2 || period == 0 || quota == 0) return 0;
    unsigned long long n = quota / period + (quota % period != 0);
    return n > 1u << 20 ? 0 : (uint32_t)n;
}

static bool read_line(const char *dir, const char *name, char *out, size_t cap) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool good = fgets(out, (int)cap, f) != NULL;
    fclose(f);
    return good;
}

/* The least of all groups' quotas into *arg. */
static void take_quota(void *arg, const char *dir, bool is_v2) {
    uint32_t *least = arg, n = 0;
    char text[128];
    uint64_t quota, period;
    if (is_v2) {
        n = read_line(dir, "cpu.max", text, sizeof text) ? cpu_count_quota(text) : 0;
    } else if (cgroup_read(dir, "cpu.cfs_quota_us", &quota) && /* -1: none */
               cgroup_read(dir, "cpu.cfs_period_us", &period)) {
        snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64, quota, period);
        n = cpu_count_quota(text);
    }
    if (n && (!*least || n < *least)) *least = n;
}

uint32_t cpu_count_quota_in(const char *root) {
    uint32_t least = 0;
    cgroup_walk(root, "cpu", take_quota, &least);
    return least;
}

/* The mask of a machine with more processors than cpu_set_t holds needs a larger set. */
static uint32_t affinity(void) {
    for (int cpus = 1024; cpus <= 1 << 16; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        if (!set) break;
        size_t size = CPU_ALLOC_SIZE(cpus);
        CPU_ZERO_S(size, set);
        int n = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (n > 0) return (uint32_t)n;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

uint32_t cpu_count(void) {
    uint32_t n = affinity(), quota = cpu_count_quota_in("");
    return quota && quota < n ? quota : n;
}
