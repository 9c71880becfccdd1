"""The operator's mode -> the RTDS layer: switches that take effect in milliseconds and touch no bucket."""

from __future__ import annotations

from controlplane.model.policy import Mode
from controlplane.pb import tidegate_resources_pb2 as pb
from controlplane.xds.names import RUNTIME_ENFORCED, RUNTIME_LAYER


def runtime(mode: Mode) -> pb.Runtime:
    """`tidegate.enforced` is a fraction: a plain number would be read as a percentage of another scale."""
    layer = pb.Runtime(name=RUNTIME_LAYER)
    layer.layer.update(
        {
            RUNTIME_ENFORCED: {
                "numerator": 100 if mode is Mode.ENFORCE else 0,
                "denominator": "HUNDRED",
            }
        }
    )
    return layer
