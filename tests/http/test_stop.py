"""Kind 3: stop strings and stop tokens, each with and without drafts, whole and as a stream."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from geryon import EOS, SLOW, hex_piece, script

# Rows of a draft block: none, shorter than the script, longer than it.
blocks = pytest.mark.parametrize("block_size", [0, 3, 16])


def check(serve, pieces, text, reason, block_size, stop_reason=..., **fields):
    server = serve(script(pieces, block_size=block_size))
    for path in ("/v1/completions", "/v1/chat/completions"):
        whole, stream = server.both(path, **({"max_tokens": 40} | fields))
        assert (whole.text, whole.choice["finish_reason"]) == (text, reason)
        if stop_reason is not ...:
            assert whole.choice["stop_reason"] == stop_reason
    server.wait_idle()
    return whole, stream


@blocks
def test_s3_01_stop_string_over_a_token_border(serve, block_size):
    check(serve, ["red", " gre", "en", " blue"], "red", "stop", block_size, stop=[" green"],
          stop_reason=" green")


@blocks
def test_s3_02_no_part_of_the_stop_string_is_sent(serve, block_size):
    _, stream = check(serve, ["ok\n", "Hum", "an:", "x"], "ok", "stop", block_size,
                      stop=["\nHuman:"])
    assert all("\n" not in p for p in stream.pieces())


@blocks
def test_s3_03_withheld_text_is_released_at_the_end(serve, block_size):
    check(serve, ["ok", "\n", EOS], "ok\n", "stop", block_size, stop=["\n\n"], stop_reason=None)
    check(serve, ["ok", "\n", "more"], "ok\n", "length", block_size, stop=["\n\n"], max_tokens=2)


@blocks
def test_s3_04_middle_of_a_stop_string_is_no_match(serve, block_size):
    check(serve, ["foot", "no", EOS], "footno", "stop", block_size, stop=["##note"],
          stop_reason=None)


@blocks
def test_s3_05_no_text_after_the_stop(serve, block_size):
    check(serve, ["red, ", "green, ", "bl", "ue, ", "grey"], "red, ", "stop", block_size,
          stop=["green"])
    check(serve, ["red, ", "green, ", "bl", "ue, ", "grey"], "red, green, ", "stop", block_size,
          stop=["blue", "grey"])


def test_s3_06_nothing_is_withheld_without_need(serve):
    """Each piece is on the wire before the next token is made."""
    server = serve(script(["hello", " there", " you", "!"], step_ms=300))
    got = list(server.open_stream(stop=["ENDMARKER#"], max_tokens=4).texts())
    assert [text for _, text in got] == ["hello", " there", " you", "!"]
    gaps = [b[0] - a[0] for a, b in zip(got, got[1:])]
    assert min(gaps) > 0.15, gaps
    assert max(gaps) < 0.6 * SLOW


def test_s3_06_only_what_may_grow_is_withheld(serve):
    server = serve(script(["ab", "cE", "x", "EN", "D", "y"]))
    stream = server.stream(stop=["END#"], max_tokens=6)
    assert [p for p in stream.pieces() if p] == ["ab", "c", "Ex", "ENDy"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_s3_07_empty_stop_string(serve, path):
    server = serve(script(["a", "b", EOS]))
    for stop in ([""], "", ["", "x"]):
        for streaming in (True, False):
            answer = server.post(path, {"prompt": "x", "messages": [{"role": "user", "content": "x"}],
                                        "stop": stop, "stream": streaming})
            assert answer.status == 400
            assert answer.error["param"].startswith("stop")
            assert answer.error["code"] == "invalid_value"
    for stop in ([], None):
        whole, _ = server.both(path, stop=stop)
        assert whole.text == "ab"


@pytest.mark.parametrize("bad", ["V", -1, 4294967296, 2**63 - 1])
def test_s3_08_stop_token_ids_outside_the_vocabulary(serve, bad):
    model = script(["a"] * 30, step_ms=20)
    server = serve(model)
    bad = len(model["vocab"]) if bad == "V" else bad
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(server.complete, max_tokens=20)
        server.wait_running()
        answer = server.complete(stop_token_ids=[bad])
        assert answer.status == 400
        assert answer.error["param"].startswith("stop_token_ids")
        assert neighbour.result().text == "a" * 20
    assert server.get("/health").status == 200


@blocks
def test_stop_token_ends_like_end_of_sequence(serve, block_size):
    check(serve, ["a", "b", "c", "d"], "ab", "stop", block_size, stop_token_ids=[2, 3],
          stop_reason=2)


@blocks
def test_stop_string_kept_when_asked_for(serve, block_size):
    check(serve, ["a", "bX", "Yc", "d"], "abXY", "stop", block_size, stop=["XY"],
          include_stop_str_in_output=True, stop_reason="XY")


@blocks
@pytest.mark.parametrize("parts", [["STOP"], ["ST", "OP"], ["S", "T", "O", "P", "!"]])
def test_stop_string_over_one_two_and_five_tokens(serve, parts, block_size):
    check(serve, ["a ", *parts, " tail"], "a ", "stop", block_size, stop=["STOP"])


@blocks
def test_stop_string_of_half_characters(serve, block_size):
    """The stop string begins and ends inside tokens that hold parts of characters."""
    pieces = ["a", hex_piece("E2"), hex_piece("82AC"), hex_piece("F09F"), hex_piece("9880"), "b"]
    check(serve, pieces, "a", "stop", block_size, stop=["€😀"])
    check(serve, pieces, "a€", "stop", block_size, stop=["😀b", "😀"])


@blocks
def test_unfinished_character_at_the_end(serve, block_size):
    check(serve, ["a", hex_piece("E2"), hex_piece("82"), EOS], "a�", "stop", block_size, stop=["x"])


@blocks
def test_stop_strings_wait_for_min_tokens(serve, block_size):
    check(serve, ["a", "b", "a", "b", "c"], "aba", "stop", block_size, stop=["b"], min_tokens=3)


@blocks
def test_stop_strings_work_with_ignore_eos(serve, block_size):
    check(serve, ["a", EOS, "b", "c"], "ab", "stop", block_size, stop=["c"], ignore_eos=True)


def oracle(pieces, stops):
    """The match that completes first; of those with that end the earliest start."""
    text = "".join(pieces)
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[:min(starts)], "stop"
    return text, "length"


@blocks
def test_random_stops_agree_with_the_rule(serve, block_size):
    rng = random.Random(7)
    words = ["a", "b", "ab", "ba", "aab", "é", "bé", "éa"]
    pieces = [rng.choice(words) for _ in range(48)]
    server = serve(script(pieces, block_size=block_size))
    for _ in range(40):
        stops = ["".join(rng.choices("abé", k=rng.randint(1, 6))) for _ in range(rng.randint(1, 4))]
        whole, _ = server.both(stop=stops, max_tokens=len(pieces))
        assert (whole.text, whole.choice["finish_reason"]) == oracle(pieces, stops), stops
