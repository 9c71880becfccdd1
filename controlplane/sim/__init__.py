"""Stand-ins for what Tidegate steers: model servers, their GPUs, and the clients.

`engine` is the physics of a continuous-batching server without I/O or clock; `pods` puts it behind the HTTP
surface of vLLM and the metrics of a DCGM exporter; `trace` and `load` offer it real traffic.
"""
