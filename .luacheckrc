-- Scripts run inside Envoy's LuaJIT: assembled by controlplane/xds/lua_code.py behind tables of the policy.
std = "luajit"
max_line_length = 120
files["lua/envoy"] = {
  read_globals = { "POLICY", "TICK", "answer", "denial", "sha256", "trusted" },
  globals = { "envoy_on_request", "envoy_on_response" },
}
