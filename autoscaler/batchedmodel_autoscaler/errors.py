"""Every way in which the autoscaler can fail to answer.

What goes wrong at the API server is a `ClusterError` of `batchedmodel_kube`, and at a sidecar a
`NoAnswer` of `batchedmodel_http`.
"""

from typing import Final


class RefusedAnswer(Exception):
    """A request to the metrics API that is answered with a `Status` of failure."""

    def __init__(self, message: str, code: int, reason: str) -> None:
        """`code` is the HTTP status, and `reason` one of Kubernetes' words for `Status.reason`."""
        super().__init__(message)
        self.code: Final = code
        self.reason: Final = reason


class Untrusted(RefusedAnswer):
    """The request did not come through the API server's aggregation layer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 401, "Unauthorized")


class NotFound(RefusedAnswer):
    """No such path, model or metric."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 404, "NotFound")


class MetricsUnavailable(RefusedAnswer):
    """Nothing is known that a size could rest on. An HPA holds when it reads this."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 503, "ServiceUnavailable")
