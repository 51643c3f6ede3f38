#!/bin/sh
# Build programs over the published burn-remote 0.21.0 and 0.22.1 and print where they are.
#   build.sh              for tests: without optimization, so that it compiles in less time
#   build.sh --release    for benchmarks: as fast as Burn's users build them
# Needs cargo 1.95 or newer; the first build fetches about 900 crates.
set -eu

case "${1-}" in
    --release) profile=release ;;
    "") profile=quick ;;
    *) echo "usage: build.sh [--release]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")"
: "${CARGO_TARGET_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/burn-remote/interop-target}"
export CARGO_TARGET_DIR
built=$CARGO_TARGET_DIR/$profile

build() { nice -n "${NICE:-10}" cargo build --profile "$profile" --locked -j "${JOBS:-2}" "$@"; }

echo "building into $built" >&2
build

# Burn 0.22: the client with fusion first, because both clients are built under one name.
(
    cd burn22
    build --no-default-features --features fusion --bin burn22-client
    rm -f "$built/burn22-client-fusion"  # else mv refuses a second build: both are links to one file
    mv "$built/burn22-client" "$built/burn22-client-fusion"
    build
)

for program in burn-server burn-client burn22-server burn22-client burn22-client-fusion; do
    echo "$built/$program"
done
