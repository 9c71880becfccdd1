"""`tidegate demo`: the product on one machine, with a real Envoy, and a verdict at its end."""
