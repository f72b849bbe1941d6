"""Paths of the sidecar's admin port, which probes, hooks and the autoscaler call."""

from typing import Final

LIVE: Final = "/live"
"""GET: 200 while the process works."""
READY: Final = "/ready"
"""GET: 200 while requests are taken and the model answers, else 503 with the reason."""
METRICS: Final = "/metrics"
"""GET: Prometheus text."""
SETTINGS: Final = "/settings"
"""GET: the batch settings in force and their hash, as JSON."""
DRAIN: Final = "/drain"
"""GET with the token: stop taking work, answer when nothing accepted is left."""
DRAIN_TOKEN_HEADER: Final = "X-Drain-Token"
STATS: Final = "/v1/stats"
"""GET: `SidecarStats` as JSON, what the autoscaler polls."""
