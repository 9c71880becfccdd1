"""Where numbers come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from controlplane.config.schema.scalar import FilePath, PlainText, Seconds, Section, Url, refusal

Interval = Annotated[float, Field(ge=0.1, le=300)]


class Basic(Section):
    """HTTP basic authentication."""

    user: PlainText = Field(description="User name.", examples=["tidegate"])
    password_file: FilePath = Field(
        description="File with the password.", examples=["secrets/prometheus-password"]
    )


class Prometheus(Section):
    """A Prometheus-compatible backend."""

    url: Url = Field(
        description="Its base URL, with a path prefix if there is one.", examples=["http://prometheus:9090"]
    )
    timeout_s: Seconds = Field(2.0, description="Time for one query, seconds.")
    headers: dict[PlainText, PlainText] = Field(
        {}, description="Extra request headers.", examples=[{"X-Scope-OrgID": "serving"}]
    )
    query_params: dict[PlainText, PlainText] = Field({}, description="Extra query parameters.")
    method: Literal["POST", "GET"] = Field("POST", description="HTTP method; POST carries long queries.")
    match: Literal["auto", "labels", "endpoints"] = Field(
        "auto",
        description="How series find their model version: by model and version labels, or by endpoint.",
    )
    matchers: PlainText | None = Field(
        None, description="Label matchers added to every selector.", examples=['cluster="eu-1"']
    )
    window_s: Seconds = Field(300.0, description="Span of rates and quantiles, seconds.")
    lookback_s: Seconds = Field(
        90.0, description="A sample older than this (seconds) is none; three scrape intervals or more."
    )
    recording_rules: bool = Field(
        False, description="Read rates from recording rules where the catalogue names one."
    )
    bearer_token_file: FilePath | None = Field(
        None, description="File with a bearer token; read again for each query."
    )
    basic: Basic | None = Field(None, description="HTTP basic authentication.")
    ca_file: FilePath | None = Field(None, description="CA certificates, PEM.")
    cert_file: FilePath | None = Field(None, description="Client certificate, PEM.")
    key_file: FilePath | None = Field(None, description="Its key, PEM.")

    @model_validator(mode="after")
    def _fits(self) -> Prometheus:
        if (self.cert_file is None) != (self.key_file is None):
            raise refusal("a client certificate needs its key", "both `cert_file` and `key_file`, or neither")
        if self.basic and self.bearer_token_file:
            raise refusal("two ways to authenticate", "either `basic` or `bearer_token_file`")
        return self


class Signals(Section):
    """Where utilisation, latency, queues and failures are read."""

    source: Literal["scrape", "prometheus"] = Field(
        "scrape", description="Read the endpoints' own metrics, or ask a Prometheus."
    )
    interval_s: Interval = Field(1.0, description="Seconds between two readings.")
    timeout_s: Interval = Field(1.0, description="Time for one scrape, seconds.")
    gpu_exporters: list[Url] = Field(
        [], description="DCGM exporters, scraped directly.", examples=[["http://10.0.0.7:9400/metrics"]]
    )
    prometheus: Prometheus | None = Field(None, description="The backend for `source: prometheus`.")
    catalogue: FilePath | None = Field(None, description="File that extends the shipped map of metric names.")
