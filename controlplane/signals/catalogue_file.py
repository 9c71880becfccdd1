"""The text of a catalogue file -> checked words, or one error that names file, line, path and what was
expected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from controlplane.model.signal import SIGNALS

MetricName = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")]
Unit = Literal["percent", "ratio", "s", "ms", "us", "count", "per_s"]
Join = Literal["mean", "sum", "max"]


class CatalogueError(ValueError):
    """The operator's catalogue file is wrong. One line for each mistake: `file:line path: what`."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SignalSpec(_Strict):
    """The `signals` part: what a signal means."""

    unit: Unit
    range: tuple[float, float]
    across: Join = "mean"
    optional: bool = False

    @field_validator("range")
    @classmethod
    def _ascending(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not value[0] < value[1]:
            raise ValueError("must be [low, high] with low < high")
        return value


class MetricSpec(_Strict):
    """One candidate metric of a signal."""

    metric: MetricName
    kind: Literal["gauge", "counter", "histogram", "ratio"] = "gauge"
    unit: Unit
    within: Join = "mean"
    across: Join | None = None
    where: dict[str, str] = Field(default_factory=dict)
    of: list[MetricName] = Field(default_factory=list)
    minus: list[MetricName] = Field(default_factory=list)
    recorded: MetricName | None = None

    @model_validator(mode="after")
    def _ratio_has_a_whole(self) -> MetricSpec:
        if (self.kind == "ratio") != bool(self.of):
            raise ValueError(
                "`of` (the counters of all requests) belongs to kind ratio, and a ratio needs it"
            )
        if self.minus and self.kind != "ratio":
            raise ValueError("`minus` belongs to kind ratio")
        return self


class EngineSpec(_Strict):
    """One engine: its labels and its metrics by signal."""

    model_labels: list[str] | None = None
    version_labels: list[str] | None = None
    replica_labels: list[str] | None = None
    signals: dict[str, list[MetricSpec]] = Field(default_factory=dict)

    @field_validator("signals")
    @classmethod
    def _known(cls, value: dict[str, list[MetricSpec]]) -> dict[str, list[MetricSpec]]:
        return _known_signals(value)


class CatalogueFile(_Strict):
    """A whole file, and where in it things were written."""

    signals: dict[str, SignalSpec] = Field(default_factory=dict)
    engines: dict[str, EngineSpec] = Field(default_factory=dict)
    _file: str = PrivateAttr("")
    _root: yaml.Node | None = PrivateAttr(None)

    @field_validator("signals")
    @classmethod
    def _known(cls, value: dict[str, SignalSpec]) -> dict[str, SignalSpec]:
        return _known_signals(value)

    def where(self, *path: str | int) -> str:
        """`file:line path` of what was written at `path`."""
        return _where(self._file, self._root, path)


def _known_signals(value: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(value) - set(SIGNALS))
    if unknown:
        raise ValueError(f"unknown signal {unknown[0]!r}; known: {', '.join(SIGNALS)}")
    return value


def parse(path: Path) -> CatalogueFile:
    """The checked content of `path`; raises CatalogueError with one line for each mistake."""
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
        content = yaml.load(text, Loader=yaml.CSafeLoader)
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CatalogueError(f"{path}: not YAML: {error}") from error
    try:
        file = CatalogueFile.model_validate(content if content is not None else {})
    except ValidationError as error:
        lines = [f"{_where(str(path), root, each['loc'])}: {each['msg']}" for each in error.errors()]
        raise CatalogueError("\n".join(lines)) from error
    file._file, file._root = str(path), root
    return file


def _where(file: str, root: yaml.Node | None, path: tuple[str | int, ...]) -> str:
    """`file:line path`: the line of the deepest node on `path` that exists."""
    node = root
    for step in path:
        child = _child(node, step)
        if child is None:
            break
        node = child
    line = node.start_mark.line + 1 if node is not None else 1
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return f"{file}:{line} {dotted}"


def _child(node: yaml.Node | None, step: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == str(step)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        found: yaml.Node = node.value[step]
        return found
    return None
