"""Tidegate: the adaptive traffic control plane for LLM serving on Envoy."""

__version__ = "0.1.0"
