# Sourced by the scripts here: buildah with a store of its own in build/deploy, no daemon, no
# registry, no kernel feature beyond chroot. `make clean` takes all of it away.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
deploy=$root/build/deploy
base_image=localhost/debian:bookworm-slim
image=localhost/geryon:test

mkdir -p "$deploy"
cat >"$deploy/storage.conf" <<END
[storage]
driver = "vfs"
graphroot = "$deploy/storage"
runroot = "$deploy/run"
END
export CONTAINERS_STORAGE_CONF=$deploy/storage.conf BUILDAH_ISOLATION=chroot
