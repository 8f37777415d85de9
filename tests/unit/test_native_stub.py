"""The typed stub of the native module names what the module has, member by member."""

import ast
from pathlib import Path

from hotloop import _native

STUB = ast.parse((Path(__file__).parents[2] / "src/hotloop/_native.pyi").read_text())


def public(names: object) -> set[str]:
    return {name for name in dir(names) if not name.startswith("_")}


def test_the_stub_lists_what_the_module_has() -> None:
    stubbed = {node.name for node in STUB.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert stubbed == public(_native)


def test_the_stub_lists_the_members_of_each_class() -> None:
    for node in STUB.body:
        if not isinstance(node, ast.ClassDef):
            continue
        members = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        members |= {t.id for n in node.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
        enum = any("Enum" in ast.unparse(base) for base in node.bases)
        expected = public(getattr(_native, node.name)) - ({"name", "value"} if enum else set())
        assert {m for m in members if not m.startswith("_")} == expected, node.name
