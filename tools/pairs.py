"""What the scripts that measure beside a peer share: means of ratios, and processors kept busy meanwhile."""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import math
import os
import statistics
import subprocess
import sys

# Two-sided 95 % points of Student's t, by degrees of freedom.
T95 = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
       2.101, 2.093, 2.086]


def interval(ratios):
    """Geometric mean, and its 95 % confidence interval from the logarithms (Student's t)."""
    logs = [math.log(r) for r in ratios]
    mean = statistics.mean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    half = T95[min(len(logs) - 2, len(T95) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


@contextlib.contextmanager
def busy(n):
    """n processes that each keep one processor for themselves, as far as the system lets them."""
    spin = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    cpus = sorted(os.sched_getaffinity(0))[-n:] if n else []
    running = [subprocess.Popen([sys.executable, "-c", spin, str(c)]) for c in cpus]
    try:
        yield
    finally:
        for p in running:
            p.kill()
            p.wait()
