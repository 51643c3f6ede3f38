#!/usr/bin/env bash
# Builds a substitute for python:3.12-slim from Debian's packages, for machines that cannot pull images.
#
#   docker/make-base.sh [TAG]        FORCE=1 rebuilds it
#
# The image contains this machine's trusted certificates: do not push it.
set -euo pipefail

tag=${1:-${BASE_IMAGE:-burn-remote/python-base:bookworm}}

if [ -z "${FORCE:-}" ] && docker image inspect "$tag" >/dev/null 2>&1; then
    echo "$tag already exists"
    exit 0
fi

if ! command -v mmdebstrap >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "docker/make-base.sh: mmdebstrap is missing; install it, or pull python:3.12-slim" >&2
        exit 2
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
fi

# The packages are unpacked in memory and without fsync. On a disk, this takes twice as long.
scratch=/tmp
[ -w /dev/shm ] && scratch=/dev/shm

TMPDIR=$scratch mmdebstrap --quiet --mode=root --variant=minbase bookworm \
    --include=ca-certificates,openssl,python3,python3-venv \
    --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --customize-hook='ln -s python3 "$1/usr/bin/python"' \
    --customize-hook='cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin' \
    - |
    docker import \
        --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'ENV LANG=C.UTF-8 PIP_CERT=/etc/ssl/certs/ca-certificates.crt' \
        --change 'LABEL org.burn-remote.project=burn-remote' \
        --change 'CMD ["python3"]' \
        - "$tag" >/dev/null

docker image inspect --format "made $tag, {{.Size}} bytes" "$tag"
