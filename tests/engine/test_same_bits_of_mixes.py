"""What a request answers does not depend on what is around it, with random mixes of all parameters that a request has."""

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from engine.engines import assert_idle
from engine.jobs import ALONE, Exercised
from engine.mixes import FILTERS, MIROSTAT, OTHERS, mixed_params, mixed_prompt
from hotloop import LLM, AsyncLLM, SamplingParams, StreamChunk
from hotloop.engine.inputs import Prompt
from hotloop.errors import HotloopError
from hotloop.request import RequestOutput
from tiny_models import write_tiny_model

NUM_MIXES = 40
CONTEXT = 128

Mix: TypeAlias = tuple[Prompt, SamplingParams]
Answer: TypeAlias = tuple[Any, ...]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return write_tiny_model(path, request.param, formats={"*": "Q4_1", "token_embd": "Q8_0"}, seed=3, context_length=CONTEXT)


@pytest.fixture(scope="module")
def mixes() -> list[Mix]:
    return [(mixed_prompt(seed, CONTEXT), mixed_params(seed)) for seed in range(NUM_MIXES)]


@pytest.fixture(scope="module")
def expected(model: Path, mixes: Sequence[Mix]) -> list[Answer]:
    llm = LLM(model, **ALONE)
    return [answer for mix in mixes for answer in answers(llm, [mix])]


def told(result: RequestOutput | HotloopError) -> Answer:
    """What a client sees of an answer but for moments and caches."""
    if isinstance(result, HotloopError):
        return type(result).__name__, str(result)
    return (
        result.outputs, result.prompt_token_ids, result.prompt_logprobs, result.num_truncated_tokens, result.seed, result.prompt
    )  # fmt: skip


def answers(llm: LLM, mixes: Sequence[Mix]) -> list[Answer]:
    """All of them together."""
    results = dict(llm.answer_each([(i, prompt, params) for i, (prompt, params) in enumerate(mixes)]))
    assert_idle(llm)
    return [told(results[i]) for i in range(len(mixes))]


def test_every_parameter_is_in_the_mixes() -> None:
    names = FILTERS.keys() | MIROSTAT.keys() | OTHERS.keys()
    assert {f.name for f in fields(SamplingParams)} == names | {"thinking_budget"}  # which is of chats only
    many = [mixed_params(seed) for seed in range(400)]
    default = SamplingParams()
    for name in names:
        assert sum(getattr(params, name) != getattr(default, name) for params in many) >= 10, name


def test_the_mixes_answer(expected: Sequence[Answer]) -> None:
    outputs = [answer[0] for answer in expected if len(answer) > 2]
    assert len(outputs) > NUM_MIXES * 0.8, expected
    assert {choice.finish_reason for choices in outputs for choice in choices} == {"stop", "length"}


@pytest.mark.parametrize(
    "options",
    [
        {}, {"threads": 2, "max_num_batched_tokens": 17, "speculation": "none"}, {"block_size": 8, "max_num_seqs": 5},
        {"block_size": 32, "max_num_batched_tokens": 40, "enable_prefix_caching": False},
    ],
    ids=repr,
)  # fmt: skip
def test_together(
    model: Path, mixes: Sequence[Mix], expected: Sequence[Answer], options: dict[str, Any]
) -> None:  # known faults B59, B61, B112, B122
    """Twice, so that the prefix cache is warm; the second time the other way round."""
    llm = LLM(model, **options)
    assert answers(llm, mixes) == expected
    assert answers(llm, mixes[::-1]) == expected[::-1]
    assert Exercised(llm._core).largest_batch >= 5
    assert Exercised(llm._core).mixed_steps > 5


def test_in_a_scarce_pool(model: Path, mixes: Sequence[Mix], expected: Sequence[Answer]) -> None:
    layout = LLM(model, block_size=4, **ALONE)._runner.layout
    pool_bytes = 2 * layout.blocks_for(CONTEXT) * layout.block_bytes
    llm = LLM(model, threads=2, block_size=4, kv_cache_memory_bytes=pool_bytes, enable_prefix_caching=False)
    assert answers(llm, mixes) == expected
    assert Exercised(llm._core).preemptions > 0 or len(layout.groups) > 1  # windows need little


def test_streams_say_the_same(model: Path, mixes: Sequence[Mix], expected: Sequence[Answer]) -> None:
    """All at once, put together from their chunks: texts, ids, logprobs, and those of the prompt with each first chunk."""

    async def stream(llm: AsyncLLM, mix: Mix) -> Answer:
        chunks: list[StreamChunk] = []
        try:
            async for chunk in llm.generate(*mix):
                chunks.append(chunk)
        except HotloopError as error:
            return told(error)
        output = chunks[-1].output or next(chunk.output for chunk in chunks if chunk.output is not None)
        for choice in output.outputs:
            own = [chunk for chunk in chunks if chunk.index == choice.index]
            assert "".join(chunk.text for chunk in own) == choice.text
            assert [i for chunk in own for i in chunk.token_ids] == choice.token_ids
            if choice.logprobs is not None:
                assert [entry for chunk in own for entry in chunk.logprobs or ()] == choice.logprobs
            assert [chunk.finish_reason for chunk in own if chunk.finish_reason] == [choice.finish_reason]
            assert own[0].prompt_logprobs == output.prompt_logprobs
            assert all(chunk.prompt_logprobs is None for chunk in own[1:])
        return told(output)

    async def all_streams() -> list[Answer]:
        async with AsyncLLM(model) as llm:
            return await asyncio.gather(*(stream(llm, mix) for mix in mixes))

    assert asyncio.run(all_streams()) == expected
