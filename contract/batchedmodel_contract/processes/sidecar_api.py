"""Paths of the sidecar's admin port, which probes, hooks, people and the autoscaler call; and those
of the data port that other packages name.
"""

from typing import Final

ADMIN_PORT: Final = 9090

LIVE: Final = "/live"
"""GET: 200 while the process works."""
READY: Final = "/ready"
"""GET: 200 while requests are taken and the model answers, else 503 with the reason."""
METRICS: Final = "/metrics"
"""GET: Prometheus text."""
SETTINGS: Final = "/settings"
"""GET: the batch settings in force, their hash, and all else that the operator asks, as JSON."""
ADAPTERS: Final = "/adapters"
"""GET: the adapters that the model server told of, each with its phase and the reason, as JSON."""
DRAIN: Final = "/drain"
"""POST with the token: stop taking work; answered when that has begun."""
MOST_DRAIN_DELAYS: Final = 3
"""Times the delay of a drain: so long requests are accepted where they do not cease to come."""
DRAINED: Final = "/drained"
"""GET: answered when a drain has ended, or soon when none begins; it changes nothing."""
TOKEN_HEADER: Final = "X-Admin-Token"
"""Of a request that takes the pod out of service: the content of the sidecar's token file."""
MODEL_HEADER: Final = "X-Sidecar-Model"
"""Of every answer: the model that the sidecar serves."""
POD_HEADER: Final = "X-Sidecar-Pod"
"""Of every answer: the uid of the pod that the sidecar is in; absent where it was not told."""
STATS: Final = "/v1/stats"
"""GET: `SidecarStats` as JSON, what the autoscaler polls."""
IDLE_SECONDS: Final = 75.0
"""How long the sidecar keeps an idle connection; callers close theirs earlier."""
ARRIVALS: Final = "/arrivals"
"""GET: the flight recorder as CSV with a head line, oldest row first."""
ARRIVALS_COLUMNS: Final = ("seconds", "length", "priority", "outcome")
"""Of each row that arrived: seconds since the recorder began; its length, that of the row before
when it was refused unread; 1 to 3; an `Outcome`, a `Rejection`, or `ARRIVALS_PENDING` while it is
not settled."""
ARRIVALS_PENDING: Final = "pending"
MODEL_STARTUP: Final = "/model/startup"
"""GET: 200 once the model server behind has been ready; probed for the model's container."""
MODEL_LIVE: Final = "/model/live"
"""GET: 503 only when the model server is known to be dead or stuck."""
INDEX: Final = "/v2/repository/index"
"""POST, at both ports: the versions that the model server knows, each with its state and reason."""


def load_path(name: str) -> str:
    """POST with the token: serve what the model's source holds now; answered once it is served."""
    return f"/v2/repository/models/{name}/load"


def unload_path(name: str) -> str:
    """POST with the token: give the model's memory back; answered once that is done."""
    return f"/v2/repository/models/{name}/unload"


def infer_path(name: str) -> str:
    """POST, at the data port: an inference in the v2 protocol."""
    return f"/v2/models/{name}/infer"


def profile_path(name: str) -> str:
    """GET: the `Profile` of the model that is ready, as JSON."""
    return f"/v2/models/{name}/profile"


def generation_path(name: str) -> str:
    """GET: the `GenerationDescription` of the model that is ready, as JSON; 404 where it generates
    nothing.
    """
    return f"/v2/models/{name}/generation"
