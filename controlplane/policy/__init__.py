"""LLM-token quotas: what gateways ask about each request -> whether the tenant's quotas still cover it."""
