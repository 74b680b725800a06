/* A step's own rows in the attention of few rows: queries that are rotated on their way to shared memory, and keys and
 * values that are made where they are needed, from what the products wrote, and put into the cache by one wave each.
 * Which keys these are, the slots say: a key whose place one of the step's rows is written to is that row's, whatever
 * sequence and table it is seen through. So no block needs what another one writes.
 *
 * own_none has the same functions for when all this has been done before. SPDX-License-Identifier: Apache-2.0 */
#ifndef ATTN_OWN_CUH
#define ATTN_OWN_CUH

#include "attn.cuh"
#include "rope.cuh"

#if defined(ASYNC) && WAVE == 32

#define TURN      16 /* keys that a wave takes at a time */
#define PITCH(D)  LP_FEW_PITCH(D)
#define OWN_WAVES 4

struct own_none {
    enum { EARLY = 0 };
};
DEV void own_begin(own_none &, uchar *, int)
{
}
DEV void own_first(own_none &)
{
}
DEV void own_slots(own_none &, int, int)
{
}
template <int FMT> DEV void own_write(own_none &, uchar *, uchar *, int, int)
{
}
DEV uint32_t own_keys(own_none &, int, int, int)
{
    return 0;
}
template <int FMT> DEV void own_fill(own_none &, uchar *)
{
}
DEV void own_query_ld(const own_none &, const uchar *from, int fmt, int i, float &x, float &y)
{
    x = ld(from, fmt, 2 * i);
    y = ld(from, fmt, 2 * i + 1);
}
DEV void own_query_turn(const own_none &, int, int i, int &a, int &b, float &, float &)
{
    a = 2 * i;
    b = 2 * i + 1;
}

struct own_angle {
    alignas(8) float sine;
    float cosine;
};

/* A lane's elements of a head, by pairs that are rotated together. */
template <int D> struct own_pairs {
    float a[D / 64], b[D / 64];
};

template <int D> struct own_rows {
    enum { EARLY = 1 }; /* what says where work is lies in no memory that this run writes */
    const lp_few_rope &p;
    const uchar *k, *v, *pos, *freq, *slots;
    const own_angle *angles; /* [row][pair], in shared memory */
    int slot;                /* where row `lane` goes; -1: nowhere */
    int job;                 /* of this wave's writes the first: (row, KV head, K or V) */
    own_pairs<D> first;      /* and its head */
    /* the turn that was sent for last: rows whose keys it has, the slot of its first key, the first row's head */
    uint32_t rows;
    int base, kv_head;
    own_pairs<D> k1, v1;
    __device__ own_rows(const lp_few_rope &p, const uchar *k, const uchar *v, const uchar *pos, const uchar *freq,
                        const uchar *slots)
        : p(p), k(k), v(v), pos(pos), freq(freq), slots(slots), rows(0)
    {
    }
};

/* Elements of pair i; true: it is rotated. half: pairs that are, kind 1: those half apart. */
DEV bool pair_of(int i, int kind, int half, int &a, int &b)
{
    a = kind && i < half ? i : 2 * i;
    b = kind && i < half ? i + half : 2 * i + 1;
    return i < half;
}

template <int D> DEV void pairs_ld(own_pairs<D> &to, const uchar *head, int kind, int half)
{
    UNROLL
    for (int n = 0; n < D / 64; n++) {
        int a, b;
        (void)pair_of((int)threadIdx.x % 32 + 32 * n, kind, half, a, b);
        to.a[n] = ((const float *)head)[a];
        to.b[n] = ((const float *)head)[b];
    }
}

template <int FMT, int D>
DEV void pairs_st(uchar *to, const own_pairs<D> &from, const own_angle *angles, int kind, int half)
{
    UNROLL
    for (int n = 0; n < D / 64; n++) {
        int a, b, i = (int)threadIdx.x % 32 + 32 * n;
        float x = from.a[n], y = from.b[n];
        if (pair_of(i, kind, half, a, b))
            turn_pair(from.a[n], from.b[n], angles[i].sine, angles[i].cosine, x, y);
        st(to, FMT, a, x);
        st(to, FMT, b, y);
    }
}

template <int D> DEV void key_ld(own_pairs<D> &to, const own_rows<D> &o, int row, int kv_head)
{
    pairs_ld(to, o.k + o.p.k.x.off + row * o.p.k.x.s0 + kv_head * o.p.k.x.s1, o.p.k.kind, o.p.k.dims / 2);
}

template <int D> DEV void value_ld(own_pairs<D> &to, const own_rows<D> &o, int row, int kv_head)
{
    pairs_ld(to, o.v + o.p.v.off + row * o.p.v.s0 + kv_head * o.p.v.s1, 0, 0);
}

template <int FMT, int D> DEV void key_st(uchar *to, const own_pairs<D> &from, const own_rows<D> &o, int row)
{
    pairs_st<FMT>(to, from, o.angles + row * (D / 2), o.p.k.kind, o.p.k.dims / 2);
}

template <int FMT, int D> DEV void value_st(uchar *to, const own_pairs<D> &from, const own_rows<D> &o)
{
    pairs_st<FMT>(to, from, o.angles, 0, 0);
}

template <int D> DEV void job_ld(own_rows<D> &o, int job)
{
    int head = job / 2, row = head / o.p.attn.kv_heads;
    head -= row * o.p.attn.kv_heads;
    if (job & 1)
        value_ld(o.first, o, row, head);
    else
        key_ld(o.first, o, row, head);
}

/* What does not depend on how work is shared out, nor on the kernel before: angles (in shared memory, so that a barrier
 * comes before anything else of this) and slots. The first wave has other things to do. */
template <int D> DEV void own_begin(own_rows<D> &o, uchar *angles, int rows)
{
    const lp_rope &r = o.p.k;
    own_angle *to = (own_angle *)angles;
    int t = (int)threadIdx.x, l = t % 32, cap = r.rows.cap;
    o.angles = to;
    o.slot = -1;
    if (l < cap)
        o.slot = *(const int *)(o.slots + r.slots.off + l * r.slots.s0);
    for (int j = t - 32; j >= 0 && j < cap * (D / 2); j += 32 * (OWN_WAVES - 1)) {
        int row = j / (D / 2), i = j % (D / 2);
        own_angle x = {0, 0};
        if (i < r.dims / 2) {
            int where = ((const int *)(o.pos + at(r.pos, row)))[which_pos(r, i)];
            float f = ld(o.freq + r.freq.off, r.freq.fmt, i);
            if (row >= rows)
                break;
            turn(where, f, x.sine, x.cosine);
            x.sine = mul(x.sine, r.magnitude);
            x.cosine = mul(x.cosine, r.magnitude);
        }
        to[j] = x;
    }
}

/* Sends for the first head to write. */
template <int D> DEV void own_first(own_rows<D> &o)
{
    o.job = ((int)gridDim.x - 1 - (int)blockIdx.x) * OWN_WAVES + (int)threadIdx.x / 32; /* the last have least to do */
    if (o.job < 2 * o.p.k.rows.cap * o.p.attn.kv_heads)
        job_ld(o, o.job);
}

template <int D> DEV void own_slots(own_rows<D> &o, int rows, int block_log)
{
    if ((int)threadIdx.x % 32 >= rows || o.slot < 0 || o.slot >> block_log >= o.p.attn.n_blocks)
        o.slot = -1;
}

/* Writes to the cache: a wave a head. */
template <int FMT, int D> DEV void own_write(own_rows<D> &o, uchar *kp, uchar *vp, int rows, int block_log)
{
    const lp_attn &p = o.p.attn;
    NO_UNROLL
    for (int job = o.job; job < 2 * rows * p.kv_heads; job += OWN_WAVES * (int)gridDim.x) {
        int head = job / 2, row = head / p.kv_heads, slot = wave_from(o.slot, row);
        int block = slot >> block_log, in = slot & (p.block_size - 1);
        head -= row * p.kv_heads;
        if (job != o.job)
            job_ld(o, job);
        if (slot < 0)
            continue;
        if (job & 1)
            value_st<FMT>(vp + p.v.off + block * p.v.s0 + head * p.v.s1 + in * p.v.s2, o.first, o);
        else
            key_st<FMT>(kp + p.k.off + block * p.k.s0 + head * p.k.s1 + in * p.k.s2, o.first, o, row);
    }
}

/* Which of n keys from slot `base` on are the step's own, as bits; the first one's head is sent for. own_fill comes
 * before the next call. */
template <int D> DEV uint32_t own_keys(own_rows<D> &o, int base, int n, int kv_head)
{
    uint32_t keys = 0;
    o.rows = (uint32_t)wave_ballot(o.slot >= base && o.slot < base + n);
    if (!o.rows)
        return 0;
    o.base = base;
    o.kv_head = kv_head;
    key_ld(o.k1, o, first_bit(o.rows), kv_head);
    value_ld(o.v1, o, first_bit(o.rows), kv_head);
    NO_UNROLL
    for (uint32_t bits = o.rows; bits; bits &= bits - 1)
        keys |= 1u << (wave_from(o.slot, first_bit(bits)) - base);
    return keys;
}

/* Puts them among the turn's keys and values, which lie at `place`. */
template <int FMT, int D> DEV void own_fill(own_rows<D> &o, uchar *place)
{
    NO_UNROLL
    for (uint32_t bits = o.rows; bits; bits &= bits - 1) {
        int row = first_bit(bits), key = wave_from(o.slot, row) - o.base;
        if (bits != o.rows) {
            key_ld(o.k1, o, row, o.kv_head);
            value_ld(o.v1, o, row, o.kv_head);
        }
        key_st<FMT>(place + key * PITCH(D), o.k1, o, row);
        value_st<FMT>(place + (TURN + key) * PITCH(D), o.v1, o);
    }
    o.rows = 0;
}

/* Pair i of a query, not rotated yet. */
template <int D> DEV void own_query_ld(const own_rows<D> &o, const uchar *from, int, int i, float &x, float &y)
{
    int a, b;
    (void)pair_of(i, o.p.k.kind, o.p.k.dims / 2, a, b);
    x = ((const float *)from)[a];
    y = ((const float *)from)[b];
}

/* Rotates it, of batch row `row`; which elements it is. */
template <int D> DEV void own_query_turn(const own_rows<D> &o, int row, int i, int &a, int &b, float &x, float &y)
{
    const bool turned = pair_of(i, o.p.k.kind, o.p.k.dims / 2, a, b);
    if (turned) {
        const own_angle angle = o.angles[row * (D / 2) + i];
        float u = x, v = y;
        turn_pair(u, v, angle.sine, angle.cosine, x, y);
    }
}

#endif
#endif
