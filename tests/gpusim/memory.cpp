/* memory.cpp: device memory, and the looks that sanitizers take at it.
 *
 *   arena   | red zone | allocation | red zone | allocation | red zone |      (not yet used)
 *
 * One reservation. The used part is unreadable for the host except while device work runs. Nothing is
 * given out twice, so what is freed stays poisoned. Fresh memory holds 0xFF, a NaN. */
#include "tests/gpusim/gpusim_internal.h"

#include <map>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t ARENA_BYTES = (size_t)64 << 30;

struct allocation {
    size_t bytes;
    size_t red_zone; /* behind it */
    bool living;
};
static struct {
    char *base;
    size_t top;  /* end of the last red zone */
    size_t used; /* living bytes */
    int opened;
    std::map<size_t, allocation> allocations; /* by offset */
    std::map<const char *, size_t> pinned;
} memory;

// ---- bytes

/* Never a call of memcpy: a sanitizer would take it for the kernel's. */
void gs_move(void *dst, const void *src, size_t n) {
#ifdef __x86_64__
    if (n <= 64 && n % 4 == 0) { /* what lanes exchange: for so little `rep` is slow */
        for (size_t i = 0; i < n; i += 4) {
            uint32_t word;
            __builtin_memcpy(&word, (const char *)src + i, sizeof word);
            __asm__ volatile("" : : : "memory"); /* not to become that call after all */
            __builtin_memcpy((char *)dst + i, &word, sizeof word);
        }
        return;
    }
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(n) : : "memory");
#else
    for (size_t i = 0; i < n; i++)
        ((volatile char *)dst)[i] = ((const volatile char *)src)[i];
#endif
}
void gs_fill(void *dst, int value, size_t n) {
#ifdef __x86_64__
    __asm__ volatile("rep stosb" : "+D"(dst), "+c"(n) : "a"(value) : "memory");
#else
    for (size_t i = 0; i < n; i++)
        ((volatile char *)dst)[i] = (char)value;
#endif
}
void gs_look(const void *p, size_t n, bool writes) {
    if (!n) return;
    if (writes && __asan_storeN) __asan_storeN((void *)p, n);
    if (!writes && __asan_loadN) __asan_loadN((void *)p, n);
}

// ---- the arena

void gs_memory_open(void) {
    if (memory.opened++ == 0 && memory.top)
        mprotect(memory.base, memory.top, PROT_READ | PROT_WRITE);
}
void gs_memory_close(void) {
    if (--memory.opened == 0 && memory.top) mprotect(memory.base, memory.top, PROT_NONE);
}
bool gs_in_arena(const void *p) {
    const char *c = (const char *)p;
    return memory.base && c >= memory.base && c < memory.base + ARENA_BYTES;
}

/* The allocation that holds p, or just behind whose end p is; NULL. */
static const allocation *find(const void *p, size_t *offset) {
    if (!gs_in_arena(p)) return NULL;
    size_t at = (size_t)((const char *)p - memory.base);
    auto next = memory.allocations.upper_bound(at);
    if (next == memory.allocations.begin()) return NULL;
    --next;
    *offset = at - next->first;
    return *offset <= next->second.bytes ? &next->second : NULL;
}
bool gs_is_device(const void *p, size_t n) {
    size_t offset;
    const allocation *a = find(p, &offset);
    return a && a->living && n <= a->bytes - offset;
}
bool gs_is_pinned(const void *p, size_t n) {
    const char *c = (const char *)p;
    auto next = memory.pinned.upper_bound(c);
    if (next == memory.pinned.begin()) return false;
    --next;
    return c + n <= next->first + next->second;
}
void gs_check_argument(const char *kernel, int position, const void *p) {
    if (p && !gs_is_device(p, 0))
        gs_fail(GS_NOWHERE, "%s: argument %d, %p, is not device memory", kernel, position, p);
}

/* Programs, heaps, stacks and maps lie high on x86-64 and aarch64; sanitizers' shadows, and pairs of
 * small integers, lie lower. Whether a page is mapped, mincore knows. */
void gs_check_struct(const char *kernel, int position, const void *argument, size_t bytes) {
    const uintptr_t lowest = (uintptr_t)0x500000000000, highest = (uintptr_t)1 << 47;
    for (size_t i = 0; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
        uintptr_t word;
        unsigned char resident;
        gs_move(&word, (const char *)argument + i, sizeof word);
        if (word < lowest || word >= highest || gs_in_arena((void *)word)) continue;
        if (mincore((void *)(word & ~(uintptr_t)4095), 4096, &resident) == 0)
            gs_fail(GS_NOWHERE,
                    "%s: argument %d has a pointer at byte %zu, %p, that is not device memory",
                    kernel, position, i, (void *)word);
    }
}

static void reserve(void) {
    if (memory.base) return;
    void *p =
        mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) gs_fail(GS_NOWHERE, "no address space for device memory");
    memory.base = (char *)p;
    if (!getenv("GPUSIM_NO_FAULTS")) gpusim_catch_faults();
}

static void poison(size_t offset, size_t n) {
    if (__asan_poison_memory_region) __asan_poison_memory_region(memory.base + offset, n);
}

/* The end is not rounded up: under AddressSanitizer the first byte behind it is out of bounds. */
static char *place(size_t bytes) {
    reserve();
    size_t red = gs_options.red_zone, start = memory.top, offset = start ? start : red;
    size_t top = ((offset + bytes + 4095) & ~(size_t)4095) + red;
    if (top > ARENA_BYTES) return NULL;
    char *p = memory.base + offset;
    mprotect(memory.base + start, top - start, PROT_READ | PROT_WRITE);
    poison(start, top - start);
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, bytes);
    gs_fill(p, 0xFF, bytes);
    if (!memory.opened) mprotect(memory.base + start, top - start, PROT_NONE);
    memory.top = top;
    memory.used += bytes;
    memory.allocations[offset] = {bytes, top - offset - bytes, true};
    return p;
}

/* A red zone is zero, as fresh memory is. */
static void check_red_zone(size_t offset, const allocation &a) {
    const char *zone = memory.base + offset + a.bytes;
    for (size_t i = 0; i < a.red_zone; i++)
        if (zone[i])
            gs_fail(GS_NOWHERE, "written behind an allocation of %zu bytes, at its byte %zu",
                    a.bytes, a.bytes + i);
}
extern "C" void gpusim_check(void) {
    std::lock_guard<std::recursive_mutex> guard(gs_lock);
    gs_memory_open();
    for (const auto &a : memory.allocations)
        check_red_zone(a.first, a.second);
    gs_memory_close();
}

cudaError_t gs_device_alloc(void **out, size_t bytes) {
    if (bytes > gs_options.memory_bytes - memory.used) return cudaErrorMemoryAllocation;
    char *p = bytes ? place(bytes) : NULL;
    if (bytes && !p) return cudaErrorMemoryAllocation;
    *out = p;
    return cudaSuccess;
}
cudaError_t gs_device_free(void *p) {
    size_t offset;
    if (!p) return cudaSuccess;
    const allocation *a = find(p, &offset);
    if (!a || !a->living || offset) return cudaErrorInvalidValue;
    size_t at = (size_t)((char *)p - memory.base);
    gs_memory_open();
    check_red_zone(at, *a);
    gs_memory_close();
    memory.allocations[at].living = false;
    memory.used -= a->bytes;
    poison(at, a->bytes);
    /* The red zone, too: looking at it gave it pages, which each mprotect would go through for ever. */
    madvise((char *)p, (a->bytes + a->red_zone) & ~(size_t)4095, MADV_DONTNEED);
    return cudaSuccess;
}
size_t gs_device_free_bytes(void) {
    return gs_options.memory_bytes - memory.used;
}
size_t gs_memory_in_use(void) {
    size_t n = memory.pinned.size();
    for (const auto &a : memory.allocations)
        n += a.second.living;
    return n;
}

// ---- pinned host memory

cudaError_t gs_pinned_alloc(void **out, size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) return cudaErrorMemoryAllocation;
    memset(p, 0xFF, bytes);
    memory.pinned[(const char *)p] = bytes;
    *out = p;
    return cudaSuccess;
}
cudaError_t gs_pinned_free(void *p) {
    if (!p) return cudaSuccess;
    if (!memory.pinned.erase((const char *)p)) return cudaErrorInvalidValue;
    free(p);
    return cudaSuccess;
}
