/* msar.c: the residual path of MSAR models, and what a sequence keeps for it beyond its KV. */
#include "kernels/cpu/cpu.h"

int cpu_msar_push(struct device *dev, uint32_t push) {
    (void)push;
    ASSERT(dev->shape.n_msar_streams == 0);
    return OK;
}

int cpu_msar_read(struct device *dev, uint32_t branch) {
    (void)branch;
    ASSERT(dev->shape.n_msar_streams == 0);
    return OK;
}

size_t cpu_snapshot_bytes(const struct device *dev) {
    (void)dev;
    return 0;
}

void cpu_state_save(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot) {
    (void)dev, (void)slot, (void)pos, (void)snapshot;
}

void cpu_state_load(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot) {
    (void)dev, (void)slot, (void)pos, (void)snapshot;
}

void cpu_state_copy(struct device *dev, uint32_t from_slot, uint32_t to_slot) {
    (void)dev, (void)from_slot, (void)to_slot;
}
