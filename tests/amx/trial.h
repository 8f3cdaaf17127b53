/* trial.h: what tile instructions leave behind, once by the processor's unit and once by tiles.c.
 * trial_amx.c is compiled for both. */
#ifndef GERYON_TRIAL_H
#define GERYON_TRIAL_H

#include <stddef.h>
#include <stdint.h>

/* Tiles 0, 1, 2 are C, A, B; their rows lie TRIAL_STRIDE bytes apart. */
enum { TRIAL_STRIDE = 80 };

struct trial {
    const void *config; /* 64 bytes, as LDTILECFG reads them */
    void *c;
    const void *a, *b;
};

struct trial_ops {
    void (*bf16)(const struct trial *t); /* C += A B */
    void (*int8)(const struct trial *t);
    void (*zero)(const struct trial *t);  /* loads C, then TILEZERO; stored to c */
    void (*again)(const struct trial *t); /* loads C, configures once more; stored to c */
    void (*narrow_16)(const float *x, uint16_t *out);
    void (*narrow_32)(const float *x, uint16_t *out);
};
extern const struct trial_ops trial_processor; /* call what the processor has */
extern const struct trial_ops trial_emulated;

#endif
