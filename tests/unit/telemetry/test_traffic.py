"""What a decode step reads and computes."""

from pathlib import Path

import pytest

from hotloop.models.registry import load_model_spec
from hotloop.telemetry.traffic import weight_bytes_per_step
from hotloop.weights.gguf import GGUFFile
from tiny_models import write_tiny_model


@pytest.mark.parametrize("tied", [False, True])
def test_of_tables_that_are_looked_up_a_step_reads_one_row(tmp_path: Path, tied: bool) -> None:
    with GGUFFile.open(write_tiny_model(tmp_path / "m.gguf", "gpt2", tied=tied)) as model:
        looked_up = {"position_embd.weight"} | (set() if tied else {"token_embd.weight"})
        read = sum(t.row_bytes if t.name in looked_up else t.nbytes for t in model.tensors.values())
        assert weight_bytes_per_step(load_model_spec(model), model) == read
