"""The product on its CUDA backend, on the GPU simulator, from end to end: golden texts over HTTP alone and
with sixteen requests in flight, the stock OpenAI client, what is said about the backend, and a device
that is missing or fails."""

import concurrent.futures
import json
import time

import openai
import pytest
from geryon import BIN, CUDA_BIN, GOLDEN, SLOW, golden, run_cli
from test_golden_http import expected_details
from test_metrics import Scrape

EVERYTHING = "qwen3-orthros-standard-orthrus"  # both streams, drafts, a chat template
F32 = ("--backend", "cuda", "--deterministic", "--dtype", "f32", "--kv-dtype", "f32")
pytestmark = pytest.mark.timeout(240 * SLOW)


@pytest.fixture(scope="module")
def server(serve_module):
    return serve_module(GOLDEN / EVERYTHING, *F32, "--drafts", 8, "--served-model-name", "toy", binary=CUDA_BIN)


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60 * SLOW)


def ids_of(answer):
    return answer.choices[0].token_ids


def ask(client, i, count, **more):
    """Ids of a greedy text from golden prompt i."""
    return ids_of(client.completions.create(
        model="toy", prompt=golden(EVERYTHING)["prompts"][i], max_tokens=count, **{"temperature": 0} | more,
        extra_body={"ignore_eos": True, "return_token_ids": True}))


# ---- golden texts -----------------------------------------------------------------------------------

@pytest.mark.parametrize("name, chunk", [("qwen2-single-standard-none", None), (EVERYTHING, 7),
                                         ("qwen3-single-msar-orthrus-bf16", None)])
def test_golden_texts_with_sixteen_in_flight(serve, name, chunk):
    data, count = golden(name), 16 if SLOW == 1 else 6
    flags = [*F32, *(["--drafts", 8] if "cycles" in data else []), *(["--prefill-chunk", chunk] if chunk else [])]
    server = serve(GOLDEN / name, *flags, binary=CUDA_BIN)

    def check(job):
        i, streaming = job
        fields = {"prompt": data["prompts"][i], "max_tokens": count, "ignore_eos": True, "return_token_ids": True}
        if streaming:
            answer = server.stream(timeout=200, **fields)
            assert answer.done
            ids, usage, reason = answer.token_ids, answer.usage, answer.finish_reason
        else:
            answer = server.complete(timeout=200, **fields)
            ids, usage, reason = answer.choice["token_ids"], answer.json["usage"], answer.choice["finish_reason"]
        assert ids == data["greedy"][i][:count] and reason == "length", f"prompt {i}"
        if "cycles" in data:
            details, expected = usage["completion_tokens_details"], cut_details(data["cycles"][i], count)
            assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == expected

    check((3, True))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(check, [(k % 7, k % 3 == 0) for k in range(16)]))
    server.wait_idle()


def cut_details(cycles, count):
    """expected_details of a text that ends after `count` tokens: of the cycles that it takes."""
    emitted, n = 1, 0
    while emitted < count:
        emitted += min(cycles[n]["accepted"], count - emitted - 1) + 1
        n += 1
    return expected_details(cycles[:n], count)


# ---- the OpenAI client --------------------------------------------------------------------------------

def test_completion_whole_and_streamed(client):
    whole = client.completions.create(model="toy", prompt="Hello", max_tokens=12, temperature=0)
    chunks = list(client.completions.create(model="toy", prompt="Hello", max_tokens=12, temperature=0, stream=True))
    assert whole.usage.completion_tokens <= 12 and whole.choices[0].finish_reason in ("length", "stop")
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text


def test_chat(client):
    say = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10, "temperature": 0}
    answer = client.chat.completions.create(**say)
    chunks = client.chat.completions.create(**say, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == answer.choices[0].message.content


def test_seeds_and_choices(client):
    def draw(**more):
        answer = client.completions.create(model="toy", prompt="abc", max_tokens=10, temperature=1.2,
                                           extra_body={"ignore_eos": True, "return_token_ids": True}, **more)
        return [choice.token_ids for choice in answer.choices]
    two = draw(seed=5, n=2)
    assert two == draw(seed=5, n=2) and two[0] != two[1] and draw(seed=5)[0] == two[0] != draw(seed=6)[0]
    assert len(draw(n=2)) == 2  # unseeded


def test_penalties_and_bias(client):
    data = golden(EVERYTHING)["greedy"][2]
    assert ask(client, 2, 8) == data[:8]
    assert set(ask(client, 2, 8, logit_bias={"77": 100})) == {77}
    assert data[0] not in ask(client, 2, 8, logit_bias={str(data[0]): -100})
    plain = ask(client, 2, 24)
    assert len(set(ask(client, 2, 24, frequency_penalty=2, presence_penalty=2))) > len(set(plain))


def test_stop(client):
    text = client.completions.create(model="toy", prompt="Hello", max_tokens=12, temperature=0,
                                     extra_body={"ignore_eos": True}).choices[0].text
    word = next(c for c in text if c.isascii() and c.isprintable())
    cut = client.completions.create(model="toy", prompt="Hello", max_tokens=12, temperature=0, stop=[word],
                                    extra_body={"ignore_eos": True}).choices[0]
    assert cut.text == text[:text.index(word)] and cut.finish_reason == "stop"


def test_a_client_that_leaves_frees_its_pages(server, client):
    stream = client.completions.create(model="toy", prompt="Hello", max_tokens=400, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    server.wait_idle(10)
    assert ask(client, 2, 4) == golden(EVERYTHING)["greedy"][2][:4]


# ---- what is said about the backend -----------------------------------------------------------------

def test_the_backend_is_named(server):
    assert Scrape(server)("build_info", backend="cuda") == 1
    assert server.get("/version").json["backend"] == "cuda"
    assert server.get("/props").json["kernels"] == "cuda"
    assert "backend=cuda" in server.log()


def generate(binary, *flags, env=None, check=True):
    return run_cli("generate", "--model", GOLDEN / "qwen2-single-standard-none", "--tokens", "1,2,3", "--max-tokens", 2,
                   "--ignore-eos", "--json", *flags, binary=binary, env=env, check=check)


def test_without_cuda_in_the_build():
    done = generate(BIN, "--backend", "cuda", check=False)
    assert done.returncode == 1 and b"no CUDA backend" in done.stderr
    assert b"cuda" not in generate(BIN, "--backend", "auto").stderr.lower()


def test_without_a_device():
    """A build with CUDA where the driver finds none: `auto` says so and goes on, `cuda` ends."""
    env = {"GPUSIM_FAIL": "cudaGetDeviceCount:1:100"}
    done = generate(CUDA_BIN, "--backend", "cuda", env=env, check=False)
    assert done.returncode == 1 and b"cuda: " in done.stderr and b"device" in done.stderr
    plain = generate(CUDA_BIN, "--backend", "cpu")
    auto = generate(CUDA_BIN, "--backend", "auto", env=env)
    assert json.loads(auto.stdout)["tokens"] == json.loads(plain.stdout)["tokens"]
    notices = [line for line in auto.stderr.splitlines() if b"the CPU is used" in line]
    assert len(notices) == 1 and b"cuda: " in notices[0]


def test_auto_is_cuda_where_a_device_answers():
    text = run_cli("inspect", "--model", GOLDEN / EVERYTHING, binary=CUDA_BIN).stdout.decode()
    assert "cuda" in text and "GPU simulator" in text


def test_metrics_name_the_device_and_its_memory(server):
    page = Scrape(server)
    assert page("build_info", backend="cuda", device="GPU simulator") == 1
    for kind in ("weights", "kv", "workspace", "free"):
        assert page("device_memory_bytes", kind=kind) > 0


# ---- benches -----------------------------------------------------------------------------------------

TINY = ("--backend", "cuda", "--prompt-tokens", 20, "--gen-tokens", 13, "--batch", "1,2", "--reps", 1)


def bench(*flags, env=None, check=True):
    return run_cli("bench", *map(str, TINY), *map(str, flags), binary=CUDA_BIN, env=env, check=check)


def test_a_bench_knows_its_device():
    report = json.loads(bench("--synthetic", "tiny,window=16,drafts=4", "--drafts", 4, "--accept", 2, "--window", 8,
                              "--json").stdout)
    assert report["engine"]["backend"] == "cuda" and report["machine"]["device"] == "GPU simulator"
    assert report["timing_only"] and report["model"]["window"] == 8
    assert report["machine"]["read_bytes_per_second"] > 0 and report["machine"]["multiply_add_flops_per_second"] > 0
    for case in report["cases"]:
        assert case["accepted_length"] == 3 and case["decode"]["bandwidth_share"] > 0
    text = bench("--synthetic", "tiny").stdout.decode()
    assert "GPU simulator: reads" in text and "threads" not in text and "timing only" not in text


@pytest.mark.parametrize("dtype, kept", [("f32", 4), ("f16", 2), ("q4_0", 2), ("q8_0", 34 / 32)])
def test_prices_are_those_of_what_the_device_keeps(dtype, kept):
    report = json.loads(bench("--synthetic", "tiny", "--dtype", dtype, "--json").stdout)
    numbers = 64 * 512 + 2 * (64 * 16 * (4 + 2 + 2 + 4) + 3 * 64 * 128)
    assert report["model"]["weight_bytes"] == pytest.approx(numbers * kept, rel=0.02)
    assert report["cases"][0]["decode"]["bytes_per_token"] > numbers * kept


def test_a_bench_tells_what_failed():
    done = bench("--synthetic", "tiny", env={"GPUSIM_FAIL": "cudaGraphLaunch:3:700"}, check=False)
    assert done.returncode == 1 and b"the compute device failed: cuda: launching a graph: " in done.stderr


# ---- a device that fails -----------------------------------------------------------------------------

def test_a_failing_device_ends_the_server(start):
    server = start(GOLDEN / EVERYTHING, *F32, "--drafts", 8, binary=CUDA_BIN,
                   env={"GPUSIM_FAIL": "cudaStreamSynchronize:40:700"})
    seen = []
    until = time.monotonic() + 60 * SLOW
    while time.monotonic() < until and not any(s != 200 for s in seen):
        try:
            seen.append(server.complete("Hello", max_tokens=16, ignore_eos=True, stream=False).status)
        except OSError:
            break
    assert seen[-1] == 500, seen
    assert server.process.wait(20 * SLOW) not in (0, None)
    faults = [line for line in server.log().splitlines() if "cuda: waiting for the device" in line]
    assert len(faults) == 1 and "level=error" in faults[0]
