"""n choices of a prompt, and prompts of a request: whole and as streams, by both routes; usage, seeds,
admission and the ways in which they end."""

import json
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from geryon import BIN, EOS, GOLDEN, SLOW, Stream, reset, script

ROUTES = ("/v1/completions", "/v1/chat/completions")
LETTERS = list("abcdefgh")
# Every letter is as likely as any other, the end now and then.
DICE = {"vocab": [*LETTERS, EOS], "eos": [8], "block_size": 4,
        "target": {"": {str(i): 1.0 for i in range(8)} | {"8": -1.0}}}
# What follows depends on the last token of the prompt: 0 -> aaaa.., 1 -> bbbb.., 2 -> cccc..
ECHOES = {"vocab": [*LETTERS, EOS], "eos": [8], "target": {str(i): {str(i): 10} for i in range(8)}}


def start_of(path):
    return {"prompt": "a"} if path == ROUTES[0] else {"messages": [{"role": "user", "content": "a"}]}


def ask(server, path, **fields):
    """The whole answer as JSON."""
    answer = server.post(path, start_of(path) | fields)
    assert answer.status == 200, answer.body
    return answer.json


def text_of(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"]


def texts(answer):
    assert [c["index"] for c in answer["choices"]] == list(range(len(answer["choices"])))
    return [text_of(c) for c in answer["choices"]]


def check_stream(stream, n, chat):
    """Choices interleave freely, each is in order: a role chunk (chat), text, one finish chunk."""
    assert stream.done and stream.ended_well, stream.raw
    assert {c["index"] for chunk in stream.chunks for c in chunk["choices"]} == set(range(n))
    if chat:
        roles = [c for chunk in stream.chunks for c in chunk["choices"] if "role" in c["delta"]]
        assert [c["index"] for c in roles] == list(range(n))
    for i in range(n):
        chunks = stream.of_choice(i)
        if chat:
            assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
        assert [c["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["finish_reason"] in ("stop", "length")
        assert all("stop_reason" not in c for c in chunks[:-1]) and "stop_reason" in chunks[-1]
        assert chunks[-1].get("delta", {}) == {} and chunks[-1].get("text", "") == ""


def same_as_whole(server, path, n_choices, **fields):
    """A stream and a whole answer, which agree choice by choice; returns the latter."""
    whole = ask(server, path, **fields)
    stream = server.stream(path, **({"temperature": ...} | start_of(path) | fields))
    assert isinstance(stream, Stream), stream.body
    check_stream(stream, n_choices, path == ROUTES[1])
    assert len(whole["choices"]) == n_choices
    for i, choice in enumerate(whole["choices"]):
        end = stream.of_choice(i)[-1]
        assert "".join(stream.pieces(i)) == text_of(choice)
        assert (end["finish_reason"], end["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
        if fields.get("return_token_ids"):
            chunks = stream.of_choice(i)
            assert [t for c in chunks for t in c.get("token_ids", [])] == choice["token_ids"]
            said = [c["prompt_token_ids"] for c in chunks if "prompt_token_ids" in c]
            assert said == [choice["prompt_token_ids"]], "the prompt once a choice"
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert stream.usage[key] == whole["usage"][key]
    return whole


# ---- texts ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("drafts", ["off", "auto"])
def test_s5_09_seed_together_with_n(serve, path, drafts):
    server = serve(DICE, "--drafts", drafts)
    fields = {"n": 3, "seed": 7, "temperature": 1, "max_tokens": 16}
    first = same_as_whole(server, path, 3, **fields)
    again = ask(server, path, **fields)
    assert texts(first) == texts(again)
    assert len(set(texts(first))) == 3
    more = ask(server, path, **fields | {"n": 5})
    assert texts(more)[:3] == texts(first), "a choice does not know how many there are"
    assert texts(ask(server, path, **fields | {"n": 1})) == texts(first)[:1]
    assert texts(ask(server, path, **fields | {"seed": 8})) != texts(first)


def test_without_a_seed_choices_and_requests_differ(serve):
    server = serve(DICE)
    seen = [text for _ in range(2) for text in texts(ask(server, ROUTES[0], n=4, temperature=1, max_tokens=24,
                                                         prompt=["a", "a"], ignore_eos=True))]
    assert len(seen) == 16 == len(set(seen))


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("block_size", [0, 4])
def test_greedy_choices_are_equal(serve, path, block_size):
    server = serve(script(LETTERS, block_size=block_size))
    whole = same_as_whole(server, path, 3, n=3, temperature=0, max_tokens=20)
    assert texts(whole) == ["".join(LETTERS)] * 3
    assert [c["finish_reason"] for c in whole["choices"]] == ["stop"] * 3
    details = whole["usage"]["completion_tokens_details"]
    assert whole["usage"]["completion_tokens"] == 27
    one = ask(server, path, temperature=0, max_tokens=20)["usage"]["completion_tokens_details"]
    for key in ("accepted_prediction_tokens", "rejected_prediction_tokens"):
        assert details[key] == 3 * one[key]
    assert (details["accepted_prediction_tokens"] > 0) == (block_size > 0)


@pytest.mark.parametrize("path", ROUTES)
def test_each_choice_has_its_own_stop(serve, path):
    server = serve(DICE)
    endings = set()
    for seed in range(6):
        whole = same_as_whole(server, path, 8, n=8, seed=seed, temperature=1, max_tokens=12,
                              stop=["ab", "c"], stop_token_ids=[7], return_token_ids=True)
        for choice in whole["choices"]:
            text, reason = text_of(choice), choice["stop_reason"]
            assert "c" not in text and "ab" not in text and "h" not in text
            ids, written = choice["token_ids"], [LETTERS.index(letter) for letter in text]
            assert ids[:len(written)] == written
            assert choice["finish_reason"] == ("length" if len(text) == 12 else "stop")
            endings.add(reason if choice["finish_reason"] == "stop" else "length")
        server.wait_idle()
    assert {"ab", "c", 7, None} <= endings, "too tame a test"


def test_stock_client_takes_choices(serve):
    server = serve(DICE, "--served-model-name", "toy")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30 * SLOW)
    fields = {"model": "toy", "n": 3, "seed": 3, "temperature": 1, "max_tokens": 12}
    user = [{"role": "user", "content": "a"}]
    whole = client.completions.create(prompt="a", **fields)
    streamed = ["", "", ""]
    for chunk in client.completions.create(prompt="a", stream=True, **fields):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert [c.text for c in whole.choices] == streamed and len(set(streamed)) == 3
    fields |= {"max_tokens": None} # its accumulator takes a limit for an error
    chat = client.chat.completions.create(messages=user, **fields)
    with client.chat.completions.stream(messages=user, **fields) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert [c.message.content for c in final.choices] == [c.message.content for c in chat.choices]
    assert [c.finish_reason for c in final.choices] == [c.finish_reason for c in chat.choices]
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(prompt="a", **fields | {"n": 17})
    assert (caught.value.code, caught.value.param) == ("invalid_value", "n")


# ---- prompts and usage ------------------------------------------------------------------------------

@pytest.mark.parametrize("max_num_seqs", [1, 64])
def test_s4_08_prompt_arrays(serve, max_num_seqs):
    """index = prompt number x n + choice number, also where the parts run one after the other."""
    server = serve(ECHOES, "--max-num-seqs", max_num_seqs)
    for prompt, n_prompts, letters in [(["a", "b", "c"], 3, "abc"), ([[1, 2], [3]], 2, "cd"), ([1, 2, 3], 1, "d")]:
        for n in (1, 2, 3):
            fields = {"prompt": prompt, "n": n, "max_tokens": 3, "temperature": 0, "return_token_ids": True}
            whole = same_as_whole(server, ROUTES[0], n_prompts * n, **fields)
            assert texts(whole) == [letter * 3 for letter in letters for _ in range(n)]
            ids = [c["prompt_token_ids"] for c in whole["choices"]]
            assert ids == [one for one in ids[::n] for _ in range(n)]
            assert [one[-1] for one in ids[::n]] == [LETTERS.index(letter) for letter in letters]
    for bad in ([], [[]], ["a", 5]):
        assert server.complete(bad, n=2).status == 400
    server.wait_idle()


def test_s4_07_prompts_count_once(serve):
    server = serve(DICE)
    chat = ask(server, ROUTES[1], messages=[{"role": "user", "content": "abcde"}], n=3, max_tokens=2, ignore_eos=True)
    assert (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"]) == (5, 6)
    for prompt, n, n_prompt in [(["abc", "abcdefg"], 2, 10), ("abc", 4, 3), (["abc", "abc"], 1, 6)]:
        fields = {"prompt": prompt, "n": n, "max_tokens": 2, "temperature": 1, "ignore_eos": True, "seed": 1}
        n_choices = n * (len(prompt) if isinstance(prompt, list) else 1)
        usage = same_as_whole(server, ROUTES[0], n_choices, **fields)["usage"]
        assert usage["prompt_tokens"] == n_prompt and usage["completion_tokens"] == 2 * n_choices
        assert usage["total_tokens"] == n_prompt + 2 * n_choices
        assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < n_prompt


def test_completion_tokens_are_those_of_all_choices(serve):
    server = serve(DICE)
    for seed in range(5):
        whole = ask(server, ROUTES[0], n=6, seed=seed, temperature=1, max_tokens=9)
        # The end of a text is a token of it too.
        count = sum(len(c["text"]) + (c["finish_reason"] == "stop") for c in whole["choices"])
        assert whole["usage"]["completion_tokens"] == count


def test_continuous_usage_grows_to_the_last(serve):
    server = serve(DICE)
    stream = server.stream(ROUTES[1], n=3, seed=5, temperature=1, max_tokens=8,
                           stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in stream.chunks]
    assert counts[:3] == [0, 0, 0] and counts == sorted(counts)
    assert {chunk["usage"]["prompt_tokens"] for chunk in stream.chunks} == {1}
    assert stream.chunks[-1]["choices"] == [] and counts[-1] == stream.usage["completion_tokens"]


def test_metrics_count_a_request_once(serve):
    server = serve(DICE)
    usage = ask(server, ROUTES[0], prompt=["abcd", "ab"], n=3, temperature=1, seed=2, max_tokens=5)["usage"]

    def value(name):
        return float(re.search(rf"^geryon_{name} (\S+)$", server.get("/metrics").body.decode(), re.M)[1])

    assert value("prompt_tokens_total") == usage["prompt_tokens"] == 6 == value("request_prompt_tokens_sum")
    assert value("generation_tokens_total") == usage["completion_tokens"]
    assert value('requests_finished_total{reason="length"}') + value('requests_finished_total{reason="stop"}') == 1
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert value("prompt_cached_tokens_total") == cached
    timed = ask(server, ROUTES[0], n=2, max_tokens=3, return_timings=True)
    assert timed["timings"]["cached_tokens"] == timed["usage"]["prompt_tokens_details"]["cached_tokens"]


# ---- admission ----------------------------------------------------------------------------------------

def test_more_choices_than_run_at_once_run_in_parts(serve):
    server = serve(DICE | {"step_ms": 2}, "--max-num-seqs", 2)
    whole = same_as_whole(server, ROUTES[0], 12, n=6, prompt=["a", "b"], seed=4, temperature=1, max_tokens=8)
    alone = serve(DICE)
    assert texts(ask(alone, ROUTES[0], n=6, prompt=["a", "b"], seed=4, temperature=1, max_tokens=8)) == texts(whole)
    assert max(step["running"] for step in server.trace()) <= 2


def test_admission_is_all_or_nothing(serve):
    """Two run, two may wait: a request of three finds one place taken and leaves none behind."""
    server = serve(script(["a"] * 2000, step_ms=5), "--max-num-seqs", 2, "--max-queued-requests", 2)
    never = server.complete(n=5)
    assert (never.status, never.error["code"], never.error["param"]) == (400, "invalid_value", "n")
    assert server.complete(["a"] * 5).error["param"] == "prompt"
    live = server.open_stream(n=2, max_tokens=2000)
    server.wait_running(2)
    for stream in (False, True):
        full = server.complete(n=3, stream=stream, max_tokens=1)
        assert (full.status, full.error["code"]) == (429, "queue_full")
        assert full.headers["retry-after"] and full.headers["retry-after-ms"]
    assert server.gauges()["waiting"] == 0
    fits = server.raw(server.raw_post(ROUTES[0], {"prompt": "a", "n": 2, "max_tokens": 1}))
    server.wait_gauges(lambda g: g["waiting"] == 2, what="two wait")
    assert server.complete(max_tokens=1).status == 429
    reset(fits)
    server.wait_gauges(lambda g: g["waiting"] == 0, what="the line empties")
    live.close()
    server.wait_idle(1)
    assert server.complete(n=4, max_tokens=1).status == 200


def test_limits_have_flags(serve):
    server = serve(ECHOES, "--max-n", 3, "--max-choices", 4)
    assert len(ask(server, ROUTES[0], n=3, max_tokens=1)["choices"]) == 3
    for fields in ({"n": 4}, {"n": 3, "prompt": ["a", "b"]}, {"n": 2, "prompt": ["a", "b", "c"]}):
        refused = server.complete(**({"prompt": "a"} | fields))
        assert (refused.status, refused.error["code"], refused.error["param"]) == (400, "invalid_value", "n")
    assert server.complete(["a"] * 5).error["param"] == "prompt"
    props = server.get("/props").json
    assert (props["limits"]["n"], props["limits"]["choices"], props["defaults"]["n"]) == (3, 4, 1)
    assert props["defaults"]["repetition_penalty"] == 1 and props["defaults"]["frequency_penalty"] == 0
    assert props["scheduling"] == "fcfs"


# ---- endings --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("max_num_seqs", [1, 64])
def test_client_gone_ends_all_choices(serve, streaming, max_num_seqs):
    server = serve(script(["a"] * 3000, step_ms=3), "--max-num-seqs", max_num_seqs)
    body = {"prompt": ["a", "a"], "n": 4, "max_tokens": 3000, "stream": streaming}
    connection = server.raw(server.raw_post(ROUTES[0], body))
    server.wait_gauges(lambda g: g["running"] + g["waiting"] == 8, what="8 sequences")
    connection.close()
    server.wait_idle(1)
    assert server.complete(max_tokens=2).text == "aa"


@pytest.mark.parametrize("path", ROUTES)
def test_one_choice_that_fails_ends_the_request(serve, path):
    """Choices that end before the fault do not save the request, those that wait never start."""
    model = DICE | {"fail": {"at_output": 6, "kind": "request"}, "step_ms": 1}
    server = serve(model, "--max-num-seqs", 2)
    fields = {"n": 6, "temperature": 1, "max_tokens": 40}
    failed = 0
    for seed in range(6):
        whole = server.post(path, start_of(path) | fields | {"seed": seed})
        stream = server.stream(path, **fields, seed=seed)
        assert whole.status in (200, 500)
        if whole.status == 200: # all choices ended in time
            check_stream(stream, 6, path == ROUTES[1])
            continue
        failed += 1
        assert whole.error["code"] == "internal_error" and whole.headers["x-should-retry"] == "false"
        assert stream.error["code"] == "internal_error" and not stream.done and not stream.ended_well
        assert "error" in stream.events[-1], "nothing follows the error"
        server.wait_idle(2)
    assert failed
    assert ask(server, path, n=3, temperature=0, max_tokens=3)["usage"]["completion_tokens"] == 9


def test_waiting_for_its_own_kind_is_no_queue_timeout(serve):
    server = serve(script(["a"] * 100, step_ms=10), "--max-num-seqs", 1, "--queue-timeout", 0.4 * SLOW)
    with ThreadPoolExecutor(2) as pool:
        parts = pool.submit(server.complete, n=3, max_tokens=60 * SLOW, ignore_eos=True, timeout=60)
        server.wait_running()
        behind = pool.submit(server.complete, n=2, max_tokens=1)
        late = behind.result()
        assert (late.status, late.error["code"]) == (504, "queue_timeout")
        answer = parts.result()
        assert answer.status == 200 and len(answer.json["choices"]) == 3
    server.wait_idle(1)


# ---- scheduling and seeds ---------------------------------------------------------------------------------

def test_priority_decides_who_is_next(serve):
    server = serve(script(["a"] * 4000, step_ms=5), "--scheduling", "priority", "--max-num-seqs", 1)
    first = server.open_stream(max_tokens=4000)
    server.wait_running()
    order = []
    with ThreadPoolExecutor(3) as pool:
        def one(name, **fields):
            assert server.complete(max_tokens=1, **fields).status == 200
            order.append(name)
        jobs = []
        for n, (name, fields) in enumerate([("late", {"priority": 5}), ("plain", {}), ("soon", {"priority": -5})]):
            jobs.append(pool.submit(one, name, **fields))
            server.wait_gauges(lambda g: g["waiting"] == n + 1, what=f"{n + 1} waiting")
        first.close()
        for job in jobs:
            job.result()
    assert order == ["soon", "plain", "late"]
    assert server.complete(priority=1001).error["param"] == "priority"


def log_seeds(server, n):
    until = time.monotonic() + 5 * SLOW
    while len(found := re.findall(r"^(.*\bevent=request\b.*)$", server.log(), re.M)) < n:
        assert time.monotonic() < until, server.log()
        time.sleep(0.02)
    return [(int(re.search(r"\bseed=(-?\d+)", line)[1]), "seed_note" in line) for line in found]


def test_the_log_names_the_seed(serve):
    plain = serve(DICE)
    fields = {"n": 2, "prompt": ["a", "b"], "temperature": 1, "max_tokens": 20}
    ask(plain, ROUTES[0], **fields)
    ask(plain, ROUTES[0], **fields, seed=-3)
    (_, drawn), given = log_seeds(plain, 2)
    assert drawn and given == (-3, False)
    seeded = serve(DICE, "--seeded-by-default")
    first, second = ask(seeded, ROUTES[0], **fields), ask(seeded, ROUTES[0], **fields)
    assert texts(first) != texts(second)
    for (seed, noted), answer in zip(log_seeds(seeded, 2), (first, second)):
        assert not noted, "the seed reproduces the text as it is"
        assert texts(ask(seeded, ROUTES[0], **fields, seed=seed)) == texts(answer)


# ---- a real checkpoint --------------------------------------------------------------------------------------

PLAIN = "qwen3-single-standard-none"


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint with hints for sampling beside what it has."""
    folder = shutil.copytree(GOLDEN / PLAIN, tmp_path / "model")

    def write(**hints):
        path = folder / "generation_config.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | hints))
        return folder
    return write


def test_sampling_defaults_of_the_model(serve, checkpoint):
    folder = checkpoint(temperature=0.6, top_p=0.95, top_k=20, min_p=None, repetition_penalty=1.05)
    by_model = serve(folder, "--sampling-defaults", "model").get("/props").json["defaults"]
    assert (by_model["temperature"], by_model["top_p"], by_model["top_k"]) == (0.6, 0.95, 20)
    assert (by_model["min_p"], by_model["repetition_penalty"]) == (0, 1.05)
    by_api = serve(folder).get("/props").json["defaults"]
    assert (by_api["temperature"], by_api["top_p"], by_api["top_k"]) == (1, 1, 0)
    assert (by_api["min_p"], by_api["repetition_penalty"]) == (0, 1)


def test_a_request_wins_over_the_model(serve, checkpoint):
    server = serve(checkpoint(temperature=0), "--sampling-defaults", "model")
    ask_one = lambda **more: server.post("/v1/completions", {
        "prompt": [5, 6, 7], "max_tokens": 12, "ignore_eos": True, "seed": 1, "return_token_ids": True} | more)
    greedy = ask_one(temperature=0).choice["token_ids"]
    assert ask_one().choice["token_ids"] == greedy
    assert ask_one(temperature=1.5).choice["token_ids"] != greedy


@pytest.mark.parametrize("hints, named", [
    ({"temperature": 7.5}, "temperature is 7.5, a number from 0 to 2"),
    ({"top_p": -1}, "top_p is -1, a number from 0 to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0"),
])
def test_hints_out_of_range_matter_only_when_asked_for(serve, checkpoint, hints, named):
    folder = checkpoint(**hints)
    done = subprocess.run([BIN, "serve", "--model", str(folder), "--port", "0", "--sampling-defaults", "model"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * SLOW, check=False)
    assert done.returncode == 1 and "generation_config.json: " + named in done.stderr, done.stderr
    assert serve(folder).get("/props").json["defaults"]["temperature"] == 1


def test_choices_of_a_real_model_are_those_of_it_alone(serve):
    """Each choice is the text that it is without the others, whatever they share."""
    server = serve(GOLDEN / PLAIN, "--dtype", "f32")
    prompt = list(range(5, 45))
    fields = {"prompt": prompt, "temperature": 1, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    few = [ask(server, ROUTES[0], **fields, seed=s, n=2)["choices"] for s in (1, 2)]
    many = [ask(server, ROUTES[0], **fields, seed=s, n=8)["choices"] for s in (1, 2)]
    for a, b in zip(few, many):
        assert [c["token_ids"] for c in a] == [c["token_ids"] for c in b][:2]
    greedy = [ask(server, ROUTES[0], **fields | {"temperature": 0}, n=n)["choices"] for n in (1, 5)]
    assert [c["token_ids"] for c in greedy[1]] == [greedy[0][0]["token_ids"]] * 5


def test_fingerprints_know_the_kv_format(serve):
    of = lambda *flags: serve(GOLDEN / PLAIN, *flags).get("/props").json["system_fingerprint"]
    assert of("--kv-dtype", "f32") == of("--kv-dtype", "f32") != of("--kv-dtype", "bf16")


# ---- what was stored before ---------------------------------------------------------------------------------

def cached_of(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("streaming", [False, True])
def test_cached_tokens_are_those_from_before_the_request(serve, streaming):
    """What its own choices share was computed by it; each prompt counts once."""
    server = serve(ECHOES)

    def cached(**fields):
        fields = {"prompt": [1, 2, 3] * 15, "max_tokens": 3, "temperature": 0, "seed": 1} | fields
        if streaming:
            return cached_of({"usage": server.stream(**fields).usage})
        answer = ask(server, ROUTES[0], return_timings=True, **fields)
        assert answer["timings"]["cached_tokens"] == cached_of(answer)
        return cached_of(answer)

    assert cached(n=4) == 0
    assert cached() == 32 == cached(n=4)
    assert cached(n=2, prompt=[[1, 2, 3] * 15, [4] * 20]) == 32
    assert cached(n=2, prompt=[[1, 2, 3] * 15, [4] * 20]) == 48
    metric = re.search(r"^geryon_prompt_cached_tokens_total (\d+)$", server.get("/metrics").body.decode(), re.M)
    assert int(metric[1]) == 32 * 3 + 48
    server.wait_idle()


def test_s8_04_salts_do_not_share(serve):
    server = serve(ECHOES, "--slots")
    prompt = [1, 2, 3, 4] * 10
    ask_one = lambda **more: ask(server, ROUTES[0], **{"prompt": prompt, "max_tokens": 4, "temperature": 0} | more)
    cold = ask_one(cache_salt="x")
    others = [ask_one(cache_salt=salt) for salt in ("y", "", "xx", "x\0", "X", "s" * 128, "s" * 127 + "t")]
    assert [cached_of(answer) for answer in [cold, *others]] == [0] * 8
    again = [ask_one(cache_salt=salt) for salt in ("x", "y", "", "x\0", "s" * 128)] + [ask_one()]
    assert [cached_of(answer) for answer in again] == [32] * 6
    assert {text for answer in [cold, *others, *again] for text in texts(answer)} == {"eeee"}
    off = serve(ECHOES, "--prefix-cache", "off")
    for _ in range(2):
        answer = ask(off, ROUTES[0], prompt=prompt, max_tokens=4, n=2)
        assert cached_of(answer) == 0 and texts(answer) == ["eeee"] * 2
