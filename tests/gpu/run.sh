#!/bin/sh
# Run all tests that support a GPU: recorded sessions, kernels, modules, and servers in separate
# processes. Run from the root of the repository, with CuPy and the test dependencies installed.
# Arguments go to pytest: tests/gpu/run.sh -x
set -u
export BURN_REMOTE_TEST_BACKEND=cupy
export PYTHONPATH="protocol:client:server:tests${PYTHONPATH:+:$PYTHONPATH}"
# Kernels are compiled when they first run: hypothesis' profile "ci" sets no time limit per case.
exec python3 -m pytest -q --tb=short --hypothesis-profile=ci -m "gpu or not (oracle or interop or docker)" \
    tests/gpu tests/server/backends tests/conformance/test_transcripts.py "$@"
