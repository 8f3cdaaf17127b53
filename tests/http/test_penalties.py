"""Penalties and logit_bias in the text that comes out, with drafts of any length: a proposal is judged
by the counts that the tokens before it make."""

import pytest
from geryon import EOS, script

A, B, C = 0, 1, 2
blocks = pytest.mark.parametrize("block_size", [0, 2, 3, 4, 8, 16])
ROUTES = ("/v1/completions", "/v1/chat/completions")


def constant(block_size, **more):
    """Logits a=3, b=2, c=-9 wherever; whatever the counts are, the drafter proposes a."""
    return {"vocab": ["a", "b", "c", EOS], "eos": [3], "block_size": block_size, "default": "-inf",
            "target": {"": {"0": 3.0, "1": 2.0, "2": -9.0}},
            "draft": {"": {"0": 500.0, "1": 0.0, "2": 0.0}}} | more


def texts(server, prompt, **fields):
    """The text by each route, which must be one, whole and streamed."""
    content = prompt if isinstance(prompt, str) else "".join("abc"[i] for i in prompt)
    found = [server.both(ROUTES[0], **{"prompt": prompt} | fields)[0].text,
             server.both(ROUTES[1], **{"messages": [{"role": "user", "content": content}]} | fields)[0].text]
    assert found[0] == found[1]
    return found[0]


@blocks
def test_s9_06_penalties_count_what_is_in_the_text(serve, block_size):
    server = serve(constant(block_size))
    for prompt in ("c", "a", "aaaa", "bbbb"): # of the output alone
        assert texts(server, prompt, frequency_penalty=0.6, max_tokens=7) == "aababab"
    server.wait_idle()


@blocks
@pytest.mark.parametrize("prompt, fields, text", [
    # a: 3 2.4 1.8 | b: 2 1.4 0.8 ...
    ("c", {"frequency_penalty": 0.6}, "aabababababa"),
    ("c", {"frequency_penalty": -1}, "aaaaaaaaaaaa"),
    ("c", {"presence_penalty": 1.5}, "abaaaaaaaaaa"),  # once each, then as before
    ("a", {"presence_penalty": 1.5}, "abaaaaaaaaaa"),  # not for the prompt
    ("c", {"presence_penalty": -1.5}, "aaaaaaaaaaaa"),
    ("c", {"repetition_penalty": 2}, "abaaaaaaaaaa"),
    ("a", {"repetition_penalty": 2}, "baaaaaaaaaaa"),  # for the prompt too, however often
    ("aab", {"repetition_penalty": 2}, "aaaaaaaaaaaa"),
    ("b", {"repetition_penalty": 0.5}, "bbbbbbbbbbbb"),  # below 1 it rewards; b = 4 beats a = 3
    ("c", {"logit_bias": {"0": -100}}, "bbbbbbbbbbbb"),
    ("c", {"logit_bias": {"0": -100, "1": -100}}, "cccccccccccc"),
    ("c", {"logit_bias": {"0": -1.5}}, "bbbbbbbbbbbb"),
    ("c", {"logit_bias": {"0": -0.5}}, "aaaaaaaaaaaa"),
    ("c", {"logit_bias": {"2": 100}}, "cccccccccccc"),
    ("c", {"logit_bias": {"02": 12.5}}, "cccccccccccc"),
    # bias, then repetition, then frequency and presence: a = 3 + 1 = 4, then 4 / 2 - 1 = 1 < 2, ...
    ("c", {"logit_bias": {"0": 1}, "repetition_penalty": 2, "presence_penalty": 1}, "abaaaaaaaaaa"),
])
def test_rules_change_the_text_as_they_must(serve, block_size, prompt, fields, text):
    server = serve(constant(block_size))
    assert texts(server, prompt, max_tokens=12, **fields) == text


@blocks
def test_negative_logits_are_pushed_down(serve, block_size):
    """Repetition multiplies where it could not divide."""
    model = constant(block_size) | {"target": {"": {"0": -1.0, "1": -1.5, "2": -2.5}}}
    # a: -1 -> -2; then b: -1.5 -> -3; then a = -2 is the best and stays so
    assert texts(serve(model), [C], repetition_penalty=2, max_tokens=6) == "abaaaa"


@blocks
def test_s5_03_a_banned_token_is_never_accepted(serve, block_size):
    """Drafts that propose nothing else are all refused; the text goes on without it."""
    server = serve(script(["a"] * 40, draft=["a"] * 40, block_size=block_size, vocab=["b", "c", "a"]))
    for temperature in (0, 1):
        answer = server.complete("b", temperature=temperature, logit_bias={"2": -100}, max_tokens=20,
                                 ignore_eos=True, seed=1)
        assert "a" not in answer.text and answer.json["usage"]["completion_tokens"] == 20
    # What is banned for one request is not for its neighbour.
    assert server.complete("b", max_tokens=5).text == "aaaaa"


@blocks
def test_every_token_banned_ends_the_choice(serve, block_size):
    server = serve(constant(block_size))
    answer = server.complete("c", logit_bias={"0": -100, "1": -100, "2": -100}, max_tokens=9)
    assert (answer.text, answer.choice["finish_reason"]) == ("", "stop")
    server.wait_idle()


@pytest.mark.parametrize("temperature", [0, 0.7, 1.3])
def test_seeded_texts_under_rules_do_not_know_of_drafts(serve, temperature):
    """The same seed and rules give the same text with drafts off, good or useless."""
    vocab = [*"abcdefgh", EOS]
    target = {"": {str(i): 2.0 - i / 5 for i in range(8)} | {"8": -30.0},
              "0": {"0": 3.0, "1": 2.5, "2": 2.0, "8": -30.0}, "1,2": {"3": 4.0, "4": 3.5, "8": -30.0}}
    base = {"vocab": vocab, "eos": [8], "target": target}
    servers = [serve(base), serve(base | {"block_size": 4, "draft": target}),
               serve(base | {"block_size": 9, "draft": {"": {"7": 5.0}}})]
    rules = [{"frequency_penalty": 0.8}, {"presence_penalty": -0.7, "repetition_penalty": 1.4},
             {"logit_bias": {"0": -100, "4": 1.5}, "frequency_penalty": 1.1, "top_k": 4},
             {"repetition_penalty": 1.3, "frequency_penalty": -0.2, "presence_penalty": 0.4, "top_p": 0.8}]
    changed = 0
    for seed, fields in enumerate(rules):
        found = [server.complete("abc", temperature=temperature, seed=seed, max_tokens=60, n=2, **fields).json
                 for server in servers]
        chosen = [[c["text"] for c in one["choices"]] for one in found]
        assert chosen[0] == chosen[1] == chosen[2]
        without = servers[0].complete("abc", temperature=temperature, seed=seed, max_tokens=60, n=2).json
        changed += chosen[0] != [c["text"] for c in without["choices"]]
        if "logit_bias" in fields:
            assert not any("a" in text for text in chosen[0])
    assert changed >= 2, "the rules do something"


def test_penalties_are_a_choices_own(serve):
    """Counts of one choice say nothing to the others."""
    server = serve(constant(4))
    whole = server.complete("c", n=4, frequency_penalty=0.6, max_tokens=7).json
    assert [c["text"] for c in whole["choices"]] == ["aababab"] * 4
