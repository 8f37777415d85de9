"""The scheduler around a fake runner whose output shows every misplaced block."""

import random

import pytest

from fakes import GROUPS, FakeEngine, make_request
from hotloop.request import Request


def prompts(count: int, seed: int, longest: int = 40) -> list[list[int]]:
    """Some of them share beginnings."""
    rng = random.Random(seed)
    stems = [[rng.randrange(50) for _ in range(longest)] for _ in range(3)]
    return [
        rng.choice(stems)[: rng.randrange(longest)] + [rng.randrange(50) for _ in range(rng.randrange(1, 10))]
        for _ in range(count)
    ]


def crowd(count: int, seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        make_request(str(i), prompt, rng.randrange(1, 30), seed=seed) for i, prompt in enumerate(prompts(count, seed))
    ]


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("num_blocks", [25, 60, 500])
@pytest.mark.parametrize("seed", range(4))
def test_a_crowd_is_served_as_if_each_were_alone(groups, num_blocks: int, seed: int) -> None:
    engine = FakeEngine(groups, num_blocks, max_num_batched_tokens=[32, 5, 100, 17][seed])
    assert len(engine.run(crowd(24, seed))) == 24
    engine.assert_solo()
