#!/bin/bash
# labels: quick
# Compares every operation on every instruction set, and whole calls, with the reference, for a
# short time each. The cases are fixed, so the result is the same every time; test_check has more
# cases.
exec "$ATTN" check --seconds 0.02 --seed 1
