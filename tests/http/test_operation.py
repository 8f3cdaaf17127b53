"""Probes (S12-03), logs, --config and environment twins, `geryon health`."""

import json
import os
import re
import subprocess
import time

import pytest
from geryon import BIN, FAULTS, GOLDEN, SLOW, run_cli, script

LETTERS = list("abcdefghij")
MARK = "zanzibar"  # stands in texts that must never be logged


def log_lines(server):
    """Every line on stderr, which must be JSON."""
    return [json.loads(line) for line in server.err_path.read_text().splitlines()]


def wait_lines(server, event, n, limit_s=5):
    """A request's line is written after its answer."""
    until = time.monotonic() + limit_s * SLOW
    while len(found := [l for l in log_lines(server) if l["event"] == event]) < n:
        assert time.monotonic() < until, server.log()
        time.sleep(0.01)
    return found


# ---- probes ---------------------------------------------------------------------------------------

def test_s12_03_not_ready_before_it_is(start):
    server = start(script(LETTERS, load_ms=1500, fail={"at_output": 3, "kind": "device"}), ready=False)
    seen, progress = set(), []
    while (health := server.get("/health")).status != 200:
        assert health.status == 503 and health.json["status"] == "loading"
        assert health.json["phase"] in ("open", "weights", "cache", "warmup")
        seen.add(health.json["phase"])
        progress.append(health.json["progress"])
        ready = server.get("/ready")
        models, refused = server.get("/v1/models"), server.complete(max_tokens=2)
        if refused.status == 200:
            break  # loaded between two requests
        assert ready.status == 503 or server.get("/health").status == 200
        assert refused.status == 503 and refused.error["code"] == "model_loading"
        assert refused.error["type"] == "unavailable_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert int(refused.headers["retry-after-ms"]) > 0
        assert models.status == 503 or server.get("/health").status == 200
        assert server.get("/live").status == 200
        time.sleep(0.05)
    assert "weights" in seen and progress == sorted(progress)
    assert progress[0] < 0.5 < progress[-1] <= 1
    server.wait_ready()
    assert server.get("/v1/models").status == 200
    assert server.complete(max_tokens=2).text == "ab"
    assert server.complete(max_tokens=5).status == 500  # the device fails at the third token
    for path in ("/health", "/ready", "/healthz", "/readyz"):
        failed = server.get(path)
        assert failed.status == 503 and failed.json["status"] == "failed" and failed.json["reason"]
    assert server.get("/live").status == 200
    refused = server.complete(max_tokens=1)
    assert (refused.status, refused.error["code"]) == (503, "engine_failed")
    assert server.process.wait(15 * SLOW) not in (0, None)
    assert "engine_failed" in server.log()


def test_a_model_that_cannot_be_loaded_ends_the_process(start, tmp_path):
    (tmp_path / "script.json").write_text("{}")
    server = start(tmp_path / "script.json", "--log-format", "json", scripted=True, ready=False)
    assert server.process.wait(10 * SLOW) == 1
    failed = wait_lines(server, "load_failed", 1)
    assert failed[0]["level"] == "error" and failed[0]["error"]


def test_watchdog(serve):
    """One step of 3 s under a watchdog of 1 s: unhealthy while it lasts, but alive; then well again."""
    server = serve(script(LETTERS, step_ms=3000), "--watchdog", 1)
    live = server.open_stream(max_tokens=1)
    time.sleep(2)
    stuck = server.get("/health")
    assert stuck.status == 503 and stuck.json["status"] == "failed" and "progress" in stuck.json["reason"]
    assert server.get("/ready").status == 503 and server.get("/live").status == 200
    assert server.get("/metrics").status == 200
    assert run_cli("health", "--port", server.port, check=False).returncode == 1
    live.finish()
    assert server.get("/health").status == 200
    time.sleep(1.5 * SLOW)  # idle longer than the watchdog: an idle engine turns too
    assert server.get("/health").status == 200


def test_health_command(serve):
    server = serve(script(["a"]))
    done = run_cli("health", "--port", server.port)
    assert json.loads(done.stdout) == {"status": "ok"}
    by_twin = subprocess.run([BIN, "health"], env=dict(os.environ) | {"GERYON_PORT": str(server.port)},
                             capture_output=True, check=False)
    assert by_twin.returncode == 0 and json.loads(by_twin.stdout) == {"status": "ok"}
    loading = serve(script(["a"], load_ms=2000), ready=False)
    assert run_cli("health", "--port", loading.port, check=False).returncode == 1
    closed = run_cli("health", "--port", 1, check=False)
    assert closed.returncode == 1 and closed.stdout == b"" and b"port 1" in closed.stderr


# ---- what is served, and what it does ---------------------------------------------------------------

def test_props(serve):
    server = serve(script(LETTERS, block_size=4, context=500), "--served-model-name", "a", "--served-model-name", "b",
                   "--kv-memory", 16384 * 10, "--max-num-seqs", 3, "--max-body-bytes", "1M")
    props = server.get("/props").json
    assert props["served_model_names"] == ["a", "b"]
    assert props["max_model_len"] == server.get("/v1/models").json["data"][0]["max_model_len"] == 160
    assert (props["page_size"], props["n_pages"], props["draft_block"]) == (16, 10, 4)
    assert props["vocab_size"] == len(LETTERS) + 1 and props["weight_dtype"] == "f32" == props["kv_dtype"]
    assert props["activations"] == "f32" and f"kernels={props['kernels']} " in server.log()
    assert props["defaults"]["temperature"] == 1 and props["defaults"]["top_k"] == 0 and props["defaults"]["n"] == 1
    assert props["limits"]["max_num_seqs"] == 3 and props["limits"]["max_body_bytes"] == 1 << 20
    assert "for m in messages" in props["chat_template"]
    assert props["system_fingerprint"] == server.complete(max_tokens=1).json["system_fingerprint"]
    assert server.post("/props", {}).status == 405
    hidden = serve(script(["a"], load_ms=500), "--api-key", "k", "--slots", ready=False)
    key = {"Authorization": "Bearer k"}
    for path in ("/props", "/slots"):
        assert hidden.get(path).status == 401
        assert hidden.get(path, headers=key).error["code"] == "model_loading"


def test_slots(serve):
    server = serve(script([MARK + c for c in LETTERS] * 9, block_size=3, step_ms=30), "--slots", "--max-num-seqs", 2)
    assert server.get("/slots").json == []
    body = server.raw_post("/v1/completions", {"prompt": "x" * 20, "max_tokens": 80, "stream": True},
                           b"X-Request-Id: first\r\n")
    first = server.raw(body)
    server.wait_running(1)
    others = [server.open_stream(max_tokens=80) for _ in range(1)]
    waiting = [server.raw(server.raw_post("/v1/completions", {"prompt": "yyy", "max_tokens": 5})) for _ in range(2)]
    until = time.monotonic() + 5 * SLOW
    while True:
        answer = server.get("/slots")
        slots = answer.json
        if len(slots) == 4 and [s["output_tokens"] > 4 for s in slots].count(True) == 2:
            break
        assert time.monotonic() < until, slots
    assert MARK.encode() not in answer.body and b"xxx" not in answer.body
    assert sorted(s["state"] for s in slots) == ["decode", "decode", "waiting", "waiting"]
    mine = next(s for s in slots if s["request_id"] == "first")
    assert list(mine) == ["id", "request_id", "state", "prompt_tokens", "cached_tokens", "output_tokens", "pages",
                          "age_ms", "mean_accepted_length"]
    assert mine["prompt_tokens"] == 20 and mine["pages"] >= 2 and mine["age_ms"] > 0
    assert mine["mean_accepted_length"] == 3
    line = next(s for s in slots if s["state"] == "waiting")
    assert (line["prompt_tokens"], line["output_tokens"], line["pages"]) == (3, 0, 0)
    assert len({s["id"] for s in slots}) == 4
    for connection in [first, *others, *waiting]:
        connection.close()
    while server.get("/slots").json:
        assert time.monotonic() < until
    without = serve(script(["a"]))
    assert (without.get("/slots").status, without.get("/slots").error["code"]) == (404, "unknown_url")


# ---- logs -----------------------------------------------------------------------------------------

def test_json_log_has_one_line_a_request(serve):
    server = serve(script(LETTERS, block_size=4, step_ms=10), "--log-format", "json")
    server.post("/v1/completions", {"prompt": "xx", "max_tokens": 6, "temperature": 0},
                headers={"X-Request-Id": "mine-1"})
    server.stream("/v1/chat/completions", max_tokens=6, seed=5)
    server.complete(max_tokens=0)
    server.get("/no\"where")
    server.get("/health")
    lines = wait_lines(server, "request", 4)
    assert len(lines) == 4  # probes are told at debug level only
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert line["level"] == "info" and line["request_id"] and line["ms"] >= 0
    whole, chat, bad, lost = lines
    assert whole["request_id"] == "mine-1" and whole["route"] == "/v1/completions"
    assert (whole["status"], whole["method"], whole["finish"]) == (200, "POST", "length")
    assert (whole["prompt_tokens"], whole["completion_tokens"], whole["accepted_tokens"]) == (2, 6, 3)
    assert whole["ms"] >= whole["ttft_ms"] >= 8 and whole["queue_ms"] >= 0
    assert "seed_note" in whole  # it was drawn
    assert chat["route"] == "/v1/chat/completions" and chat["seed"] == 5 and "seed_note" not in chat
    assert (bad["status"], bad["code"]) == (400, "invalid_value")
    assert (lost["status"], lost["route"], lost["code"]) == (404, "none", "unknown_url")
    events = [line["event"] for line in log_lines(server)]
    assert "ready" in events and "memory" in events


def test_text_log_has_one_line_a_request(serve):
    server = serve(script(LETTERS))
    server.complete(max_tokens=3)
    until = time.monotonic() + 5 * SLOW
    while not (found := re.findall(r"^time=\S+ level=info event=request request_id=req_[0-9a-f]{32} "
                                   r"route=/v1/completions method=POST status=200 .*$", server.log(), re.M)):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert len(found) == 1 and " completion_tokens=3 " in found[0]


@pytest.mark.parametrize("form", ["text", "json"])
def test_prompt_text_is_never_logged(serve, form):
    server = serve(script([MARK + c for c in LETTERS]), "--log-level", "debug", "--log-format", form)
    assert MARK in server.complete(MARK, stop=[MARK + "j"], max_tokens=4).text
    server.stream("/v1/chat/completions", messages=[{"role": "user", "content": MARK}], max_tokens=4)
    server.complete([MARK, MARK], max_tokens=1)
    for body in [b'{"prompt": "%s' % MARK.encode(), {"prompt": {"x": MARK}}, {"prompt": [MARK, 1]},
                 {"prompt": MARK, "temperature": MARK}, {"prompt": MARK, "stop": [MARK * 100]},
                 {"prompt": MARK, "suffix": MARK}, {"prompt": MARK * 2000, "max_tokens": 1}]:
        assert server.post("/v1/completions", body).status == 400
    for messages in [MARK, [MARK], [{"role": MARK, "content": "x"}], [{"role": "user", "content": [{"type": MARK}]}]]:
        assert server.post("/v1/chat/completions", {"messages": messages}).status == 400
    assert server.post("/v1/completions", {"prompt": MARK}, headers={"Content-Encoding": MARK}).status == 415
    server.stop()
    assert "event" in server.log() and MARK not in server.log()


def test_ignored_fields_get_one_debug_line(serve):
    server = serve(script(LETTERS), "--log-level", "debug", "--log-format", "json")
    many = {f"field{i}": i for i in range(12)}
    long = "n" * 300 + "\u00e9"
    server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "temprature": MARK, "\"odd\"\n": None})
    server.post("/v1/completions", {"prompt": "x", "max_tokens": 1} | many)
    server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, long: 1})
    server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "user": "known, without effect"})
    lines = wait_lines(server, "ignored_fields", 3)
    assert len(lines) == 3
    assert lines[0]["names"] == "temprature,\"odd\"\n" and lines[0]["count"] == 2
    assert lines[0]["request_id"] and lines[0]["level"] == "debug"
    assert lines[1]["count"] == 12 and lines[1]["names"].startswith("field0,field1")
    assert lines[2]["names"] == "n" * 64
    assert MARK not in server.log()
    strict = serve(script(LETTERS), "--strict-params")
    assert strict.complete(temprature=1).error["code"] == "unknown_parameter"


# ---- --config and twins ---------------------------------------------------------------------------

def test_config_file_and_who_wins(serve, tmp_path):
    config = tmp_path / "geryon.conf"
    config.write_text("# made by a test\nserved-model-name = from-file\nserved-model-name = second # too\n"
                      "max-model-len = 100\nmax-num-seqs = 7\nlog-format = json\n")
    env = {"GERYON_CONFIG": str(config), "GERYON_MAX_MODEL_LEN": "200", "GERYON_MAX_NUM_SEQS": "6"}
    server = serve(script(LETTERS), "--max-num-seqs", 5, env=env)
    models = server.get("/v1/models").json["data"]
    assert [m["id"] for m in models] == ["from-file", "second"]
    assert models[0]["max_model_len"] == 200
    ready = wait_lines(server, "ready", 1)[0]
    assert ready["max_num_seqs"] == 5 and ready["max_model_len"] == 200


@pytest.mark.parametrize("text, says", [
    ("port = 70000\n", "geryon.conf:1: port: \"70000\""),
    ("\nno-such-flag = 1\n", "geryon.conf:2: unknown key \"no-such-flag\""),
    ("port\n", "geryon.conf:1: expected `key = value`"),
])
def test_config_faults_name_file_and_line(tmp_path, text, says):
    (tmp_path / "geryon.conf").write_text(text)
    done = run_cli("serve", "--model", "m", "--config", tmp_path / "geryon.conf", check=False)
    error = done.stderr.decode()
    assert done.returncode == 2 and says in error and error.count("\n") == 1
    missing = run_cli("serve", "--model", "m", "--config", tmp_path / "none", check=False)
    assert missing.returncode == 2 and b"none" in missing.stderr


def test_help_shows_the_twin_of_every_flag():
    text = run_cli("help", "serve").stdout.decode()
    flags = re.findall(r"^  (--[a-z-]+)", text, re.M)
    assert len(flags) > 25 and "--config" in flags
    for flag in flags:
        assert "GERYON_" + flag[2:].upper().replace("-", "_") in text, flag
    assert not FAULTS.search(text)


# ---- processors -----------------------------------------------------------------------------------

@pytest.mark.parametrize("pinned", [False, True])
def test_threads_stay_on_a_processor_when_asked(serve, pinned):
    own = sorted(os.sched_getaffinity(0))
    server = serve(GOLDEN / "qwen3-single-standard-none", "--threads", 3, *["--pin-threads"] * pinned)
    server.complete([5, 6, 7], max_tokens=3, ignore_eos=True)
    masks = [sorted(os.sched_getaffinity(int(task))) for task in os.listdir(f"/proc/{server.process.pid}/task")]
    single = sorted(mask for mask in masks if len(mask) == 1 < len(own))
    # Two workers on the second and third processor (or those that a smaller number comes back to), and
    # the engine's thread on the first; the others, such as the loop's, may run anywhere.
    expected = sorted([own[i % len(own)]] for i in range(3)) if pinned and len(own) > 1 else []
    assert single == expected
    assert sum(mask == own for mask in masks) == len(masks) - len(expected)
