/* warp.cpp: what the lanes of a warp compute together, and asynchronous copies.
 *
 * The last lane to arrive computes for all (a gs_finish); each lane then reads its own result. */
#include <gpusim.h>

#include "tests/gpusim/fibres_internal.h"

#define FULL 0xFFFFFFFFu

// ---- sums, maxima, ballots

static float plus(float a, float b) {
    return a + b;
}
/* Butterflies: after the step over o, lane i holds v[i] + v[i ^ o]; addition commutes, so both lanes
 * of a pair have the same bits and half of them is enough. */
static void butterflies(gs_record *r, float (*join)(float, float)) {
    float v[32];
    for (int i = 0; i < 32; i++)
        memcpy(&v[i], r->value[i], sizeof v[i]);
    for (int o = 16; o > 0; o /= 2)
        for (int i = 0; i < o; i++)
            v[i] = join(v[i], v[i + o]);
    memcpy(r->result[0], v, sizeof v[0]);
}
static void finish_sum(gs_record *r) {
    butterflies(r, plus);
}
static void finish_max(gs_record *r) {
    butterflies(r, fmaxf);
}
float gs_warp_sum(float v, gs_site at) {
    return gs_read<float>(gs_exchange("warp_sum", FULL, &v, sizeof v, finish_sum, at)->result[0]);
}
float gs_warp_max(float v, gs_site at) {
    return gs_read<float>(gs_exchange("warp_max", FULL, &v, sizeof v, finish_max, at)->result[0]);
}

static void finish_ballot(gs_record *r) {
    unsigned bits = 0;
    for (int i = 0; i < 32; i++)
        if (r->mask >> i & 1 && gs_read<int>(r->value[i])) bits |= 1u << i;
    memcpy(r->result[0], &bits, sizeof bits);
}
unsigned __ballot_sync(unsigned mask, int predicate, gs_site at) {
    const gs_record *r =
        gs_exchange("__ballot_sync", mask, &predicate, sizeof predicate, finish_ballot, at);
    return gs_read<unsigned>(r->result[0]);
}

// ---- matrix fragments

void gs_check_aligned(const void *p, size_t to, gs_site at) {
    if ((uintptr_t)p % to) gs_fail(at, "%p is not a multiple of %zu", p, to);
}

/* Every lane reads its own row when it comes, so a row that is written later, for want of a barrier,
 * is seen as it was. */
void gs_ldmatrix_x4(uint32_t out[4], const void *row, bool transposed, gs_site at) {
    if ((uintptr_t)row % 16) gs_fail(at, "ldmatrix: row address %p is not a multiple of 16", row);
    gs_look(row, 16, false);
    if (!gs_is_shared(row, 16)) gs_fail(at, "ldmatrix: %p is not shared memory", row);
    for (int i = 0; i < 16 && __tsan_read4; i += 4)
        __tsan_read4((char *)row + i);
    const gs_record *r =
        gs_exchange(transposed ? "ldmatrix_x4_trans" : "ldmatrix_x4", FULL, row, 16, NULL, at);
    int g = gs_self->lane / 4, t = gs_self->lane % 4;
    for (int j = 0; j < 4; j++) {
        uint16_t pair[2];
        for (int e = 0; e < 2; e++) {
            int from_row = transposed ? 2 * t + e : g, column = transposed ? g : 2 * t + e;
            memcpy(&pair[e], r->value[8 * j + from_row] + 2 * column, 2);
        }
        out[j] = (uint32_t)pair[0] | (uint32_t)pair[1] << 16;
    }
}

/* One lane's part of an mma: 40 bytes. */
template <class T> struct fragments {
    uint32_t a[4], b[2];
    T d[4];
};
/* The pairs of a row of A or column of B lie in words: element k of 16-bit pairs (K = 16) or of
 * quads of bytes (K = 32). */
static float bf16_at(const uint32_t *words, int i) {
    return __bfloat162float(__ushort_as_bfloat16((unsigned short)(words[0] >> 16 * i)));
}
static float f16_at(const uint32_t *words, int i) {
    return __half2float(__ushort_as_half((unsigned short)(words[0] >> 16 * i)));
}
static int32_t s8_at(const uint32_t *words, int i) {
    return (int8_t)(words[0] >> 8 * i);
}

/* The fragment layouts as PTX gives them: with P elements a word (2 or 4), A[row][k] is in lane
 * 4 (row % 8) + k / P % 4, word row / 8 + 2 (k / 4P); B[k][n] in lane 4 n + k / P % 4, word k / 4P. */
template <class T, int P, T (*at)(const uint32_t *, int)> static void finish_mma(gs_record *r) {
    const int K = 8 * P;
    T a[8 * P][16], b[8 * P][8], d[16][8];
    const fragments<T> *f[32];
    for (int lane = 0; lane < 32; lane++)
        f[lane] = (const fragments<T> *)r->value[lane];
    for (int k = 0; k < K; k++) {
        int t = k / P % 4, half = k / (4 * P);
        for (int row = 0; row < 16; row++)
            a[k][row] = at(&f[4 * (row % 8) + t]->a[row / 8 + 2 * half], k % P);
        for (int n = 0; n < 8; n++)
            b[k][n] = at(&f[4 * n + t]->b[half], k % P);
    }
    for (int i = 0; i < 16 * 8; i++)
        d[i / 8][i % 8] = f[4 * (i / 8 % 8) + i % 8 / 2]->d[i / 64 * 2 + i % 2];
    for (int k = 0; k < K; k++)
        for (int row = 0; row < 16; row++)
            for (int n = 0; n < 8; n++)
                d[row][n] += a[k][row] * b[k][n];
    for (int i = 0; i < 16 * 8; i++)
        memcpy(r->result[4 * (i / 8 % 8) + i % 8 / 2] + sizeof(T) * (size_t)(i / 64 * 2 + i % 2),
               &d[i / 8][i % 8], sizeof(T));
}
template <class T>
static void mma(const char *op, T d[4], const uint32_t a[4], const uint32_t b[2], gs_finish *finish,
                gs_site at) {
    fragments<T> mine;
    gs_move(mine.a, a, sizeof mine.a);
    gs_move(mine.b, b, sizeof mine.b);
    gs_move(mine.d, d, sizeof mine.d);
    const gs_record *r = gs_exchange(op, FULL, &mine, sizeof mine, finish, at);
    gs_move(d, r->result[gs_self->lane], sizeof mine.d);
}
void gs_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], gs_site at) {
    mma("mma_m16n8k16", d, a, b, finish_mma<float, 2, bf16_at>, at);
}
void gs_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], gs_site at) {
    mma("mma_m16n8k16_f16", d, a, b, finish_mma<float, 2, f16_at>, at);
}
void gs_mma_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2], gs_site at) {
    mma("mma_m16n8k32", d, a, b, finish_mma<int32_t, 4, s8_at>, at);
}

// ---- asynchronous copies

/* Until the wait the destination is a NaN; the source is read at the wait. */
void gs_cp_async16(void *shared, const void *global, bool ok, gs_site at) {
    struct fibre *me = gs_current();
    if ((uintptr_t)shared % 16)
        gs_fail(at, "cp.async: destination %p is not a multiple of 16", shared);
    gs_look(shared, 16, true);
    if (!gs_is_shared(shared, 16))
        gs_fail(at, "cp.async: destination %p is not shared memory", shared);
    if (ok) {
        if ((uintptr_t)global % 16)
            gs_fail(at, "cp.async: source %p is not a multiple of 16", global);
        gs_look(global, 16, false);
        if (!gs_is_device(global, 16))
            gs_fail(at, "cp.async: source %p is not device memory", global);
    }
    if (__tsan_write16) __tsan_write16(shared);
    for (int i = 0; i < me->n_copies; i++)
        if (me->copies[i].shared == shared)
            gs_fail(at, "cp.async: an earlier copy to %p is still in flight", shared);
    if (me->n_copies == COPIES_MAX) gs_fail(at, "cp.async: over %d copies in flight", COPIES_MAX);
    me->copies[me->n_copies++] = {shared, global, ok, me->n_groups};
    gs_fill(shared, 0xFF, 16);
}
void gs_cp_async_commit(void) {
    gs_current()->n_groups++;
}
void gs_cp_async_wait(int n_left) {
    struct fibre *me = gs_current();
    int kept = 0;
    for (int i = 0; i < me->n_copies; i++) {
        struct pending_copy *copy = &me->copies[i];
        if (copy->group >= me->n_groups - n_left) {
            me->copies[kept++] = *copy;
            continue;
        }
        if (__tsan_write16) __tsan_write16(copy->shared);
        if (copy->ok)
            gs_move(copy->shared, copy->global, 16);
        else
            gs_fill(copy->shared, 0, 16);
    }
    me->n_copies = kept;
}
