#!/bin/bash
# Tests tools/install-deps.sh with a fake apt-get: it fetches the package lists only if the first
# try fails, hides apt's notes if the second try succeeds, and shows them if it fails.
set -euo pipefail
shopt -s extglob
bin=$PWD/bin
rm -rf "$bin"
mkdir "$bin"
plant() { printf '#!/bin/bash\n%s\n' "$2" >"$bin/$1"; chmod +x "$bin/$1"; }
# shellcheck disable=SC2016  # for the planted programs
{
    plant dpkg-query 'exit 1' # nothing is installed
    plant sudo 'exec "$@"'
    plant apt-get 'echo "$1" >>"$PLANTED/calls"
echo "debconf: an aside" >&2
if [[ $1 == update ]]; then touch "$PLANTED/lists"; exit 0; fi
[[ -e $PLANTED/lists && ! -e $PLANTED/broken ]] || { echo "E: no package" >&2; exit 100; }'
}

holds() { # WHAT STATUS CALLS SAID
    local status=0 said
    : >"$bin/calls"
    said=$(PLANTED=$bin PATH="$bin:$PATH" "$ATTN_SOURCE/tools/install-deps.sh" 2>&1) || status=$?
    said=$(paste -sd, <<<"${said/#installing: gcc libc6-dev*([^$'\n'])/installing}")
    calls=$(paste -sd' ' "$bin/calls")
    [[ $status == "$2" && $calls == "$3" && $said == "$4" ]] ||
        { echo "$1: status $status, calls $calls, said $said" >&2; exit 1; }
}
holds "without lists" 0 "install update install" installing
holds "with lists" 0 install installing
touch "$bin/broken"
holds "a package that is not there" 100 "install update install" \
      "installing,debconf: an aside,debconf: an aside,E: no package"
echo "3 cases"
