"""The stock OpenAI Python client: completions and chat, whole and streamed, its exceptions, and
clients that hang up at any moment."""

import asyncio
import random

import openai
import pytest
from geryon import EOS, SLOW, Server, script

WORDS = ["Hello", ",", " world", "!", " How", " are", " you", "?", EOS]
TEXT = "Hello, world! How are you?"


def client_of(server, **more):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0,
                         timeout=30 * SLOW, **more)


@pytest.fixture(scope="module")
def server(serve_module):
    return serve_module(script(WORDS, block_size=4), "--served-model-name", "toy")


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


USER = [{"role": "user", "content": "Hi"}]


def test_completion(client):
    answer = client.completions.create(model="toy", prompt="Hi", temperature=0)
    assert answer.choices[0].text == TEXT and answer.choices[0].finish_reason == "stop"
    assert answer.object == "text_completion" and answer.model == "toy"
    assert answer.usage.completion_tokens == 9
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 9
    assert answer._request_id.startswith("req_")


def test_completion_stream(client):
    chunks = list(client.completions.create(model="toy", prompt="Hi", temperature=0, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == TEXT
    assert [c.choices[0].finish_reason for c in chunks][-1] == "stop"
    assert all(c.usage is None for c in chunks)


def test_chat(client):
    answer = client.chat.completions.create(model="toy", messages=USER, temperature=0)
    message = answer.choices[0].message
    assert (message.role, message.content, message.refusal, message.tool_calls) == (
        "assistant", TEXT, None, None)
    assert answer.object == "chat.completion" and answer.choices[0].finish_reason == "stop"
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens > 0


def test_chat_stream_with_usage(client):
    chunks = list(client.chat.completions.create(
        model="toy", messages=USER, temperature=0, stream=True,
        stream_options={"include_usage": True}))
    *body, last = chunks
    assert body[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in body) == TEXT
    assert last.choices == [] and last.usage.completion_tokens == 9
    assert len({c.id for c in chunks}) == 1 and len({c.created for c in chunks}) == 1


def test_chat_stream_helper(client):
    """The client's own accumulator takes our events."""
    with client.chat.completions.stream(model="toy", messages=USER, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == TEXT and final.choices[0].finish_reason == "stop"


def test_extra_fields(client):
    answer = client.completions.create(
        model="toy", prompt="Hi", temperature=0, max_tokens=3, stop=[" world"],
        extra_body={"return_token_ids": True, "ignore_eos": True, "min_tokens": 1})
    assert answer.choices[0].text == "Hello," and answer.choices[0].token_ids == [0, 1]
    assert answer.choices[0].stop_reason == " world"


def test_models(client):
    assert [m.id for m in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").owned_by == "local"


@pytest.mark.parametrize("fields, exception, code, param", [
    ({"temperature": 2.5}, openai.BadRequestError, "invalid_value", "temperature"),
    ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
    ({"stop": ""}, openai.BadRequestError, "invalid_value", "stop"),
    ({"logprobs": 2}, openai.BadRequestError, "unsupported_parameter", "logprobs"),
    ({"prompt": [0] * 5000}, openai.BadRequestError, "context_length_exceeded", "prompt"),
    ({"prompt": [1, -1]}, openai.BadRequestError, "invalid_value", "prompt[1]"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_errors_raise_the_matching_exception(client, fields, exception, code, param, stream):
    with pytest.raises(exception) as caught:
        client.completions.create(**({"model": "toy", "prompt": "Hi", "stream": stream} | fields))
    error = caught.value
    assert (error.code, error.type) == (code, "invalid_request_error")
    assert error.param == param or (param in ("prompt[1]", "stop") and error.param.startswith(param.split("[")[0]))
    assert error.request_id


@pytest.mark.parametrize("fields, code, param", [
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "unsupported_parameter", "messages[0].content[0]"),
    ({"top_logprobs": 3}, None, "top_logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "unsupported_parameter", "tools"),
])
def test_chat_errors(client, fields, code, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**({"model": "toy", "messages": USER} | fields))
    error = caught.value
    assert code is None or error.code == code
    assert error.param.startswith(param), error.param
    assert error.request_id


def test_request_id_is_kept(client):
    answer = client.completions.with_raw_response.create(
        model="toy", prompt="Hi", extra_headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"


def test_overload_and_loading(serve):
    busy = serve(script(["a"] * 50, step_ms=20), "--max-num-seqs", 1, "--max-queued-requests", 0)
    client = client_of(busy)
    stream = client.completions.create(model=None, prompt="x", max_tokens=40, stream=True)
    next(iter(stream))
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model=None, prompt="x")
    assert caught.value.code == "queue_full" and caught.value.request_id
    stream.close()

    loading = serve(script(["a"], load_ms=1000), ready=False)
    with pytest.raises(openai.InternalServerError) as caught:
        client_of(loading).completions.create(model=None, prompt="x")
    assert (caught.value.status_code, caught.value.code) == (503, "model_loading")
    # With retries on, the client waits as Retry-After says and gets its answer.
    patient = openai.OpenAI(base_url=loading.url + "/v1", api_key="none", max_retries=5)
    assert patient.completions.create(model=None, prompt="x", max_tokens=1, temperature=0).choices[0].text == "a"


def test_failure_in_mid_stream_raises(serve):
    server = serve(script(["a", "b", "c"], fail={"at_output": 2, "kind": "request"}))
    client = client_of(server)
    seen = ""
    with pytest.raises(openai.APIError) as caught:
        for chunk in client.chat.completions.create(model=None, messages=USER, temperature=0, stream=True):
            seen += chunk.choices[0].delta.content or ""
    assert seen == "ab" and caught.value.code == "internal_error"
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model=None, messages=USER, temperature=0)


def test_64_clients_at_once(server):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            async def one(n):
                text = ""
                if n % 2:
                    async for chunk in await client.chat.completions.create(
                            model="toy", messages=USER, temperature=0, stream=True):
                        text += chunk.choices[0].delta.content or ""
                else:
                    async for chunk in await client.completions.create(
                            model="toy", prompt="Hi", temperature=0, stream=True):
                        text += chunk.choices[0].text
                return text
            return await asyncio.gather(*(one(n) for n in range(64)))
    assert set(asyncio.run(all_of_them())) == {TEXT}
    server.wait_idle()


def test_clients_hang_up_at_any_moment(serve):
    server = serve(script([f" {i}" for i in range(200)], step_ms=2, prefill_ms_per_token=1),
                   "--max-num-seqs", 8)
    rng = random.Random(3)

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            async def one(delay, stream):
                async def ask():
                    answer = await client.completions.create(
                        model=None, prompt=[0] * 50, max_tokens=150, temperature=0, stream=stream)
                    if stream:
                        async for _ in answer:
                            pass
                try:
                    await asyncio.wait_for(ask(), delay)
                    return "finished"
                except (asyncio.TimeoutError, openai.APITimeoutError):
                    return "gone"
            return await asyncio.gather(*(one(rng.random() * 0.8, rng.random() < 0.5) for _ in range(60)))

    outcomes = asyncio.run(all_of_them())
    assert outcomes.count("gone") > 30
    server.wait_idle(1)
    assert server.complete(max_tokens=2).text == " 0 1"
