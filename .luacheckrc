-- The scripts run inside Envoy, on LuaJIT; Envoy calls these two functions by name.
std = "luajit"
max_line_length = 120
files["lua/envoy"] = {
  globals = { "envoy_on_request", "envoy_on_response" },
}
