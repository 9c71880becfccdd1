"""A pool's name in Envoy's statistics, and back.

Envoy turns `:` into `_` in the name of a cluster's statistics, and by default takes the text up to the
first dot as its label. `~` cannot occur in an id, so it stands for the colon and closes the name; the
bootstrap has a tag rule that takes everything up to the closing `~`. The label reads `llama-3.1~r2`, and
`pool_id` turns it back.
"""

from __future__ import annotations


def stat_name(pool_id: str) -> str:
    """`llama-3.1:r2` -> `llama-3.1~r2~`."""
    return pool_id.replace(":", "~") + "~"


def pool_id(label: str) -> str | None:
    """The pool a cluster label stands for; None when it is not a pool's (the control plane's own cluster)."""
    model, tilde, version = label.rstrip("~").partition("~")
    return f"{model}:{version}" if tilde and model and version else None
