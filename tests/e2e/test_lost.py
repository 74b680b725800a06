#!/usr/bin/env python3
"""A device is lost while it runs: requests are told why, the programs leave with 8. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import threading

from harness import BUILD, SLOWDOWN, TINY, Server, check, clean_env, device, done, run, skip

libs = os.path.join(BUILD, ".libs")
inner = os.path.join(libs, "infer-cpu.so")
fault = os.path.join(BUILD, "tests", "plugins", ".libs", "infer-fault.so")
if device() != "cpu0" or not os.path.exists(fault) or not os.path.exists(inner):
    skip("the decorator that loses devices, or the cpu module, is not built")


def lose(after):
    """Flags: the device fault0 is the processor until that many completions."""
    return ["--backend-option", "fault.wrap=" + inner, "--backend-option", "fault.fail=done:%d:-401" % after, "-dev",
            "fault0"]


r = run("infer-run", "-m", TINY, "--raw", "-p", "Hello", "-n", "200", "--ignore-eos", *lose(20))
check(r.rc == 8 and len(r.said) == 1 and "fault0" in r.said[0], "infer-run", r)
r = run("infer-bench", "-m", TINY, "-p", "16", "-n", "200", *lose(20))
check(r.rc == 8 and len(r.said) == 1, "infer-bench", r)
r = run("infer-eval", "perplexity", "-m", TINY, "-f", __file__, "-c", "32", *lose(20))
check(r.rc == 8 and len(r.said) == 1 and r.out == "", "infer-eval", r)

s = Server(*lose(150))
s_streams, s_wholes = {}, {}
body = {"prompt": "Hello", "max_tokens": 240, "temperature": 0, "ignore_eos": True}


def ask(i):
    try:
        if i % 2:
            s_streams[i] = s.stream("/v1/completions", body)
        else:
            s_wholes[i] = s.post("/v1/completions", body)
    except (ConnectionRefusedError, BrokenPipeError):
        pass  # too late: the server was gone before the request was sent
    except Exception as e:
        check(False, "a client gets an answer", repr(e))


threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
for t in threads:
    t.start()
for t in threads:
    t.join()
check(s_wholes or s_streams, "at least one client was there in time")
for status, reply in s_wholes.values():
    check(status in (500, 503) and "fault0" in reply["error"]["message"] or status == 503, "a reply says why", status, reply)
for status, events, last in s_streams.values():
    if status != 200: # nothing had been sent yet: it is answered as any other
        check(status == 500 and "fault0" in events["error"]["message"] or status == 503, "a stream says why", status, events)
    else:
        check(last and "error" in events[-1] and events[-1]["error"]["type"] == "server_error", "it ends with the cause",
              events[-1])
check(s.p.wait(30 * SLOWDOWN) == 8, "the server leaves with 8", s.p.returncode)
check(any("failed for good" in line for line in s.log), "and says so", s.log[-5:])
done()
