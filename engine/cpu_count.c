/* cpu_count.c: see cpu_count.h. */
#include "engine/cpu_count.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint32_t cpu_count_quota(const char *cpu_max) {
    unsigned long long quota, period;
    if (sscanf(cpu_max, "%llu %llu", &quota, &period) != 2 || period == 0 || quota == 0) return 0;
    unsigned long long n = quota / period + (quota % period != 0);
    return n > 1u << 20 ? 0 : (uint32_t)n;
}

static bool read_line(const char *path, char *out, size_t cap) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool good = fgets(out, (int)cap, f) != NULL;
    fclose(f);
    return good;
}

/* cgroup v2: the quota of our group and of every group above it counts. */
static uint32_t quota_v2(void) {
    char line[3200], path[4096], text[64];
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return 0;
    char *group = NULL;
    while (!group && fgets(line, sizeof line, f))
        if (strncmp(line, "0::", 3) == 0) group = line + 3;
    fclose(f);
    if (!group) return 0;
    group[strcspn(group, "\n")] = 0;
    uint32_t least = 0;
    for (;;) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", strcmp(group, "/") ? group : "");
        uint32_t n = read_line(path, text, sizeof text) ? cpu_count_quota(text) : 0;
        if (n && (!least || n < least)) least = n;
        char *slash = strrchr(group, '/');
        if (!slash || !*group) break;
        *slash = 0;
    }
    return least;
}

/* cgroup v1, as mounted inside a container. */
static uint32_t quota_v1(void) {
    char quota[32], period[32], both[80];
    if (!read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota, sizeof quota) ||
        !read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period) ||
        quota[0] == '-')
        return 0;
    quota[strcspn(quota, "\n")] = 0;
    snprintf(both, sizeof both, "%s %s", quota, period);
    return cpu_count_quota(both);
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
    uint32_t n = affinity(), quota = quota_v2();
    if (!quota) quota = quota_v1();
    return quota && quota < n ? quota : n;
}
