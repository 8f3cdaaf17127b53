"""What the image says of itself, and what is in it."""

import pathlib
import re
import subprocess

import container
import pytest


@pytest.fixture(scope="module")
def root():
    working = container.buildah("from", "--pull-never", container.IMAGE)
    yield pathlib.Path(container.buildah("mount", working))
    container.buildah("rm", working)


def in_root(root, *command):
    return subprocess.run(["chroot", str(root), *command], capture_output=True, text=True,
                          check=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}).stdout


def test_the_server_is_started_without_a_shell(image):
    assert image["Entrypoint"] == ["/usr/local/bin/geryon"]
    assert image["Cmd"] == ["serve"]
    assert image["StopSignal"] == "SIGTERM"


def test_the_user_is_a_number_and_not_root(image, root):
    uid, gid = map(int, image["User"].split(":"))
    assert uid > 0 and gid > 0
    assert f"geryon:x:{uid}:{gid}:" in (root / "etc/passwd").read_text()


def test_port_volume_and_environment(image):
    assert list(image["ExposedPorts"]) == ["8080/tcp"]
    assert list(image["Volumes"]) == ["/models"]
    assert {"GERYON_HOST=0.0.0.0", "GERYON_MODEL=/models"} <= set(image["Env"])


def test_the_health_check_is_the_program_itself(image):
    check = image["Healthcheck"]
    assert check["Test"] == ["CMD", "/usr/local/bin/geryon", "health"]
    # `geryon health` gives up after 5 s itself, so that its own message is seen.
    assert check["Timeout"] > 5_000_000_000 and check["Interval"] > check["Timeout"]
    assert check["StartPeriod"] >= 60_000_000_000


def test_labels_name_version_and_commit(image, root):
    labels = {k.removeprefix("org.opencontainers.image."): v for k, v in image["Labels"].items()}
    said = in_root(root, "/usr/local/bin/geryon", "version").strip()
    assert said == f"geryon {labels['version']} ({labels['revision']})"
    assert re.fullmatch(r"\d+\.\d+\.\d+", labels["version"])
    assert labels["licenses"] == "Apache-2.0"


def test_every_library_is_there(root):
    libraries = in_root(root, "ldd", "/usr/local/bin/geryon")
    assert "libmicrohttpd" in libraries and "not found" not in libraries


def test_no_compiler_sources_or_caches_are_left(root):
    for path in ["usr/bin/gcc", "usr/bin/make", "src", "usr/include/microhttpd.h"]:
        assert not (root / path).exists(), path
    assert not list((root / "var/lib/apt/lists").glob("*Packages*"))
    assert not list((root / "var/cache/apt").rglob("*.deb"))


def test_nothing_belongs_to_the_servers_user(image, root):
    uid = int(image["User"].split(":")[0])
    owned = [str(p) for p in root.rglob("*") if not p.is_symlink() and p.lstat().st_uid == uid]
    assert owned == []


def test_the_program_adds_no_setuid_files(root):
    """Beside the base's own (su, mount, passwd, ...) nothing gains privileges."""
    assert not (root / "usr/local/bin/geryon").stat().st_mode & 0o6000


def test_compose_agrees_with_the_image(image):
    service = container.compose_service()
    assert service["healthcheck"]["test"] == image["Healthcheck"]["Test"]
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace > int(service["environment"]["GERYON_SHUTDOWN_TIMEOUT"])
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "entrypoint" not in service and "init" not in service, "the server is process 1"
    assert service["volumes"] == ["../models:/models:ro"]
    assert service["environment"]["GERYON_MODEL"] == f"/models/{container.GGUF}"
    assert service["mem_limit"] and service["ports"] == ["127.0.0.1:8080:8080"]
    for path in [service["build"]["dockerfile"], "docker"]:
        assert (container.ROOT / path).exists()
