#!/bin/sh
# Build programs over the published burn-remote 0.21.0 and 0.22.1 and print where they are.
# Needs cargo 1.95 or newer; the first build fetches about 900 crates and takes 10 minutes on 2 cores.
set -eu

cd "$(dirname "$0")"
: "${CARGO_TARGET_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/burn-remote/interop-target}"
export CARGO_TARGET_DIR

echo "building into $CARGO_TARGET_DIR" >&2
nice -n 10 cargo build --release --locked -j "${JOBS:-2}"

# Burn 0.22: the client with fusion first, because both clients are built under one name.
(
    cd burn22
    nice -n 10 cargo build --release --locked -j "${JOBS:-2}" --features fusion --bin burn22-client
    mv "$CARGO_TARGET_DIR/release/burn22-client" "$CARGO_TARGET_DIR/release/burn22-client-fusion"
    nice -n 10 cargo build --release --locked -j "${JOBS:-2}"
)

for program in burn-server burn-client burn22-server burn22-client burn22-client-fusion; do
    echo "$CARGO_TARGET_DIR/release/$program"
done
