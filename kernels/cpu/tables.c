/* tables.c: the CPU tables, and the choice among them. */
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/peaks.h"

#define CPU_TABLE(NAME, OPEN, PEAKS)                                                              \
    {                                                                                             \
        .name = (NAME), .open = (OPEN), .peaks = (PEAKS),                                         \
        .activations = (1 << ACTIVATIONS_COUNT) - 1, .close = cpu_close, .load = cpu_load,        \
        .page_bytes = cpu_page_bytes, .workspace_bytes = cpu_workspace_bytes,                     \
        .reserve = cpu_reserve, .slot_set = cpu_slot_set, .pages_clear = cpu_pages_clear,         \
        .page_copy = cpu_page_copy, .snapshot_bytes = cpu_snapshot_bytes,                         \
        .state_save = cpu_state_save, .state_load = cpu_state_load, .state_copy = cpu_state_copy, \
        .msar_push = cpu_msar_push, .msar_read = cpu_msar_read, .begin = cpu_begin,               \
        .embed = cpu_embed, .qkv = cpu_qkv, .attend = cpu_attend,                                 \
        .out_residual = cpu_out_residual, .mlp = cpu_mlp, .lm_head = cpu_lm_head,                 \
        .work_ns = cpu_work_ns, .sample = cpu_sample, .accept = cpu_accept, .end = cpu_end,       \
        .read_logits = cpu_read_logits, .meter_open = cpu_meter_open,                             \
        .meter_rate = cpu_meter_rate, .meter_close = cpu_meter_close                              \
    }

static int open_ref(const struct model_shape *shape, uint32_t n_threads, struct device **out,
                    struct err *err) {
    return cpu_open(&cpu_ops_ref, shape, n_threads, out, err);
}

const struct kernels *kernels_ref(void) {
    static const struct kernels table = CPU_TABLE("ref", open_ref, cpu_peaks_plain);
    return &table;
}

#if defined(__x86_64__)
static int open_avx2(const struct model_shape *shape, uint32_t n_threads, struct device **out,
                     struct err *err) {
    return cpu_open(&cpu_ops_avx2, shape, n_threads, out, err);
}

/* By CPUID itself: clang 14's __builtin_cpu_supports does not know the word f16c. That the system
 * saves the wide registers is part of what "avx2" answers. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

const struct kernels *kernels_avx2(void) {
    static const struct kernels table = CPU_TABLE("avx2", open_avx2, cpu_peaks_avx2);
    __builtin_cpu_init();
    bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    return supported ? &table : NULL;
}

static int open_avx512(const struct model_shape *shape, uint32_t n_threads, struct device **out,
                       struct err *err) {
    bool vnni = __builtin_cpu_supports("avx512vnni");
    return cpu_open(vnni ? &cpu_ops_avx512_vnni : &cpu_ops_avx512, shape, n_threads, out, err);
}

const struct kernels *kernels_avx512(void) {
    static const struct kernels table = CPU_TABLE("avx512", open_avx512, cpu_peaks_avx512);
    __builtin_cpu_init();
    bool supported = kernels_avx2() && __builtin_cpu_supports("avx512f") &&
                     __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512vl");
    return supported ? &table : NULL;
}

static int open_amx(const struct model_shape *shape, uint32_t n_threads, struct device **out,
                    struct err *err) {
    return cpu_open(&cpu_ops_amx, shape, n_threads, out, err);
}

#ifdef GERYON_AMX_EMULATED
static bool has_tiles(void) {
    return true; /* in software: amx.h */
}
#else
/* CPUID leaf 7: 0 EDX bits 22, 24, 25 tile bf16, tiles, tile int8; 1 EAX bit 5 bf16 vectors. Linux
 * gives a process the memory for tiles when asked, and kills one that did not ask. */
static bool has_tiles(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 }; /* asm/prctl.h, arch/x86 in Linux */
    const unsigned tiles = 1u << 22 | 1u << 24 | 1u << 25, bf16 = 1u << 5;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & tiles) != tiles) return false;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & bf16)) return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}
#endif

const struct kernels *kernels_amx(void) {
    static const struct kernels table = CPU_TABLE("amx", open_amx, cpu_peaks_amx);
    __builtin_cpu_init();
    bool vnni = __builtin_cpu_supports("avx512vnni");
    return kernels_avx512() && vnni && has_tiles() ? &table : NULL;
}
#else
const struct kernels *kernels_avx2(void) {
    return NULL;
}

const struct kernels *kernels_avx512(void) {
    return NULL;
}

const struct kernels *kernels_amx(void) {
    return NULL;
}
#endif

/* Slowest first; `lacks`: what a processor without the table is without. */
static const struct {
    const char *name;
    const struct kernels *(*find)(void);
    const char *lacks;
} tables[] = {
    {"ref", kernels_ref, ""},
    {"avx2", kernels_avx2, "AVX2, FMA or F16C"},
    {"avx512", kernels_avx512, "AVX-512 F, BW, DQ or VL"},
    {"amx", kernels_amx,
     "AMX for bf16 and int8, AVX-512 BF16 or VNNI, or the system does not let it"},
};

const struct kernels *kernels_find(const char *name, struct err *err) {
    const struct kernels *best = NULL;
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        const struct kernels *table = tables[i].find();
        if (table) best = table;
        if (strcmp(name, tables[i].name) != 0) continue;
        if (!table)
            err_set(err, ERR_INVALID, "kernels: %s: this processor lacks %s", name,
                    tables[i].lacks);
        return table;
    }
    if (strcmp(name, "auto") == 0) return best;
    err_set(err, ERR_INVALID, "kernels: '%.60s', expected auto, ref, avx2, avx512 or amx", name);
    return NULL;
}
