#!/usr/bin/env python3
"""The layout table of the plugin headers (core/hal/abi_check.c).

  tools/abi-check.py          checks that every field of every struct and every slot has its line; for `make check`
  tools/abi-check.py --write  writes the file anew, after fields were appended (needs a C compiler: $CC or cc)

A moved field must show as a change of numbers in review: after --write, existing lines must not change.
SPDX-License-Identifier: Apache-2.0
"""
import os
import re
import subprocess
import sys
import tempfile

TOP = os.environ.get("INFER_SRCDIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
HEADERS = ["quant.h", "ops.h", "backend.h"]
TABLE = os.path.join(TOP, "core/hal/abi_check.c")
HEAD = '''/*
 * The plugin interface's layout, as numbers: the place of every field of every struct and of every slot, and all sizes.
 * A change that moves something does not compile; one that appends adds lines here (tools/abi-check.py --write). Holds
 * assertions only.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include <infer/backend.h>

#define SIZE(type, bytes)          _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define FIELD(type, field, offset) _Static_assert(offsetof(type, field) == (offset), "place of " #type "." #field)

_Static_assert(sizeof(void *) == 8, "the interface is defined for 64-bit processes");
'''


def structs(header):
    """(name, [field, ...]) of every struct of a header."""
    with open(os.path.join(TOP, "core/include/infer", header)) as f:
        s = f.read()
    s = re.sub(r"/\*.*?\*/", "", s, flags=re.S)
    s = re.sub(r"\\\n", "", s)
    s = re.sub(r"^\s*#.*$", "", s, flags=re.M)
    for m in re.finditer(r"typedef struct \w+ \{(.*?)\n\} (\w+);", s, re.S):
        fields = []
        for decl in m.group(1).split(";"):
            pointer = re.search(r"\(\*(\w+)\)", decl)
            if pointer:
                fields.append(pointer.group(1))
            elif decl.strip():
                decl = re.sub(r"\[[^\]]*\]", "", decl)
                fields += [re.search(r"(\w+)\s*$", part).group(1) for part in decl.split(",")]
        yield m.group(2), fields


def check():
    with open(TABLE) as f:
        table = re.sub(r"\s+", " ", f.read())
    missing = []
    for h in HEADERS:
        for name, fields in structs(h):
            if not re.search(r"SIZE\(%s, \d+\)" % name, table):
                missing.append(name)
            missing += [name + "." + f for f in fields if not re.search(r"FIELD\(%s, %s, \d+\)" % (name, f), table)]
    for m in missing:
        print("core/hal/abi_check.c: no line for " + m + " (tools/abi-check.py --write)")
    return 1 if missing else 0


def write():
    prog = "#include <stdio.h>\n#include <stddef.h>\n#include <infer/backend.h>\nint main(void){\n"
    for h in HEADERS:
        prog += 'puts("\\n/* ---- %s ---- */");\n' % h
        for name, fields in structs(h):
            prog += 'printf("\\nSIZE(%s, %%zu);\\n", sizeof(%s));\n' % (name, name)
            for f in fields:
                prog += 'printf("FIELD(%s, %s, %%zu);\\n", offsetof(%s, %s));\n' % (name, f, name, f)
    prog += "return 0;}\n"
    with tempfile.TemporaryDirectory() as tmp:
        src, exe = os.path.join(tmp, "abi.c"), os.path.join(tmp, "abi")
        with open(src, "w") as f:
            f.write(prog)
        subprocess.check_call([os.environ.get("CC", "cc"), "-I", os.path.join(TOP, "core/include"), src, "-o", exe])
        out = subprocess.check_output([exe], text=True)
    with open(TABLE, "w") as f:
        f.write(HEAD + out)
    return 0


sys.exit(write() if sys.argv[1:] == ["--write"] else check())
