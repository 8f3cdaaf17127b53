"""Kind 9: drafts change speed, never text."""

import json
import math
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from geryon import EOS, GOLDEN, SCRIPTED_BIN, SLOW, goldens, run_cli, script

ROUTES = ["/v1/completions", "/v1/chat/completions"]
LETTERS = [chr(ord("a") + i) for i in range(26)]


def off(serve, model):
    """The usual oracle: the same model without drafts."""
    return serve(model, "--drafts", "off")


def same_but_for_drafts(usage, other):
    """Usage is equal apart from what was drafted."""
    strip = lambda u: {k: v for k, v in u.items() if k != "completion_tokens_details"}
    return strip(usage) == strip(other)


def generate(tmp_path, model, *flags):
    """`generate --json` on a scripted model."""
    path = tmp_path / "script.json"
    path.write_text(json.dumps(model))
    done = subprocess.run([SCRIPTED_BIN, "generate", "--model", path, "--json", "--tokens", "0",
                           *map(str, flags)], capture_output=True, check=False, timeout=60 * SLOW)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("end", [EOS, {"special": "<end>"}])
def test_s9_01_end_of_sequence_inside_a_block(serve, path, end):
    model = script(["a", "b", end, "c", "d"], block_size=8)
    model["eos"] = [model["vocab"].index(e) for e in ({"special": "<eos>"}, end)]
    server = serve(model)
    whole, stream = server.both(path, max_tokens=50)
    assert (whole.text, whole.choice["finish_reason"]) == ("ab", "stop")
    plain, _ = off(serve, model).both(path, max_tokens=50)
    assert same_but_for_drafts(whole.json["usage"], plain.json["usage"])
    assert whole.json["usage"]["completion_tokens"] == 3
    assert whole.json["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] <= 2
    server.wait_idle()


@pytest.mark.parametrize("path", ROUTES)
def test_s9_02_never_more_than_max_tokens(serve, path):
    model = script(LETTERS, block_size=8)
    server, plain = serve(model), off(serve, model)
    for n in range(1, 18):
        whole, stream = server.both(path, max_tokens=n)
        usage = whole.json["usage"]
        assert usage["completion_tokens"] == n
        assert whole.choice["finish_reason"] == "length"
        assert whole.text == "".join(LETTERS[:n])
        expected, _ = plain.both(path, max_tokens=n)
        assert whole.text == expected.text and same_but_for_drafts(usage, expected.json["usage"])
        # Every pass adds one token of its own, so not all of them can be accepted drafts.
        assert usage["completion_tokens_details"]["accepted_prediction_tokens"] < n
    server.wait_idle()


def test_s9_03_stop_string_early_in_a_long_block(serve):
    model = script(LETTERS + [c.upper() for c in LETTERS], block_size=32)
    server, plain = serve(model), off(serve, model)
    for stop, text in [("bc", "a"), ("z", "".join(LETTERS[:25])), ("gh", "abcdef"), ("ABC", "".join(LETTERS))]:
        whole, _ = server.both(stop=[stop], max_tokens=52)
        assert whole.text == text
        expected, _ = plain.both(stop=[stop], max_tokens=52)
        assert expected.text == text
        assert same_but_for_drafts(whole.json["usage"], expected.json["usage"])


def test_s9_03_stop_string_that_begins_in_the_block_before(serve):
    model = script(LETTERS, block_size=8)
    server = serve(model, "--drafts", 8)
    for at in range(1, 20):  # some of these lie across every border of blocks
        stop = "".join(LETTERS[at:at + 4])
        whole, _ = server.both(stop=[stop], max_tokens=26)
        assert whole.text == "".join(LETTERS[:at])
        assert whole.json["usage"]["completion_tokens"] == at + 4


def test_s9_04_nothing_is_left_past_the_stop(serve):
    model = script(["x", "STOP", "y", "z"], block_size=4)
    server, plain = serve(model), off(serve, model)
    whole, stream = server.both(stop=["STOP"], return_token_ids=True)
    expected, plain_stream = plain.both(stop=["STOP"], return_token_ids=True)
    assert whole.text == "x"
    assert whole.choice["token_ids"] == expected.choice["token_ids"] == [0]
    assert stream.token_ids == plain_stream.token_ids == [0]
    assert same_but_for_drafts(whole.json["usage"], expected.json["usage"])
    assert whole.json["usage"]["completion_tokens"] == 2


P = [0.5, 0.3, 0.2]
Q = [0.2, 0.7, 0.1]


def sharpened(p, temperature):
    powers = [x ** (1 / temperature) for x in p]
    return [x / sum(powers) for x in powers]


def two_distributions(block_size):
    """Three tokens with target P and draft Q at every position, whatever came before."""
    log = lambda p: {"": {str(i): math.log(x) for i, x in enumerate(p)}}
    return {"vocab": ["A", "B", "C", {"special": "<eos>"}], "eos": [3], "block_size": block_size,
            "context": 4096, "default": "-inf", "target": log(P), "draft": log(Q)}


def draw(server, total, **fields):
    """Counts of A, B, C over `total` sampled tokens, and how many drafts were kept and refused."""
    each = 2000
    counts, kept, refused = [0, 0, 0], 0, 0

    def one(n):
        return server.complete([0], max_tokens=each, timeout=120, **(
            fields | ({"seed": fields["seed"] + n} if "seed" in fields else {})))

    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(one, range(total // each)):
            for i, letter in enumerate("ABC"):
                counts[i] += answer.text.count(letter)
            details = answer.json["usage"]["completion_tokens_details"]
            kept += details["accepted_prediction_tokens"]
            refused += details["rejected_prediction_tokens"]
    assert sum(counts) == total
    return counts, kept, refused


# Chi-square with 2 degrees of freedom: p > 0.001 below this.
CHI2_2_999 = 13.816


def chi2(counts, expected):
    n = sum(counts)
    return sum((c - n * p) ** 2 / (n * p) for c, p in zip(counts, expected))


@pytest.mark.parametrize("temperature", [1, 0.5])
@pytest.mark.parametrize("seed", [None, 1000])
def test_s9_07_acceptance_keeps_the_distribution(serve, temperature, seed):
    server = serve(two_distributions(2), "--drafts", 2)
    fields = {"temperature": temperature} | ({"seed": seed} if seed is not None else {})
    counts, kept, refused = draw(server, 40_000 if SLOW == 1 else 8_000, **fields)
    assert chi2(counts, sharpened(P, temperature)) < CHI2_2_999, counts
    if seed is None and temperature == 1:
        # One draft a cycle: it is kept with probability sum(min(p, q)) = .6.
        share = kept / (kept + refused)
        assert abs(share - 0.6) < 4 * math.sqrt(0.24 / (kept + refused))


def test_s9_07_unseeded_long_blocks_keep_the_distribution(serve):
    server = serve(two_distributions(8), "--drafts", 8)
    counts, kept, refused = draw(server, 40_000 if SLOW == 1 else 8_000, temperature=1)
    assert chi2(counts, P) < CHI2_2_999, counts
    assert kept > 0 and refused > 0


def test_s9_07_seeded_text_does_not_know_of_drafts(serve):
    texts = []
    for drafts in ("off", 2, 5, 8, "auto", "ngram"):
        server = serve(two_distributions(8), "--drafts", drafts)
        texts.append([server.complete([0], max_tokens=300, temperature=t, seed=s, **rules).text
                      for t, s, rules in [(1, 1, {}), (0.7, 2, {}), (1, -5, {"top_k": 2}),
                                          (1.3, 2**63 - 1, {"top_p": 0.75}), (1, 3, {"min_p": 0.5})]])
    assert all(t == texts[0] for t in texts[1:])
    assert len(set(texts[0])) == 5


def test_s9_07_refused_drafts_draw_from_the_residual(serve, tmp_path):
    """Given q = B at a refused place, the residual of P and Q is A .75, C .25."""
    model = two_distributions(2)
    residual = [0, 0, 0]
    for seed in range(3):
        result = generate(tmp_path, model, "--drafts", 2, "--temperature", 1, "--max-tokens", 4000)
        at = 1
        for cycle in result["cycles"]:
            k = cycle["accepted"]
            if k < len(cycle["drafted"]) and at + k < len(result["tokens"]):
                residual[result["tokens"][at + k]] += 1
            at += k + 1
    assert residual[1] == 0, "B has no residual mass"
    n = residual[0] + residual[2]
    assert n > 500 and abs(residual[0] / n - 0.75) < 4 * math.sqrt(0.1875 / n)


def test_s9_08_accepted_ends_at_the_first_miss(tmp_path):
    """A draft of 5 with matches 1,0,1,1,1: one is accepted, two tokens come out."""
    model = script(["a", "b", "c", "d", "e", "f", "g", "h"],
                   draft=["a", "b", "x", "d", "e", "f", "g", "h"], block_size=6)
    result = generate(tmp_path, model, "--drafts", 6, "--max-tokens", 20)
    vocab = model["vocab"]
    first, second = result["cycles"][:2]
    assert [vocab[i] for i in first["drafted"]] == ["b", "x", "d", "e", "f"]
    assert first["accepted"] == 1
    # The second cycle starts behind the correction: d, e, f, g, h all match.
    assert [vocab[i] for i in second["drafted"]] == ["d", "e", "f", "g", "h"]
    assert second["accepted"] == 5
    assert result["text"] == "abcdefgh"


@pytest.mark.parametrize("pieces", [["a", "b", EOS, "c", "d"], LETTERS[:20]])
@pytest.mark.parametrize("n", [1, 2, 9, 50])
def test_s9_09_emitted_tokens_add_up(serve, tmp_path, pieces, n):
    model = script(pieces, draft=[p if i % 3 else "?" for i, p in enumerate(pieces)], block_size=8)
    result = generate(tmp_path, model, "--drafts", 8, "--max-tokens", n)
    cycles = result["cycles"]
    # The token from prefill, then what each pass kept and its own one, but for what an ending cut
    # off. Where only one token is left there is nothing to draft.
    tokens = len(result["tokens"])
    emitted = 1 + sum(c["accepted"] + 1 for c in cycles)
    assert tokens - 1 <= emitted <= tokens + 8
    assert all(len(c["drafted"]) <= 7 and c["accepted"] <= len(c["drafted"]) for c in cycles)
    assert bool(cycles) == (n > 1)
    assert all(c["drafted"] for c in cycles[:-1])
    if cycles:
        assert 1 + sum(c["accepted"] + 1 for c in cycles[:-1]) < tokens

    usage = serve(model, "--drafts", 8).complete([0], max_tokens=n).json["usage"]
    details = usage["completion_tokens_details"]
    assert usage["completion_tokens"] == tokens
    assert details["accepted_prediction_tokens"] <= sum(c["accepted"] for c in cycles)
    assert details["accepted_prediction_tokens"] < max(usage["completion_tokens"], 1)
    assert (details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"]
            <= sum(len(c["drafted"]) for c in cycles))


def test_s9_09_drafts_are_shortened_near_the_context_end(serve):
    """Only real proposals are counted: there is room for fewer than a block."""
    server = serve(script(LETTERS, block_size=8, context=16), "--drafts", 8)
    whole = server.complete([0] * 12, max_tokens=100)
    usage = whole.json["usage"]
    details = usage["completion_tokens_details"]
    assert usage["completion_tokens"] == 4 and whole.text == "abcd"
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] <= 7
    one = server.complete([0] * 15, max_tokens=1).json["usage"]["completion_tokens_details"]
    assert one["accepted_prediction_tokens"] == one["rejected_prediction_tokens"] == 0


def metric(server, name):
    text = server.get("/metrics").body.decode()
    assert "nan" not in text.lower()
    return float(re.search(rf"^geryon_{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)[1])


@pytest.mark.parametrize("drafts", ["off", 5, "auto", "ngram"])
def test_s9_09_metrics_add_up(serve, drafts):
    """No NaN before the first draft; what the passes emitted is what the answers hold, but for the
    token that prefill gave."""
    pieces = ["a", "b", "c"] * 12 + ["d", "e", "a", "b"] * 6
    model = script(pieces, draft=[p if i % 5 else "?" for i, p in enumerate(pieces)], block_size=8)
    server = serve(model, "--drafts", drafts)
    assert metric(server, "draft_accepted_length_sum") == metric(server, "draft_length") == 0
    usages = [server.complete([0, 1, 2], max_tokens=n, **fields).json["usage"]
              for n, fields in [(1, {}), (2, {}), (60, {}), (25, {}), (60, {"stop": ["cd"]}), (200, {})]]
    tokens = sum(u["completion_tokens"] for u in usages)
    details = [u["completion_tokens_details"] for u in usages]
    kept = sum(d["accepted_prediction_tokens"] for d in details)
    refused = sum(d["rejected_prediction_tokens"] for d in details)
    assert metric(server, "generation_tokens_total") == tokens
    assert metric(server, "draft_accepted_length_sum") == tokens - len(usages)
    assert metric(server, "draft_tokens_accepted_total") == kept
    assert metric(server, "draft_tokens_proposed_total") >= kept + refused
    assert 0 <= metric(server, "draft_acceptance") <= 1
    if drafts == "off":
        assert kept == refused == metric(server, "draft_tokens_proposed_total") == 0
    if drafts in (5, "ngram"):
        assert kept > 0


def test_prompt_lookup_repeats_what_the_text_holds(serve):
    """No draft view, yet most tokens of a repetitive text come out of passes that gave several: a step
    costs the same however many rows it has, so that they pay by any clock."""
    pieces = LETTERS[:9] * 12
    server = serve(script(pieces) | {"step_ms": 10}, "--drafts", "ngram")
    plain = off(serve, script(pieces))
    for fields in ({}, {"temperature": 0.7, "seed": 5}, {"stop": ["iab"]}):
        answer = server.complete([0], max_tokens=100, return_timings=True, **fields)
        assert answer.text == plain.complete([0], max_tokens=100, **fields).text
        timings = answer.json["timings"]
        assert timings["draft_passes"] == 0
        if "stop" not in fields:
            assert timings["mean_accepted_length"] > 2
    trace = [json.loads(line) for line in server.trace_path.read_text().splitlines()]
    assert sum(step["drafts"]["proposed"] for step in trace if "drafts" in step) > 0
    assert all(step["rows"]["draft"] == 0 for step in trace)


def test_timings_agree_with_usage(serve):
    server = serve(script(LETTERS, block_size=8), "--drafts", 8)
    for streaming in (False, True):
        if streaming:
            stream = server.stream(max_tokens=17, return_timings=True)
            timings = stream.chunks[-1]["timings"]
        else:
            timings = server.complete(max_tokens=17, return_timings=True).json["timings"]
        assert timings["mean_accepted_length"] == 8
        assert (timings["draft_passes"], timings["verify_passes"]) == (2, 2)
        assert timings["prefill_passes"] >= 1 and timings["preemptions"] == 0
        assert timings["ttft_ms"] >= timings["queue_ms"] >= 0


@pytest.mark.parametrize("min_tokens", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("path", ROUTES)
def test_s9_11_min_tokens_masks_the_right_rows(serve, min_tokens, path):
    pieces = ["a", "b", "c", EOS, "d", EOS, "e"]
    model = script(pieces, block_size=8)
    whole, _ = serve(model).both(path, min_tokens=min_tokens, max_tokens=30)
    expected, _ = off(serve, model).both(path, min_tokens=min_tokens, max_tokens=30)
    assert whole.text == expected.text
    assert same_but_for_drafts(whole.json["usage"], expected.json["usage"])
    if min_tokens <= 3:
        assert whole.text == "abc"
    else:
        assert whole.json["usage"]["completion_tokens"] > min_tokens


@pytest.mark.parametrize("dtype, kv", [("f32", "f32"), ("bf16", "bf16"), ("f32", "q8_0"),
                                       ("q8_0", "q8_0")])
@pytest.mark.parametrize("name", goldens(orthrus=True))
def test_s9_12_greedy_texts_are_equal_with_and_without_drafts(name, dtype, kv):
    """Our rows do not depend on the batch, so this holds bit for bit in every format."""
    for prompt in ["5", "9,8,7,6,5,4,3", ",".join(map(str, range(20, 60)))]:
        texts = [json.loads(run_cli("generate", "--model", GOLDEN / name, "--json", "--tokens", prompt,
                                    "--max-tokens", 64, "--ignore-eos", "--dtype", dtype, "--kv-dtype",
                                    kv, "--drafts", drafts).stdout)["tokens"]
                 for drafts in ("off", 2, 3, 8, "auto", "ngram")]
        assert all(t == texts[0] for t in texts[1:])
        assert len(texts[0]) == 64


@pytest.mark.parametrize("quality", ["perfect", "useless", "mixed"])
def test_drafter_quality_changes_speed_only(serve, quality):
    draft = {"perfect": None, "useless": ["#"] * 26,
             "mixed": [c if i % 4 else "#" for i, c in enumerate(LETTERS)]}[quality]
    server = serve(script(LETTERS, draft=draft, block_size=8), "--drafts", 8)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda n: server.complete(max_tokens=n), [*range(1, 27)] * 2))
    for n, answer in zip([*range(1, 27)] * 2, answers):
        assert answer.text == "".join(LETTERS[:n])
        details = answer.json["usage"]["completion_tokens_details"]
        if quality == "perfect":
            assert details["rejected_prediction_tokens"] == 0
            assert details["accepted_prediction_tokens"] >= (n - 1) * 7 // 8
        if quality == "useless":
            assert details["accepted_prediction_tokens"] == 0
    server.wait_idle()
