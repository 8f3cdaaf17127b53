/* begin.cu: the inbox of a forward spread over the arrays that the kernels read.
 *
 *   inbox   | header | rows ........ | segments .. | order .. | ...       quads of 16 bytes
 *                      │ quad i to quad i of its array
 *   batch     rows [max_rows]   segments [2 n_slots]   order [max_rows]   ...
 *
 * A row of a proposal that the host has not seen names it by its place: -1 - place as its token. It is
 * looked up here in the row's slot; one that was never drawn becomes token 0, which is computed
 * for nothing. Parts lie without gaps, so a thread goes through all quads as one array and finds the
 * part of each in registers: two loads that wait for each other, not two for each of the parts. Some
 * kilobytes to megabytes (histories), read and written once: bound by latency. */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan.h"

enum { UNPACK_THREADS = 256, UNPACK_BLOCKS = 64 };

struct unpack_targets {
    uint4 *to[INBOX_PARTS];
};

static __global__ void unpack(const uint4 *packed, struct unpack_targets targets,
                              const struct gpu_slot *slots) {
    const struct inbox header = *(const struct inbox *)packed;
    const uint32_t step = gridDim.x * blockDim.x;
    const uint32_t end = header.at[INBOX_PARTS - 1] + header.n[INBOX_PARTS - 1];
    for (uint32_t i = header.at[0] + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        uint4 v = load16(packed + i);
        uint4 *to = targets.to[0] + (i - header.at[0]);
        GPU_UNROLL
        for (int part = 1; part < INBOX_PARTS; part++)
            if (i >= header.at[part]) to = targets.to[part] + (i - header.at[part]);
        const int32_t token = (int32_t)v.x; /* of struct row: token, pos, segment, slot */
        const uint32_t of_rows = i - header.at[INBOX_ROWS];
        if (of_rows < header.n[INBOX_ROWS] && of_rows % 2 == 0 && token < 0) {
            const struct gpu_slot *slot = slots + v.w;
            const uint32_t place = (uint32_t)(-1 - token);
            v.x = place < slot->n_proposals ? (uint32_t)slot->proposals[place] : 0;
        }
        store16(to, v);
    }
}

extern "C" cudaError_t gpu_unpack(const struct device *dev, const struct inbox *packed,
                                  cudaStream_t stream) {
    const struct batch *b = &dev->batch;
    const struct unpack_targets targets = {
        {(uint4 *)b->counts, (uint4 *)b->rows, (uint4 *)b->segments, (uint4 *)b->order,
         (uint4 *)b->tiles, (uint4 *)b->items, (uint4 *)b->merges, (uint4 *)b->logit_rows,
         (uint4 *)b->logit_segments, (uint4 *)b->pages, (uint4 *)b->tokens}};
    const unsigned most = UNPACK_BLOCKS, n_blocks = dev->n_sms < most ? dev->n_sms : most;
    return GPU_LAUNCH(unpack, n_blocks, UNPACK_THREADS, 0, stream, (const uint4 *)packed, targets,
                      dev->slots);
}
