"""The flags for traces: what they take, what they refuse, and the extra that they need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

import baton_gateway.__main__
from baton_gateway.settings import Settings, SettingsError, parse_settings

NEEDED = ("--keys=k", "--prefill-discovery=file:p", "--decode-discovery=file:d")


def settings(*flags: str) -> Settings:
    return parse_settings([*NEEDED, *flags])


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://otlp.example.com/tenant/v1/traces", "https://otlp.example.com/tenant/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_gets_that_of_the_protocol(given: str, used: str) -> None:
    assert settings(f"--tracing-endpoint={given}").tracing_endpoint == used


@pytest.mark.parametrize(
    "given",
    [
        "",
        "collector:4318",
        "grpc://collector:4317",
        "http://",
        "http://:4318",
        "http://collector:port",
        "http://collector:70000",
        "http://collector:0",
        "http://collector:4318#x",
        "http://collector\n:4318",
        "http://[::1:4318",
    ],
)
def test_an_endpoint_that_is_no_url_of_a_collector_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match=r"--tracing-endpoint: .* is not http\(s\)://HOST\[:PORT\]\[/PATH\]"):
        settings(f"--tracing-endpoint={given}")


@pytest.mark.parametrize("given", ["http://user:secret@collector:4318", "http://collector:4318?key=secret"])
def test_an_endpoint_with_credentials_is_refused_without_repeating_them(given: str) -> None:
    with pytest.raises(SettingsError, match=r"--tracing-endpoint: .* OTEL_EXPORTER_OTLP_HEADERS") as refused:
        settings(f"--tracing-endpoint={given}")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("given", ["-0.1", "1.1", "nan", "half"])
def test_a_ratio_beyond_its_bounds_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match="--tracing-sample-ratio: "):
        settings(f"--tracing-sample-ratio={given}")


def test_no_traces_are_exported_by_default() -> None:
    assert (settings().tracing_endpoint, settings().tracing_sample_ratio) == (None, 0.01)


@pytest.mark.parametrize("missing", [("opentelemetry.sdk.trace",), ("opentelemetry.exporter.otlp.proto.http",)])
def test_the_flag_without_the_extra_is_refused_by_name(missing: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(module: str) -> object:
        if module in missing:
            raise ModuleNotFoundError(module)
        return object()

    monkeypatch.setattr(baton_gateway.__main__, "find_spec", find_spec)
    with pytest.raises(SettingsError, match=r"--tracing-endpoint: the extra 'otel' is not installed: pip install "):
        baton_gateway.__main__._check_tracing(settings("--tracing-endpoint=http://collector:4318"))
    baton_gateway.__main__._check_tracing(settings())


def test_a_gateway_without_the_flag_does_not_import_opentelemetry() -> None:
    code = "import sys, baton_gateway.__main__; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
