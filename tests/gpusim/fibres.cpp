/* fibres.cpp: the threads of one block as fibres that run until they wait.
 *
 *   host ──▶ fibre ──▶ fibre ──▶ ... ──▶ fibre ──▶ host          one switch each, no scheduler between
 *
 * A fibre is made once and loops over blocks. One that waits picks its successor: a ready lane of its
 * own warp, else of another warp, else the host when the block is done; when nobody can go on, the
 * report says who waits where. */
#include <gpusim.h>

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#include "tests/gpusim/fibres_internal.h"

enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 4096, RECORDS = 34, SHARED_MAX = 256 << 10 };

extern "C" {
struct gs_thread *gs_self;
uint3 blockIdx;
dim3 blockDim, gridDim;
/* gpusim.ld: all `__shared__` arrays of the program. */
extern char gs_shared_start[], gs_shared_end[];
void (*gpusim_fail_hook)(const char *message);
}
struct gs_options gs_options = {GPUSIM_LOWEST, 80, (size_t)8 << 30, 64 << 10};
struct gpusim_counts gs_counts;
std::recursive_mutex gs_lock;

struct warp {
    unsigned ready, waiting, done; /* one bit a lane */
    gs_record *records;
    uint64_t free_records;
    int users[RECORDS]; /* lanes that still hold a record */
};
static struct {
    const gs_grid *running;
    struct fibre *fibres[1024], host, *current;
    struct warp warps[32];
    uint32_t ready_warps;
    int n_threads, n_live, n_arrived, n_true[2], generation;
    char *dynamic_shared;
    char sync[4]; /* addresses that ThreadSanitizer orders by: block start and end, two barriers */
    char warp_sync[32][2];
    uint64_t random;
} sim;

// ---- reports

bool gs_in_kernel(void) {
    return sim.running && sim.current && sim.current != &sim.host;
}

static void where_am_i(char *text, size_t n) {
    if (gs_in_kernel())
        snprintf(text, n, "%s, block (%u,%u,%u), thread (%u,%u,%u): ", sim.running->kernel,
                 blockIdx.x, blockIdx.y, blockIdx.z, gs_self->index.x, gs_self->index.y,
                 gs_self->index.z);
    else
        snprintf(text, n, "%s", "");
}

static void end_with(const char *message) {
    if (write(2, message, strlen(message)) < 0 || write(2, "\n", 1) < 0) abort();
    if (gpusim_fail_hook) gpusim_fail_hook(message);
    _exit(GPUSIM_EXIT_STATUS);
}

void gs_fail(gs_site at, const char *fmt, ...) {
    char message[2048], site[256] = "", place[256];
    where_am_i(place, sizeof place);
    int n = snprintf(message, sizeof message, "gpusim: %s", place);
    va_list list;
    va_start(list, fmt);
    vsnprintf(message + n, sizeof message - (size_t)n, fmt, list);
    va_end(list);
    if (at.file) snprintf(site, sizeof site, ": %s:%d", at.file, at.line);
    strncat(message, site, sizeof message - strlen(message) - 1);
    end_with(message);
    abort();
}

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    char message[512], place[256];
    where_am_i(place, sizeof place);
    const char *what = "an address that is not mapped";
    if (gs_in_arena(info->si_addr))
        what = gs_in_kernel() ? "device memory past all allocations"
                              : "device memory, read or written by the host";
    snprintf(message, sizeof message, "gpusim: %sfault at %p: %s", place, info->si_addr, what);
    end_with(message);
}

/* On a stack of its own: a fibre's may be what has run out. */
static void fault_stack(void) {
    static thread_local bool done;
    if (done) return;
    done = true;
    stack_t stack = {};
    stack.ss_size = 64 << 10;
    stack.ss_sp =
        mmap(NULL, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaltstack(&stack, NULL);
}
void gpusim_catch_faults(void) {
    if (__asan_loadN) return;
    fault_stack();
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

/* Who waits where, one clause a place. */
static void fail_stuck(void) {
    char text[1500] = "no thread can go on";
    bool seen[1024] = {};
    for (int i = 0; i < sim.n_threads; i++) {
        struct fibre *f = sim.fibres[i];
        if (f->state == DONE || seen[i]) continue;
        int n = 0;
        for (int j = i; j < sim.n_threads; j++) {
            struct fibre *g = sim.fibres[j];
            if (g->state == DONE || g->op != f->op || g->at.line != f->at.line ||
                g->mask != f->mask)
                continue;
            seen[j] = true;
            n++;
        }
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "; %d, the first (%u,%u,%u), at %s", n,
                 f->index.x, f->index.y, f->index.z, f->op);
        used = strlen(text);
        if (f->state == AT_EXCHANGE)
            snprintf(text + used, sizeof text - used, " with mask 0x%08x in warp %d", f->mask,
                     f->warp);
        used = strlen(text);
        snprintf(text + used, sizeof text - used, " %s:%d", f->at.file, f->at.line);
    }
    gs_fail(GS_NOWHERE, "%s; %d have returned", text, sim.n_threads - sim.n_live);
}

// ---- options

extern "C" void gpusim_set_order(enum gpusim_order order, uint64_t seed) {
    std::lock_guard<std::recursive_mutex> guard(gs_lock);
    gs_options.order = order;
    sim.random = seed * 2 + 1;
}
/* For whole programs, which no test steers from within. */
__attribute__((constructor)) static void read_environment() {
    static const char *const names[GPUSIM_ORDERS] = {"lowest", "highest", "random"};
    const char *order = getenv("GPUSIM_ORDER"), *seed = getenv("GPUSIM_SEED");
    for (int i = 0; order && i < GPUSIM_ORDERS; i++)
        if (!strcmp(order, names[i]))
            gpusim_set_order((enum gpusim_order)i, seed ? strtoull(seed, NULL, 0) : 0);
}
extern "C" void gpusim_set_device(int sm, size_t memory_bytes) {
    gs_options.sm = sm;
    gs_options.memory_bytes = memory_bytes;
}
extern "C" void gpusim_set_red_zone(size_t bytes) {
    if (bytes < 64 << 10) bytes = 64 << 10;
    gs_options.red_zone = (bytes + 4095) & ~(size_t)4095;
}
extern "C" struct gpusim_counts gpusim_counts(void) {
    return gs_counts;
}
int gs_max_shared(void) {
    const int sm = gs_options.sm;
    if (sm == 86 || sm == 89 || sm >= 120) return 99 << 10;
    return (sm >= 90 ? 227 : 163) << 10;
}

/* splitmix64 */
uint32_t gs_random(void) {
    uint64_t z = (sim.random += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}
uint32_t gs_choose(uint32_t n) {
    if (gs_options.order == GPUSIM_RANDOM) return gs_random() % n;
    return gs_options.order == GPUSIM_LOWEST ? 0 : n - 1;
}
static int choose_bit(unsigned bits) {
    if (gs_options.order == GPUSIM_LOWEST) return __builtin_ctz(bits);
    if (gs_options.order == GPUSIM_HIGHEST) return 31 - __builtin_clz(bits);
    for (unsigned skip = gs_random() % (unsigned)__builtin_popcount(bits); skip > 0; skip--)
        bits &= bits - 1;
    return __builtin_ctz(bits);
}

// ---- fibres

#if defined(__x86_64__) && !defined(GPUSIM_UCONTEXT)
extern "C" void gs_switch_stack(void **save, void *load);
__asm__(".text\n.globl gs_switch_stack\n.type gs_switch_stack,@function\n"
        "gs_switch_stack:\n"
        "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
        "  mov %rsp, (%rdi)\n  mov %rsi, %rsp\n"
        "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n  ret\n"
        ".size gs_switch_stack, .-gs_switch_stack\n");
static void prepare_stack(struct fibre *f, void (*entry)(void)) {
    /* Tops at different places within a page, or all stacks fight for the same lines of the cache. */
    size_t colour = (size_t)(f->warp * 32 + f->lane) % 31 * 128;
    void **top =
        (void **)(f->stack + STACK_BYTES - colour) - 1; /* the return address of entry: none */
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->sp = top;
}
static inline void change_stack(struct fibre *from, struct fibre *to) {
    gs_switch_stack(&from->sp, to->sp);
}
#else
static void prepare_stack(struct fibre *f, void (*entry)(void)) {
    f->context = new ucontext_t;
    getcontext(f->context);
    f->context->uc_stack.ss_sp = f->stack;
    f->context->uc_stack.ss_size = STACK_BYTES;
    makecontext(f->context, entry, 0);
}
static inline void change_stack(struct fibre *from, struct fibre *to) {
    if (!from->context) from->context = new ucontext_t; /* the host's */
    swapcontext(from->context, to->context);
}
#endif

static void switch_to(struct fibre *next) {
    struct fibre *me = sim.current;
    if (me == next) return;
    gs_counts.switches++;
    sim.current = next;
    gs_self = next;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&me->fake_stack, next->stack, next->stack_bytes);
    if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(next->tsan, 1); /* 1: orders nothing */
    change_stack(me, next);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(me->fake_stack, NULL, NULL);
}

static struct fibre *pick(int w) {
    unsigned ready = sim.warps[w].ready;
    if (!ready || (gs_options.order == GPUSIM_RANDOM && gs_random() % 8 == 0)) {
        if (!sim.ready_warps) {
            if (sim.n_live) fail_stuck();
            return &sim.host;
        }
        w = choose_bit(sim.ready_warps);
        ready = sim.warps[w].ready;
    }
    return sim.fibres[w * 32 + choose_bit(ready)];
}
static void set_ready(int w, unsigned lanes) {
    sim.warps[w].ready |= lanes;
    if (sim.warps[w].ready) sim.ready_warps |= 1u << w;
}
static void clear_ready(int w, unsigned lanes) {
    sim.warps[w].ready &= ~lanes;
    if (!sim.warps[w].ready) sim.ready_warps &= ~(1u << w);
}
struct fibre *gs_current(void) {
    return sim.current;
}

static void open_barrier(void) {
    gs_counts.barriers++;
    sim.generation++;
    sim.n_arrived = 0;
    sim.n_true[sim.generation & 1] = 0; /* the next barrier's */
    for (int i = 0; i < sim.n_threads; i++) {
        struct fibre *f = sim.fibres[i];
        if (f->state != AT_BARRIER) continue;
        f->state = READY;
        set_ready(f->warp, 1u << f->lane);
    }
}

static void release_record(struct fibre *me) {
    if (!me->record) return;
    struct warp *w = &sim.warps[me->warp];
    long i = me->record - w->records;
    if (--w->users[i] == 0) w->free_records |= (uint64_t)1 << i;
    me->record = NULL;
}

static void thread_ends(struct fibre *me) {
    struct warp *w = &sim.warps[me->warp];
    if (me->n_copies) gs_fail(GS_NOWHERE, "returns with cp.async in flight");
    release_record(me);
    me->state = DONE;
    sim.n_live--;
    w->done |= 1u << me->lane;
    clear_ready(me->warp, 1u << me->lane);
    for (unsigned rest = w->waiting; rest; rest &= rest - 1) {
        struct fibre *f = sim.fibres[me->warp * 32 + __builtin_ctz(rest)];
        if (f->mask >> me->lane & 1)
            gs_fail(f->at, "returns, though lane %d waits for it at %s with mask 0x%08x", f->lane,
                    f->op, f->mask);
    }
    if (sim.n_arrived && sim.n_arrived == sim.n_live) open_barrier();
}

static void fibre_main(void) {
    if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
    for (;;) {
        struct fibre *me = sim.current;
        if (__tsan_acquire) __tsan_acquire(&sim.sync[0]);
        sim.running->body();
        if (__tsan_release) __tsan_release(&sim.sync[1]);
        thread_ends(me);
        switch_to(pick(me->warp));
    }
}

static struct fibre *fibre_create(int number) {
    struct fibre *f = new struct fibre();
    char *memory = (char *)mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE))
        gs_fail(GS_NOWHERE, "no memory for the stack of thread %d", number);
    f->stack = memory + GUARD_BYTES;
    f->stack_bytes = STACK_BYTES;
    f->lane = number % 32;
    f->warp = number / 32;
    if (__tsan_create_fiber) f->tsan = __tsan_create_fiber(0);
    prepare_stack(f, fibre_main);
    return f;
}

/* The sanitizers want to know the stack that fibres return to. */
static void describe_host(void) {
    static thread_local char *bottom;
    static thread_local size_t bytes;
    if (!bytes) {
        pthread_attr_t attr;
        void *low;
        pthread_getattr_np(pthread_self(), &attr);
        pthread_attr_getstack(&attr, &low, &bytes);
        pthread_attr_destroy(&attr);
        bottom = (char *)low;
    }
    sim.host.stack = bottom;
    sim.host.stack_bytes = bytes;
    if (__tsan_get_current_fiber) sim.host.tsan = __tsan_get_current_fiber();
}

// ---- blocks

static void prepare_warp(struct warp *w, int n_lanes) {
    if (!w->records) w->records = (gs_record *)calloc(RECORDS, sizeof *w->records);
    if (!w->records) gs_fail(GS_NOWHERE, "no memory for records");
    w->ready = w->waiting = w->done = 0;
    w->free_records = ((uint64_t)1 << RECORDS) - 1;
    if (n_lanes < 32) w->done = ~0u << n_lanes; /* lanes that do not exist never come */
}

/* Shared memory is a NaN in every type until it is written; past smem it is out of bounds. */
static void prepare_shared(size_t smem) {
    if (!sim.dynamic_shared) {
        sim.dynamic_shared = (char *)mmap(NULL, SHARED_MAX, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sim.dynamic_shared == MAP_FAILED) gs_fail(GS_NOWHERE, "no shared memory");
    }
    gs_fill(sim.dynamic_shared, 0xFF, smem);
    if (__asan_poison_memory_region) {
        __asan_unpoison_memory_region(sim.dynamic_shared, smem);
        __asan_poison_memory_region(sim.dynamic_shared + smem, SHARED_MAX - smem);
    }
    gs_fill(gs_shared_start, 0xFF, (size_t)(gs_shared_end - gs_shared_start));
}
void *gs_dyn_shared(void) {
    return sim.dynamic_shared;
}
bool gs_is_shared(const void *p, size_t n) {
    const char *c = (const char *)p;
    return (c >= sim.dynamic_shared && c + n <= sim.dynamic_shared + sim.running->smem) ||
           (c >= gs_shared_start && c + n <= gs_shared_end);
}

static void run_block(void) {
    const unsigned *block = sim.running->block;
    sim.n_live = sim.n_threads;
    sim.n_arrived = sim.n_true[0] = sim.n_true[1] = 0;
    prepare_shared(sim.running->smem);
    for (int w = 0; w * 32 < sim.n_threads; w++)
        prepare_warp(&sim.warps[w], sim.n_threads - w * 32);
    for (int i = 0; i < sim.n_threads; i++) {
        if (!sim.fibres[i]) sim.fibres[i] = fibre_create(i);
        struct fibre *f = sim.fibres[i];
        unsigned n = (unsigned)i;
        f->index = {n % block[0], n / block[0] % block[1], n / block[0] / block[1]};
        f->state = READY;
        f->op = "its start";
        f->at = {"?", 0};
        f->record = NULL;
        f->n_copies = f->n_groups = f->n_warp_syncs = 0;
        set_ready(f->warp, 1u << f->lane);
    }
    if (__tsan_release) __tsan_release(&sim.sync[0]);
    switch_to(pick(choose_bit(sim.ready_warps)));
    if (__tsan_acquire) __tsan_acquire(&sim.sync[1]);
    gs_counts.blocks++;
}

/* Blocks of a grid in the order's order. */
static std::vector<uint32_t> block_order(size_t n) {
    std::vector<uint32_t> order(n);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)(gs_options.order == GPUSIM_HIGHEST ? n - 1 - i : i);
    for (size_t i = n; gs_options.order == GPUSIM_RANDOM && i > 1; i--)
        std::swap(order[i - 1], order[gs_random() % i]);
    return order;
}

void gs_run_grid(const gs_grid &grid) {
    fault_stack();
    describe_host();
    sim.running = &grid;
    sim.current = &sim.host;
    sim.n_threads = (int)(grid.block[0] * grid.block[1] * grid.block[2]);
    blockDim = dim3(grid.block[0], grid.block[1], grid.block[2]);
    gridDim = dim3(grid.grid[0], grid.grid[1], grid.grid[2]);
    gs_counts.launches++;
    for (uint32_t b : block_order((size_t)grid.grid[0] * grid.grid[1] * grid.grid[2])) {
        blockIdx = {b % grid.grid[0], b / grid.grid[0] % grid.grid[1],
                    b / grid.grid[0] / grid.grid[1]};
        run_block();
    }
    sim.running = NULL;
}

// ---- waiting

static bool same_place(gs_site a, gs_site b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}
int gs_sync_block(int value, gs_site at) {
    struct fibre *me = sim.current;
    int side = sim.generation & 1;
    for (int i = 0; sim.n_arrived && i < sim.n_threads; i++) {
        struct fibre *f = sim.fibres[i];
        if (f->state != AT_BARRIER) continue;
        if (!same_place(f->at, at))
            gs_fail(at, "barrier in divergent code: thread (%u,%u,%u) is at the one in %s:%d",
                    f->index.x, f->index.y, f->index.z, f->at.file, f->at.line);
        break;
    }
    if (__tsan_release) __tsan_release(&sim.sync[2 + side]);
    me->op = "__syncthreads";
    me->at = at;
    me->mask = 0;
    me->state = AT_BARRIER;
    sim.n_true[side] += value != 0;
    clear_ready(me->warp, 1u << me->lane);
    if (++sim.n_arrived == sim.n_live) open_barrier();
    switch_to(pick(me->warp));
    if (__tsan_acquire) __tsan_acquire(&sim.sync[2 + side]);
    return sim.n_true[side];
}

static gs_record *record_of(struct warp *w, int warp_number, unsigned mask, gs_finish *finish) {
    if (!w->free_records) gs_fail(GS_NOWHERE, "no free record");
    int i = __builtin_ctzll(w->free_records);
    gs_record *r = &w->records[i];
    w->free_records &= w->free_records - 1;
    w->users[i] = __builtin_popcount(mask);
    r->mask = mask;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        struct fibre *f = sim.fibres[warp_number * 32 + lane];
        gs_move(r->value[lane], f->stage, (size_t)f->stage_bytes);
        f->record = r;
        f->state = READY;
    }
    if (finish) finish(r);
    return r;
}

/* All lanes of the mask are here: the same call from the same line with the same mask? */
static void check_agreement(struct fibre *me) {
    for (unsigned rest = me->mask; rest; rest &= rest - 1) {
        struct fibre *f = sim.fibres[me->warp * 32 + __builtin_ctz(rest)];
        if (f->mask != me->mask)
            gs_fail(me->at,
                    "%s with mask 0x%08x, though lane %d is at %s with mask 0x%08x in %s:%d",
                    me->op, me->mask, f->lane, f->op, f->mask, f->at.file, f->at.line);
        if (!same_place(f->at, me->at) || (f->op != me->op && strcmp(f->op, me->op) != 0))
            gs_fail(me->at, "%s, though lane %d is at %s in %s:%d", me->op, f->lane, f->op,
                    f->at.file, f->at.line);
    }
}

const gs_record *gs_exchange(const char *op, unsigned mask, const void *value, int bytes,
                             gs_finish *finish, gs_site at) {
    struct fibre *me = sim.current;
    struct warp *w = &sim.warps[me->warp];
    if (!(mask >> me->lane & 1))
        gs_fail(at, "%s: lane %d is not in its own mask 0x%08x", op, me->lane, mask);
    if (mask & w->done)
        gs_fail(at, "%s: mask 0x%08x names lane %d, which has returned or does not exist", op, mask,
                __builtin_ctz(mask & w->done));
    release_record(me);
    gs_move(me->stage, value, (size_t)bytes);
    me->stage_bytes = bytes;
    me->op = op;
    me->mask = mask;
    me->at = at;
    me->state = AT_EXCHANGE;
    w->waiting |= 1u << me->lane;
    clear_ready(me->warp, 1u << me->lane);
    if ((w->waiting & mask) == mask) {
        check_agreement(me);
        gs_counts.exchanges++;
        record_of(w, me->warp, mask, finish);
        w->waiting &= ~mask;
        set_ready(me->warp, mask);
    }
    switch_to(pick(me->warp)); /* also the last to come: the order says who is first */
    return me->record;
}

const void *gs_value_of(const gs_record *record, int lane, gs_site at) {
    if (!(record->mask >> lane & 1))
        gs_fail(at, "%s: reads lane %d, which is outside the mask 0x%08x", sim.current->op, lane,
                record->mask);
    return record->value[lane];
}

void gs_sync_warp(unsigned mask, gs_site at) {
    struct fibre *me = sim.current;
    /* Two in turn: what a fast lane does after this one, and releases at the next, is not ordered. */
    char *sync = &sim.warp_sync[me->warp][me->n_warp_syncs++ & 1];
    if (__tsan_release) __tsan_release(sync);
    gs_exchange("__syncwarp", mask, "", 0, NULL, at);
    if (__tsan_acquire) __tsan_acquire(sync);
}
