"""The engine's process with faults: a prompt's first token says which, so that it is the request that is rigged.

``python -m engine.faulty_worker FOLDER``. A forward pass takes some milliseconds, so that a test can interfere.
"""

import os
import signal
import time
from typing import Any

from hotloop.engine import worker
from hotloop.engine.model_runner import ModelRunner
from hotloop.ops.batch import ForwardBatch

KILLS_AT_ONCE, KILLS_LATER, TALKS_NONSENSE = 299, 298, 297
LATER = 30  # the position at which it happens

_forward = ModelRunner.forward
_first_tokens: dict[int, int] = {}  # of the request that has this block as its first


def forward(self: ModelRunner, batch: ForwardBatch) -> Any:
    time.sleep(0.003)
    for i in range(len(batch.seq_lens)):
        begin, last = batch.query_start[i], batch.query_start[i + 1] - 1
        block = int(batch.block_tables[0][i][0])
        if batch.positions[begin] == 0:
            _first_tokens[block] = int(batch.token_ids[begin])
        fault = _first_tokens.get(block)
        if fault == KILLS_AT_ONCE or (fault == KILLS_LATER and batch.positions[last] >= LATER):
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == TALKS_NONSENSE:
            worker.encode = lambda message: b"\xc1"
    return _forward(self, batch)


if __name__ == "__main__":
    ModelRunner.forward = forward  # type: ignore[method-assign]
    worker.main()
