"""DeltaRouter: several threads read from one engine; one of those that wait polls it for all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from hotloop.engine.client import EngineClient
from hotloop.engine.interrupts import interrupts_deferred
from hotloop.request import Request, RequestId, TokenDelta


class DeltaRouter:
    """Brings the deltas of an engine to the `Mailbox` of the thread that asked for them.

    There is no thread of its own: the engine runs while somebody reads, and steps for all that have requests in it.
    """

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self._changed = threading.Condition()
        self._is_polling = False
        self._mailboxes: dict[RequestId, Mailbox] = {}

    @property
    def num_open(self) -> int:
        """Requests that somebody still reads."""
        return len(self._mailboxes)

    def open(self, mailbox: Mailbox, requests: Sequence[Request]) -> None:
        with self._changed:
            for request in requests:
                self._mailboxes[request.request_id] = mailbox
        self.client.add(requests)

    def close(self, request_ids: Sequence[RequestId], *, abort: bool) -> None:
        with self._changed:
            for request_id in request_ids:
                self._mailboxes.pop(request_id, None)
        if abort:
            self.client.abort(request_ids)

    def next(self, mailbox: Mailbox) -> list[TokenDelta]:
        """Deltas of this mailbox's requests; waits for some. There must be requests to wait for."""
        while True:
            with self._changed:
                while not mailbox.ready and self._is_polling:
                    self._changed.wait()
                if mailbox.ready:
                    deltas = list(mailbox.ready)
                    mailbox.ready.clear()
                    return deltas
            with interrupts_deferred():
                self._poll()

    def _poll(self) -> None:
        """Bring all readers what a step gives, unless another thread is at it."""
        with self._changed:
            if self._is_polling:
                return
            self._is_polling = True
        deltas: list[TokenDelta] = []
        try:
            deltas = self.client.poll()
        finally:
            with self._changed:
                self._is_polling = False
                for delta in deltas:
                    owner = self._mailboxes.get(delta.request_id)
                    if owner is not None:  # else given up while the step ran
                        owner.ready.append(delta)
                self._changed.notify_all()


class Mailbox:
    """The requests of one reader. As a context manager: those still open at the end are aborted."""

    def __init__(self, router: DeltaRouter) -> None:
        self.ready: deque[TokenDelta] = deque()
        self._router = router
        self._open: set[RequestId] = set()

    def __enter__(self) -> Mailbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(sorted(self._open))

    def add(self, requests: Sequence[Request]) -> None:
        self._open.update(request.request_id for request in requests)
        self._router.open(self, requests)

    def next(self) -> list[TokenDelta]:
        """Deltas that arrived; waits for some. Requests that ended with one of them are closed."""
        deltas = self._router.next(self)
        ended = [d.request_id for d in deltas if d.finish_reason is not None or d.error is not None]
        if ended:
            self._open.difference_update(ended)
            self._router.close(ended, abort=False)
        return deltas

    def close(self, request_ids: Sequence[RequestId]) -> None:
        """Give up requests: they leave the engine before its next step."""
        if not request_ids:
            return
        self._open.difference_update(request_ids)
        self._router.close(request_ids, abort=True)
