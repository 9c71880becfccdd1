"""Wiring: config + signals -> decide -> xds -> Envoy, and what people see of it."""
