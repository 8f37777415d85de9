"""The small routes: models, tokenize, detokenize, version, health; request ids."""

import httpx
import pytest

from hotloop import AsyncLLM
from hotloop.engine.chats import Chat
from hotloop.server.fields import CHAT, COMPLETIONS
from server.live import live_server


def test_models(llm: AsyncLLM) -> None:
    with live_server(llm, model_names=("tiny", "org/alias")) as url, httpx.Client(base_url=url) as client:
        answer = client.get("/v1/models").json()
        assert answer["object"] == "list"
        assert [model["id"] for model in answer["data"]] == ["tiny", "org/alias"]
        for model in answer["data"]:
            assert client.get(f"/v1/models/{model['id']}").json() == model
            assert (model["object"], model["owned_by"], model["max_model_len"]) == ("model", "hotloop", 2048)
            answer = client.post(COMPLETIONS, json={"model": model["id"], "prompt": "abc"}).json()
            assert answer["model"] == "tiny"


def test_tokens_and_back(client: httpx.Client, llm: AsyncLLM) -> None:
    text = "the ünïcode 😀 <|im_end|>"
    body = {"prompt": text, "return_token_strs": True, "model": "tiny"}
    answer = client.post("/tokenize", json=body).json()
    assert answer["tokens"] == llm.tokenizer.encode(text)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["token_strs"][:2] == ["t", "he"]
    assert answer["max_model_len"] == 2048
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}
    messages = [{"role": "user", "content": text}]
    answer = client.post("/tokenize", json={"messages": messages}).json()
    assert answer["tokens"] == llm.inputs.render(Chat(messages)).token_ids
    assert answer["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}), ("/tokenize", {"prompt": "a", "messages": []}), ("/tokenize", {"prompt": ["a"]}),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}), ("/tokenize", {"prompt": "a", "return_token_strs": "x"}),
        ("/tokenize", {"prompt": "a" * 1_000_001}), ("/tokenize", {"prompt": "a", "x": 1}), ("/tokenize", {"messages": []}),
        ("/detokenize", {}), ("/detokenize", {"tokens": "abc"}), ("/detokenize", {"tokens": [True]}),
        ("/detokenize", {"tokens": [5000]}), ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [10**30]}),
        ("/detokenize", {"tokens": [97] * 2049}), ("/detokenize", {"tokens": [97], "x": 1}),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_is_not_converted(client: httpx.Client, path: str, body: object) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert len(response.content) < 1000


def test_version_and_health(client: httpx.Client) -> None:
    fingerprint = client.post(COMPLETIONS, json={"prompt": "abc"}).json()["system_fingerprint"]
    assert client.get("/version").json()["system_fingerprint"] == fingerprint
    for path in ("/health", "/ready"):
        assert client.get(path).json()["status"] == "ok"
    for path in ("/health", "/ready", "/version", "/metrics", "/v1/models", "/v1/models/tiny"):  # as some balancers ask
        response = client.head(path)
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["content-type"] == client.get(path).headers["content-type"]
    assert client.head("/v1/models/other").status_code == 404
    assert client.post("/health").headers["allow"] in ("GET, HEAD", "HEAD, GET")


def test_request_ids(client: httpx.Client) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": [{"role": "user", "content": "a"}]})):
        for stream in (True, False):
            response = client.post(path, json={**body, "stream": stream})
            own = response.headers["x-request-id"]
            assert own in response.text
            for name, expected in (("mine-1", "mine-1"), ("a b", None), ("x" * 129, None), ("é", None)):
                headers = {"x-request-id": name.encode()}
                response = client.post(path, json={**body, "stream": stream}, headers=headers)
                assert response.headers["x-request-id"] == expected or (
                    expected is None and response.headers["x-request-id"] in response.text
                )
        response = client.post(path, json={**body, "n": 0}, headers={"x-request-id": "mine-2"})
        assert (response.status_code, response.headers["x-request-id"]) == (400, "mine-2")
