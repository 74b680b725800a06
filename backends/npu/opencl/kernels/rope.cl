/* Rotation of heads, and where heads go: what kernels share that rotate. SPDX-License-Identifier: Apache-2.0 */

/* Sine and cosine of pos * freq: the product's error and two parts of 2 pi keep the angle exact to a float's last
 * bits however far the position. */
float2 turn(int pos, float freq)
{
    float hi = (float)pos * freq, lo = fma((float)pos, freq, -hi);
    float n = rint(hi * 0.15915494309189535f);
    float r = fma(-n, 6.28318548202514648f, hi);
    r = fma(n, 1.74845553146e-7f, r) + lo;
    return (float2)(sin(r), cos(r));
}

/* Sine and cosine, times the magnitude, of the angle by which pair i of a head is rotated. */
float2 angle(const lp_rope *p, const G uchar *pos, const G uchar *freq, int i)
{
    int which = 0;
    if (p->n_pos > 1) /* the position that pair i uses: sections in order */
        for (int end = p->section[0]; which < p->n_pos - 1 && i >= end; end += p->section[which])
            which++;
    return turn(((const G int *)pos)[which], ld(freq, p->freq.fmt, i)) * p->magnitude;
}

/* The first and the second element of a pair after rotation. */
float2 rotated(float2 sc, float u, float v)
{
    return (float2)(fma(u, sc.y, -(v * sc.x)), fma(u, sc.x, v * sc.y));
}

/* Element e of a head of this format after rotation of its first dims elements, as p says. */
float turned(const lp_rope *p, const G uchar *x, int fmt, int dims, const G uchar *pos, const G uchar *freq, int e)
{
    if (e >= dims)
        return ld(x, fmt, e);
    int half_n = dims / 2, i = p->kind ? e % half_n : e / 2, second = p->kind ? e >= half_n : e & 1;
    int a = p->kind ? i : 2 * i, b = p->kind ? i + half_n : 2 * i + 1;
    float2 t = rotated(angle(p, pos, freq, i), ld(x, fmt, a), ld(x, fmt, b));
    return second ? t.y : t.x;
}

/* Where a head of a row goes: to rows, or to a plane of the cache by the row's slot; -1: nowhere. */
long goes_to(const lp_rope *p, const lp_tensor *y, int paged, int heads, const G uchar *slots, int row, int head)
{
    if (!paged)
        return at(y, (long)row * heads + head);
    int slot = *(const G int *)(slots + at(&p->slots, row));
    if (slot < 0 || slot / p->block_size >= p->n_blocks)
        return -1;
    return (long)y->off + slot / p->block_size * y->s0 + head * y->s1 + slot % p->block_size * y->s2;
}
