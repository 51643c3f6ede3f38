#!/bin/sh
# Build burn-server and burn-client over the published burn-remote 0.21.0 and print where they are.
# Needs cargo 1.92 or newer; the first build fetches about 350 crates and takes a few minutes.
set -eu

cd "$(dirname "$0")"
: "${CARGO_TARGET_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/burn-remote/interop-target}"
export CARGO_TARGET_DIR

echo "building into $CARGO_TARGET_DIR" >&2
nice -n 10 cargo build --release --locked -j "${JOBS:-2}"

for program in burn-server burn-client; do
    echo "$CARGO_TARGET_DIR/release/$program"
done
