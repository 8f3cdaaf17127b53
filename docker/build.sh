#!/usr/bin/env bash
# Build the image with whichever of docker, podman and buildah works here. From `make image`:
#   docker/build.sh IMAGE BASE VERSION COMMIT
# BUILDER names one of the three; IMAGE_FLAGS are handed on to it.
set -euo pipefail
cd "$(dirname "$0")/.."
image=$1 base=$2 version=$3 commit=$4

builder=${BUILDER:-}
if [ -z "$builder" ]; then
    for tool in docker podman buildah; do # "info" fails where a client has no engine
        if command -v $tool >/dev/null && $tool info >/dev/null 2>&1; then
            builder=$tool
            break
        fi
    done
fi
# Podman and Buildah leave HEALTHCHECK out of their own default format.
case $builder in
*docker) build=(build) ;;
*podman) build=(build --format docker) ;;
*buildah) build=(bud --format docker --layers) ;;
*)
    echo "make image: no docker, podman or buildah works here${builder:+; BUILDER=$builder is none of them}" >&2
    exit 1
    ;;
esac

# shellcheck disable=SC2086
exec "$builder" "${build[@]}" ${IMAGE_FLAGS:-} -f docker/Dockerfile -t "$image" \
    --build-arg BASE="$base" --build-arg VERSION="$version" --build-arg COMMIT="$commit" .
