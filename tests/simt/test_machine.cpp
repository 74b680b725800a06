/* The emulation itself: what it computes, and that it finds what it is for. Each fault runs in a process of its own,
 * which has to end by the machine's complaint. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include <csignal>
#include <cstdio>
#include <sys/wait.h>
#include <unistd.h>

#include "../../backends/cuda/kernels/mma.cuh"

static int failures;

static void expect(int ok, const char *what)
{
    if (!ok) {
        printf("FAIL %s\n", what);
        failures++;
    }
}

extern "C" __global__ void sums(float *out)
{
    int t = thread_id();
    float v = (float)(t + 1), best = (float)(t % 50);
    int id = t;
    out[t] = block_sum(v);
    out[256 + t] = block_max(-v);
    block_best(best, id);
    out[512 + t] = (float)id;
    out[768 + t] = wave_from(v, 3);
}

extern "C" __global__ void ballots(uint64_t *out)
{
    uint64_t b = wave_ballot(thread_id() % 3 == 1);
    if (thread_id() == 0)
        *out = b;
}

extern "C" __global__ void half_barrier(float *out)
{
    if (thread_id() < 5)
        __syncthreads();
    *out = 1;
}

extern "C" __global__ void half_exchange(float *out)
{
    float v = 1;
    if (thread_id() % 2)
        v = wave_xor(v, 1);
    *out = v;
}

extern "C" __global__ void no_barrier(float *out)
{
    SHARED(float, s, 64);
    s[thread_id()] = (float)thread_id();
    out[thread_id()] = s[63 - thread_id()];
}

static void run(void (*k)(float *), float *out, int threads)
{
    struct both {
        void (*k)(float *);
        float *out;
    } c = {k, out};
    simt::run(
        1, (uint32_t)threads, 0, [](void *p) { ((both *)p)->k(((both *)p)->out); }, &c, "test");
}

/* Runs a faulty kernel in a child; whether the machine ended it. */
static int ends(void (*k)(float *))
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        float out[64];
        fclose(stderr); /* the complaint is expected */
        run(k, out, 64);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

int main()
{
    static float out[1024];
    for (simt::reverse = 0; simt::reverse < 2; simt::reverse++) {
        run(sums, out, 256);
        int right = 1;
        for (int t = 0; t < 256; t++)
            right &= out[t] == 256 * 257 / 2 && out[256 + t] == -1 && out[512 + t] == 49 &&
                     out[768 + t] == (float)(t / SIMT_WAVE * SIMT_WAVE + 4);
        expect(right, "reductions");
        uint64_t bits = 0;
        struct {
            uint64_t *p;
        } c = {&bits};
        simt::run(
            1, SIMT_WAVE, 0, [](void *p) { ballots(*(uint64_t **)p); }, &c, "ballots");
        expect(bits == (SIMT_WAVE == 32 ? 0x92492492u : 0x2492492492492492u), "ballot");
        run(no_barrier, out, 64);
        expect(std::isnan(out[0]) != std::isnan(out[63]), "a missing barrier shows as NaN");
    }
    expect(ends(half_barrier), "a barrier that some threads miss ends the program");
    expect(ends(half_exchange), "an exchange that some lanes miss ends the program");
    expect(dot4(0x807F01FFu, 0x02030405u, 10) == 10 + 2 * -128 + 3 * 127 + 4 - 5, "dot of four bytes");
    for (uint32_t h = 0; h < 65536; h++)
        if ((h & 0x7C00u) != 0x7C00u || !(h & 0x3FFu))
            expect(simt_float_to_half(simt_half_to_float((uint16_t)h)) == h, "half and back");
    expect(simt_float_to_half(65519.99f) == 0x7BFF && simt_float_to_half(65520.0f) == 0x7C00, "largest half");
    expect(simt_float_to_half(0x1.002p0f) == 0x3C00 && simt_float_to_half(0x1.006p0f) == 0x3C02, "halves to even");
    printf("machine, wave %d: %d wrong\n", SIMT_WAVE, failures);
    return failures != 0;
}
