"""Counters and histograms of one engine: what a run turns into the numbers behind `/metrics`.

Bucket bounds are those of vLLM's v1 engine, so that a quantile read from a simulated pod has the same
resolution (and the same blind spots: nothing below 0.3 s in the request-time histograms) as a real one.
"""

from __future__ import annotations

from bisect import bisect_left

TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BOUNDS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_BOUNDS_TOKENS = (
    1.0,
    8.0,
    16.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
    16384.0,
)
FINISH_REASONS = ("stop", "length", "abort", "error")


def bounds_1_2_5(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to `largest`: the bounds of the token-count histograms."""
    bounds: list[float] = []
    decade = 1
    while decade <= largest:
        bounds += [float(decade * digit) for digit in (1, 2, 5) if decade * digit <= largest]
        decade *= 10
    return tuple(bounds)


class Histogram:
    """A Prometheus histogram: `counts[i]` observations fell in (bounds[i-1], bounds[i]], the last more."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean of all observations, None without any."""
        return self.total / self.count if self.count else None


class Stats:
    """Everything one engine has counted since it started. Times in seconds."""

    def __init__(self, *, max_model_len: int) -> None:
        self.max_model_len = max_model_len
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.ttft_s = Histogram(TTFT_BOUNDS_S)
        self.inter_token_s = Histogram(TOKEN_GAP_BOUNDS_S)
        self.per_output_token_s = Histogram(TOKEN_GAP_BOUNDS_S)
        self.e2e_s = Histogram(REQUEST_BOUNDS_S)
        self.queue_s = Histogram(REQUEST_BOUNDS_S)
        self.inference_s = Histogram(REQUEST_BOUNDS_S)
        self.prefill_s = Histogram(REQUEST_BOUNDS_S)
        self.decode_s = Histogram(REQUEST_BOUNDS_S)
        self.step_tokens = Histogram(STEP_BOUNDS_TOKENS)
        bounds = bounds_1_2_5(max_model_len)
        self.request_prompt_tokens = Histogram(bounds)
        self.request_generation_tokens = Histogram(bounds)
        self.request_max_tokens = Histogram(bounds)

    def count_finished(
        self,
        *,
        reason: str,
        times_s: tuple[float, float, float, float],
        prompt_tokens: int,
        generated_tokens: int,
    ) -> None:
        """One request is done; `times_s`: it arrived, entered a slot, had its first and its last token."""
        arrived_s, started_s, first_s, last_s = times_s
        self.finished[reason] += 1
        self.e2e_s.observe(last_s - arrived_s)
        self.queue_s.observe(started_s - arrived_s)
        self.inference_s.observe(last_s - started_s)
        self.prefill_s.observe(first_s - started_s)
        self.decode_s.observe(last_s - first_s)
        if generated_tokens > 1:
            self.per_output_token_s.observe((last_s - first_s) / (generated_tokens - 1))
        self.request_prompt_tokens.observe(prompt_tokens)
        self.request_generation_tokens.observe(generated_tokens)
