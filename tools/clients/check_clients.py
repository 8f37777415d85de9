"""Check a live server with real clients: the packages and programs that people point at it.

    check_clients.py --serve PATH_OF_HOTLOOP MODEL    start `hotloop serve MODEL` and check it
    check_clients.py --url URL --api-key KEY MODEL    check a server that runs

Runs without any network but 127.0.0.1. `make test-clients` makes the environment (requirements.txt) and calls it.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or litellm looks for prices in the network when it is imported

import openai_client  # noqa: F401  (each registers its checks)
import other_packages  # noqa: F401
import programs  # noqa: F401
from checks import CHECKS, Server

_KEY = "sk-check"
_START_S = 120


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="what requests call the model; with --serve also the model to load")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--serve", metavar="HOTLOOP", help="the hotloop command")
    where.add_argument("--url", help="of a server, without /v1")
    parser.add_argument("--api-key", default=_KEY)
    parser.add_argument("--only", default="", help="checks whose name contains this")
    options = parser.parse_args()
    if options.url:
        return check_all(Server(options.url, options.api_key, options.model), options.only)
    with serving(options.serve, options.model, options.api_key) as url:
        return check_all(Server(url, options.api_key, options.model), options.only)


def check_all(server: Server, only: str) -> int:
    failed = 0
    chosen = {name: run for name, run in CHECKS.items() if only in name}
    if not chosen:
        raise SystemExit(f"no check has {only!r} in its name; there are: {', '.join(CHECKS)}")
    for name, run in chosen.items():
        begin = time.monotonic()
        try:
            print(f"ok      {name} ({run(server)}; {time.monotonic() - begin:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
    print(f"{failed} failed" if failed else "all passed")
    return 1 if failed else 0


@contextmanager
def serving(hotloop: str, model: str, api_key: str) -> Iterator[str]:
    """The URL of a server of this script's own."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    limits = ["--max-tokens-limit", "64"]  # generated requests ask for as much as there is
    with tempfile.NamedTemporaryFile("w", prefix="hotloop-serve-", suffix=".log", delete=False) as log:
        print(f"the server's log: {log.name}", flush=True)
        command = [hotloop, "serve", model, "--port", str(port), "--api-key", api_key, *limits]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until_ready(process, url)
        yield url
    finally:
        process.terminate()
        status = process.wait(60)
    if status:
        raise SystemExit(f"the server ended with status {status}")


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("the server did not get ready")


if __name__ == "__main__":
    sys.exit(main())
