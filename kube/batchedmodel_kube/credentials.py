"""How a process shows an API server who it is: as its pod's service account, or by `KUBECONFIG`."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kubernetes.aio import config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import incluster_config

from batchedmodel_contract.processes.proxy import proxy_to
from batchedmodel_kube.errors import Unreachable

_TOKEN_SECONDS: Final = 60.0
"""After so long a token is read again: its file gets another one long before it ends."""


async def configuration_from(
    environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic
) -> Configuration:
    """Where the API server is and how to come in; raises `Unreachable` without credentials.

    `clock`: monotonic seconds. The library would read tokens by the calendar, so never while the
    node's clock is behind what it was.
    """
    # Or it would look for proxies and a .netrc in threads at each request, and know no networks.
    configuration = Configuration(client_session_kwargs={"trust_env": False})
    # Many clusters' own certificates lack the key identifiers that Python 3.13 asks for.
    configuration.disable_strict_ssl_verification = True
    try:
        if "KUBERNETES_SERVICE_HOST" in environ:
            config.load_incluster_config(  # type: ignore[no-untyped-call]
                configuration, try_refresh_token=False
            )
            configuration.refresh_api_key_hook = _token_reader(clock)  # type: ignore[assignment]
        else:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=environ.get("KUBECONFIG"), client_configuration=configuration
            )
        _use_proxy(configuration, environ)
    except (config.ConfigException, OSError, ValueError) as error:
        raise Unreachable(f"no credentials for an API server: {error}") from error
    return configuration


def _use_proxy(configuration: Configuration, environ: Mapping[str, str]) -> None:
    """Take the proxy of the environment, unless a kubeconfig names one, and trust what it shows."""
    configuration.proxy = configuration.proxy or proxy_to(configuration.host, environ)
    authorities = environ.get("SSL_CERT_FILE")
    # Without authorities of the cluster's own the library takes those of the variable.
    if configuration.proxy and authorities and configuration.ssl_ca_cert:
        configuration.ca_cert_data = Path(authorities).read_text()


def _token_reader(clock: Callable[[], float]) -> Callable[[Configuration], None]:
    """What keeps a configuration's token young; called before each request."""
    due = clock() + _TOKEN_SECONDS

    def read(configuration: Configuration) -> None:
        nonlocal due
        if clock() < due:
            return
        token = Path(incluster_config.SERVICE_TOKEN_FILENAME).read_text()
        configuration.api_key["BearerToken"] = f"bearer {token}"
        due = clock() + _TOKEN_SECONDS

    return read
