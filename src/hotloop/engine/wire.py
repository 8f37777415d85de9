"""What a client's process and the engine's say to each other: msgspec messages over ZeroMQ.

Plain data (Request, TokenDelta, StepReport ...) travels as it is; tuples, of which a step sends many, as arrays. Moments are
of time.perf_counter, which the processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from hotloop import errors
from hotloop.config import EngineConfig
from hotloop.engine.client import EngineInfo
from hotloop.errors import EngineDeadError, HotloopError
from hotloop.request import Request, RequestId, TokenDelta
from hotloop.telemetry.steps import StepReport

COMMANDS, REPORTS = "commands", "reports"  # the two sockets, files in the folder that a worker gets


class Message(msgspec.Struct, array_like=True, tag=True):
    pass


# ---- to the engine ------------------------------------------------------------------------------------------------------


class Start(Message):
    """The first command: load this. log_level: of what is worth a `Logged`."""

    path: str
    config: EngineConfig
    log_level: int


class Add(Message):
    requests: list[Request]


class Abort(Message):
    request_ids: list[RequestId]


Command: TypeAlias = Start | Add | Abort

# ---- from the engine ----------------------------------------------------------------------------------------------------


class Ready(Message):
    """The engine is loaded."""

    info: EngineInfo


class StartFailed(Message):
    """It could not be. kind: the error's class; one that users know is in `hotloop.errors`."""

    kind: str
    message: str

    @property
    def error(self) -> HotloopError:
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, HotloopError):
            return kind(self.message)
        return EngineDeadError(f"the engine could not be loaded: {self.kind}: {self.message}")


class StepDone(Message):
    """A step ended, or the last requests left between two, or none has come yet (no record and no deltas then)."""

    report: StepReport
    deltas: list[TokenDelta]


class Refused(Message):
    """An `Add` that passed the client's checks and not the engine's."""

    request_ids: list[RequestId]
    message: str


class Logged(Message):
    """A log record; the client's process writes the log."""

    level: int
    logger: str
    text: str


Report: TypeAlias = Ready | StartFailed | StepDone | Refused | Logged


def _plain(value: Any) -> Any:
    """What `SamplingParams` lets through beside plain lists and numbers: subclasses of numbers, any collection."""
    for plain in (int, float, str):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, Iterable):
        return list(value)
    raise NotImplementedError(f"{type(value).__name__} does not travel")


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
