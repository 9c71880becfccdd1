"""`/metrics` as vLLM's v1 engine shows it: stats in, families with its names, labels and buckets out.

Names are those after the renaming of late 2025 (`vllm:kv_cache_usage_perc`,
`vllm:inter_token_latency_seconds`). As in vLLM no label has the model's version, and no counter failures.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.sim.exposition import Family, Labels
from controlplane.sim.stats import Histogram, Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What an engine holds now."""

    running: int
    waiting: int
    kv_usage_ratio: float
    kv_blocks: int
    block_tokens: int


def families(stats: Stats, now: Occupancy, *, model_name: str, engine: str = "0") -> list[Family]:
    """Every family, in the order a real server prints them."""
    labels: Labels = (("model_name", model_name), ("engine", engine))
    return [
        *_gauges(now, labels),
        *_counters(stats, labels),
        *(Family(f"vllm:{name}", "histogram", about, (), h, labels) for name, about, h in _histograms(stats)),
        Family(
            "vllm:cache_config_info",
            "gauge",
            "Information of the LLMEngine CacheConfig",
            (((*_cache_labels(now), ("engine", engine)), 1.0),),
        ),
    ]


def _gauges(now: Occupancy, labels: Labels) -> list[Family]:
    rows = (
        ("num_requests_running", "Number of requests in model execution batches.", float(now.running)),
        ("num_requests_waiting", "Number of requests waiting to be processed.", float(now.waiting)),
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", now.kv_usage_ratio),
    )
    return [Family(f"vllm:{name}", "gauge", about, ((labels, value),)) for name, about, value in rows]


def _counters(stats: Stats, labels: Labels) -> list[Family]:
    rows = (
        ("prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", 0),
        ("prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", 0),
        ("num_preemptions_total", "Cumulative number of preemption from the engine.", stats.preemptions),
        ("prompt_tokens_total", "Number of prefill tokens processed.", stats.prompt_tokens),
        ("generation_tokens_total", "Number of generation tokens processed.", stats.generation_tokens),
    )
    plain = [Family(f"vllm:{name}", "counter", about, ((labels, float(n)),)) for name, about, n in rows]
    finished = tuple(
        ((*labels, ("finished_reason", reason)), float(count)) for reason, count in stats.finished.items()
    )
    about = "Count of successfully processed requests."
    return [*plain, Family("vllm:request_success_total", "counter", about, finished)]


def _histograms(stats: Stats) -> list[tuple[str, str, Histogram]]:
    of = "Histogram of "
    return [
        ("request_prompt_tokens", "Number of prefill tokens processed.", stats.request_prompt_tokens),
        (
            "request_generation_tokens",
            "Number of generation tokens processed.",
            stats.request_generation_tokens,
        ),
        ("iteration_tokens_total", of + "number of tokens per engine_step.", stats.step_tokens),
        ("request_params_max_tokens", of + "the max_tokens request parameter.", stats.request_max_tokens),
        ("time_to_first_token_seconds", of + "time to first token in seconds.", stats.ttft_s),
        ("inter_token_latency_seconds", of + "inter-token latency in seconds.", stats.inter_token_s),
        (
            "request_time_per_output_token_seconds",
            of + "time_per_output_token_seconds per request.",
            stats.per_output_token_s,
        ),
        ("e2e_request_latency_seconds", of + "e2e request latency in seconds.", stats.e2e_s),
        ("request_queue_time_seconds", of + "time spent in WAITING phase for request.", stats.queue_s),
        (
            "request_inference_time_seconds",
            of + "time spent in RUNNING phase for request.",
            stats.inference_s,
        ),
        ("request_prefill_time_seconds", of + "time spent in PREFILL phase for request.", stats.prefill_s),
        ("request_decode_time_seconds", of + "time spent in DECODE phase for request.", stats.decode_s),
    ]


def _cache_labels(now: Occupancy) -> Labels:
    return (
        ("block_size", str(now.block_tokens)),
        ("cache_dtype", "auto"),
        ("enable_prefix_caching", "False"),
        ("gpu_memory_utilization", "0.9"),
        ("num_gpu_blocks", str(now.kv_blocks)),
    )
