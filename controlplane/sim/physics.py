"""What a simulated server is, and what is broken about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """How fast and how large a server is. Defaults are a small model on one mid-range GPU."""

    max_num_seqs: int = 32  # slots
    prefill_tokens_per_s: float = 8000.0
    step_base_s: float = 0.012  # a decode step of an almost empty batch
    step_per_seq_s: float = 0.0004  # added by each decoding sequence
    max_num_batched_tokens: int = 2048  # token budget of a step
    kv_blocks: int = 4096
    block_tokens: int = 16
    max_model_len: int = 8192
    answer_tokens: int = 64  # where the model would stop by itself
    warmup_s: float = 0.0
    warmup_slowdown: float = 0.0  # 0: refuse until warm; else serve, this many times slower

    def faster(self, time_scale: float) -> Physics:
        """The same server with every duration divided by `time_scale`."""
        return replace(
            self,
            prefill_tokens_per_s=self.prefill_tokens_per_s * time_scale,
            step_base_s=self.step_base_s / time_scale,
            step_per_seq_s=self.step_per_seq_s / time_scale,
            warmup_s=self.warmup_s / time_scale,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is broken now. The engine obeys the first group, the HTTP surface the others."""

    latency_factor: float = 1.0  # every step takes this many times longer
    hang: bool = False  # nothing advances; connections stay open
    kv_reserved_ratio: float = 0.0  # part of the KV cache lost to a leak

    failure_ratio: float = 0.0  # part of the requests answered `failure_status` at once, evenly spread
    failure_status: int = 500
    kv_oom: bool = False  # every new request fails: out of memory
    cut_ratio: float = 0.0  # part of the streams cut after the first token
    usage: bool = True  # False: answers carry no usage, whatever the client asked

    metrics_status: int = 200  # what /metrics answers
    hide_metrics: tuple[str, ...] = ()  # metric families that vanish
    rename_metrics: Mapping[str, str] = field(default_factory=dict)  # metric families that change their name
