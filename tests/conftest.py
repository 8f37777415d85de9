"""Fixtures shared by all tests."""

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest
from hypothesis import settings

# The same examples in every run, so that a run says something about the change and not about its luck. Look further with
# HYPOTHESIS_PROFILE=random.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

MODEL_FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3-270m": "gemma-3-270m.Q4_K_M.gguf",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
}


@pytest.fixture(scope="session")
def model_path() -> Callable[[str], Path]:
    """Path of a real model by catalog name; skips the test where the model cache does not hold it."""
    home = os.environ.get("HOTLOOP_HOME")
    folder = Path(home if home else platformdirs.user_cache_dir("hotloop")) / "models"

    def find(name: str) -> Path:
        path = folder / MODEL_FILES[name]
        if not path.is_file():
            pytest.skip(f"{name} is not in {folder}; fetch it with: hotloop pull {name}")
        return path

    return find
