import numpy as np
import pytest

from hotloop.bench.batches import BatchMaker, Span, load_runner
from hotloop.errors import InvalidRequestError
from hotloop.weights.gguf import GGUFFile


def test_requests_have_blocks_of_their_own_and_finite_kv(gguf: GGUFFile) -> None:
    runner = load_runner(gguf, 3, 40, 1, "")
    batch = BatchMaker(runner, 3, 40).batch([Span(0, 30, 31), Span(2, 5, 9, wants_logits=False), Span(1, 39, 40)])
    assert batch.query_start.tolist() == [0, 1, 5, 6]
    assert batch.positions.tolist() == [30, 5, 6, 7, 8, 39]
    assert batch.logits_rows.tolist() == [0, 5]
    assert batch.seq_lens.tolist() == [31, 9, 40]
    for group, table in enumerate(batch.block_tables):
        size = runner.storage.layout.tokens_per_block(group)
        assert table.shape == (3, -(-40 // size))
        assert len(set(table.ravel().tolist())) == table.size, "blocks are shared"
        slots = batch.slot_mapping[group]
        assert slots[1:5].tolist() == [table[1, p // size] * size + p % size for p in range(5, 9)]
    pool = runner.storage.pool.view(np.float16)
    assert np.isfinite(pool).all()
    assert (pool != 0).mean() > 0.99
    logits = runner.forward(batch)
    assert logits.shape == (2, runner.model.config.vocab_size)
    assert np.isfinite(logits).all()


def test_a_context_the_model_does_not_have_is_refused(gguf: GGUFFile) -> None:
    with pytest.raises(InvalidRequestError, match="129 positions; the model has 128"):
        load_runner(gguf, 1, 129, 1, "")
