"""BatchBuilder: a step's schedule as a ForwardBatch, cheaply: arrays live as long as the engine, tables only grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hotloop.ops.batch import ForwardBatch
from hotloop.request import Request, RequestId
from hotloop.scheduler.output import ScheduledRequest

BlockTables = Sequence[Sequence[int]]  # per KV group


class BatchBuilder:
    """Builds one batch after the other; a batch is valid until the next is built.

    Row r of the tables keeps what it held while the same request stays in row r, so a decode step writes only block ids
    that are new. A request's table may change from the block of its first token that is not computed on (growth,
    copy-on-write, rejected drafts) or as a whole (preemption).
    """

    def __init__(
        self, block_sizes: Sequence[int], *, max_requests: int, max_tokens: int, max_model_len: int
    ) -> None:
        """block_sizes: tokens per block of every KV group."""
        self._block_sizes = tuple(block_sizes)
        self._token_ids = np.zeros(max_tokens, np.int32)
        self._positions = np.zeros(max_tokens, np.int32)
        self._query_start = np.zeros(max_requests + 1, np.int32)
        self._seq_lens = np.zeros(max_requests, np.int32)
        self._logits_rows = np.zeros(max_tokens, np.int32)
        self._tables = [np.zeros((max_requests, -(-max_model_len // size)), np.int32) for size in block_sizes]
        self._slots = [np.zeros(max_tokens, np.int64) for _ in block_sizes]
        self._owners: list[Request | None] = [None] * max_requests
        self._preemptions = [0] * max_requests
        self._settled = [[0] * max_requests for _ in block_sizes]  # block ids that are in the row and stay

    def build(
        self, scheduled: Sequence[ScheduledRequest], block_tables: Callable[[RequestId], BlockTables]
    ) -> ForwardBatch:
        """The batch of one step: one row of the tables for each entry; logits as the entries want them, in their order."""
        token_ids: list[int] = []
        positions: list[int] = []
        query_start = [0]
        seq_lens: list[int] = []
        logits_rows: list[int] = []
        slots: list[list[int]] = [[] for _ in self._block_sizes]
        for row, (request, begin, num_new, draws, scores, num_drafts) in enumerate(scheduled):
            end = begin + num_new
            tables = block_tables(request.request_id)
            self._keep_tables(row, request, tables, end - num_drafts)
            if num_new == 1:
                num_prompt = len(request.prompt_token_ids)
                token_ids.append(
                    request.output_token_ids[begin - num_prompt]
                    if begin >= num_prompt
                    else request.prompt_token_ids[begin]
                )
                positions.append(begin)
                for group, size in enumerate(self._block_sizes):
                    slots[group].append(tables[group][begin // size] * size + begin % size)
            else:
                token_ids += request.token_ids(begin, end)
                where = np.arange(begin, end)
                positions += range(begin, end)
                for group, size in enumerate(self._block_sizes):
                    blocks = self._tables[group][row][where // size].astype(np.int64)
                    slots[group] += (blocks * size + where % size).tolist()
            if scores:
                logits_rows += range(query_start[-1] + scores.start - begin, query_start[-1] + scores.stop - begin)
            query_start.append(len(token_ids))
            seq_lens.append(end)
            if draws:
                if num_drafts:
                    logits_rows += range(query_start[-2], len(token_ids) - 1)
                logits_rows.append(len(token_ids) - 1)
        num_tokens, num_requests, num_rows = len(token_ids), len(seq_lens), len(logits_rows)
        self._token_ids[:num_tokens] = token_ids
        self._positions[:num_tokens] = positions
        self._query_start[: num_requests + 1] = query_start
        self._seq_lens[:num_requests] = seq_lens
        self._logits_rows[:num_rows] = logits_rows
        for group, values in enumerate(slots):
            self._slots[group][:num_tokens] = values
        return ForwardBatch(
            token_ids=self._token_ids[:num_tokens],
            positions=self._positions[:num_tokens],
            query_start=self._query_start[: num_requests + 1],
            seq_lens=self._seq_lens[:num_requests],
            logits_rows=self._logits_rows[:num_rows],
            block_tables=tuple(table[:num_requests] for table in self._tables),
            slot_mapping=tuple(slot[:num_tokens] for slot in self._slots),
        )

    def _keep_tables(self, row: int, request: Request, tables: BlockTables, num_computed: int) -> None:
        """Bring row ``row`` of every group's table up to date. num_computed: after this step, whatever becomes of drafts."""
        same = self._owners[row] is request and self._preemptions[row] == request.num_preemptions
        if not same:
            self._owners[row] = None  # nobody's until it is written: Ctrl-C may come in between
        for settled, size, array, table in zip(self._settled, self._block_sizes, self._tables, tables, strict=True):
            begin, end = settled[row] if same else 0, len(table)
            if end - begin <= 3:  # single items beat a slice
                for i in range(begin, end):
                    array[row, i] = table[i]
            else:
                array[row, begin:end] = table[begin:end]
            settled[row] = num_computed // size  # the next one may be copied while it is in another row
        self._preemptions[row] = request.num_preemptions
        self._owners[row] = request

    def forget(self) -> None:
        """Let go of the requests of the last batch."""
        self._owners = [None] * len(self._owners)
