#!/usr/bin/env python3
"""The binding's structures have the sizes and offsets that the C compiler gives to those of
attn.h and attn_mpi.h."""

import ctypes
import os
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


class Layout(unittest.TestCase):
    def test_as_the_compiler_lays_out(self):
        lines, want = [], []

        def add(expression, value):
            lines.append('printf("%%lld\\n", (long long)(%s));' % expression)
            want.append((expression, value))

        for name, structure in _library.STRUCTURES.items():
            add("sizeof(%s)" % name, ctypes.sizeof(structure))
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

    def test_packed_as_laid_out(self):
        """Different numbers, packed in order, are read back by the fields' names."""

        def leaves(structure, value):
            for field, kind in structure._fields_:
                x = getattr(value, field)
                if issubclass(kind, ctypes.Structure):
                    yield from leaves(kind, x)
                elif issubclass(kind, ctypes.Array):
                    yield from x
                else:
                    yield x

        for structure in _library.STRUCTURES.values():
            if structure in (_library.Error, _library.ContextOptions):
                continue  # these are never packed
            pack = _library.packer(structure)
            n = len(list(leaves(structure, structure())))
            value = structure.from_buffer_copy(pack(*range(1, n + 1)))
            self.assertEqual(list(leaves(structure, value)), list(range(1, n + 1)))


if __name__ == "__main__":
    unittest.main()
