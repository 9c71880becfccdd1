"""The operator's tenants -> the identity script: a table of digests and claims, then the constant code.

Keys are known by their SHA-256 alone: here, on the wire, in Envoy's memory and in its config dump.
"""

from __future__ import annotations

from controlplane.model.policy import Policy
from controlplane.xds import lua_text


def identity_script(policy: Policy, code: str) -> str:
    """The whole script of the identity filter. `code` is `LuaCode.identity`."""
    fields = {
        "identity": lua_text.table({route.id: route.identity.value for route in policy.routes}),
        "digests": lua_text.table(_digests(policy)),
        "jwt_tenants": lua_text.table(_claims(policy)),
    }
    if policy.default_tenant is not None:
        fields["default_tenant"] = lua_text.string(policy.default_tenant)
    providers = [
        (number, lua_text.table({"name": provider.name, "claim": provider.tenant_claim}))
        for number, provider in enumerate(sorted(policy.jwt, key=lambda provider: provider.name), start=1)
    ]
    return (
        f"local POLICY={lua_text.record(**fields, jwt='{}')}\n{lua_text.fill('POLICY.jwt', providers)}{code}"
    )


def closed_script() -> str:
    """The script of both filters until the first real one arrives: 503, and OpenAI's shape of an error."""
    return _CLOSED


def _digests(policy: Policy) -> dict[str, str]:
    return {digest: tenant.id for tenant in policy.tenants for digest in tenant.key_digests}


def _claims(policy: Policy) -> dict[str, str]:
    return {value: tenant.id for tenant in policy.tenants for value in tenant.jwt_values}


_CLOSED = """\
-- The default of the scripted filters: nothing is served before the first configuration.
local BODY = '{"error":{"message":"The gateway has no configuration yet. Try again later.",'
  .. '"type":"server_error","param":null,"code":"gateway_not_ready"}}'
function envoy_on_request(handle)
  local kind = handle:headers():get("content-type")
  local headers = { [":status"] = "503", ["retry-after"] = "1", ["content-type"] = "application/json" }
  if kind == "application/grpc" or (kind and kind:sub(1, 17) == "application/grpc+") then
    headers = { [":status"] = "503", ["retry-after"] = "1", ["grpc-status"] = "14" }
    handle:respond(headers, "The gateway has no configuration yet.")
  end
  handle:respond(headers, BODY)
end
"""
