"""Containers of the image under test, without a container engine: by buildah in chroot isolation,
or as process 1 of namespaces of its own, as an engine would start it."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "build/deploy"
IMAGE = "localhost/geryon:test"
TINY = ROOT / "tests/golden/llama-single-standard-none-rope-llama3-untied"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def buildah(*args, check=True):
    """Standard output of a buildah command on the store of this test."""
    done = subprocess.run(["buildah", *map(str, args)], capture_output=True, text=True, check=False,
                          env=store(), timeout=300)
    assert not check or done.returncode == 0, f"buildah {args}: {done.stderr}"
    return done.stdout.strip()


def store():
    return dict(os.environ) | {"CONTAINERS_STORAGE_CONF": str(DEPLOY / "storage.conf"),
                               "BUILDAH_ISOLATION": "chroot"}


def image_config():
    """The image's Entrypoint, Cmd, User, Env, ... under Docker's names."""
    return json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]


def compose_service():
    """The service of docker/compose.yaml, with the default of every variable in it."""
    text = (ROOT / "docker/compose.yaml").read_text()
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return yaml.safe_load(text)["services"]["geryon"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children(pid):
    """Process ids of a process's children."""
    with contextlib.suppress(OSError):
        return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]
    return []


def status_of(pid):
    """The fields of /proc/PID/status."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def wait_for(condition, limit_s, what):
    """The first true value of condition()."""
    until = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < until, f"{what}: not within {limit_s} s"
        time.sleep(0.02)
    return value


class Container:
    """A running server. `pid` is the server's own process id on this machine; signals go there, as
    an engine sends them to process 1 of a container."""

    def __init__(self, models, env, *command):
        self.scratch = tempfile.TemporaryDirectory(prefix="geryon-deploy-")
        self.log_path = pathlib.Path(self.scratch.name) / "log"
        config = image_config()
        self.working = buildah("from", "--pull-never", IMAGE)
        # An engine lets -v replace a declared volume; buildah would mount an empty one over it.
        buildah("config", "--volume", "/models-", self.working)
        self.port = free_port()
        self.env = dict(e.split("=", 1) for e in config["Env"]) | env | {"GERYON_PORT": str(self.port)}
        self.command = [*config["Entrypoint"], *(command or config["Cmd"])]
        self.process = self.pid = None
        try:
            with open(self.log_path, "wb") as log:
                self.process = self._start(pathlib.Path(models), log)
            self.pid = wait_for(self._find, 20, "the server's process")
            wait_for(self._is_ready, 120, "ready")
        except BaseException:
            print(self.log())
            self.remove()
            raise

    def _start(self, models, log):
        env = [f"--env={name}={value}" for name, value in self.env.items()]
        return subprocess.Popen(
            ["buildah", "run", "-v", f"{models}:/models:ro", *env, self.working, "--", *self.command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=store())

    def _find(self):
        """The newest descendant, once it is the server."""
        assert self.process.poll() is None, f"exit {self.process.returncode}"
        pid = self.process.pid
        while below := children(pid):
            pid = below[0]
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return pid if words[0].decode() == self.command[0] else None
        return None

    def _is_ready(self):
        assert self.process.poll() is None, f"exit {self.process.returncode}"
        with contextlib.suppress(OSError):
            return self.get("/ready").status == 200
        return False

    def log(self):
        return self.log_path.read_text("utf-8", "replace")

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def get(self, path, headers=None):
        connection = self.connect()
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            response.read()
            return response
        finally:
            connection.close()

    def run(self, *command):
        """Another command in the container, as `docker exec` would: (exit status, output)."""
        env = [f"--env={name}={value}" for name, value in self.env.items()]
        done = subprocess.run(["buildah", "run", *env, self.working, "--", *command], env=store(),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              timeout=60)
        return done.returncode, done.stdout + done.stderr

    def terminate(self):
        os.kill(self.pid, signal.SIGTERM)

    def wait(self, limit_s):
        """Exit status of what started the container, and the seconds it took."""
        began = time.monotonic()
        return self.process.wait(limit_s), time.monotonic() - began

    def remove(self):
        for pid in [self.pid, self.process and self.process.pid]:
            if pid and self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.wait(30)
        buildah("rm", self.working, check=False)
        self.scratch.cleanup()


# Runs in fresh namespaces: mounts, then becomes the server by exec alone, so that it is process 1.
# What compose.yaml says of its file system, capabilities and privileges is done here.
SETUP = """
set -e
root=$1 models=$2 user=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind "$models" "$root/models"
mount -o remount,bind,ro "$root/models"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
exec chroot "$root" /usr/bin/setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups \
    --bounding-set -all --inh-caps -all --no-new-privs -- "$@"
"""


class Process1(Container):
    """The same, but the server is process 1 of a PID namespace, on a read-only root, without any
    capability and unable to gain one."""

    def _start(self, models, log):
        root, user = buildah("mount", self.working), image_config()["User"]
        path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return subprocess.Popen(
            ["/usr/bin/unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc",
             "/bin/sh", "-c", SETUP, "setup", root, str(models), user, *self.command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=path | self.env)

    def run(self, *command):
        done = subprocess.run(
            ["/usr/bin/nsenter", f"--target={self.pid}", "--pid", "--mount", "--uts", "--ipc",
             "--root", "--wd", *command],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"} | self.env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def running(kind, models, env=None, *command):
    box = kind(models, env or {}, *command)
    try:
        yield box
    except BaseException:
        print(box.log())
        raise
    finally:
        box.remove()
