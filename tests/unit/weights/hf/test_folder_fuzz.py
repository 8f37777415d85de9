"""Whatever the files of a folder hold: a folder is opened, or refused with an error of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.errors import HotloopError
from hotloop.models.registry import load_model_spec
from hotloop.weights.open_model import open_model
from tiny_folders import CLASSES, write_json, write_tiny_folder
from tiny_models import ARCHITECTURES

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([0, 1, 2**31 - 1, 2**63]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
ROPE = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["linear", "yarn", "llama3", "longrope", "dynamic", "default"])},
    optional={
        name: st.sampled_from([1.0, 4.0, 32.0, 8192, 0, None]) | VALUES
        for name in (
            "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor",
            "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "rope_theta", "long_factor", "short_factor", "truncate",
        )
    },
)  # fmt: skip
QUANTIZED = st.fixed_dictionaries(
    {"quant_method": st.sampled_from(["gptq", "awq", "fp8", "compressed-tensors"])},
    optional={
        name: VALUES
        for name in (
            "bits", "group_size", "config_groups", "weight_block_size", "version", "dynamic", "meta", "checkpoint_format",
        )
    }
    | {"format": st.sampled_from(["float-quantized", "int-quantized", "pack-quantized", "gptq", "gptq_v2"]) | VALUES},
)  # fmt: skip


@pytest.fixture(scope="module", params=[name for name in ARCHITECTURES if name in CLASSES])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("fuzz") / "f", request.param)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_configuration(folder: Path, data: st.DataObject) -> None:
    path = folder / "config.json"
    original = path.read_text()
    keys: dict[str, Any] = json.loads(original)
    for name in data.draw(st.lists(st.sampled_from(sorted(keys)), max_size=2)):
        keys[name] = data.draw(VALUES)
    if data.draw(st.booleans()):
        keys["rope_scaling"] = data.draw(ROPE)
    if data.draw(st.integers(0, 4)) == 0:
        keys["quantization_config"] = data.draw(QUANTIZED)
    companion = data.draw(st.sampled_from(["generation_config.json", "tokenizer_config.json", None]))
    companion_text = (folder / companion).read_text() if companion and (folder / companion).exists() else None
    try:
        write_json(path, keys)
        if companion is not None:
            names = ("temperature", "top_k", "eos_token_id", "bos_token", "eos_token", "chat_template", "add_bos_token")
            write_json(folder / companion, data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=3)))
        with open_model(folder) as model_file:
            load_model_spec(model_file)
    except HotloopError:
        pass
    finally:
        path.write_text(original)
        if companion is not None:
            (folder / companion).unlink()
            if companion_text is not None:
                (folder / companion).write_text(companion_text)
