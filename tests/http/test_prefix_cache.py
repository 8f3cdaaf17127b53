"""Kind 8: pages that outlive their text. What is found must change no answer, cost no page and starve
nobody; real arithmetic on the golden checkpoints, the rest on the scripted model."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from geryon import GOLDEN, SCRIPTED_PAGE_BYTES, SLOW, golden, goldens, script

LETTERS = [chr(97 + i) for i in range(26)]
F32 = ("--dtype", "f32", "--kv-dtype", "f32")


def cached(answer):
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def used(server):
    return server.gauges()["pages_used"]


@pytest.mark.parametrize("name", goldens())
@pytest.mark.parametrize("flags", [(), ("--prefill-chunk", 7), ("--kv-dtype", "bf16")])
def test_s8_02_prompts_found_whole_or_in_part(serve, name, flags):
    """The same prompts twice, at and around the border of a page, then a beginning of them."""
    prompts = [p for p in golden(name)["prompts"] if p]
    ids = [t for p in prompts for t in p][:64]
    ids += [(7 * i + 3) % 250 for i in range(64 - len(ids))]
    ask = lambda server, n: server.complete(ids[:n], max_tokens=24, ignore_eos=True,
                                            return_token_ids=True, timeout=120)
    cold = serve(GOLDEN / name, *F32, *flags, "--prefix-cache", "off")
    warm = serve(GOLDEN / name, *F32, *flags)
    found = []
    for n in (32, 32, 31, 33, 16, 17, 48, 48, 64):
        want, got = ask(cold, n), ask(warm, n)
        assert got.choice["token_ids"] == want.choice["token_ids"], n
        assert cached(want) == 0 and cached(got) < n
        found.append(cached(got))
    assert found == [0, 16, 16, 32, 0, 16, 32, 32, 48]
    for server in (cold, warm):
        server.wait_idle()


@pytest.mark.parametrize("name", goldens())
def test_s9_10_next_turn_continues_the_text_of_the_first(serve, name):
    """Prompt, text and some tokens more: found up to the last committed page, drafts or not."""
    data = golden(name)
    drafts = [("--drafts", 8), ("--drafts", "off")] if "cycles" in data else [()]
    cold = serve(GOLDEN / name, *F32, "--prefix-cache", "off", "--drafts", "off")
    for flags in drafts:
        warm = serve(GOLDEN / name, *F32, *flags)
        for i, prompt in enumerate(p for p in data["prompts"] if p):
            for count in (3, 15, 16, 30):
                fields = {"max_tokens": count, "ignore_eos": True, "return_token_ids": True,
                          "timeout": 120}
                first = warm.complete(prompt, **fields).choice["token_ids"]
                turn = prompt + first + [5 + i]
                want, got = (s.complete(turn, **fields) for s in (cold, warm))
                assert got.choice["token_ids"] == want.choice["token_ids"], (i, count)
                assert cached(got) >= (len(turn) - 2) // 16 * 16
        warm.wait_idle()


def test_s8_01_two_thousand_requests_leave_no_page(serve):
    """Every way to end, 8 at a time, in a pool too small for them."""
    model = script(LETTERS, block_size=4, draft=[LETTERS[25 - i] for i in range(26)],
                   fail={"at_output": 25, "kind": "request"})
    for flags in (("--prefix-cache", "off"), ()):
        server = serve(model, "--max-num-seqs", 8, "--kv-memory", 14 * SCRIPTED_PAGE_BYTES, *flags)

        def ask(i):
            fields = {"prompt": [i % 3] * (1 + i % 40), "max_tokens": 1 + i % 24}
            if i % 10 == 3:
                fields["max_tokens"] = 26
            if i % 10 == 5:
                fields["stop"] = ["fg"]
            if i % 10 != 7:
                return server.complete(**fields).status
            live = server.open_stream(**fields)
            live.close()  # the client goes at once
            return 200

        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(ask, range(1000)))
        assert set(statuses) == {200, 500}
        server.wait_idle(5)
        last = server.trace()[-1]
        assert last["pages_used"] == 0
        assert (last["pages_cached"] == 0) == bool(flags)


def test_s8_06_short_prompt_starts_before_a_long_one_ends(serve):
    """A 4,000-token prompt in chunks, 4 texts that are being written, then 10 tokens more."""
    model = script(LETTERS, prefill_ms_per_token=1, step_ms=2, context=8192,
                   target={"": {"0": 10.0}})
    server = serve(model, "--prefill-chunk", 64, "--max-num-batched-tokens", 128)
    with ThreadPoolExecutor(8) as pool:
        texts = [server.open_stream(prompt=[1 + i], max_tokens=2000, ignore_eos=True) for i in range(4)]
        arrivals = [next(t.texts()) for t in texts]
        assert len(arrivals) == 4
        long = pool.submit(server.complete, [5] * 4000, max_tokens=1, timeout=120)
        server.wait_gauges(lambda g: g["running"] == 5, what="the long prompt")
        time.sleep(0.3 * SLOW)
        short = server.complete([6] * 10, max_tokens=1)
        assert short.status == 200
        assert not long.done()
        assert long.result().status == 200
        for text in texts:
            text.close()
    steps = server.trace()
    alone = [s for s in steps if s["rows"]["prefill"]]
    assert all(s["rows"]["base"] > s["rows"]["prefill"] for s in alone[1:-1]), "texts pause"


def test_s8_06_request_for_all_pages_gets_its_turn(serve):
    model = script(LETTERS, context=256, step_ms=2, target={"": {"0": 10.0}})
    server = serve(model, "--kv-memory", 16 * SCRIPTED_PAGE_BYTES, "--max-num-seqs", 4)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(server.complete, [1] * 20, max_tokens=100, ignore_eos=True)
        server.wait_running()
        big = pool.submit(server.complete, [2] * 250, max_tokens=2, ignore_eos=True, timeout=60)

        def small(i):
            n = 0
            while not big.done():
                assert server.complete([3] * 20, max_tokens=10 + i, ignore_eos=True).status == 200
                n += 1
            return n

        passed = [f.result() for f in [pool.submit(small, i) for i in range(3)]]
        assert big.result().status == 200 and first.result().status == 200
        assert sum(passed) > 0
    server.wait_idle()


def test_cached_pages_are_counted_as_free(serve):
    server = serve(script(LETTERS), "--kv-memory", 40 * SCRIPTED_PAGE_BYTES)
    assert cached(server.complete([1] * 40, max_tokens=2)) == 0
    server.wait_idle()
    assert cached(server.complete([1] * 40, max_tokens=2)) == 32
    server.wait_idle()
    last = server.trace()[-1]
    assert (last["pages_used"], last["pages_cached"], last["pages_total"]) == (0, 2, 40)
