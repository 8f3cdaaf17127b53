/* table.c: the CUDA table, and whether this machine has what it wants. */
#include <stdio.h>

#include "kernels/cuda/peaks.h"
#include "kernels/cuda/runtime.h"

enum { CAPABILITY_MIN = 80 }; /* bf16 products on tensor cores, asynchronous copies */

static void hardware(char *out, size_t cap) {
    struct cudaDeviceProp prop;
    bool known = cudaGetDeviceProperties(&prop, 0) == cudaSuccess;
    snprintf(out, cap, "%s", known ? prop.name : "unknown");
}

const struct kernels *kernels_cuda(struct err *err) {
    static const struct kernels table = {
        .name = "cuda",
        .activations = 1 << ACTIVATIONS_F32 | 1 << ACTIVATIONS_BF16,
        .open = gpu_open,
        .close = gpu_close,
        .load = gpu_load,
        .load_random = gpu_load_random,
        .memory_left = gpu_memory_left,
        .page_bytes = gpu_page_bytes,
        .workspace_bytes = gpu_workspace_bytes,
        .reserve = gpu_reserve,
        .slot_set = gpu_slot_set,
        .pages_clear = gpu_pages_clear,
        .page_copy = gpu_copy_page,
        .snapshot_bytes = gpu_snapshot_bytes,
        .state_save = gpu_state_save,
        .state_load = gpu_state_load,
        .state_copy = gpu_state_copy,
        .begin = gpu_begin,
        .embed = gpu_stage_embed,
        .qkv = gpu_stage_qkv,
        .attend = gpu_stage_attend,
        .out_residual = gpu_stage_out_residual,
        .mlp = gpu_stage_mlp,
        .msar_push = gpu_stage_msar_push,
        .msar_read = gpu_stage_msar_read,
        .lm_head = gpu_stage_lm_head,
        .sample = gpu_stage_sample,
        .accept = gpu_stage_accept,
        .end = gpu_end,
        .draft_us = gpu_draft_us,
        .read_logits = gpu_read_logits,
        .fault = gpu_fault,
        .hardware = hardware,
        .peaks = gpu_peaks,
    };
    int n_devices = 0;
    struct cudaDeviceProp prop;
    cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (!error && n_devices > 0) error = cudaGetDeviceProperties(&prop, 0);
    if (error || n_devices == 0) {
        cudaGetLastError();
        err_set(err, ERR_DEVICE, "cuda: %s",
                error ? cudaGetErrorString(error) : "the driver knows of no device");
        return NULL;
    }
    if (10 * prop.major + prop.minor < CAPABILITY_MIN) {
        err_set(err, ERR_DEVICE, "cuda: %s has compute capability %d.%d, 8.0 is the least",
                prop.name, prop.major, prop.minor);
        return NULL;
    }
    return &table;
}
