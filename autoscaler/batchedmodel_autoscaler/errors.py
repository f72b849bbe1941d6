"""Every way in which the autoscaler can fail to answer or to be answered.

`sidecars` raises `SidecarSilent`. `server` makes `Status` objects of `RefusedAnswer` and its kin.
What goes wrong at the API server is a `ClusterError` of `batchedmodel_kube`.
"""


class CannotListen(Exception):
    """A port is taken or forbidden; the message says which."""


class SidecarSilent(Exception):
    """A sidecar gave no usable answer in time; the message says why."""


class SomebodyElse(SidecarSilent):
    """Another pod's sidecar answered at the address; the message says whose."""


class RefusedAnswer(Exception):
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
