/* Loads, stores and reductions that all kernels share. Formats by their INFER_FMT_* numbers (host: build options).
 * SPDX-License-Identifier: Apache-2.0 */
#pragma OPENCL FP_CONTRACT OFF

#define G __global
#define L __local

float ld(const G uchar *p, int fmt, long i)
{
    if (fmt == FMT_F32)
        return ((const G float *)p)[i];
    if (fmt == FMT_F16)
        return vload_half(i, (const G half *)p);
    return as_float((uint)((const G ushort *)p)[i] << 16);
}

float8 ld8(const G uchar *p, int fmt, long i)
{
    if (fmt == FMT_F32)
        return vload8(0, (const G float *)p + i);
    if (fmt == FMT_F16)
        return vload_half8(0, (const G half *)p + i);
    return as_float8(convert_uint8(vload8(0, (const G ushort *)p + i)) << 16);
}

/* Round to nearest even; a NaN stays one. */
ushort bf16_of(float v)
{
    uint u = as_uint(v);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (ushort)(u >> 16 | 0x40u);
    return (ushort)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

void st(G uchar *p, int fmt, long i, float v)
{
    if (fmt == FMT_F32)
        ((G float *)p)[i] = v;
    else if (fmt == FMT_F16)
        vstore_half_rte(v, i, (G half *)p);
    else
        ((G ushort *)p)[i] = bf16_of(v);
}

/* The vector of a launch that numbers them in dimension 1; where they are too many for it they go on in dimension 2. */
#define VECTOR() ((int)(get_global_id(1) + get_global_size(1) * get_global_id(2)))

/* Where vector k of an operand begins. */
long at(const lp_tensor *t, long k)
{
    long i2 = t->n2 > 1 ? k % t->n2 : 0;
    k = t->n2 > 1 ? k / t->n2 : k;
    long i1 = t->n1 > 1 ? k % t->n1 : 0;
    k = t->n1 > 1 ? k / t->n1 : k;
    return (long)t->off + k * t->s0 + i1 * t->s1 + i2 * t->s2;
}

/* Token (block, offset) of head h in a plane; -1: there is none. */
long token(const lp_tensor *t, int n_blocks, int block, int offset, int head)
{
    if (block < 0 || block >= n_blocks)
        return -1;
    return (long)t->off + block * t->s0 + head * t->s1 + offset * t->s2;
}

int rows_of(const G uchar *counts, const lp_rows *r)
{
    if (r->from < 0)
        return r->cap;
    long n = ((const G int *)(counts + r->off))[r->from];
    n = n > 0 ? n * (long)r->mul : 0;
    return n < r->cap ? (int)n : r->cap;
}

float activate(int act, float x)
{
    switch (act) {
    case ACT_SILU:
        return x / (1.0f + exp(-x));
    case ACT_GELU:
        return 0.5f * x * (1.0f + erf(x * 0.70710678118654752f));
    case ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case ACT_RELU:
        return x > 0 ? x : x < 0 ? 0.0f : x;
    default:
        return 1.0f / (1.0f + exp(-x));
    }
}

/* The gate x of u; limit 0: none. */
float gated(int act, float limit, float x, float u)
{
    if (limit > 0) {
        x = x > limit ? limit : x;
        u = u > limit ? limit : u < -limit ? -limit : u;
    }
    return activate(act, x) * u;
}

/* Over the lanes of a work-group, in a fixed order; every lane gets the result. tmp: LANES elements. */
#if LANES == 1
#define SCRATCH_F(name) L float *name = 0
#define SCRATCH_I(name) L int *name = 0
#define FENCE()
#define GROUP_OF_LANES
#else
#define SCRATCH_F(name) L float name[LANES]
#define SCRATCH_I(name) L int name[LANES]
#define FENCE() barrier(CLK_LOCAL_MEM_FENCE)
/* Of a kernel whose groups are of LANES items. What says so to the compiler may be larger than what a driver gives a
 * kernel of unknown size. */
#define GROUP_OF_LANES __attribute__((reqd_work_group_size(LANES, 1, 1)))
#endif

float group_sum(float v, L float *tmp)
{
#if LANES > 1
    int l = get_local_id(0);
    FENCE();
    tmp[l] = v;
    FENCE();
    for (int s = LANES / 2; s > 0; s >>= 1) {
        if (l < s)
            tmp[l] += tmp[l + s];
        FENCE();
    }
    v = tmp[0];
#endif
    return v;
}

float group_max(float v, L float *tmp)
{
#if LANES > 1
    int l = get_local_id(0);
    FENCE();
    tmp[l] = v;
    FENCE();
    for (int s = LANES / 2; s > 0; s >>= 1) {
        if (l < s)
            tmp[l] = fmax(tmp[l], tmp[l + s]);
        FENCE();
    }
    v = tmp[0];
#endif
    return v;
}

/* The lane with the largest value, the lowest index among equals; -1 counts as no candidate. */
int group_best(float v, int i, L float *tv, L int *ti)
{
#if LANES > 1
    int l = get_local_id(0);
    FENCE();
    tv[l] = v;
    ti[l] = i;
    FENCE();
    for (int s = LANES / 2; s > 0; s >>= 1) {
        if (l < s) {
            float o = tv[l + s];
            int j = ti[l + s];
            if (j >= 0 && (ti[l] < 0 || o > tv[l] || (o == tv[l] && j < ti[l]))) {
                tv[l] = o;
                ti[l] = j;
            }
        }
        FENCE();
    }
    i = ti[0];
#endif
    return i;
}

float sum8(float8 v)
{
    float4 a = v.lo + v.hi;
    float2 b = a.lo + a.hi;
    return b.x + b.y;
}
