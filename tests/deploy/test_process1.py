"""The server as process 1 of a PID namespace, as in every container: a process for which the kernel
ignores signals without a handler, and to which all orphans fall."""

import os
import signal

import container
import pytest


@pytest.fixture
def box():
    service = container.compose_service()
    env = {"GERYON_LOG_FORMAT": service["environment"]["GERYON_LOG_FORMAT"]}
    with container.running(container.Process1, container.TINY, env) as running:
        yield running


def test_idle_server_stops_within_two_seconds_of_sigterm(box):
    assert container.status_of(box.pid)["NSpid"].split()[-1] == "1"
    box.terminate()
    status, seconds = box.wait(10)
    print(f"stopped in {seconds:.3f} s")
    assert status == 0, box.log()
    assert seconds < 2


def test_sigint_stops_it_too(box):
    os.kill(box.pid, signal.SIGINT)
    status, seconds = box.wait(10)
    assert status == 0 and seconds < 2, box.log()


def test_orphans_are_reaped(box):
    status, said = box.run("/bin/sh", "-c", "exec >/dev/null 2>&1; sleep 2 & sleep 2 & exit 0")
    assert status == 0, said
    orphans = container.wait_for(lambda: container.children(box.pid), 5, "adopted orphans")
    assert len(orphans) == 2
    container.wait_for(lambda: not container.children(box.pid), 5, "orphans gone")
    assert box.get("/health").status == 200


def test_health_check_runs_beside_it(box, image):
    for _ in range(5):
        status, said = box.run(*image["Healthcheck"]["Test"][1:])
        assert status == 0, said
    assert container.children(box.pid) == []


def test_it_needs_no_capability_and_no_writable_file(box):
    status = container.status_of(box.pid)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Groups"] == ""
    done, said = box.run("/usr/bin/touch", "/written")
    assert done != 0 and "Read-only file system" in said
    done, said = box.run("/usr/bin/touch", "/models/written")
    assert done != 0 and "Read-only file system" in said


def test_it_listens_on_every_address(box):
    assert f"listening on http://0.0.0.0:{box.port}" in box.log()
