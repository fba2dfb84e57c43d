#!/usr/bin/env python3
"""count_walk.py PROGRAM TRACE FUNCTION: stays, files and returns of a trace (count-walk.sh)."""

import os
import subprocess
import sys


def places(program, addresses):
    """Address -> (function, file without its folder)."""
    lines = subprocess.run(
        ["addr2line", "-f", "-e", program, *addresses], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = [os.path.basename(line.split(":")[0]) for line in lines[1::2]]
    return dict(zip(addresses, zip(lines[::2], files)))


def follow(events, place, start):
    """The files that a reader sees, in order, who enters each function once for each function
    that calls it, and goes no further than the first function of a kernel."""
    stack, seen, path, outside = [], set(), [], None
    for kind, address in events:
        function, file = place[address]
        if kind == ">":
            if outside is None and (stack or function == start):
                call = (place[stack[-1]][0] if stack else "", function)
                if call in seen:
                    outside = len(stack)
                else:
                    seen.add(call)
                    path.append(file)
                    if file.endswith(".inc.h"):
                        outside = len(stack)
            if stack or function == start:
                stack.append(address)
        elif stack:
            stack.pop()
            if not stack:
                return path
            if outside == len(stack):
                outside = None
            if outside is None:
                path.append(place[stack[-1]][1])
    return path


def main():
    program, trace, start = sys.argv[1:]
    with open(trace) as f:
        events = [line.split() for line in f]
    place = places(program, sorted({address for _, address in events}))
    stays = returns = 0
    here, files = None, set()
    for file in follow(events, place, start):
        if file != here:
            stays += 1
            returns += file in files
            files.add(file)
            here = file
    print(f"{stays} stays in {len(files)} files, {returns} returns")


if __name__ == "__main__":
    main()
