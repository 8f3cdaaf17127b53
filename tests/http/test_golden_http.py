"""The golden checkpoints over HTTP: texts, ids and accepted counts with 1 and 16 requests in flight,
whole prompts and chunks of 7."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from geryon import GOLDEN, golden, goldens, run_cli

F32 = ("--dtype", "f32", "--kv-dtype", "f32")


def expected_details(cycles, count):
    """Accepted and rejected proposals of a text of `count` tokens. Near the token limit a cycle
    verifies no more proposals than tokens may come."""
    kept, refused, emitted = 0, 0, 1
    for cycle in cycles:
        verified = min(len(cycle["draft"]), count - emitted - 1)
        accepted = min(cycle["accepted"], verified)
        kept += accepted
        refused += verified - accepted
        emitted += accepted + 1
    assert emitted == count
    return kept, refused


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("name", goldens())
def test_greedy_texts(serve, name, chunk):
    data = golden(name)
    orthrus = "cycles" in data
    flags = [*F32, *(["--drafts", 8] if orthrus else []),
             *(["--prefill-chunk", chunk] if chunk else [])]
    server = serve(GOLDEN / name, *flags)
    texts = [run_cli("tokenize", "--model", GOLDEN / name, "--decode", "--no-special",
                     stdin=str(ids).encode()).stdout.decode().removesuffix("\n")
             for ids in data["greedy"]]

    def check(job):
        i, streaming = job
        fields = {"prompt": data["prompts"][i], "max_tokens": data["count"], "ignore_eos": True,
                  "return_token_ids": True}
        if streaming:
            answer = server.stream(timeout=120, **fields)
            assert answer.done
            text, ids, usage, reason = answer.text, answer.token_ids, answer.usage, answer.finish_reason
        else:
            answer = server.complete(timeout=120, **fields)
            text, ids = answer.text, answer.choice["token_ids"]
            usage, reason = answer.json["usage"], answer.choice["finish_reason"]
        assert ids == data["greedy"][i], f"prompt {i}"
        assert text.removesuffix("\n") == texts[i] and reason == "length"
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(fields["prompt"]), data["count"])
        details = usage["completion_tokens_details"]
        if orthrus:
            accepted, refused = expected_details(data["cycles"][i], data["count"])
            assert details["accepted_prediction_tokens"] == accepted, f"prompt {i}"
            assert details["rejected_prediction_tokens"] == refused, f"prompt {i}"
        else:
            assert details["accepted_prediction_tokens"] == details["rejected_prediction_tokens"] == 0

    n = len(data["prompts"])
    for i in range(n):  # one in flight
        check((i, i % 2 == 0))
    with ThreadPoolExecutor(16) as pool:  # sixteen in flight
        list(pool.map(check, [(k % n, k % 3 == 0) for k in range(4 * n + 4)]))
    server.wait_idle()


@pytest.mark.parametrize("name", goldens())
def test_prompts_as_text_have_the_ids_of_tokenize(serve, name):
    text = "Hello, wörld! 123 日本 😀"
    ids = run_cli("tokenize", "--model", GOLDEN / name, stdin=text.encode()).stdout
    server = serve(GOLDEN / name, *F32)
    answer = server.complete(text, max_tokens=1, ignore_eos=True, return_token_ids=True)
    assert answer.json["choices"][0].get("prompt_token_ids", answer.json.get("prompt_token_ids")) == (
        json.loads(ids))


@pytest.mark.parametrize("name", [n for n in goldens(orthrus=True)])
def test_more_requests_than_the_batch_holds(serve, name):
    """Waiting, chunked and preempted sequences give the same ids."""
    data = golden(name)
    server = serve(GOLDEN / name, *F32, "--drafts", 8, "--max-num-seqs", 5, "--prefill-chunk", 16,
                   "--max-num-batched-tokens", 64)
    jobs = [(i % 7, 10 + 5 * (i % 8)) for i in range(40)]
    with ThreadPoolExecutor(20) as pool:
        answers = pool.map(lambda job: server.complete(data["prompts"][job[0]], max_tokens=job[1],
                                                       ignore_eos=True, return_token_ids=True), jobs)
        for (i, count), answer in zip(jobs, answers):
            assert answer.choice["token_ids"] == data["greedy"][i][:count]
    server.wait_idle()


@pytest.mark.parametrize("dtype, kv", [("f32", "auto"), ("bf16", "auto"), ("q8_0", "auto"),
                                       ("bf16", "q8_0")])
@pytest.mark.parametrize("name", ["qwen3-single-standard-none", "qwen3-orthros-standard-orthrus",
                                  "qwen3-orthros-msar-orthrus"])
def test_s8_07_answers_do_not_depend_on_the_company(serve, name, dtype, kv):
    """5 prompts alone, then among 45 other requests: equal in every number format."""
    data = golden(name)
    server = serve(GOLDEN / name, "--dtype", dtype, "--kv-dtype", kv, "--max-num-seqs", 50)
    ask = lambda job: server.complete(job[0], max_tokens=job[1], ignore_eos=True, timeout=120,
                                      return_token_ids=True, **job[2]).choice["token_ids"]
    jobs = [(data["prompts"][i], 40, {}) for i in (1, 3, 4, 5)] + [
        (data["prompts"][2], 40, {"temperature": 1, "seed": 9})]
    alone = [ask(job) for job in jobs]
    others = [(data["prompts"][i % 7], 5 + i, {"temperature": i % 2}) for i in range(45)]
    with ThreadPoolExecutor(50) as pool:
        company = [pool.submit(ask, job) for job in others[:22]]
        among = [pool.submit(ask, job) for job in jobs]
        company += [pool.submit(ask, job) for job in others[22:]]
        assert [f.result() for f in among] == alone
        assert all(f.result() for f in company)
