/* attend.cu: stage `attend` of the CUDA device: its launches, and the merge of parts.
 *
 * merge: a warp a (row, head) reads the sums of its splits, lane l elements 4l .. 4l + 3 (HEAD above
 * 128: and 128 further), eight splits ahead, and joins them in ascending order with the arithmetic
 * that attention uses in registers (attend_join), so either way gives the same bits. Bound by the
 * bytes of parts, ep floats a split, query row and head, most often still in L2.
 *
 * Elements of o beyond n_heads * head_dim are never written: zeroed once, when o is reserved. */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/attend.h"

enum { HEAD_MAX = 256, MERGE_HEADS = 4, AHEAD = 8 };

/* Some splits of a (row, head): their statistics, and the lane's sums. */
template <int PER> struct some_parts {
    float2 stats[AHEAD];
    float4 sums[AHEAD][PER];
};
template <int PER>
GPU_INLINE void load_parts(struct some_parts<PER> *p, const struct attend_args *a, size_t part,
                           size_t stride, uint32_t n) {
    GPU_UNROLL
    for (uint32_t i = 0; i < AHEAD; i++) {
        p->stats[i] = make_float2(0.0f, 0.0f); /* beyond the last: as if outside the span */
        GPU_UNROLL
        for (uint32_t j = 0; j < PER; j++) {
            const uint32_t element = threadIdx.x % WARP * 4 + 4 * WARP * j;
            p->sums[i][j] =
                i < n && element < a->ep
                    ? *(const float4 *)(a->parts + (part + i * stride) * a->ep + element)
                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        if (i < n) p->stats[i] = *(const float2 *)(a->part_stats + 2 * (part + i * stride));
    }
}

template <class ACT, int PER>
static __global__ void __launch_bounds__(MERGE_HEADS *WARP) attend_merge(struct attend_args a) {
    const uint32_t head = blockIdx.y * MERGE_HEADS + threadIdx.x / WARP, n = a.counts->n_merges;
    if (head >= a.n_kv_heads * a.group) return;
    for (uint32_t number = blockIdx.x; number < n; number += gridDim.x) {
        const struct merge m = a.merges[number];
        const size_t stride = (size_t)m.stride * a.n_kv_heads;
        size_t part = ((size_t)m.part + head % a.group) * a.n_kv_heads + head / a.group;
        float most = -INFINITY, total = 0.0f, sums[PER][4] = {}, kept, share;
        struct some_parts<PER> now, next;
        load_parts<PER>(&now, &a, part, stride, m.n_splits);
        for (uint32_t i = 0; i < m.n_splits; i += AHEAD, now = next) {
            part += AHEAD * stride;
            load_parts<PER>(&next, &a, part, stride,
                            i + AHEAD < m.n_splits ? m.n_splits - i - AHEAD : 0);
            GPU_UNROLL
            for (int j = 0; j < AHEAD; j++) {
                if (now.stats[j].y == 0.0f) continue;
                attend_join(&most, &total, now.stats[j].x, now.stats[j].y, &kept, &share);
                GPU_UNROLL
                for (int k = 0; k < PER; k++) {
                    const float4 v = now.sums[j][k];
                    sums[k][0] = attend_join_sum(sums[k][0], v.x, kept, share);
                    sums[k][1] = attend_join_sum(sums[k][1], v.y, kept, share);
                    sums[k][2] = attend_join_sum(sums[k][2], v.z, kept, share);
                    sums[k][3] = attend_join_sum(sums[k][3], v.w, kept, share);
                }
            }
        }
        ACT *const out = (ACT *)a.o + (size_t)m.row * a.ld_q + (size_t)head * a.head_dim;
        const float by = __frcp_rn(total);
        GPU_UNROLL
        for (uint32_t i = 0; i < PER * 4; i++) {
            const uint32_t element = threadIdx.x % WARP * 4 + i / 4 * 4 * WARP + i % 4;
            if (element < a.head_dim)
                out[element] = from_f32<ACT>(__fmul_rn(sums[i / 4][i % 4], by));
        }
    }
}

static struct attend_kernel merge_kernel(uint32_t ep, enum dtype act) {
    struct attend_kernel k = {NULL, MERGE_HEADS * WARP, 1, 0, 0};
    if (act == DTYPE_BF16)
        k.run = ep > 4 * WARP ? attend_merge<bf16, 2> : attend_merge<bf16, 1>;
    else
        k.run = ep > 4 * WARP ? attend_merge<float, 2> : attend_merge<float, 1>;
    return k;
}

static struct attend_kernel kernel_of(const struct device *dev, uint32_t kind) {
    const enum dtype kv = dev->limits.kv_dtype;
    if (dev->act == DTYPE_BF16 && kv != DTYPE_F32 && dev->head_pad <= MMA_HEAD_MAX)
        return attend_mma_kernel(dev->head_pad, kv == DTYPE_Q8_0, kind, dev->sm);
    return attend_f32_kernel(dev->head_pad, dev->act, kv, kind);
}

extern "C" bool gpu_attend_fits(const struct device *dev) {
    if (dev->head_pad > HEAD_MAX || dev->group > QUERY_TILE) return false;
    uint32_t most = 0; /* kinds share a kernel */
    for (uint32_t kind = 0; kind < ATTEND_KINDS; kind++)
        most = max(most, kernel_of(dev, kind).shared_bytes);
    const cudaError_t error =
        cudaFuncSetAttribute((const void *)kernel_of(dev, 0).run,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most);
    if (error) cudaGetLastError(); /* it is answered here */
    return error == cudaSuccess;
}

extern "C" cudaError_t gpu_attend(const struct device *dev, uint32_t layer, cudaStream_t stream) {
    const struct batch *b = &dev->batch;
    struct attend_args a;
    a.counts = b->counts;
    a.rows = b->rows;
    a.segments = b->segments;
    a.order = b->order;
    a.pages = b->pages;
    a.tiles = b->tiles;
    a.items = b->items;
    a.merges = b->merges;
    a.kv = dev->kv + layer * dev->layer_bytes;
    a.scratch = dev->kv_scratch;
    a.page_bytes = dev->page_bytes;
    a.scratch_bytes = dev->layer_bytes;
    a.head_bytes = dev->head_bytes;
    a.value_bytes = dev->value_bytes;
    a.q = dev->q;
    a.o = dev->o;
    a.parts = dev->parts;
    a.part_stats = dev->part_stats;
    a.kind = a.stages = 0;
    a.group = dev->group;
    a.head_dim = dev->shape.head_dim;
    a.ep = dev->head_pad;
    a.ld_q = dev->ld_q;
    a.n_kv_heads = dev->shape.n_kv_heads;
    a.scale = (float)(1.4426950408889634 / sqrt((double)a.head_dim));

    for (uint32_t kind = 0; kind < ATTEND_KINDS; kind++) {
        if (dev->grid.items[kind] == 0) continue;
        const struct attend_kernel k = kernel_of(dev, kind);
        a.kind = kind;
        a.stages = k.stages;
        const cudaError_t error =
            GPU_LAUNCH(k.run, dim3(dev->grid.items[kind], a.n_kv_heads, k.slices), dim3(k.threads),
                       k.shared_bytes, stream, a);
        if (error) return error;
    }
    if (dev->grid.merges == 0) return cudaSuccess;
    const struct attend_kernel merge = merge_kernel(a.ep, dev->act);
    const uint32_t blocks = (dev->shape.n_heads + MERGE_HEADS - 1) / MERGE_HEADS;
    return GPU_LAUNCH(merge.run, dim3(dev->grid.merges, blocks), dim3(merge.threads), 0, stream, a);
}
