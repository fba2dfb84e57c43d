#!/bin/bash
# Checks that comments name only what exists: each word with an underscore, each call f() and each
# file name in a comment of a C file must be an identifier or a file of the tree, or be in the list
# of exceptions. A test in C must begin with a comment whose first line is one sentence: what the
# file tests.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 - <<'END'
import re
import subprocess
import sys
from pathlib import Path

# Names of the system, of Unicode, of patterns and of layers. FORMULA matches names in formulas,
# such as sum_j or ds_ij.
EXCEPTIONS = set("""
    M_2_SQRTPI M_SQRT1_2 MPI_Abort MPI_Finalize MPI_Init MPI_THREAD_FUNNELED NAME_backward
    POSIXLY_CORRECT White_Space hwcap.h layer_2_queries
""".split())
FORMULA = re.compile(r"[a-z]{1,6}_[a-z0-9]{1,2}")
TOKEN = re.compile(r'(?P<comment>/\*.*?\*/|//[^\n]*)|"(?:\\.|[^"\\\n])*"', re.S)
NAME = re.compile(r"(?<![\w./$%*-])([A-Za-z]\w*_\w*|[A-Za-z_]\w+(?=\(\)))(?![\w/*])")
FILE = re.compile(r"(?<![\w*<>.])(?:[\w.-]+/)*([A-Za-z][\w.-]*\.(?:c|h|def|py|sh|js))\b")

files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], check=True,
                       capture_output=True, text=True).stdout.split()
files = [f for f in files if Path(f).is_file()]
known, comments = {Path(f).stem for f in files}, []
for f in files:
    if Path(f).suffix in (".png", ".npy", ".npz", ".gz"):
        continue
    text = Path(f).read_text(errors="replace")
    if Path(f).suffix not in (".c", ".h", ".def"):
        known.update(re.findall(r"\w+", text))
        continue
    at = 0
    for m in TOKEN.finditer(text):
        known.update(re.findall(r"\w+", text[at:m.start()]))
        if m["comment"] and not f.startswith(("tests/", "fuzz/")):
            comments.append((f, text.count("\n", 0, m.start()) + 1, m["comment"]))
        else:
            known.update(re.findall(r"\w+", m[0]))
        at = m.end()
    known.update(re.findall(r"\w+", text[at:]))

bases, bad = {Path(f).name for f in files}, 0
for f, line, comment in comments:
    for m in NAME.finditer(comment):
        name = m[1]
        if name not in known and name not in EXCEPTIONS and not FORMULA.fullmatch(name):
            print(f"{f}:{line + comment.count(chr(10), 0, m.start())}: no {name} in the tree",
                  file=sys.stderr)
            bad += 1
    for m in FILE.finditer(comment):
        if m[1] not in bases and m[1] not in EXCEPTIONS:
            print(f"{f}:{line + comment.count(chr(10), 0, m.start())}: no file {m[1]}",
                  file=sys.stderr)
            bad += 1
for f in files:
    if re.fullmatch(r"tests/(unit/\w+|amx)/test_\w+\.c", f):
        first = Path(f).read_text().split("\n", 1)[0]
        if not re.fullmatch(r"/\* [\w`].*\.( \*/)?", first):
            print(f"{f}:1: the first line is not a sentence, /* What the file tests. */",
                  file=sys.stderr)
            bad += 1
if not comments:
    sys.exit("check-comments: found no comments")
print(f"comments: {len(comments)} read, {bad} errors")
sys.exit(bad != 0)
END
