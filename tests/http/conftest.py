import contextlib
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import geryon  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "timeout: seconds a test may take")


def pytest_collection_modifyitems(items):
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(90 * geryon.SLOW))


@pytest.fixture
def serve():
    """serve(script or path, *flags): a server that is stopped and checked when the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(geryon.serve(*args, **more))


@pytest.fixture(scope="module")
def serve_module():
    """The same for servers that all tests of a file share."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(geryon.serve(*args, **more))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    """gguf(golden checkpoint or another's path, number format): the same model as one file."""
    folder = tmp_path_factory.mktemp("gguf")

    def make(name, kind, *flags):
        source = geryon.GOLDEN / name
        path = folder / f"{source.name}-{kind}{''.join(flags)}.gguf"
        if not path.exists():
            subprocess.run([sys.executable, geryon.ROOT / "tests/tools/make_gguf.py", source, path,
                            "--type", kind, *flags], check=True)
        return path

    return make


@pytest.fixture(scope="session")
def smollm2():
    """Path of the default model; tests are skipped where it cannot be obtained."""
    path = geryon.ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        done = subprocess.run([geryon.ROOT / "models/get-smollm2.sh"], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            pytest.skip("SmolLM2-135M-Instruct cannot be obtained: " + done.stderr.strip()[-200:])
    return path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """(certificate, key) of 127.0.0.1, made for this run and signed by itself."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl command to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                    "-nodes", "-days", "2", "-subj", "/CN=geryon-test", "-addext",
                    "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    return cert, key


@pytest.fixture(autouse=True)
def no_proxy():
    """Requests go to this machine only."""
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"


@pytest.fixture
def start():
    """Servers that end by themselves, or are made to."""
    servers = []

    def make(*args, **more):
        servers.append(geryon.Server(*args, **more))
        return servers[-1]

    yield make
    for server in servers:
        server.kill()
        server.check_log()
