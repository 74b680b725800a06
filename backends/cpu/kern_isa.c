/* Kernel tables that are put together from others, and whether they run here. Compiled for every processor, unlike the
 * kernels themselves. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <pthread.h>
#include <stddef.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kern.h"

const kern_table *kern_generic(void)
{
    return &kern_generic_table;
}

/* What AVX2 needs of the system besides, kern_avx2 has seen to. */
static int has_avxvnni(void)
{
#if defined(__x86_64__)
    enum { LEAF = 7, SUBLEAF = 1, AVXVNNI = 1 << 4 };
    unsigned a = 0, b, c, d;
    return __get_cpuid_count(LEAF, SUBLEAF, &a, &b, &c, &d) && a & AVXVNNI;
#else
    return 0;
#endif
}

static int has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#else
    return 0;
#endif
}

/* Asks the system for the tiles' state, which is too large to be everybody's: asked once, it is the whole process's. */
static int has_amx(void)
{
#if defined(__x86_64__) && defined(__linux__)
    enum { LEAF = 7, TILES = 1 << 24, INT8 = 1 << 25, REQUEST = 0x1023, TILE_DATA = 18 }; /* arch_prctl(2) */
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(LEAF, 0, &a, &b, &c, &d) && d & TILES && d & INT8 &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return 0;
#endif
}

static kern_format avx512_formats[INFER_FMT_COUNT], amx_formats[INFER_FMT_COUNT];
static kern_table avxvnni, avx512, amx, neon, i8mm, sve, svei8mm; /* without a name: not here */

#if defined(__aarch64__) && defined(__linux__)

/* What a processor has: bits of AT_HWCAP, then of AT_HWCAP2, as Linux numbers them
 * (arch/arm64/include/uapi/asm/hwcap.h); a system's own headers may be too old to name them. */
enum { ARM_DOTS = 20, ARM_SVE = 22, ARM_SVE_I8MM = 32 + 9, ARM_I8MM = 32 + 13 };

static void make_arm(void)
{
    enum { GET_LENGTH = 51, LENGTH = 0xFFFF }; /* prctl(2), PR_SVE_GET_VL: bytes of a vector, and flags */
    const int length = prctl(GET_LENGTH);
    const uint32_t sve_bytes = length < 0 ? 0 : (uint32_t)length & LENGTH;
    const struct {
        kern_table *table;
        const char *isa;
        const kern_panels *panel;
        int needs;
        uint32_t simd_bytes;
    } row[] = {
        {&neon, "neon", &kern_neon_panels, ARM_DOTS, 16},
        {&i8mm, "i8mm", &kern_i8mm_panels, ARM_I8MM, 16},
        {&sve, "sve", &kern_sve_panels, ARM_SVE, sve_bytes},
        {&svei8mm, "svei8mm", &kern_svei8mm_panels, ARM_SVE_I8MM, sve_bytes},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (getauxval(row[i].needs < 32 ? AT_HWCAP : AT_HWCAP2) >> row[i].needs % 32 & 1) {
            *row[i].table = kern_generic_table;
            row[i].table->isa = row[i].isa;
            row[i].table->simd_bytes = row[i].simd_bytes;
            row[i].table->panel = row[i].panel;
        }
}

#else

static void make_arm(void)
{
}

#endif

static void make(void)
{
    const kern_table *below = kern_avx2();
    make_arm();
    if (below && kern_avxvnni_panels.dots && has_avxvnni()) {
        avxvnni = *below;
        avxvnni.isa = "avxvnni";
        avxvnni.panel = &kern_avxvnni_panels;
    }
    if (!below || !kern_avx512_panels.dots || !has_avx512())
        return;
    avx512 = *below;
    avx512.isa = "avx512";
    avx512.simd_bytes = 64;
    avx512.dot_rows = 4;
    avx512.tile = kern_avx512_floats.tile;
    avx512.format = avx512_formats;
    for (infer_format f = 0; f < INFER_FMT_COUNT; f++) {
        avx512_formats[f] = below->format[f];
        avx512_formats[f].dot = kern_avx512_floats.dot[f];
        avx512_formats[f].weigh = NULL; /* attn's are used */
    }
    avx512.attn = &kern_avx512_attn;
    avx512.panel = &kern_avx512_panels;
    if (!kern_amx_panels.dots || !has_amx())
        return;
    amx = avx512;
    amx.isa = "amx";
    amx.panel = &kern_amx_panels;
    amx.format = amx_formats;
    for (infer_format f = 0; f < INFER_FMT_COUNT; f++) {
        amx_formats[f] = avx512_formats[f];
        amx_formats[f].dot = kern_avx512_floats.streams[f];
    }
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

const kern_table *kern_avxvnni(void)
{
    pthread_once(&once, make);
    return avxvnni.isa ? &avxvnni : NULL;
}

const kern_table *kern_avx512(void)
{
    pthread_once(&once, make);
    return avx512.isa ? &avx512 : NULL;
}

const kern_table *kern_amx(void)
{
    pthread_once(&once, make);
    return amx.isa ? &amx : NULL;
}

const kern_table *kern_neon(void)
{
    pthread_once(&once, make);
    return neon.isa ? &neon : NULL;
}

const kern_table *kern_i8mm(void)
{
    pthread_once(&once, make);
    return i8mm.isa ? &i8mm : NULL;
}

const kern_table *kern_sve(void)
{
    pthread_once(&once, make);
    return sve.isa ? &sve : NULL;
}

const kern_table *kern_svei8mm(void)
{
    pthread_once(&once, make);
    return svei8mm.isa ? &svei8mm : NULL;
}
