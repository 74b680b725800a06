/* Packed weights: each element of an image, found by the text of packed.h alone, has the value that the reference gives
 * the row's block; what is beyond the matrix is zero. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include <cstdio>
#include <vector>

#include "../../backends/cuda/packed.h"
#include "pack.h"
extern "C" {
#include "quant/quant.h"
}

namespace
{
struct format_row {
    infer_format f;
    const char *kernel;
    int unit, step; /* as the text says */
};
const format_row formats[] = {
    {INFER_FMT_BF16, "pack_lines", 64, 2 * 8 * 8 * 16},
    {INFER_FMT_F16, "pack_lines", 64, 2 * 8 * 8 * 16},
    {INFER_FMT_F8_E4M3, "pack_lines", 128, 2 * 8 * 8 * 16},
    {INFER_FMT_Q8_0, "pack_q8_0", 64, 2 * 512 + 8 * 8},
    {INFER_FMT_Q4_0, "pack_q4_0", 64, 512 + 8 * 8},
    {INFER_FMT_Q4_1, "pack_q4_1", 64, 512 + 2 * 8 * 8},
    {INFER_FMT_Q4_K, "pack_q4_k", 256, 4 * 512 + 4 * 8 * 8 + 16 * 4},
    {INFER_FMT_U4, "pack_u4", 256, 4 * 512 + 8 * 8 + 8 * 2},
    {INFER_FMT_Q6_K, "pack_q6_k", 256, 4 * 512 + 4 * 8 * 32 + 4 * 8 * 8 + 16 * 2},
};

/* An element as the image has it: value = d * scale * code + dmin * min. */
struct element {
    int code;
    float d, scale, m, min;
};

float f16_at(const unsigned char *p)
{
    return infer_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* Where the text puts element e of 32 of row r of 16: lane 4 g + t, half h (row g + 8 h), pair i, its first or second.
 */
struct place {
    int g, t, h, i, second;
    int lane;
    place(int r, int e)
    {
        g = r % 8;
        h = r / 8;
        /* of 16 elements, pairs (2 t, 2 t + 1) and (2 t + 8, 2 t + 9); P2 and P3 are of the second 16 */
        i = e / 16 * 2 + e % 16 / 8;
        t = e % 8 / 2;
        second = e % 2;
        lane = 4 * g + t;
    }
};

int nibble(const unsigned char *codes64, const place &p, int block)
{
    const unsigned char *word = codes64 + 16 * p.lane + 4 * (2 * block + p.h);
    const int order[] = {0, 2, 1, 3}; /* P0, P2, P1, P3 */
    int n = order[p.i] + 4 * p.second;
    return word[n / 2] >> 4 * (n % 2) & 15;
}

/* Element e of a step, row r. */
element read(infer_format f, const unsigned char *s, int r, int e)
{
    element x = {0, 1, 1, 0, 0};
    const int block = e % 64 / 32, four = e / 64; /* of 64; of 256 */
    const place p(r, e % 32);
    switch (f) {
    case INFER_FMT_BF16:
    case INFER_FMT_F16: {
        const unsigned char *piece = s + r / 8 * 1024 + r % 8 * 128 + ((e / 8) ^ (r % 8)) * 16;
        x.code = piece[e % 8 * 2] | piece[e % 8 * 2 + 1] << 8;
        break;
    }
    case INFER_FMT_F8_E4M3:
        x.code = s[r / 8 * 1024 + r % 8 * 128 + ((e / 16) ^ (r % 8)) * 16 + e % 16];
        break;
    case INFER_FMT_Q8_0:
        x.code = s[512 * block + 16 * p.lane + 8 * p.h + 2 * p.i + p.second] - 128;
        x.d = f16_at(s + 1024 + 8 * p.g + 4 * block + 2 * p.h);
        break;
    case INFER_FMT_Q4_0:
        x.code = nibble(s, p, block) - 8;
        x.d = f16_at(s + 512 + 8 * p.g + 4 * block + 2 * p.h);
        break;
    case INFER_FMT_Q4_1:
        x.code = nibble(s, p, block);
        x.d = f16_at(s + 512 + 8 * p.g + 4 * block + 2 * p.h);
        x.m = f16_at(s + 576 + 8 * p.g + 4 * block + 2 * p.h);
        x.min = 1;
        break;
    case INFER_FMT_Q4_K: {
        const unsigned char *k = s + 4 * 512 + four * 64 + 8 * p.g + 4 * p.h + 2 * block;
        x.code = nibble(s + 512 * four, p, block);
        x.scale = k[0];
        x.min = (float)-k[1];
        x.d = f16_at(s + 4 * 512 + 4 * 64 + 4 * r);
        x.m = f16_at(s + 4 * 512 + 4 * 64 + 4 * r + 2);
        break;
    }
    case INFER_FMT_U4:
        x.code = nibble(s + 512 * four, p, block);
        x.d = f16_at(s + 4 * 512 + 8 * p.g + 4 * (four / 2) + 2 * p.h);
        x.m = x.d;
        x.min = (float)-(s[4 * 512 + 64 + 2 * p.g + four / 2] >> 4 * p.h & 15);
        break;
    default: {
        const unsigned char *word = s + 4 * 512 + four * 256 + 8 * p.lane + 4 * block;
        const int byte = p.i % 2 + 2 * p.second; /* P0 and P2 of bytes 0 and 2, P1 and P3 of 1 and 3 */
        int high = (word[byte] >> (4 * (p.i / 2) + 2 * p.h) & 3) ^ 2;
        x.code = (nibble(s + 512 * four, p, block) | high << 4) - 32;
        x.scale = (float)(signed char)s[4 * 512 + 4 * 256 + four * 64 + 8 * p.g + 4 * p.h + e % 64 / 16];
        x.d = f16_at(s + 4 * 512 + 4 * 256 + 4 * 64 + 2 * r);
        break;
    }
    }
    return x;
}

float value(infer_format f, const element &x)
{
    switch (f) {
    case INFER_FMT_BF16:
        return infer_bf16_to_f32((uint16_t)x.code);
    case INFER_FMT_F16:
        return infer_f16_to_f32((uint16_t)x.code);
    case INFER_FMT_F8_E4M3:
        return infer_e4m3_to_f32((uint8_t)x.code);
    case INFER_FMT_U4:
        return x.d * ((float)x.code + x.min);
    default: {
        volatile float scale = x.d * x.scale, product = scale * (float)x.code, min = x.m * x.min;
        return product + min;
    }
    }
}

bool is_plain(infer_format f)
{
    return f == INFER_FMT_BF16 || f == INFER_FMT_F16 || f == INFER_FMT_F8_E4M3;
}

bool is_zero(infer_format f, const element &x)
{
    if (is_plain(f))
        return x.code == 0;
    return x.code == 0 && x.d == 0 && x.m == 0;
}

/* Any codes, scales of the usual size. */
std::vector<unsigned char> random_rows(infer_format f, uint64_t bytes, uint64_t seed)
{
    std::vector<unsigned char> v(bytes);
    uint64_t x = seed * 2 + 1;
    for (auto &b : v) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        b = (unsigned char)(x >> 56);
    }
    const infer_format_info *info = infer_format_get(f);
    for (uint64_t at = 0; !is_plain(f) && f != INFER_FMT_U4 && at < bytes; at += info->block_bytes) {
        /* the high byte of each f16: an exponent from 8 to 15 */
        int d = f == INFER_FMT_Q6_K ? 208 : 0, two = f == INFER_FMT_Q4_1 || f == INFER_FMT_Q4_K;
        v[at + d + 1] = (unsigned char)((v[at + d + 1] & 0x9Fu) | 0x20u);
        if (two)
            v[at + 3] = (unsigned char)((v[at + 3] & 0x9Fu) | 0x20u);
    }
    return v;
}

/* Scales and zero points of U4 in groups: into the image with kernels of their own. with_zeros: a plane, else 8. */
struct side_planes {
    std::vector<unsigned char> scales, zeros;
    infer_quant q;
    side_planes(int64_t n, int64_t k, bool with_zeros)
        : scales(random_rows(INFER_FMT_U4, (uint64_t)(n * ((k + 127) / 128)) * 2, 5)),
          zeros(random_rows(INFER_FMT_U4, (uint64_t)(n * ((k + 127) / 128) + 1) / 2, 6)),
          q{INFER_FMT_U4, INFER_FMT_F16, with_zeros ? INFER_FMT_U4 : INFER_FMT_NONE, with_zeros ? 0 : 8, 1, 128}
    {
        for (size_t i = 1; i < scales.size(); i += 2)
            scales[i] = (unsigned char)((scales[i] & 0x9Fu) | 0x20u);
    }
    void pack(unsigned char *to, int64_t n, int64_t k, int64_t steps)
    {
        packed_job job = {(k + 127) / 128, (int32_t)n, (int32_t)steps, q.zero_format ? -1 : q.zero_value};
        void *mem[] = {scales.data(), to};
        simt::start({"pack_u4_scales", mem, &job, dim3((uint32_t)(steps + 3) / 4, 2), dim3(32, 4, 1), 0});
        mem[0] = zeros.data();
        if (q.zero_format)
            simt::start({"pack_u4_zeros", mem, &job, dim3((uint32_t)(steps + 3) / 4, 2), dim3(32, 4, 1), 0});
    }
};

int check(const format_row &row, int64_t n, int64_t k, bool with_zeros = true)
{
    side_planes side(n, k, with_zeros);
    uint64_t row_bytes = 0;
    infer_format_bytes(row.f, (uint64_t)k, &row_bytes);
    std::vector<unsigned char> rows = random_rows(row.f, (uint64_t)n * row_bytes, (uint64_t)(n * 1000 + k));
    int64_t panels = (n + 15) / 16, steps = (k + row.unit - 1) / row.unit;
    uint64_t bytes = (uint64_t)(panels * steps * row.step);
    if (packed_panels(n) != panels || packed_steps(row.f, k) != steps || packed_bytes(row.f, n, k) != bytes) {
        printf("FAIL pack format %u n %d k %d: %llu bytes\n", row.f, (int)n, (int)k,
               (unsigned long long)packed_bytes(row.f, n, k));
        return 0;
    }
    /* the launch as a host makes it, with a grid that is walked; what nobody writes differs between the two images */
    std::vector<unsigned char> image[2];
    for (int i = 0; i < 2; i++) {
        image[i].assign(bytes + 64, (unsigned char)(0x5A + i));
        unsigned char *aligned = (unsigned char *)aligned_alloc(64, (rows.size() + 63) / 64 * 64),
                      *to = (unsigned char *)aligned_alloc(64, (bytes + 63) / 64 * 64);
        memcpy(aligned, rows.data(), rows.size());
        memset(to, 0x5A + i, bytes);
        void *mem[] = {aligned, to};
        packed_job job = {(int64_t)row_bytes, (int32_t)n, (int32_t)steps, 0};
        simt::reverse = i;
        simt::start(
            {row.kernel, mem, &job, dim3((uint32_t)(steps + 3) / 4, i ? 1 : (uint32_t)panels), dim3(32, 4, 1), 0});
        if (row.f == INFER_FMT_U4)
            side.pack(to, n, k, steps);
        memcpy(image[i].data(), to, bytes);
        free(aligned);
        free(to);
    }
    if (memcmp(image[0].data(), image[1].data(), bytes)) {
        printf("FAIL pack format %u n %d k %d: bytes that nobody writes\n", row.f, (int)n, (int)k);
        return 0;
    }
    const infer_format_info *info = infer_format_get(row.f);
    std::vector<float> want((size_t)k);
    for (int64_t i = 0; i < panels * 16; i++) {
        const infer_quant_planes planes = {rows.data(), side.scales.data(), side.zeros.data()};
        if (i < n && row.f == INFER_FMT_U4)
            infer_quant_unpack_row(&side.q, &planes, (uint64_t)n, (uint64_t)k, (uint64_t)i, want.data());
        else if (i < n)
            info->unpack(rows.data() + (uint64_t)i * row_bytes, want.data(), (uint64_t)k);
        for (int64_t e = 0; e < steps * row.unit; e++) {
            const unsigned char *step = image[0].data() + (i / 16 * steps + e / row.unit) * row.step;
            element x = read(row.f, step, (int)(i % 16), (int)(e % row.unit));
            float v = value(row.f, x);
            bool there = i < n && e < k;
            if (row.f == INFER_FMT_U4 && i < n && !there && e / 128 == (k - 1) / 128) /* x is zero there */
                continue;
            float w = there ? want[(size_t)e] : 0;
            bool same = there ? v == w || (v != v && w != w) : is_zero(row.f, x);
            if (!same) {
                printf("FAIL pack format %u n %d k %d: row %d element %d is %g, not %g\n", row.f, (int)n, (int)k,
                       (int)i, (int)e, (double)v, (double)w);
                return 0;
            }
        }
    }
    return 1;
}
} // namespace

int pack_checks(int *right)
{
    int wrong = 0;
    for (const format_row &row : formats) {
        const infer_format_info *info = infer_format_get(row.f);
        const int64_t block = info->block_elems,
                      sizes[][2] = {{1, block},      {16, row.unit},         {17, 2 * row.unit},
                                    {40, 5 * block}, {33, row.unit + block}, {5, 9 * row.unit}};
        for (auto &s : sizes)
            check(row, s[0], s[1]) ? ++*right : ++wrong;
        if (row.f == INFER_FMT_U4)
            for (auto &s : sizes)
                check(row, s[0], s[1], false) ? ++*right : ++wrong;
        if (block == 1)
            check(row, 19, row.unit + 13) ? ++*right : ++wrong;
    }
    return wrong;
}
