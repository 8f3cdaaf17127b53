#!/usr/bin/env bash
# Build the image as `make image` does, where there is no container engine and no registry: on a
# base made by debootstrap, by buildah in chroot isolation. Prints the image's layers and sizes.
#   DEBIAN_MIRROR   where debootstrap and the base find packages
set -euo pipefail
# shellcheck source=tests/deploy/env.sh
source "$(dirname "$0")/env.sh"
mirror=${DEBIAN_MIRROR:-http://deb.debian.org}

[ "$(id -u)" = 0 ] || {
    echo "make test-deploy: debootstrap and chroot isolation need root" >&2
    exit 1
}

# Like the official debian:bookworm-slim: minbase, security updates, no documentation or locales.
make_base() {
    local tree=$deploy/base
    rm -rf --one-file-system "$tree"
    debootstrap --variant=minbase bookworm "$tree" "$mirror/debian" >"$deploy/debootstrap.log" || {
        tail -5 "$deploy/debootstrap.log" >&2
        return 1
    }
    cat >"$tree/etc/apt/sources.list" <<END
deb $mirror/debian bookworm main
deb $mirror/debian bookworm-updates main
deb $mirror/debian-security bookworm-security main
END
    cat >"$tree/etc/dpkg/dpkg.cfg.d/slim" <<END
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/locale/*
END
    find "$tree/usr/share/doc" ! -type d ! -name copyright -delete
    rm -rf "$tree"/usr/share/{man,locale}/* "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/* "$tree"/var/log/*
    tar -C "$tree" --numeric-owner -cf "$deploy/base.tar" .
    rm -rf --one-file-system "$tree"
    local from
    from=$(buildah from scratch)
    buildah add -q "$from" "$deploy/base.tar" /
    buildah config --cmd bash "$from"
    buildah commit -q --rm "$from" "$base_image"
    rm -f "$deploy/base.tar"
}

buildah rm --all >/dev/null 2>&1 || true # of a run that was killed
began=$SECONDS
if ! buildah inspect --type image "$base_image" >/dev/null 2>&1; then
    echo "image.sh: making $base_image with debootstrap from $mirror"
    make_base
    echo "image.sh: base made in $((SECONDS - began)) s"
fi

began=$SECONDS
# The builder talks much: shown only when it fails.
make --no-print-directory -C "$root" image BUILDER=buildah IMAGE="$image" BASE="$base_image" \
    IMAGE_FLAGS=--pull-never >"$deploy/image.log" 2>&1 || {
    tail -40 "$deploy/image.log" >&2
    exit 1
}
echo "image.sh: image built in $((SECONDS - began)) s"

rm -rf "$deploy/oci"
buildah push -q "$image" "oci:$deploy/oci" # as a registry would hold it
python3 "$root/tests/deploy/layers.py" "$deploy/oci"
rm -rf "$deploy/oci"
