from hypothesis import given
from hypothesis import strategies as st

from hotloop.nesting import MAX_LEVELS, is_too_deep


@given(st.integers(1, 2 * MAX_LEVELS), st.lists(st.booleans(), min_size=2 * MAX_LEVELS, max_size=2 * MAX_LEVELS))
def test_levels_are_counted(levels: int, are_objects: list[bool]) -> None:
    value: object = 1
    for is_object in are_objects[:levels]:
        value = {"a": "x", "b": value} if is_object else ["x", value]
    assert is_too_deep(value) == (levels > MAX_LEVELS)
