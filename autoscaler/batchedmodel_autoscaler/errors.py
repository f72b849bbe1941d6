"""Every way in which the autoscaler can fail to answer or to be answered, in our words.

Exceptions of the Kubernetes client are translated in `cluster`, those of the HTTP client in
`sidecars`. `RefusedAnswer` and its kin become `Status` objects of the metrics API in `server`.
"""

from typing import Final


class AutoscalerError(Exception):
    """Root of the family."""


class CannotListen(AutoscalerError):
    """A port is taken or forbidden; the message says which."""


class SidecarSilent(AutoscalerError):
    """A sidecar gave no usable answer in time; the message says why."""


class SomebodyElse(SidecarSilent):
    """Another pod's sidecar answered at the address; the message says whose."""


class ClusterError(AutoscalerError):
    """The API server did not do what it was asked."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status: Final = status
        """HTTP status of its answer; None when there was none."""


class TooOld(ClusterError):
    """The API server no longer knows the version to go on from: list anew."""


class RefusedAnswer(AutoscalerError):
    """A request to the metrics API that is answered with a `Status` of failure."""

    code: int
    reason: str
    """One of Kubernetes' own words for `Status.reason`."""


class BadRequest(RefusedAnswer):
    """The request asks for something that there can never be."""

    code, reason = 400, "BadRequest"


class Untrusted(RefusedAnswer):
    """The request did not come through the API server's aggregation layer."""

    code, reason = 401, "Unauthorized"


class NotFound(RefusedAnswer):
    """No such path, model or metric."""

    code, reason = 404, "NotFound"


class NotAllowed(RefusedAnswer):
    """A verb that metrics do not have."""

    code, reason = 405, "MethodNotAllowed"


class NotAcceptable(RefusedAnswer):
    """The caller wants a form that we do not speak."""

    code, reason = 406, "NotAcceptable"


class Broken(RefusedAnswer):
    """A bug of ours."""

    code, reason = 500, "InternalError"


class MetricsUnavailable(RefusedAnswer):
    """Nothing is known that a size could rest on. An HPA holds when it reads this."""

    code, reason = 503, "ServiceUnavailable"
