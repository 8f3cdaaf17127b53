/* Memory for weights and KV: huge pages where the system gives them, and memory nodes, read from
 * made-up /proc and /sys trees. */
#include "tests/harness.h"
#include "tests/unit/fake_root.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/base.h"
#include "kernels/cpu/memory.h"

static const size_t MIB = (size_t)1 << 20;

/* ---- pieces ------------------------------------------------------------------------------------ */

static void pieces_are_zeroed_aligned_and_apart(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 64, 100, 5 << 20, 40 << 20, 3, 31 << 20, 31 << 20, 7};
    struct memory memory = {0};
    unsigned char *at[ARRAY_LEN(sizes)];
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        at[i] = memory_take(&memory, sizes[i]);
        assert_non_null(at[i]);
        assert_int_equal((uintptr_t)at[i] % MEMORY_ALIGN, 0);
        for (size_t k = 0; k < sizes[i]; k += 997)
            assert_int_equal(at[i][k], 0);
        memset(at[i], (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        assert_int_equal(at[i][0], i + 1);
        assert_int_equal(at[i][sizes[i] - 1], i + 1);
    }
    assert_null(memory_take(&memory, SIZE_MAX / 2));
    memory_free(&memory);
    assert_null(memory.maps);
}

/* ---- huge pages -------------------------------------------------------------------------------- */

/* KiB of huge pages in the maps of this process that hold some of [at, at + bytes). */
static size_t huge_kib(const void *at, size_t bytes) {
    FILE *f = fopen("/proc/self/smaps", "re");
    assert_non_null(f);
    char line[512];
    size_t sum = 0, kib;
    unsigned long lo, hi;
    bool within = false;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &lo, &hi) == 2)
            within = lo < (uintptr_t)at + bytes && hi > (uintptr_t)at;
        else if (within && sscanf(line, "AnonHugePages: %zu kB", &kib) == 1)
            sum += kib;
    }
    fclose(f);
    return sum;
}

/* What the system does for a map that asks in the plainest way; memory may be too torn for it. */
static bool system_gives_huge_pages(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    madvise(at, bytes, MADV_HUGEPAGE);
    memset(at, 1, bytes);
    size_t got = huge_kib(at, bytes);
    munmap(at, bytes);
    return got * 1024 >= bytes - 4 * MIB;
}

static void large_pieces_are_on_huge_pages(void **state) {
    (void)state;
    if (!system_gives_huge_pages(64 * MIB)) skip();
    struct memory memory = {0};
    void *small = memory_take(&memory, 24 * MIB), *large = memory_take(&memory, 64 * MIB);
    memset(small, 1, 24 * MIB);
    memset(large, 1, 64 * MIB);
    assert_true(huge_kib(small, 24 * MIB) * 1024 >= 23 * MIB); /* but for the last, half used one */
    assert_true(huge_kib(large, 64 * MIB) * 1024 >= 63 * MIB);
    memory_free(&memory);
}

/* ---- memory nodes ------------------------------------------------------------------------------ */

static bool has(const struct nodes *n, unsigned i) {
    const unsigned bits = 8 * sizeof n->bits[0];
    return n->bits[i / bits] >> i % bits & 1;
}

static void lists_of_nodes_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t n, first, last;
    } good[] = {
        {"0\n", 1, 0, 0},
        {"0-3\n", 4, 0, 3},
        {"0,2", 2, 0, 2},
        {"\t1-2,8-9\n", 4, 1, 9},
        {"63-64", 2, 63, 64},
        {"1023", 1, 1023, 1023},
        {"1022-4096", 2, 1022, 1023},
    };
    struct nodes nodes;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        assert_true(nodes_parse(good[i].text, &nodes));
        assert_int_equal(nodes_count(&nodes), good[i].n);
        assert_true(has(&nodes, good[i].first) && has(&nodes, good[i].last));
    }
    assert_true(nodes_parse("", &nodes) && nodes_count(&nodes) == 0);
    assert_true(nodes_parse("\n", &nodes) && nodes_count(&nodes) == 0);
    assert_true(nodes_parse("5000-99999999999999999999", &nodes) && nodes_count(&nodes) == 0);
    static const char *const bad[] = {"-1", "0-", "3-1", "0,", "0,,1", "0 1", "a", "0-3:1", "0x1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        memset(&nodes, 0xff, sizeof nodes);
        if (nodes_parse(bad[i], &nodes)) fail_msg("\"%s\" was taken", bad[i]);
        assert_int_equal(nodes_count(&nodes), 0);
    }
}

static void put_machine(const char *online, const char *mems, const char *cpus) {
    char status[512];
    snprintf(status, sizeof status,
             "Name:\tgeryon\nCpus_allowed:\tffff\nCpus_allowed_list:\t%s\n"
             "Mems_allowed:\t00000000,0000000f\nMems_allowed_list:\t%s\nsome_ctxt_switches:\t4\n",
             cpus, mems);
    put("/sys/devices/system/node/online", online);
    put("/proc/self/status", status);
}

static void nodes_are_those_online_allowed_and_computed_on(void **state) {
    (void)state;
    struct nodes nodes;
    memset(&nodes, 0xff, sizeof nodes);
    nodes_find(root, &nodes);
    assert_int_equal(nodes_count(&nodes), 0); /* an empty tree */

    put("/sys/devices/system/node/node0/cpulist", "0-7,16-23\n");
    put("/sys/devices/system/node/node1/cpulist", "8-15\n");
    put("/sys/devices/system/node/node2/cpulist", "\n"); /* memory without processors */
    put_machine("0-2\n", "0-2", "0-23");
    nodes_find(root, &nodes);
    assert_true(nodes_count(&nodes) == 2 && has(&nodes, 0) && has(&nodes, 1));

    put_machine("0-2\n", "1-2", "0-23"); /* kept by its group to some of the memory */
    nodes_find(root, &nodes);
    assert_true(nodes_count(&nodes) == 1 && has(&nodes, 1));
    put_machine("0-2\n", "0-2", "16,20-22"); /* to some of the processors */
    nodes_find(root, &nodes);
    assert_true(nodes_count(&nodes) == 1 && has(&nodes, 0));
    put_machine("0-1\n", "0-63", "7,8"); /* allowed, and not there */
    nodes_find(root, &nodes);
    assert_int_equal(nodes_count(&nodes), 2);
    put_machine("0-1\n", "0-1", "nonsense");
    nodes_find(root, &nodes);
    assert_int_equal(nodes_count(&nodes), 0);
    put("/proc/self/status", "Name:\tgeryon\n");
    nodes_find(root, &nodes);
    assert_int_equal(nodes_count(&nodes), 0);
}

/* How the system places pages of this address: MPOL_DEFAULT .., or -1 where it does not tell. */
static int policy_at(void *at) {
    int mode = -1;
    if (syscall(SYS_get_mempolicy, &mode, NULL, 0, at, MPOL_F_ADDR) != 0) return -1;
    return mode;
}

static void this_machine_has_the_node_it_computes_on(void **state) {
    (void)state;
    struct nodes nodes;
    if (access("/sys/devices/system/node/online", R_OK) != 0) skip();
    nodes_find("", &nodes);
    assert_true(nodes_count(&nodes) >= 1);
}

/* Two nodes, one of which this machine may not have: the system takes those that are there. */
static void memory_of_several_nodes_is_spread(void **state) {
    (void)state;
    struct nodes two;
    assert_true(nodes_parse("0-1", &two));
    void *page = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED);
    bool can = nodes_interleave(&two, page, MIB);
    munmap(page, MIB);
    if (!can) skip(); /* a sandbox without these system calls */
    struct memory memory = {.nodes = &two};
    char *p = memory_take(&memory, 3 * MIB), *q = memory_take(&memory, 50 * MIB);
    assert_int_equal(policy_at(p), MPOL_INTERLEAVE);
    assert_int_equal(policy_at(p + 3 * MIB - 1), MPOL_INTERLEAVE);
    assert_int_equal(policy_at(q + 50 * MIB - 1), MPOL_INTERLEAVE);
    memset(q, 1, 50 * MIB);
    memory_free(&memory);
}

static void memory_of_one_node_is_left_alone(void **state) {
    (void)state;
    struct nodes one;
    assert_true(nodes_parse("0", &one));
    struct memory memory = {.nodes = &one};
    int mode = policy_at(memory_take(&memory, MIB));
    assert_true(mode == MPOL_DEFAULT || mode == -1);
    memory_free(&memory);
}

/* Nodes that are not there, and a policy that someone chose for the whole process. */
static void a_refusal_costs_speed_only(void **state) {
    (void)state;
    struct nodes absent, two;
    assert_true(nodes_parse("1022-1023", &absent) && nodes_parse("0-1", &two));
    struct memory memory = {.nodes = &absent};
    char *p = memory_take(&memory, 2 * MIB);
    assert_non_null(p);
    assert_false(nodes_interleave(&absent, p, MIB));
    memset(p, 1, 2 * MIB);
    memory_free(&memory);

    unsigned long node0 = 1;
    if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, &node0, 8 * sizeof node0) != 0) skip();
    memory = (struct memory){.nodes = &two};
    p = memory_take(&memory, 2 * MIB);
    int mode = policy_at(p);
    syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
    assert_int_not_equal(mode, MPOL_INTERLEAVE);
    memory_free(&memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_zeroed_aligned_and_apart),
        cmocka_unit_test(large_pieces_are_on_huge_pages),
        cmocka_unit_test(lists_of_nodes_are_read),
        cmocka_unit_test_setup(nodes_are_those_online_allowed_and_computed_on, fresh_root),
        cmocka_unit_test(this_machine_has_the_node_it_computes_on),
        cmocka_unit_test(memory_of_several_nodes_is_spread),
        cmocka_unit_test(memory_of_one_node_is_left_alone),
        cmocka_unit_test(a_refusal_costs_speed_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
