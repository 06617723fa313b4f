# syntax=docker/dockerfile:1
# The image of Crowsnest: the binary with its UI, and nothing to log in to. The same commit and the same base images give the same
# layers: sources by lock files, paths and times taken out. The release pins the base images by digest (.github/workflows/release.yml).
ARG RUST_IMAGE=docker.io/library/rust:1.95-bookworm
ARG NODE_IMAGE=docker.io/library/node:22-bookworm-slim
ARG BASE_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${NODE_IMAGE} AS node

FROM ${RUST_IMAGE} AS build
# The UI is built by server/ui/build.rs.
COPY --from=node /usr/local/bin/node /usr/local/bin/node
COPY --from=node /usr/local/lib/node_modules /usr/local/lib/node_modules
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \
 && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx
WORKDIR /src
COPY . .
ARG SOURCE_DATE_EPOCH=0
ARG REVISION
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} \
    CROWSNEST_COMMIT=${REVISION} \
    CARGO_INCREMENTAL=0 \
    CARGO_TERM_COLOR=never \
    RUSTFLAGS="--remap-path-prefix=/src=/crowsnest --remap-path-prefix=/usr/local/cargo=/cargo -C link-arg=-Wl,--build-id=none" \
    CFLAGS="-ffile-prefix-map=/src=/crowsnest -ffile-prefix-map=/usr/local/cargo=/cargo"
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    (cd web && npm ci --no-audit --no-fund && cp package-lock.json node_modules/.crowsnest-lock) \
 && cargo build --profile dist --locked --package crowsnest \
 # Without Node a plain page would have been embedded instead.
 && test -n "$(find target/dist/build -path '*/out/web/assets/*' -name '*.js' -print -quit)" \
 && install -D -m 0755 target/dist/crowsnest /out/usr/local/bin/crowsnest \
 && install -D -m 0644 LICENSE /out/usr/share/doc/crowsnest/LICENSE \
 && install -d -m 0700 -o 65532 -g 65532 /out/var/lib/crowsnest \
 && find /out -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +

FROM ${BASE_IMAGE}
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Crowsnest" \
      org.opencontainers.image.description="Sees a whole fleet of Kubernetes clusters and steers it" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/ /
USER 65532:65532
WORKDIR /var/lib/crowsnest
ENV CROWSNEST_DATA_DIR=/var/lib/crowsnest/data
# Milliseconds after which the allocator returns freed memory to the system; its default is a second.
ENV MIMALLOC_PURGE_DELAY=10
# 8443 aggregated APIs and webhooks, 8080 metrics, 10357 health, 7080 the UI.
EXPOSE 8443 8080 10357 7080
ENTRYPOINT ["/usr/local/bin/crowsnest"]
