"""What the loop reports -> log lines."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.serve.changes import Change, Changes
from controlplane.serve.log import Logger, log_changes, log_nack


class LoggedEvents:
    """`loop.Events` on a structured logger."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def changed(self, lines: Sequence[Change], *, omitted: int = 0) -> None:
        log_changes(self._logger, Changes(lines=lines, omitted=omitted))

    def rejected(self, node: str, type_name: str, origins: Sequence[str], reason: str) -> None:
        log_nack(self._logger, node=node, type_name=type_name, origins=origins, reason=reason)

    def tick_failed(self, error: Exception) -> None:
        self._logger.error("tick_failed", error=f"{type(error).__name__}: {error}", exc_info=error)

    def gateway(self, node: str, address: str, *, connected: bool, gateways: int) -> None:
        event = "gateway_connected" if connected else "gateway_disconnected"
        self._logger.info(event, node=node, address=address, sharing=gateways)
