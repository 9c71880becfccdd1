"""The words: frozen dataclasses that every room shares.

Nothing here does I/O or knows a clock. `policy` is what the operator wrote, `signal` what was measured,
`decision` what was judged and why, `resource` what Envoy is sent.
"""
