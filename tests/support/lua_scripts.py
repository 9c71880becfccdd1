"""The scripts in LuaJIT, as Envoy runs them, against the hand-made handle of lua/spec/handle.lua."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lupa import luajit21
from sample_policy import decision_of, policy_of

from controlplane.assets import read_asset
from controlplane.model.decision import Decision
from controlplane.model.policy import Policy
from controlplane.xds.lua_code import lua_code
from controlplane.xds.lua_identity import identity_script
from controlplane.xds.lua_limits import limits_script

Headers = Sequence[tuple[str, str]]
CODE = lua_code(read_asset)


class Script:
    """One filter's script in a virtual machine of its own."""

    def __init__(self, text: str) -> None:
        self.lua = luajit21.LuaRuntime(unpack_returned_tuples=True, encoding="latin-1")
        self.spec = self.lua.execute(read_asset("lua/spec/handle.lua"))
        self.lua.globals().pairs = self.spec.pairs
        self.lua.execute(text)
        self.world = self.spec.world()

    def stream(
        self,
        *,
        route: str | None = "chat",
        headers: Headers = (),
        trailers: Headers | None = None,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Stream:
        request = {
            "route": route,
            "headers": [list(entry) for entry in headers],
            "trailers": None if trailers is None else [list(entry) for entry in trailers],
            "metadata": metadata,
        }
        return Stream(self, self.spec.stream(self.world, self._table(request)))

    def counters(self) -> dict[str, int]:
        return dict(self.world.counters)

    def histograms(self) -> dict[str, list[float]]:
        return {name: list(values.values()) for name, values in self.world.histograms.items()}

    def _table(self, value: object) -> Any:
        if isinstance(value, Mapping):
            return self.lua.table_from(
                {key: self._table(entry) for key, entry in value.items() if entry is not None}
            )
        if isinstance(value, list):
            return self.lua.table_from([self._table(entry) for entry in value])
        return value


class Stream:
    """One request and its answer."""

    def __init__(self, script: Script, stream: Any) -> None:
        self._script = script
        self._stream = stream

    def request(self) -> Stream:
        self._stream.on_request(self._script.lua.globals().envoy_on_request)
        return self

    def respond(
        self, headers: Headers = ((":status", "200"),), chunks: Sequence[tuple[int, str]] = ()
    ) -> Stream:
        table = self._script._table
        self._stream.on_response(
            self._script.lua.globals().envoy_on_response,
            table([list(entry) for entry in headers]),
            table([list(chunk) for chunk in chunks]),
        )
        return self

    @property
    def refusal(self) -> dict[str, str] | None:
        """Headers of the answer the script gave itself."""
        return None if self._stream.answer is None else dict(self._stream.answer.headers)

    @property
    def refusal_body(self) -> str:
        return str(self._stream.answer.body)

    @property
    def upstream(self) -> list[tuple[str, str]]:
        """The request's headers after the script."""
        return _pairs(self._stream.request)

    @property
    def upstream_trailers(self) -> list[tuple[str, str]]:
        return _pairs(self._stream.trailers)

    @property
    def response(self) -> dict[str, str]:
        return dict(_pairs(self._stream.response))

    @property
    def body(self) -> str | None:
        body: str | None = self._stream.body
        return body

    @property
    def metadata(self) -> dict[str, Any]:
        found = self._stream.metadata.namespaces["tg"]
        return {} if found is None else dict(found)

    @property
    def pieces(self) -> int:
        """How many pieces of the body the script looked at."""
        return int(self._stream.pieces or 0)

    @property
    def errors(self) -> list[str]:
        return list(self._stream.errors.values())

    @property
    def cleared(self) -> int:
        return int(self._stream.cleared)


def _pairs(header_map: Any) -> list[tuple[str, str]]:
    return [(entry[1], entry[2]) for entry in header_map.entries.values()]


def identity(policy: Policy | None = None, **more: Any) -> Script:
    """The identity filter of `policy`; keyword arguments make one."""
    return Script(identity_script(policy or policy_of(**more), CODE.identity))


def limits(policy: Policy | None = None, decision: Decision | None = None, **more: Any) -> Script:
    """The limits filter of `policy` and `decision`."""
    made = policy or policy_of(**more)
    return Script(limits_script(made, decision or decision_of(made), CODE.limits))
