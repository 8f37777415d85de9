"""EngineConfig: how an engine runs a model. Affects capacity and speed, never output, but for kv_dtype, quantize and
activations; and what applies where a request leaves it open: recommended_sampling, tool_format, and the room there is."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal, get_args

from hotloop.errors import InvalidRequestError
from hotloop.machine import default_num_threads

KVDtype = Literal["f32", "f16", "bf16", "int8"]
QuantizationName = Literal[
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1",
    "q4_k", "q4_k_s", "q4_k_m", "q5_k", "q5_k_s", "q5_k_m", "q6_k",
]  # fmt: skip
SchedulingPolicy = Literal["fcfs", "priority"]
Speculation = Literal["none", "forced"]  # where draft tokens come from
ActivationDtype = Literal["int8", "f32"]  # how linear ops with quantized weights see their input


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """max_model_len: tokens of prompt + output, None for the model's context. max_num_seqs: requests that run together.
    max_num_batched_tokens: tokens of one step. prefill_tokens_beside_decodes: tokens of prompts in a step in which others
    decode; the fewer, the less a long prompt makes others wait and the longer it takes itself; None is no limit of its own
    (`AsyncLLM` has 16 then). block_size: tokens of a KV block. kv_cache_memory_bytes: of the KV pool; None is room for
    max_num_seqs requests of max_model_len, at most half of the free memory. enable_prefix_caching: prompts that begin alike
    share blocks. scheduling_policy: who runs first, by arrival or by (priority, arrival). speculation: "forced" verifies in
    one step tokens that the form of an answer leaves no choice about. threads: None for the physical cores this process may
    use. tool_format: how the model writes tool calls (docs/tool_calls.md), None for what its chat template asks for. isa:
    kernel set, "" for the best (or $HOTLOOP_ISA). quantize: what weights of floats become on loading; None for as they are.
    activations: "f32" is a test mode that skips activation quantization. recommended_sampling: requests that leave a
    sampling parameter open get the model's recommendation (catalog, generation_config.json), not the neutral value.

    Raises: InvalidRequestError naming the field and the allowed values.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    prefill_tokens_beside_decodes: int | None = None
    block_size: int = 16
    kv_dtype: KVDtype = "f16"
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    scheduling_policy: SchedulingPolicy = "fcfs"
    speculation: Speculation = "forced"
    threads: int | None = None
    tool_format: str | None = None
    isa: str = field(default_factory=lambda: os.environ.get("HOTLOOP_ISA", ""))
    quantize: QuantizationName | None = None
    activations: ActivationDtype = "int8"
    recommended_sampling: bool = True

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_model_len", 1, 2**24),
            ("max_num_seqs", 1, 2**12),
            ("max_num_batched_tokens", 1, 2**16),
            ("prefill_tokens_beside_decodes", 1, 2**16),
            ("block_size", 1, 1024),
            ("kv_cache_memory_bytes", 1, 2**63),
            ("threads", 1, 1024),
        ):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and low <= value <= high):
                raise InvalidRequestError(f"{name} is {value!r}; it must be an integer from {low} to {high}")
        for name in ("enable_prefix_caching", "recommended_sampling"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        for name, allowed in (
            ("kv_dtype", get_args(KVDtype)),
            ("scheduling_policy", get_args(SchedulingPolicy)),
            ("speculation", get_args(Speculation)),
            ("activations", get_args(ActivationDtype)),
            ("quantize", (None, *get_args(QuantizationName))),
        ):
            if getattr(self, name) not in allowed:
                known = ", ".join(map(str, filter(None, allowed)))
                raise InvalidRequestError(f"{name} is {getattr(self, name)!r}; it must be one of {known}")

    @property
    def num_threads(self) -> int:
        return self.threads or default_num_threads()
