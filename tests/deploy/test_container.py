"""The image, run: a chat streams from it, SIGTERM drains it, its health check tells the truth."""

import http.client
import time

import container
import geryon
import pytest

CHAT = {"messages": [{"role": "user", "content": "Name three rivers of France."}],
        "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}


def open_chat(box, **fields):
    return geryon.Live(box.connect(), "/v1/chat/completions", CHAT | fields)


@pytest.fixture(params=[container.Container, container.Process1], ids=["buildah", "process1"])
def chat_box(request, smollm2):
    models, env = smollm2
    with container.running(request.param, models, env) as box:
        yield box


def test_a_chat_streams_and_sigterm_drains_it(chat_box, image):
    status = container.status_of(chat_box.pid)
    assert status["Uid"].split() == [image["User"].split(":")[0]] * 4
    assert status["Gid"].split() == [image["User"].split(":")[1]] * 4
    assert int(status["CapEff"], 16) == 0

    short = open_chat(chat_box, max_tokens=40).finish()
    print(short.text)
    assert short.done and short.ended_well and short.finish_reason in ("length", "stop")
    assert short.usage["completion_tokens"] > 10
    assert len([p for p in short.pieces() if p]) > 10, "a chunk a token, not one at the end"

    n_tokens = 300
    long = open_chat(chat_box, max_tokens=n_tokens, ignore_eos=True)
    texts = long.texts()
    next(texts)
    asked = time.monotonic()
    chat_box.terminate()
    container.wait_for(lambda: chat_box.get("/ready").status == 503, 5, "draining")
    assert chat_box.process.poll() is None, "ended before its stream did"
    n_after = sum(1 for _ in texts)
    assert n_after > 20, "the stream had more to come when the signal arrived"
    whole = long.finish()
    assert whole.done and whole.finish_reason == "length"
    assert whole.usage["completion_tokens"] == n_tokens
    exit_status, _ = chat_box.wait(5)
    assert exit_status == 0, chat_box.log()
    assert time.monotonic() - asked < 30, "longer than --shutdown-timeout"


def test_the_shutdown_timeout_ends_what_runs_longer(smollm2):
    models, env = smollm2
    with container.running(container.Process1, models, env | {"GERYON_SHUTDOWN_TIMEOUT": "1"}) as box:
        live = open_chat(box, max_tokens=6000, ignore_eos=True)
        next(live.texts())
        box.terminate()
        exit_status, seconds = box.wait(10)
        assert exit_status == 0 and 0.9 < seconds < 4, (exit_status, seconds)
        stream = geryon.Stream(geryon.Answer(live.status, live.headers, read_rest(live)))
        assert stream.error and not stream.done


def read_rest(live):
    """What is left of a stream that is cut short."""
    try:
        for _ in live.blocks():
            pass
    except (http.client.IncompleteRead, ConnectionError) as cut:
        live.raw += getattr(cut, "partial", b"")
    return live.raw


def test_the_health_check_follows_the_server(image):
    check = image["Healthcheck"]["Test"][1:]
    with container.running(container.Container, container.TINY) as box:
        status, said = box.run(*check)
        assert status == 0, said
        status, said = box.run("/bin/sh", "-c", "GERYON_PORT=1 exec " + " ".join(check))
        assert status == 1 and "no server answers" in said
        box.terminate()
        assert box.wait(5)[0] == 0
        status, said = box.run(*check)
        assert status == 1 and "no server answers" in said


def test_a_directory_at_models_is_served_without_a_flag():
    with container.running(container.Container, container.TINY) as box:
        answer = box.get("/v1/models")
        assert answer.status == 200
        assert "GERYON_MODEL=/models" in container.image_config()["Env"]


def test_flags_follow_the_command():
    command = ("serve", "--served-model-name", "river", "--log-format", "json")
    with container.running(container.Container, container.TINY, None, *command) as box:
        assert box.get("/v1/models/river").status == 200
