/* Processor quota and memory room, read from made-up /proc and /sys trees. */
#include "tests/harness.h"
#include "tests/unit/fake_root.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/cpu_count.h"
#include "engine/memory.h"

#define MIB ((uint64_t)1 << 20)

static void an_empty_tree_limits_nothing_and_knows_nothing(void **state) {
    (void)state;
    assert_int_equal(cpu_count_quota_in(root), 0);
    assert_int_equal(memory_available_in(root), 0);
}

static void quota_v2_is_the_least_of_the_chain_rounded_up(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/kube/pod/box\n");
    put("/sys/fs/cgroup/kube/pod/box/cpu.max", "max 100000\n");
    assert_int_equal(cpu_count_quota_in(root), 0);
    put("/sys/fs/cgroup/kube/pod/cpu.max", "250000 100000\n");
    assert_int_equal(cpu_count_quota_in(root), 3);
    put("/sys/fs/cgroup/cpu.max", "800000 100000\n");
    assert_int_equal(cpu_count_quota_in(root), 3);
    put("/sys/fs/cgroup/kube/cpu.max", "50000 100000\n");
    assert_int_equal(cpu_count_quota_in(root), 1);
}

static void quota_v1_of_the_group_and_of_a_container(void **state) {
    (void)state;
    put("/proc/self/cgroup", "5:memory:/d/x\n4:cpu,cpuacct:/d/x\n3:cpuset:/d/x\n");
    put("/sys/fs/cgroup/cpu/d/x/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/d/x/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpu_count_quota_in(root), 0);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
        "400000\n"); /* the container's own, mounted as root */
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpu_count_quota_in(root), 4);
    put("/sys/fs/cgroup/cpu/d/x/cpu.cfs_quota_us", "150000\n");
    assert_int_equal(cpu_count_quota_in(root), 2);
}

static void without_a_group_file_the_topmost_group_counts(void **state) {
    (void)state;
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    assert_int_equal(cpu_count_quota_in(root), 2);
    put("/proc/self/cgroup", "0::/\n");
    assert_int_equal(cpu_count_quota_in(root), 2);
    put("/proc/self/cgroup", "nonsense\n:\n::\n0:\n");
    assert_int_equal(cpu_count_quota_in(root), 2);
}

static void memory_v2_takes_every_limit_of_the_chain(void **state) {
    (void)state;
    put("/proc/meminfo", "MemTotal: 9999999 kB\nMemFree: 1 kB\nMemAvailable:    1048576 kB\n");
    assert_int_equal(memory_available_in(root), 1024 * MIB);
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_int_equal(memory_available_in(root), 1024 * MIB);
    put("/sys/fs/cgroup/a/memory.max", "536870912\n"); /* 512 MiB, 100 of them used */
    put("/sys/fs/cgroup/a/memory.current", "104857600\n");
    assert_int_equal(memory_available_in(root), 412 * MIB);
    put("/sys/fs/cgroup/a/b/memory.max", "209715200\n"); /* 200 MiB, nobody says how much is used */
    assert_int_equal(memory_available_in(root), 200 * MIB);
    put("/sys/fs/cgroup/a/b/memory.current", "314572800\n"); /* over the limit */
    assert_int_equal(memory_available_in(root), 1); /* not 0, which says that nothing is known */
}

static void file_pages_that_can_go_do_not_count_as_used(void **state) {
    (void)state;
    put("/proc/meminfo", "MemAvailable: 1048576 kB\n");
    put("/proc/self/cgroup", "0::/a\n");
    put("/sys/fs/cgroup/a/memory.max", "536870912\n");
    put("/sys/fs/cgroup/a/memory.current", "419430400\n"); /* 400 MiB, 300 of them cache */
    put("/sys/fs/cgroup/a/memory.stat", "anon 104857600\ninactive_file 314572800\n");
    assert_int_equal(memory_available_in(root), 412 * MIB);
}

static void memory_v1(void **state) {
    (void)state;
    put("/proc/meminfo", "MemAvailable: 1048576 kB\n");
    put("/proc/self/cgroup", "9:memory:/d/x\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600\n");
    assert_int_equal(memory_available_in(root), 1024 * MIB);
    put("/sys/fs/cgroup/memory/d/x/memory.limit_in_bytes", "268435456\n");
    put("/sys/fs/cgroup/memory/d/x/memory.usage_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/d/x/memory.stat", "inactive_file 1\ntotal_inactive_file 52428800\n");
    assert_int_equal(memory_available_in(root), (256 - 50) * MIB);
}

static void this_machine_has_processors_and_memory(void **state) {
    (void)state;
    assert_true(cpu_count() >= 1);
    assert_true(memory_available() > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(an_empty_tree_limits_nothing_and_knows_nothing, fresh_root),
        cmocka_unit_test_setup(quota_v2_is_the_least_of_the_chain_rounded_up, fresh_root),
        cmocka_unit_test_setup(quota_v1_of_the_group_and_of_a_container, fresh_root),
        cmocka_unit_test_setup(without_a_group_file_the_topmost_group_counts, fresh_root),
        cmocka_unit_test_setup(memory_v2_takes_every_limit_of_the_chain, fresh_root),
        cmocka_unit_test_setup(file_pages_that_can_go_do_not_count_as_used, fresh_root),
        cmocka_unit_test_setup(memory_v1, fresh_root),
        cmocka_unit_test(this_machine_has_processors_and_memory),
    };
    return cmocka_run_group_tests_name("cgroup", tests, NULL, NULL);
}
