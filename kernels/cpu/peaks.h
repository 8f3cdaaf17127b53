/* peaks.h: loops that reach what a core can do at best; peaks.c runs them on all threads. Private
 * to kernels/cpu. */
#ifndef GERYON_KERNELS_CPU_PEAKS_H
#define GERYON_KERNELS_CPU_PEAKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* Read n bytes (a multiple of 256, aligned to 64) and return something made of all of them, so that no
 * read can be left out. */
typedef uint64_t (*peaks_read_fn)(const char *p, size_t n);

struct peaks_ops {
    /* `rounds` rounds of independent multiply-adds that stay in registers; returns their sum. Where
     * vectors multiply int8 all factors are 1, so that it is the number of products. */
    float (*multiply_add)(uint32_t rounds);
    uint32_t round_flops; /* a multiply-add counts two */
};

extern const struct peaks_ops peaks_ops_plain;
/* struct kernels, `peaks`. */
int cpu_peaks_plain(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                    double *flops_per_s, struct err *err);
int cpu_peaks_avx2(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                   double *flops_per_s, struct err *err);
int cpu_peaks_avx512(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                     double *flops_per_s, struct err *err);
int cpu_peaks_amx(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                  double *flops_per_s, struct err *err);
/* struct kernels, `meter_open`, `meter_rate`, `meter_close`. */
int cpu_meter_open(uint32_t n_threads, struct meter **out, struct err *err);
double cpu_meter_rate(struct meter *meter);
void cpu_meter_close(struct meter *meter);
#if defined(__x86_64__)
uint64_t peaks_read_avx2(const char *p, size_t n);
uint64_t peaks_read_avx512(const char *p, size_t n);
extern const struct peaks_ops peaks_ops_avx2, peaks_ops_avx512;
extern const struct peaks_ops peaks_ops_avx2_int8, peaks_ops_avx512_vnni_int8;
extern const struct peaks_ops peaks_ops_amx_bf16, peaks_ops_amx_int8;

/* The loops for the products that a table makes of these activations: bf16 without tiles is float32, and
 * int8 on avx512 without VNNI is avx2's. */
const struct peaks_ops *peaks_choose_avx2(enum activations activations);
const struct peaks_ops *peaks_choose_avx512(enum activations activations, bool vnni);
const struct peaks_ops *peaks_choose_amx(enum activations activations);
#endif

#endif
