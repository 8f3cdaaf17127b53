#!/usr/bin/env bash
# Install the Debian packages that a target needs, if any are missing.
#   tests/tools/deps.sh build|run|test|check|peer|deploy ...
# Says what it will install; uses sudo where not root. On a system without dpkg it only names what is needed.
set -euo pipefail

build="gcc libc6-dev make pkg-config libmicrohttpd-dev libgnutls28-dev libuv1-dev libjansson-dev libpcre2-dev libutf8proc-dev"
python="python3 python3-venv ca-certificates"
packages=""
for group in "$@"; do
    case $group in
    build) packages+=" $build" ;;
    run) packages+=" $build $python" ;;
    test) packages+=" $build $python libcmocka-dev g++" ;;
    check) packages+=" $build $python libcmocka-dev g++ clang clang-format" ;;
    peer) packages+=" $build $python cmake g++ git" ;;
    deploy) packages+=" make $python buildah debootstrap nginx-light util-linux" ;;
    *) echo "deps.sh: unknown group $group" >&2 && exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null; then
    echo "deps.sh: no dpkg here; make sure that these (Debian's names) are installed:$packages" >&2
    exit 0
fi

missing=""
for package in $packages; do
    case " $missing " in *" $package "*) continue ;; esac
    status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing+=" $package"
done
[ -n "$missing" ] || exit 0

echo "deps.sh: will install with apt-get:$missing"
sudo=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "deps.sh: neither root nor sudo; install them yourself:$missing" >&2
        exit 1
    }
    sudo="sudo"
fi
# shellcheck disable=SC2086
install() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing; }
# Package lists may be absent or old: refresh them first where there are none, else when a first try fails.
if ! ls /var/lib/apt/lists/*Packages* >/dev/null 2>&1; then
    $sudo apt-get update -q
    install
else
    install || { $sudo apt-get update -q && install; }
fi
