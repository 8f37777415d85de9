"""Dependencies point one way (docs/architecture.md), and the public names are what they say."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hotloop

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "hotloop"

# What each part of hotloop may import of the others. Plain data may be imported by everyone.
PLAIN = {"errors", "request", "sampling_params", "structured_outputs", "config", "machine", "nesting", "pre_tokenizers"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "machine": set(),
    "nesting": set(),
    "pre_tokenizers": set(),
    "sampling_params": {"errors", "structured_outputs"},
    "structured_outputs": {"errors"},
    "request": {"sampling_params"},
    "config": {"errors", "machine"},
    "quant": PLAIN,
    "weights": PLAIN | {"quant", "_native"},
    "kv_cache": PLAIN,
    "scheduler": PLAIN | {"kv_cache"},
    "ops": PLAIN | {"quant", "weights", "kv_cache", "_native"},
    "models": PLAIN | {"ops", "quant", "weights", "kv_cache"},
    "sampling": PLAIN | {"_native"},
    "text": PLAIN,
    "telemetry": PLAIN | {"models", "weights", "_native"},
    "spec_decode": PLAIN | {"sampling"},
    "engine": PLAIN
    | {"kv_cache", "models", "ops", "sampling", "scheduler", "spec_decode", "telemetry", "text", "weights", "_native"},
    "bench": PLAIN | {"engine", "kv_cache", "models", "ops", "quant", "telemetry", "weights", "_native"},
    "server": PLAIN | {"engine", "telemetry", "text"},
    "cli": PLAIN | {"bench", "engine", "server", "kv_cache", "models", "telemetry", "text", "weights", "_native"},
    "__init__": {"engine", *PLAIN},
    "__main__": {"cli"},
}
MODULES = sorted(p.relative_to(SOURCE) for p in SOURCE.rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """Parts of hotloop that a module imports, lazily or not."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "hotloop":
            parts |= {alias.name for alias in node.names}
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        parts |= {name.split(".")[1] for name in names if name and name.startswith("hotloop.")}
    return parts


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_dependencies_point_one_way(module: Path) -> None:
    part = module.parts[0].removesuffix(".py")
    assert part in ALLOWED, f"{module} belongs to no part; say in ALLOWED what it may import"
    forbidden = imports_of(SOURCE / module) - ALLOWED[part] - {part}
    assert not forbidden, f"{module} imports {sorted(forbidden)}"


def all_imports(path: Path) -> set[str]:
    """Every module a module imports, lazily or not."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_the_scheduler_knows_no_arrays_and_no_clock() -> None:
    """Time is an argument, and a simulation can run it anywhere; the managers of the KV cache hold ids only."""
    modules = [m for m in MODULES if m.parts[0] == "scheduler"]
    modules += [m for m in MODULES if m.parts[0] == "kv_cache" and m.name != "storage.py"]
    assert len(modules) > 6
    imported = set().union(*(all_imports(SOURCE / module) for module in modules))
    assert not {name.split(".")[0] for name in imported} & {"numpy", "time", "datetime", "random", "os", "threading"}
    assert "hotloop.kv_cache.storage" not in imported
    code = "import sys, hotloop.scheduler.scheduler; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_kernels_know_no_python() -> None:
    csrc = ROOT / "csrc"
    files = [p for p in csrc.rglob("*") if p.suffix in (".h", ".inl", ".cpp") and "bindings" not in p.parts]
    assert files, "csrc is not beside src"
    assert not [p for p in files if "nanobind" in p.read_text() or "Python.h" in p.read_text()]


def test_instruction_set_flags_stay_on_their_targets() -> None:
    lines = (ROOT / "CMakeLists.txt").read_text().splitlines()
    flagged = [line.strip() for line in lines if re.search(r"-m(avx|fma|f16c|arch|cpu|sse)", line)]
    assert flagged
    # hotloop_target() gives flags to one file of csrc/targets; HOTLOOP_AVX512 is what two of its calls share.
    assert all(line.startswith(("hotloop_target(", "set(HOTLOOP_AVX512 ")) for line in flagged), flagged
    used = [line.strip() for line in lines if "${HOTLOOP_AVX512}" in line]
    assert all(line.startswith("hotloop_target(") for line in used), used


def test_public_names_exist() -> None:
    for name in hotloop.__all__:
        assert getattr(hotloop, name).__module__ == hotloop._HOMES[name]
    with pytest.raises(AttributeError, match="nonsense"):
        hotloop.nonsense  # noqa: B018
