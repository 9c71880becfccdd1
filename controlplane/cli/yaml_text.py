"""Plain values -> YAML that every reader understands alike: each text value is quoted.

`n`, `on` and `1e3` are names here and booleans or numbers there, and YAML libraries differ on which; Envoy's
reads more of them as booleans than Python's.
"""

from __future__ import annotations

from typing import Any

import yaml

_AMBIGUOUS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class _Quoting(yaml.SafeDumper):
    """Text in double quotes, or as a block when it has several lines; field names plain where they may be."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else '"')


def _mapping(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.MappingNode:
    node = dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=False)
    for key, _ in node.value:
        if key.value.isidentifier() and key.value.isascii() and key.value.lower() not in _AMBIGUOUS:
            key.style = None
    return node


_Quoting.add_representer(str, _text)
_Quoting.add_representer(dict, _mapping)


def yaml_text(value: Any) -> str:
    """`value` (dicts, lists, texts, numbers, booleans, None) as a YAML document, in the given order."""
    return yaml.dump(value, Dumper=_Quoting, sort_keys=False, width=110, allow_unicode=True)
