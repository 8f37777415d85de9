"""A folder as transformers saves one (tests/golden/folder): its logits, its tokenizer, its recommendations."""

from pathlib import Path

import numpy as np
import tokenizers

from hotloop.models.reference import reference_logits
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.open_model import open_model

# As tests/unit/models/test_model_goldens.py: some 10 float32 roundings a layer, grown at most threefold.
TOLERANCE = 2.0**-24 * 10 * 3
FOLDER = Path(__file__).parents[2] / "golden" / "folder"


def test_logits_are_those_of_transformers() -> None:
    golden = np.load(FOLDER / "logits.npz")
    logits = reference_logits(FOLDER, golden["token_ids"].tolist(), activations="f32")
    assert np.abs(logits - golden["logits"]).max() <= TOLERANCE * 2 * np.abs(golden["logits"]).max()
    assert np.abs(golden["logits"]).max() > 1


def test_what_the_companions_say() -> None:
    with open_model(FOLDER) as folder:
        assert {info.format for info in folder.tensors.values()} == {"BF16"}
        assert folder.get_str("general.architecture") == "qwen2"
        assert folder.get_int("general.sampling.top_k") == 20
        assert folder.get_float("general.sampling.penalty_repeat") == 1.1
        tokenizer = Tokenizer.from_metadata(folder.metadata)
    assert tokenizer.eos_token_ids == {264, 266}
    published = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    for text in ("the thing in there", " naïve\n\n 12", "日本語"):
        assert tokenizer.encode(text) == published.encode(text, add_special_tokens=False).ids
