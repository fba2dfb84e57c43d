#!/bin/bash
# Checks that replaced names and sentences are not used again. The names are those of the tables in
# docs/decisions/0001-names.md: column 1 has the old names, column 3 the places, both in backticks.
# A place is a file or folder. An old name with a slash is a path that must not exist; one that ends
# with .c, .h or .py is a file name; any other is an identifier, searched in code without its
# comments and strings. What is not in backticks is not checked.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 - <<'PYTHON'
import re
import subprocess
import sys
from pathlib import Path

LIST = "docs/decisions/0001-names.md"
PHRASES = """
What is masked never leaks
without 754 MiB of it
gets the bits that plain tensors
a real model goes on
turn and turn about
Nothing in a file is believed
took as long again
that the cache is asked for meanwhile
Reading memory is then the work
that all of this is one of
an order that no prefetcher likes
all before it begins as 0
then they do what they did
it does not go on with them
gpt2: no such model
""".strip().splitlines()
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
PYTHON_TOKEN = re.compile(r'""".*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*', re.S)
TEXT = (".c", ".h", ".def", ".js", ".css", ".html", ".py", ".sh", ".md", ".txt", ".cmake", "")

files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], check=True,
                       capture_output=True, text=True).stdout.split()
files = [f for f in files if Path(f).is_file() and Path(f).suffix in TEXT
         and not f.startswith("tests/data/")]
texts = {f: Path(f).read_text(errors="replace") for f in files}
words = {}  # file: the identifiers of its code
for f in files:
    if f.endswith((".c", ".h", ".def", ".py")):
        token = PYTHON_TOKEN if f.endswith(".py") else TOKEN
        words[f] = set(re.findall(r"\w+", token.sub(" ", texts[f])))
bad, checked = [], 0


def below(place):
    """The files of a place: a folder, or a file by its path or its name."""
    found = [f for f in files if f == place or Path(f).name == place
             or place.endswith("/") and f.startswith(place)]
    return found or bad.append(f"{LIST}: there is no {place}") or []


for line in texts[LIST].splitlines():
    columns = [re.findall(r"`([^`]+)`", column) for column in line.split("|")]
    if len(columns) != 5 or not columns[3]:
        continue
    places = [f for place in columns[3] for f in below(place)]
    for old in columns[1]:
        checked += 1
        if "/" in old:
            bad += [f"{old}: see {LIST}"] if Path(old).exists() else []
        elif re.search(r"\.(c|h|py)$", old):
            bad += [f"{f}: see {LIST}" for f in places if Path(f).name == old]
        else:
            bad += [f"{f}: the name {old}; see {LIST}" for f in places if old in words.get(f, ())]
for f in files:
    flat = re.sub(r"\s+(?:(?:\*|#|//|>)\s+)?", " ", texts[f])
    if f != "tools/check-names.sh" and not f.startswith("docs/decisions/"):
        bad += [f'{f}: the sentence "{p}"' for p in PHRASES if p in flat]
for line in bad:
    print(line, file=sys.stderr)
if checked < 50:
    sys.exit(f"check-names: only {checked} names found in {LIST}")
print(f"names: {checked} old names and {len(PHRASES)} sentences, {len(bad)} found")
sys.exit(bool(bad))
PYTHON
