"""The configuration edge: files in, a `model.policy.Policy` out, and every problem with its file and line.

bytes -> `document` (values with lines) -> `validate` (the schema's sections) -> `compile_*` (a Policy) and
`lint_*` (what one field does not show) -> `choose` (which version of each tenant takes effect). `load`
ties them together.
"""

from controlplane.config.load import Loaded, load
from controlplane.config.problem import Problem, Severity
from controlplane.config.watch import watch

__all__ = ["Loaded", "Problem", "Severity", "load", "watch"]
