"""Errors that reach a user. Each message names the offending value and says how to mend it."""


class HotloopError(Exception):
    """Base of every error hotloop raises on purpose."""


class ModelFileError(HotloopError):
    """A model file is malformed, truncated, hostile, or uses mathematics hotloop does not implement.

    The message names the file and the tensor or metadata key.
    """


class ModelNotFoundError(HotloopError):
    """A catalog name, path or hub reference does not lead to a model file."""


class DownloadError(HotloopError):
    """A download failed: offline, gated, disk full, or a checksum that does not match."""


class InvalidRequestError(HotloopError, ValueError):
    """A request (prompt, messages or sampling parameters) cannot be served as written."""


class ContextLengthError(InvalidRequestError):
    """A prompt, or a prompt and max_tokens, longer than the context."""


class OverloadedError(HotloopError):
    """The queue is full. retry_after_s: when there should be room again."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineError(HotloopError):
    """The time that a request gave itself is over."""


class EngineDeadError(HotloopError):
    """The engine's process ended and this request could not go on in a new one."""


class ShutdownError(HotloopError):
    """The server ends before the request could."""


class CapacityError(HotloopError):
    """A request or a configuration that can never fit in this machine's memory."""
