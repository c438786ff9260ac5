"""The connection to the API server: in a Pod by its mounted token, elsewhere by a kubeconfig."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from baton_control.errors import OperatorError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_AGE_S = 60.0
"""A mounted token is read again at this age: the kubelet rotates it long before it expires."""

TokenSource = Callable[[], str | None]


class KubeConfigError(OperatorError):
    """No API server can be reached; the text names what was tried."""


@dataclass(frozen=True, slots=True)
class KubeConnection:
    """The address of the API server and the credentials for it."""

    server: str
    """`https://host:port`."""
    ssl: ssl.SSLContext | None
    token: TokenSource
    proxy: str | None = None
    """The kubeconfig's `proxy-url`; None: the environment decides."""


def load() -> KubeConnection:
    """The connection of this process: KUBECONFIG if set, else the Pod's account, else ~/.kube/config.

    Raises KubeConfigError.
    """
    if "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
        return in_cluster()
    return from_kubeconfig()


def in_cluster(account: Path = ACCOUNT) -> KubeConnection:
    """The connection by the token that the kubelet mounts. Raises KubeConfigError."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubeConfigError("KUBERNETES_SERVICE_HOST is not set: not in a Pod")
    try:
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        token = TokenFile(account / "token")
        token()
    except OSError as error:
        raise KubeConfigError(f"{account}: {error}") from error
    return KubeConnection(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", context, token)


class TokenFile:
    """A token in a file that the kubelet rotates."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._token: str | None = None
        self._read_at = -TOKEN_AGE_S

    def __call__(self) -> str | None:
        """The token; the last good one while the file cannot be read. Raises OSError if it never could."""
        if self._clock() - self._read_at >= TOKEN_AGE_S:
            try:
                self._token = self._path.read_text(encoding="ascii").strip()
            except OSError:
                if self._token is None:
                    raise
            self._read_at = self._clock()
        return self._token


def from_kubeconfig(context_name: str | None = None) -> KubeConnection:
    """The connection of a context of the kubeconfig, exec plugins included; None: the current one. Raises
    KubeConfigError."""
    from kubernetes import client, config  # heavy, and not needed in a Pod

    configuration = client.Configuration()
    usual_proxy = configuration.proxy  # that of the environment
    try:
        # Named, as the package has read the variable when it was imported.
        named = os.environ.get("KUBECONFIG") or None
        config.load_kube_config(config_file=named, context=context_name, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise KubeConfigError(f"no kubeconfig: {error}") from error
    context: ssl.SSLContext | None = None
    if configuration.host.startswith("https:"):
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        if not configuration.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def token() -> str | None:
        text: str | None = configuration.get_api_key_with_prefix(
            "authorization"
        ) or configuration.get_api_key_with_prefix("BearerToken")
        return text.removeprefix("Bearer ") if text else None

    proxy = None if configuration.proxy == usual_proxy else configuration.proxy
    return KubeConnection(configuration.host, context, token, proxy)
