"""The default model, SmolLM2-135M-Instruct: ids against Hugging Face transformers in float32, what
int8 rows cost, a chat that knows Paris, 64 streams at once, 200 clients that vanish."""

import json
import pathlib
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from geryon import GOLDEN, ROOT, SLOW, reset, run_cli

pytestmark = pytest.mark.timeout(400 * SLOW)
TEXTS = json.loads((GOLDEN / "smollm2-texts.json").read_text())
# Without the second sentence the likeliest first tokens have 16, 14 and 10 %, and int8 rows swap them.
PARIS = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def exact(serve_module, smollm2):
    return serve_module(smollm2, "--dtype", "f32", "--kv-dtype", "f32", "--max-model-len", 1024)


@pytest.fixture(scope="module")
def server(serve_module, smollm2):
    return serve_module(smollm2, "--max-model-len", 1024)


def greedy(server, path, timeout=300, **fields):
    answer = server.post(path, {"temperature": 0, "ignore_eos": True, "return_token_ids": True} | fields,
                         timeout=timeout)
    assert answer.status == 200, answer.body
    return answer


def test_completions_equal_transformers(exact):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda case: greedy(exact, "/v1/completions", prompt=case["prompt"],
                                                    max_tokens=len(case["greedy"])), TEXTS["completions"]))
    for case, answer in zip(TEXTS["completions"], answers):
        assert answer.choice["prompt_token_ids"] == case["prompt_ids"]
        assert answer.choice["token_ids"] == case["greedy"], case["prompt"]


def test_chats_equal_transformers(exact):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda case: greedy(exact, "/v1/chat/completions", messages=case["messages"],
                                                    max_tokens=len(case["greedy"])), TEXTS["chats"]))
    for case, answer in zip(TEXTS["chats"], answers):
        assert answer.choice["prompt_token_ids"] == case["prompt_ids"]
        assert answer.choice["token_ids"] == case["greedy"], case["rendered"]


def test_prompts_are_rendered_and_tokenised_like_transformers(smollm2):
    for case in TEXTS["completions"]:
        ids = run_cli("tokenize", "--model", smollm2, stdin=case["prompt"].encode()).stdout
        assert json.loads(ids) == case["prompt_ids"]
    for case in TEXTS["chats"]:
        ids = run_cli("tokenize", "--model", smollm2, stdin=case["rendered"].encode()).stdout
        assert json.loads(ids) == case["prompt_ids"]


def test_generate_chat_on_the_command_line(smollm2):
    case = TEXTS["chats"][0]  # one user message
    result = json.loads(run_cli("generate", "--model", smollm2, "--chat", case["messages"][0]["content"],
                                "--dtype", "f32", "--kv-dtype", "f32", "--max-tokens", 24, "--ignore-eos",
                                "--json").stdout)
    assert result["prompt_tokens"] == case["prompt_ids"]
    assert result["tokens"] == case["greedy"][:24]


@pytest.fixture(scope="module")
def perplexity(smollm2, tmp_path_factory):
    """perplexity(part, *flags) of the text that speed is told beside, or of its first 2,300 tokens or so."""
    whole = ROOT / "tests/bench/perplexity.txt"
    start = tmp_path_factory.mktemp("text") / "start.txt"
    start.write_bytes(whole.read_bytes()[:9000])

    def of(part, *flags):
        report = json.loads(run_cli("bench", "--model", smollm2, "--prompt-tokens", 4, "--gen-tokens", 1, "--batch", 1,
                                    "--reps", 1, "--perplexity", whole if part == "whole" else start, "--json",
                                    *flags, timeout=900).stdout)
        assert report["perplexity"]["scored"] >= (20_000 if part == "whole" else 2000)
        return report["engine"]["activations"], report["perplexity"]["perplexity"]

    return of


EXACT = ("--activations", "f32", "--kv-dtype", "f32")


@pytest.mark.timeout(1800 * SLOW)
def test_int8_rows_cost_less_than_half_a_percent_of_perplexity(perplexity):
    part = "whole" if SLOW == 1 else "start"  # a sanitizer finds the same in less of it
    kind, exact = perplexity(part, *EXACT)
    assert kind == "f32" and 4 < exact < 7
    kind, default = perplexity(part)
    assert kind == "int8" and default != exact
    assert abs(default / exact - 1) < 0.005


@pytest.mark.timeout(1800 * SLOW)
def test_8_bit_kv_costs_less_than_half_a_percent_of_perplexity(perplexity):
    kind, exact = perplexity("start", *EXACT)
    assert kind == "f32"
    kind, narrowest = perplexity("start", "--kv-dtype", "q8_0")
    assert kind == "int8" and narrowest != exact
    assert abs(narrowest / exact - 1) < 0.005


def test_weights_and_kv_are_on_huge_pages(server):
    """The KV pool is the one map of its size. What it has in memory is what texts have written."""
    if "[never]" in pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this system gives no huge pages")
    bytes_of = {kind: int(n) for kind, n in re.findall(r'^geryon_device_memory_bytes{kind="(\w+)"} (\d+)$',
                                                       server.get("/metrics").body.decode(), re.M)}
    props = server.get("/props").json
    answer = server.complete("word " * 900, max_tokens=4, stream=False)
    written = answer.json["usage"]["prompt_tokens"] * bytes_of["kv"] // (props["n_pages"] * props["page_size"])
    pool, others = [], []  # KiB of each map: in memory, and of that in huge pages
    for part in pathlib.Path(f"/proc/{server.process.pid}/smaps").read_text().split("VmFlags:")[:-1]:
        kib = {key: int(n) for key, n in re.findall(r"^(\w+): +(\d+) kB$", part, re.M)}
        maps = pool if 0 <= (kib["Size"] << 10) - bytes_of["kv"] <= 4 << 20 else others
        maps.append((kib["Rss"], kib["AnonHugePages"]))
    assert len(pool) == 1, "no map for KV alone"
    [(kv_rss, kv_huge)] = pool
    huge = sum(of_map for _, of_map in others)
    found = f"KV: {kv_huge} of {kv_rss} KiB; others: {huge} KiB; {bytes_of}"
    assert kv_rss << 10 >= written > 10 << 20, found
    if kv_huge < 0.9 * kv_rss or huge << 10 < 0.9 * bytes_of["weights"]:  # 2 MiB and more that lie together, free now
        free = [line.split()[4:] for line in pathlib.Path("/proc/buddyinfo").read_text().splitlines()]
        if sum(int(n) for zone in free for n in zone[9:]) < 100:
            pytest.skip("memory is too torn for huge pages")
    assert kv_huge >= 0.9 * kv_rss, found
    assert huge << 10 >= 0.9 * bytes_of["weights"] > 80 << 20, found


def test_paris_over_a_chat_stream(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(
        model=None, messages=PARIS, temperature=0, max_tokens=60, stream=True))
    assert "Paris" in text


def test_64_streams_at_once_equal_their_solo_texts(server):
    topics = ["cats", "rain", "trains", "bread", "the moon", "rivers", "chess", "gold"]
    forms = ["Tell me about", "Write a poem about", "Why do people like", "What is"]
    prompts = [[{"role": "user", "content": f"{form} {topic}{end}"}]
               for topic in topics for form in forms for end in (".", "?")]
    assert len(prompts) == 64
    count = 20

    def ask(messages):
        stream = server.stream("/v1/chat/completions", messages=messages, max_tokens=count,
                               ignore_eos=True, return_token_ids=True, timeout=300)
        assert stream.done and stream.usage["completion_tokens"] == count
        return stream.text, stream.token_ids

    solo = [ask(messages) for messages in prompts]
    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(ask, prompts))
    assert together == solo
    assert max(line["running"] for line in server.trace()) > 32
    server.wait_idle()


def test_200_clients_that_vanish_leave_all_pages_free(server):
    rng = random.Random(2)
    jobs = [(rng.random() * 3, rng.random() < 0.6, rng.randint(1, 60), rng.random() < 0.5)
            for _ in range(200)]

    def one(job):
        delay, streaming, words, hard = job
        connection = server.raw(server.raw_post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "word " * words}], "max_tokens": 500,
            "stream": streaming, "ignore_eos": True}))
        time.sleep(delay)
        if hard:
            reset(connection)
        else:
            connection.close()

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(one, jobs))
    assert server.wait_idle(1) < 1 * SLOW
    assert server.get("/health").status == 200
