/* vec4.h: four float32 at once, for kernels; include it after gpu.h. Addresses are multiples of 16. */
#ifndef GERYON_CUDA_VEC4_H
#define GERYON_CUDA_VEC4_H

struct vec4 {
    float at[4];
};

GPU_INLINE vec4 load4(const float *p GPU_SITE) {
    const uint4 v = load16(p GPU_AT);
    return {
        {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)}};
}
GPU_INLINE void store4(float *p, vec4 v GPU_SITE) {
    store16(p, make_uint4(__float_as_uint(v.at[0]), __float_as_uint(v.at[1]),
                          __float_as_uint(v.at[2]), __float_as_uint(v.at[3])) GPU_AT);
}
GPU_INLINE vec4 zero4(void) {
    return {{0.0f, 0.0f, 0.0f, 0.0f}};
}
/* sum + a . b, in ascending order. */
GPU_INLINE float dot4(vec4 a, vec4 b, float sum) {
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        sum = fmaf(a.at[i], b.at[i], sum);
    return sum;
}
/* sum += w v. */
GPU_INLINE void add4(vec4 *sum, float w, vec4 v) {
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        sum->at[i] = fmaf(w, v.at[i], sum->at[i]);
}
GPU_INLINE vec4 scaled4(vec4 v, float w) {
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        v.at[i] *= w;
    return v;
}
/* a b + sum, number by number. */
GPU_INLINE vec4 muladd4(vec4 a, vec4 b, vec4 sum) {
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        sum.at[i] = fmaf(a.at[i], b.at[i], sum.at[i]);
    return sum;
}

#endif
