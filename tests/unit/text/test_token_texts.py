"""TokenTexts is a list of texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.text.token_texts import TokenTexts

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])))


@given(TEXTS)
def test_it_is_the_list(texts: list[str]) -> None:
    compact = TokenTexts(texts)
    assert list(compact) == texts
    assert [compact[i - len(texts)] for i in range(len(texts))] == texts
    assert compact[1:3] == texts[1:3]
    for outside in (len(texts), -len(texts) - 1):
        with pytest.raises(IndexError):
            compact[outside]
