# Sourced by the scripts here: buildah with a store of its own in build/deploy, no daemon, no
# registry, no kernel feature beyond chroot. `make clean` takes all of it away.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
deploy=$root/build/deploy
base_image=localhost/debian:bookworm-slim
image=localhost/geryon:test

# Copies of whole file systems (vfs) where layers cannot be laid over one another.
layering() {
    local probe=$deploy/probe driver=vfs
    mkdir -p "$probe"/{lower,upper,work,merged}
    if mount -t overlay overlay "$probe/merged" 2>/dev/null \
        -o "lowerdir=$probe/lower,upperdir=$probe/upper,workdir=$probe/work"; then
        umount "$probe/merged" && driver=overlay
    fi
    rm -rf "$probe"
    echo $driver
}

mkdir -p "$deploy"
if [ ! -f "$deploy/storage.conf" ]; then
    cat >"$deploy/storage.conf" <<END
[storage]
driver = "$(layering)"
graphroot = "$deploy/storage"
runroot = "$deploy/run"
[storage.options.overlay]
skip_mount_home = "true"
END
fi
export CONTAINERS_STORAGE_CONF=$deploy/storage.conf BUILDAH_ISOLATION=chroot
