-- lua/envoy runs inside Envoy's LuaJIT: assembled by controlplane/xds/lua_code.py behind tables of the policy.
-- lua/redis runs inside Redis' Lua 5.1.
std = "luajit"
max_line_length = 120
files["lua/envoy"] = {
  read_globals = { "POLICY", "TICK", "answer", "breaker", "denial", "sha256", "trusted", "usage" },
  globals = { "envoy_on_request", "envoy_on_response" },
}
files["lua/redis"] = {
  std = "lua51",
  read_globals = { "redis", "cjson", "KEYS", "ARGV" },
}
