"""The options that bench/peers.py and bench/weak.py share, and the types of their values."""

import argparse
import re
from pathlib import Path

import report

LIBRARY = Path(__file__).resolve().parent.parent / "build" / "libattn.so"


def words(allowed):
    """A type for argparse: words of a list, separated by commas."""

    def parse(text):
        got = text.split(",")
        for word in got:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"'{word}' is none of {', '.join(allowed)}")
        return got

    return parse


def counts(text):
    try:
        got = [int(word) for word in text.split(",")]
    except ValueError:
        got = [0]
    if min(got) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': must be numbers from 1, as 1,2")
    return got


def seconds_of(text):
    try:
        got = float(text)
    except ValueError:
        got = 0.0
    if not 0 < got < 1e6:
        raise argparse.ArgumentTypeError(f"'{text}': must be more than 0")
    return got


def pattern(text):
    try:
        return re.compile(text)
    except re.error as e:
        raise argparse.ArgumentTypeError(f"'{text}' is no regular expression: {e}")


def parser(description, seconds, merged):
    """A parser with the shared options, and its function that adds others. seconds: the default of
    --seconds; merged: how --from shows a cell that is in several files."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--library", metavar="FILE", default=LIBRARY, help="build/libattn.so")
    add("--seconds", metavar="N", type=seconds_of, default=seconds,
        help=f"for each cell ({seconds:g})")
    add("--only", metavar="REGEX", type=pattern, help="cells whose 'name type' it finds")
    add("--peers", metavar="P,P", type=words(report.PEERS), default=list(report.PEERS),
        help="of %s (all)" % ",".join(report.PEERS))
    add("--markdown", metavar="FILE", help="rewrite this program's part of FILE, keep the rest")
    add("--json", metavar="FILE", help="write every time to FILE")
    add("--from", metavar="FILE", nargs="+", dest="files",
        help=f"measure nothing: the tables of earlier --json files, {merged}")
    add("--list", action="store_true", help="print the names and types of the cells")
    return made, add
