# The server of Burn 0.21.0 itself, from tests/interop, to run beside burn-remote-server.
#
#   --target built      from the published crates (needs an image of Rust, takes minutes)
#   --target prebuilt   the program that tests/interop/build.sh made, copied to docker/prebuilt/
#
# Docker's older builder builds every stage before the target, so the stages that need Rust come last.
ARG BASE_IMAGE=python:3.12-slim
ARG RUST_IMAGE=rust:1.92-slim-bookworm

FROM ${BASE_IMAGE} AS runtime
LABEL org.opencontainers.image.title="burn-server" \
      org.opencontainers.image.description="burn-remote 0.21.0 of Burn, on its CPU backend" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.burn-remote.project="burn-remote"
USER 10001:10001
EXPOSE 3000
STOPSIGNAL SIGTERM
# Burn's server has no health check; its port serves only WebSockets. So this checks that it accepts
# connections.
HEALTHCHECK --interval=2s --timeout=5s --start-period=15s --retries=3 \
    CMD ["python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 3000), 2)"]
ENTRYPOINT ["/usr/local/bin/burn-server"]
CMD ["--port", "3000"]

FROM runtime AS prebuilt
COPY docker/prebuilt/ /usr/local/bin/

FROM ${RUST_IMAGE} AS crates
LABEL org.burn-remote.project="burn-remote"
WORKDIR /source
COPY tests/interop ./
RUN cargo build --release --locked --bin burn-server

FROM runtime AS built
COPY --from=crates /source/target/release/burn-server /usr/local/bin/
