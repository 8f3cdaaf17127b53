import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "http")]
import container  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "timeout: seconds a test may take")


def pytest_collection_modifyitems(items):
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(180))


@pytest.fixture(scope="session", autouse=True)
def image():
    """The image that tests/deploy/image.sh built."""
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"
    if not container.buildah("images", "-q", container.IMAGE, check=False):
        pytest.fail(f"no image {container.IMAGE}: run tests/deploy/image.sh")
    return container.image_config()


@pytest.fixture(scope="session")
def smollm2():
    """The folder of the default model, to be mounted, and the variable that names the file."""
    models = container.ROOT / "models"
    if not (models / container.GGUF).exists():
        pytest.skip("the default model is not here: run models/get-smollm2.sh")
    return models, {"GERYON_MODEL": f"/models/{container.GGUF}"}
