#!/usr/bin/env python3
"""Modules that crash, end the process or hang while they are loaded and probed: named with the step, and left out,
while everything else works. SPDX-License-Identifier: Apache-2.0"""
import glob
import json
import os
import shutil
import stat

from harness import BUILD, SLOWDOWN, TINY, check, clean_env, done, program, run, skip, work

built = os.path.join(BUILD, "tests", "plugins", "harm", ".libs", "infer-harm.so")
if not os.path.exists(built):
    skip("no module to do harm")
folder = os.path.join(work, "modules")
os.mkdir(folder, 0o755)
os.chmod(folder, 0o755)
harms = {"crash_load": "load", "crash_query": "query", "crash_start": "start", "crash_probe": "probe",
         "exit_load": "load", "exit_probe": "probe", "hang_probe": "probe", "kill_probe": "probe"}
for name in [*harms, "talk_probe", "good"]:
    shutil.copy(built, os.path.join(folder, "infer-%s.so" % name))
    os.chmod(os.path.join(folder, "infer-%s.so" % name), 0o755)
LIMIT = 2 * SLOWDOWN
env = clean_env(INFER_BACKEND_PATH=folder, INFER_MODULE_TIMEOUT=str(LIMIT))


def backends(**more):
    r = run("infer-probe", "--json", env=dict(env, **more))
    if not check(r.rc == 0, "infer-probe goes on", r):
        return {}, r
    return {b["name"]: b for b in json.loads(r.out)["backends"]}, r


rows, r = backends()
for name, step in harms.items():
    b = rows.get(name, {})
    check(b.get("status") != "ok" and 'in the step "%s"' % step in (b.get("reason") or ""), name, b)
said = {"crash": "signal 11", "exit": "status 3", "hang": "within %d s" % LIMIT, "kill": "signal 9"}
if SLOWDOWN == 1:  # a sanitizer turns a crash into an exit of its own
    for name in harms:
        check(said[name.split("_")[0]] in (rows[name].get("reason") or ""), name + ": what it did", rows[name])
    check("about to fail" in rows["crash_query"]["reason"], "its last words", rows["crash_query"])
check(rows.get("good", {}).get("status") == "ok" and rows.get("ref", {}).get("status") == "ok", "the others load", rows)
check(rows.get("talk_probe", {}).get("status") == "ok", "printing is no reason", rows.get("talk_probe"))

# The verdicts are kept where nobody else can look; other programs go by them at once, and work.
kept = os.path.join(env["INFER_CACHE"], "modules")
check(stat.S_IMODE(os.stat(kept).st_mode) == 0o700, "mode of the folder", oct(os.stat(kept).st_mode))
files = glob.glob(os.path.join(kept, "*"))
about = [open(f).read() for f in files]
check(all(any(name in text for text in about) == (name != "kill_probe") for name in [*harms, "good"]),
      "a file for each module but the one that something else killed", about)
check(all(stat.S_IMODE(os.stat(f).st_mode) == 0o600 for f in files), "modes of the files")
r = run("infer-run", "-m", TINY, "-dev", "ref0", "--raw", "-p", "x", "-n", "2", "--temp", "0", "--json", env=env)
check(r.rc == 0 and len(json.loads(r.out)["ids"]) == 2, "infer-run works beside them", r)
check("hang_probe" in r.err and "seen before" in r.err, "and says what was left out", r)
killed = [line for line in r.err.splitlines() if "kill_probe" in line]
check(killed and "signal 9" in killed[0] and "seen before" not in killed[0], "killed by something else: tried again", r)
r = run("infer-run", "-m", TINY, "-dev", "hang_probe0", "--raw", "-p", "x", env=env)
check(r.rc == 6 or r.rc == 3, "the asked device's module does not load", r)

# A file that changed is tried again: here the harmful file becomes a good one.
bad = os.path.join(folder, "infer-crash_query.so")
for name in ("hang_probe", "exit_load", "exit_probe", "crash_load", "crash_start"):
    os.unlink(os.path.join(folder, "infer-%s.so" % name))
with open(os.path.join(folder, "infer-crash_probe.so"), "ab") as f:
    f.write(b"\0")
rows, r = backends(INFER_MODULE_CHECK="cached")
check("seen before" in rows["crash_query"]["reason"], "kept", rows["crash_query"])
check("seen before" not in rows["crash_probe"]["reason"], "tried again as the file changed", rows["crash_probe"])
rows, r = backends()
check("seen before" not in rows["crash_query"]["reason"], "infer-probe tries again", rows["crash_query"])
for f in files:
    if os.path.exists(f):
        os.chmod(f, 0o666)
rows, r = backends(INFER_MODULE_CHECK="cached")
check("seen before" not in rows["crash_query"]["reason"], "a verdict that others can write is no verdict", rows["crash_query"])

# The kit names the step too, and without a cache everything is tried each time.
r = run("infer-conform", "--plugin", bad, env=env)
check(r.rc == 6 and 'the step "query"' in r.err, "infer-conform", r)
bare = {k: v for k, v in env.items() if k not in ("HOME", "XDG_CACHE_HOME", "INFER_CACHE")}
r = run("infer-conform", "--plugin", bad, env=bare)
check(r.rc == 6 and "seen before" not in r.err, "no cache", r)
# Nothing guards who asks for no guard.
r = run("infer-probe", "--module-check", "never", env=env)
check(r.rc not in (0, 6), "never: it crashes here", r)
done()
