#!/bin/bash
# repeat.sh COMMAND...: runs a test; if it fails, the last line is the command that repeats it.
"$@" && exit
status=$?
echo "repeat: ctest --test-dir '$ATTN_BUILD' -R '^$ATTN_TEST\$' --output-on-failure" >&2
exit $status
