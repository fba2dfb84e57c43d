#!/bin/bash
# labels: quick
# Every operation on every instruction set, and whole calls, against the reference, for a moment
# each. The cases are fixed, so that it passes or fails every time; test_check has more of them.
exec "$ATTN" check --seconds 0.02 --seed 1
