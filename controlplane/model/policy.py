"""What the operator wrote, checked and compiled: the input of judgement and translation.

`config` builds a `Policy` from YAML; `decide` and `xds` only read it. Ids are canonical (checked by
`config`): no `|`, `~`, control characters or blanks, so that joined keys are unambiguous.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """Whether Envoy refuses (`enforce`) or only counts what it would have refused (`observe`)."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class Curve(StrEnum):
    """M1: how utilisation becomes a rate factor."""

    TABLE = "table"
    FORMULA = "formula"
    STRICT80 = "strict80"


class SignalChoice(StrEnum):
    """Which utilisation feeds the curve: the raw counter, or the effective one (M1 guard a)."""

    GPU_UTIL = "gpu_util"
    EFFECTIVE = "effective"


class BaseMode(StrEnum):
    """`static` keeps `base_rate_per_s`; `auto` takes it from the capacity loop."""

    STATIC = "static"
    AUTO = "auto"


class Priority(StrEnum):
    """M9 priority classes, most important first."""

    HIGH = "high-priority"
    NORMAL = "normal"
    BATCH = "batch-low"


class ModelFrom(StrEnum):
    """Where a route reads the model name of a request."""

    BODY = "body"  # JSON field `model`
    HEADER = "header"  # a request header (or gRPC metadata key)
    FIXED = "fixed"  # the route serves one model


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRef:
    """Where in the operator's files a thing was written; shown with errors and NACKs."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """M1 guards. `enabled: false` gives the literal formulas."""

    enabled: bool = True
    slew_up_ratio: float = 0.10  # largest rise per 5 s
    slew_down_ratio: float = 0.30  # largest fall per 5 s
    dead_band_points: float = 5.0  # percentage points of utilisation
    dead_band_ticks: int = 3  # ticks on one side that close the band
    ewma_tau_s: float = 2.0  # time constant of the utilisation filter
    uninformative: bool = True  # guard (b): a signal that says nothing loses its vote


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePolicy:
    """M1 for one model-version pool. Rates are requests/s over the whole fleet of gateways."""

    base_rate_per_s: float = 100.0
    curve: Curve = Curve.TABLE
    signal: SignalChoice = SignalChoice.GPU_UTIL
    base_mode: BaseMode = BaseMode.STATIC
    burst_s: float = 1.0
    guards: Guards = field(default_factory=Guards)
    max_age_s: float = 15.0  # a reading older than this is stale
    hold_s: float = 60.0  # stale or absent: rates are held this long ...
    decay_s: float = 120.0  # ... then decay within this time ...
    contract_rate_per_s: float = 40.0  # ... to this, never raised meanwhile; also the rate before any reading
    ttft_slo_s: float = 2.0
    target_waiting: float = 8.0  # queued requests per endpoint that count as full


class Strategy(StrEnum):
    """M11: what the slow-call threshold follows."""

    STATIC = "static"  # the SLO
    MOVING_AVERAGE = "moving_average"  # the mean p95 of 15 minutes
    DRIFT = "drift"  # the p95, and how far it is from that mean


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """M11 to M13 for one model-version pool."""

    enabled: bool = True
    strategy: Strategy = Strategy.DRIFT
    guards: bool = True  # False: the threshold is the formula to the letter
    slo_s: float | None = None  # time to first byte that was promised; None: nothing was
    failure_rate_threshold: float = 0.10  # 0..1
    open_s: float = 30.0  # first dwell; doubles with each further opening
    half_open_timeout_s: float = 60.0  # longest stay in half-open with enough probes
    warmup_s: float = 0.0  # how long a new model server takes until it is fast


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One model server process. `address` is an IP or a DNS name."""

    address: str
    port: int
    metrics_url: str | None = None  # its /metrics; None: not scraped
    pod: str | None = None  # Kubernetes pod name, joins GPU metrics to the endpoint
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The endpoints that serve one model version; the unit that has one rate."""

    model: str
    version: str
    endpoints: tuple[Endpoint, ...]
    dns: bool = False  # endpoints are names to resolve (STRICT_DNS), not addresses (EDS)
    http2: bool = False
    engine: str = "vllm"  # which names of the signal catalogue its metrics use
    model_label: str | None = None  # value of the engine's own model label, default `model`
    rate: RatePolicy = field(default_factory=RatePolicy)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    connect_timeout_s: float = 2.0
    max_requests: int = 1024  # static in-flight ceiling of the cluster
    ref: SourceRef = SourceRef(file="", line=0)

    @property
    def id(self) -> str:
        """`model:version`, the name used in keys, headers, metrics and cluster names."""
        return f"{self.model}:{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model name clients use, its versions, and the version a bare name means."""

    name: str
    versions: tuple[str, ...]
    default_version: str


class IdentityMode(StrEnum):
    """What a route does with a request whose identity is missing or not verified."""

    REQUIRED = "required"  # 401
    DEFAULT_TENANT = "default_tenant"  # counted as the configured default tenant
    NONE = "none"  # no identity is looked for; trusted headers are stripped all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path pattern. `pattern` is exact, or a prefix when it ends in `/*`; order is significant."""

    id: str
    pattern: str
    models: tuple[str, ...]  # model names served here; empty on free routes without an upstream model
    model_from: ModelFrom = ModelFrom.BODY
    model_header: str | None = None
    fixed_model: str | None = None  # `model` or `model:version`
    identity: IdentityMode = IdentityMode.REQUIRED
    free: bool = False  # never charged
    unknown_model_status: int = 404
    idle_timeout_s: float = 300.0
    max_stream_duration_s: float = 3600.0
    ref: SourceRef = SourceRef(file="", line=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtProvider:
    """One issuer whose verified claim names the tenant."""

    name: str
    issuer: str
    audiences: tuple[str, ...]
    jwks_json: str  # inline JWKS; `config` reads the file
    tenant_claim: str = "tenant"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimit:
    """M6: `tokens` per `window_s` for each distinct key, beside the adaptive rate.

    `key_fields` is a subset of (`tenant_id`, `model_version`, `path`); `path` is the route's pattern.
    A None selector matches everything. Sustained rate = tokens / window_s; burst <= `burst_tokens`.
    """

    name: str
    tokens: float
    window_s: float
    burst_tokens: float
    key_fields: tuple[str, ...]
    unit: str = "request"
    tenant_id: str | None = None
    path: str | None = None  # a route's pattern
    model_version: str | None = None
    ref: SourceRef = SourceRef(file="", line=0)

    @property
    def rate_per_s(self) -> float:
        return self.tokens / self.window_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """M7: LLM tokens of one model version per calendar period."""

    model_version: str  # Pool.id
    tokens: int
    period: str  # daily | monthly
    time_zone: str = "UTC"


class StoreKind(StrEnum):
    """Where quotas are counted."""

    MEMORY = "memory"  # in this process; for one process
    REDIS = "redis"


class OnStoreFailure(StrEnum):
    """What a request that has a quota gets while the store does not answer."""

    BOUNDED_LOCAL = "bounded_local"  # each process counts for itself, within limit / `gateways.max`
    OPEN = "open"  # everything passes, counted afterwards
    CLOSED = "closed"  # everything is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisStore:
    """How to reach the store. File names are absolute; the passwords in them are read when connecting."""

    url: str  # redis:// or rediss://, without credentials
    username: str | None = None
    password_file: str | None = None
    ca_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyService:
    """The service that gateways ask about quotas (Envoy's rate limit service)."""

    address: str = "127.0.0.1"  # where gateways find it
    port: int = 18001
    listen_address: str = "127.0.0.1"
    embedded: bool = True  # `tidegate serve` runs it
    store: StoreKind = StoreKind.MEMORY
    redis: RedisStore | None = None
    timeout_s: float = 0.02  # of one question to the store
    on_store_failure: OnStoreFailure = OnStoreFailure.BOUNDED_LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """What a tenant has of one scope; the most specific scope wins (pool, then model, then everything)."""

    weight: float = 1.0
    guarantee_per_s: float = 0.0
    ceiling_per_s: float | None = None  # its contract: never above
    pin_per_s: float | None = None  # an operator's fixed rate, above every judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant quota file."""

    id: str
    priority: Priority = Priority.NORMAL
    key_digests: tuple[str, ...] = ()  # SHA-256 of API keys, lower-case hex
    jwt_values: tuple[str, ...] = ()  # values of the tenant claim that mean this tenant
    share: TenantShare = field(default_factory=TenantShare)
    shares: Mapping[str, TenantShare] = field(default_factory=dict)  # by `model` or `model:version`
    models: tuple[str, ...] | None = None  # None: every model; else names or `model:version`
    quotas: tuple[Quota, ...] = ()
    on_store_failure: OnStoreFailure | None = None  # None: as `PolicyService` says
    ref: SourceRef = SourceRef(file="", line=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One (route, tenant, model version): the unit a limit is enforced for."""

    route: str
    tenant: str
    pool: str  # Pool.id
    priority: Priority
    weight: float
    guarantee_per_s: float
    ceiling_per_s: float | None
    pin_per_s: float | None
    windows: tuple[str, ...] = ()  # names of the WindowLimits that apply

    @property
    def id(self) -> str:
        """`route|tenant|model:version`, unique and stable over reloads."""
        return f"{self.route}|{self.tenant}|{self.pool}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Where clients connect. Frozen: a change of any field replaces the listener and its buckets."""

    address: str = "0.0.0.0"
    port: int = 8080
    max_request_bytes: int = 10 * 1024 * 1024
    health_path: str = "/healthz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways:
    """The fleet of Envoys. Limits are fleet-wide; each gateway enforces its share."""

    min_count: int = 1
    max_count: int = 1
    stats_urls: tuple[str, ...] = ()  # each Envoy's /stats/prometheus, for demand and latency


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusPolicy:
    """How to reach a Prometheus-compatible backend."""

    url: str
    timeout_s: float = 2.0
    headers: Mapping[str, str] = field(default_factory=dict)
    bearer_token_file: str | None = None
    basic_user: str | None = None
    basic_password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    query_params: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"  # or GET; POST carries long queries
    match: str = "auto"  # labels | endpoints: how series find their pool
    matchers: str = ""  # label matchers added to every selector, for example `cluster="eu-1"`
    window_s: float = 300.0  # span of rates and quantiles
    lookback_s: float = 90.0  # a sample older than this is no sample; at least three scrape intervals
    recording_rules: bool = False  # read rates from recording rules where the catalogue names one


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalPolicy:
    """Where numbers come from."""

    source: str = "scrape"  # scrape | prometheus
    interval_s: float = 1.0
    timeout_s: float = 1.0
    gpu_exporter_urls: tuple[str, ...] = ()  # DCGM exporters scraped directly
    prometheus: PrometheusPolicy | None = None
    catalogue_file: str | None = None  # extends the shipped map of metric names


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPolicy:
    """Tidegate's own sockets. File names are absolute; the servers read the files themselves."""

    admin_address: str = "127.0.0.1"
    admin_port: int = 9090
    admin_token_file: str | None = None
    xds_address: str = "127.0.0.1"
    xds_port: int = 18000
    xds_cert_file: str | None = None  # None: plain text
    xds_key_file: str | None = None
    xds_ca_file: str | None = None  # given: Envoys must show a certificate of it
    xds_bind_node_id: bool = True  # and that certificate must name their node id


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything the operator wrote. Equal inputs compile to equal policies, in a stable order."""

    listener: Listener
    gateways: Gateways
    signals: SignalPolicy
    models: tuple[Model, ...]
    pools: tuple[Pool, ...]  # sorted by id
    routes: tuple[Route, ...]  # in matching order
    tenants: tuple[Tenant, ...]  # sorted by id
    keys: tuple[Key, ...]  # sorted by id; every triple that can be served
    windows: tuple[WindowLimit, ...] = ()  # sorted by name
    jwt: tuple[JwtProvider, ...] = ()
    mode: Mode = Mode.ENFORCE
    freeze: bool = False
    default_tenant: str | None = None
    cors_allow_origins: tuple[str, ...] = ()
    server: ServerPolicy = field(default_factory=ServerPolicy)
    policy_service: PolicyService = field(default_factory=PolicyService)

    @property
    def has_quotas(self) -> bool:
        """Whether any tenant has one, so that gateways have something to ask the policy service."""
        return any(tenant.quotas for tenant in self.tenants)
