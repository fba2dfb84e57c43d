#!/usr/bin/env python3
"""The binding's structures have the sizes and offsets that the C compiler gives to those of
attn.h and attn_mpi.h."""

import ctypes
import os
import re
import shlex
import subprocess
import unittest

from common import SOURCE

from attn import _library

ENUMS = {
    "ATTN_F64": _library.F64,
    "ATTN_F32": _library.F32,
    "ATTN_F16": _library.F16,
    "ATTN_BF16": _library.BF16,
    "ATTN_BOOL": _library.BOOL,
    "ATTN_I64": _library.I64,
    "ATTN_I8": _library.I8,
    "ATTN_CAUSAL_TOP_LEFT": _library.TOP_LEFT,
    "ATTN_CAUSAL_BOTTOM_RIGHT": _library.BOTTOM_RIGHT,
    "ATTN_CAUSAL_OFFSET": _library.OFFSET,
    "ATTN_STAGE_WEIGHTS": _library.STAGE_WEIGHTS,
}


# The members at the end of a structure that the binding does not offer, with their sizes. It calls
# the library as a program does that was compiled before they existed (docs/ABI.md).
NOT_IN_PYTHON = {"attn_sdpa_args": {}}


def leaves(value):
    """The numbers in a value of ctypes, in order."""
    if isinstance(value, ctypes.Structure):
        return [x for field, _ in value._fields_ for x in leaves(getattr(value, field))]
    if isinstance(value, ctypes.Array):
        return list(value)
    return [getattr(value, "value", value)]


class Layout(unittest.TestCase):
    def test_as_the_compiler_lays_out(self):
        lines, want = [], []

        def add(expression, value):
            lines.append('printf("%%lld\\n", (long long)(%s));' % expression)
            want.append((expression, value))

        for name, structure in _library.STRUCTURES.items():
            end = ctypes.sizeof(structure)
            for field, size in NOT_IN_PYTHON.get(name, {}).items():
                add("offsetof(%s, %s)" % (name, field), end)
                add("sizeof(((%s *)0)->%s)" % (name, field), size)
                end += size
            add("sizeof(%s)" % name, end)
            for field, kind in structure._fields_:
                add("offsetof(%s, %s)" % (name, field), getattr(structure, field).offset)
                add("sizeof(((%s *)0)->%s)" % (name, field), ctypes.sizeof(kind))
        for name, value in ENUMS.items():
            add(name, value)
        with open("layout.c", "w") as f:
            f.write('#include "attn_mpi.h"\n#include <stdio.h>\n')
            f.write("int main(void){%s}" % "".join(lines))
        compiler = shlex.split(os.environ.get("CC", "cc"))
        include = "-I" + os.path.join(SOURCE, "include")
        subprocess.run(compiler + [include, "layout.c", "-o", "layout"], check=True)
        got = subprocess.run(["./layout"], check=True, stdout=subprocess.PIPE).stdout.split()
        self.assertEqual([(e, int(g)) for (e, _), g in zip(want, got)], want)

    def test_rules(self):
        """rules.def has all members of attn_sdpa_args before `diagonal` that are numbers and change
        the result."""
        fields = _library.SdpaArgs._fields_
        fields = fields[: [name for name, _ in fields].index("diagonal")]
        others = {"struct_size", "scale", "scores_stage", "workspace_bytes"}
        numbers = {
            name
            for name, kind in fields
            if kind in (ctypes.c_int, ctypes.c_int64, ctypes.c_uint64, ctypes.c_size_t)
        }
        reals = {name for name, kind in fields if kind is ctypes.c_double}
        with open(os.path.join(SOURCE, "src", "plan", "rules.def")) as f:
            rows = re.findall(r"^(RULE|RULE_REAL)\((\w+)\)$", f.read(), re.M)
        self.assertEqual({name for kind, name in rows if kind == "RULE"}, numbers - others)
        self.assertEqual({name for kind, name in rows if kind == "RULE_REAL"}, reals - others)

    def test_later_rules(self):
        """From `diagonal` on, all members of attn_sdpa_args are numbers, because saved states and
        ranks compare their bytes."""
        with open(os.path.join(SOURCE, "include", "attn.h")) as f:
            header = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
        members = re.search(r"(attn_diagonal diagonal;[^{}]*)} attn_sdpa_args;", header).group(1)
        number = r"\s*(int|int32_t|int64_t|uint64_t|double|attn_[a-z_]+) \w+(, \w+)*\s*"
        for member in members.split(";")[:-1]:
            self.assertRegex(member, "^%s$" % number)
            self.assertNotRegex(member, "attn_tensor")

    def test_packed_as_laid_out(self):
        """Different numbers, packed in order, are read back by the fields' names."""
        for structure in _library.STRUCTURES.values():
            if structure in (_library.Error, _library.ContextOptions):
                continue  # these are never packed
            n = len(leaves(structure()))
            value = structure.from_buffer_copy(_library.packer(structure)(*range(1, n + 1)))
            self.assertEqual(leaves(value), list(range(1, n + 1)))

    def test_packed_up_to_a_field(self):
        """The fields after `last` are 0."""
        n = 0
        for last, kind in _library.SdpaGrads._fields_:
            n += len(leaves(kind()))
            pack = _library.packer(_library.SdpaGrads, last)
            got = leaves(_library.SdpaGrads.from_buffer_copy(pack(*range(1, n + 1))))
            self.assertEqual(got[:n], list(range(1, n + 1)), last)
            self.assertFalse(any(got[n:]), last)


if __name__ == "__main__":
    unittest.main()
