"""How fast and how large a simulated pod is, and how many requests a second it can serve.

A step of continuous batching takes

    base + per_sequence * decoding + per_kv_token * context of the decoding + prompt tokens / prefill speed

The defaults describe an 8B-class model on one large GPU; docs/simulator.md has their sources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Final footprints of the batch as a part of the KV cache at the knee: fuller, and preemption sets in.
KV_PLANNED_RATIO = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPhysics:
    """Durations in seconds, sizes in tokens."""

    step_base_s: float = 0.010
    step_per_seq_s: float = 80e-6
    step_per_kv_token_s: float = 0.1e-6
    prefill_tokens_per_s: float = 12_500.0  # 80 us a token
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    kv_blocks: int = 7_500  # of 16 tokens: 120,000
    block_tokens: int = 16

    def faster(self, ratio: float) -> PodPhysics:
        """The same pod, every step `ratio` times as fast."""
        return replace(
            self,
            step_base_s=self.step_base_s / ratio,
            step_per_seq_s=self.step_per_seq_s / ratio,
            step_per_kv_token_s=self.step_per_kv_token_s / ratio,
            prefill_tokens_per_s=self.prefill_tokens_per_s * ratio,
        )


def capacity_per_s(physics: PodPhysics, prompt_tokens: float, answer_tokens: float) -> float:
    """Requests/s of one pod with its batch as full as memory and slots allow, for requests of these means.

    In such a batch of n, a request costs its prefill and, for each token of its answer, an n-th of a step.
    """
    footprint = prompt_tokens + answer_tokens
    batch = KV_PLANNED_RATIO * physics.kv_blocks * physics.block_tokens / footprint
    batch = max(1.0, min(batch, float(physics.max_num_seqs)))
    context = prompt_tokens + answer_tokens / 2
    step_s = physics.step_base_s + batch * (physics.step_per_seq_s + physics.step_per_kv_token_s * context)
    return 1.0 / (prompt_tokens / physics.prefill_tokens_per_s + answer_tokens * step_s / batch)
