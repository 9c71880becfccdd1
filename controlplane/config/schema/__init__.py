"""The one schema: `tidegate.yaml` (`MainFile`) and tenant files (`TenantFile`, or a `TenantList`).

Pydantic checks shapes and ranges here; what needs more than one field's surroundings is in `lint`.
"""

from controlplane.config.schema.main import MainFile
from controlplane.config.schema.tenant import TenantFile, TenantList

__all__ = ["MainFile", "TenantFile", "TenantList"]
