"""What can go wrong between the operator and a cluster, in our words.

`cluster` raises them and nothing else; `status` makes conditions of them.
"""


class ClusterError(Exception):
    """A request to the API server did not do what it should."""


class Unreachable(ClusterError):
    """No answer, or one that says: not now. Says nothing about the request itself."""


class Conflict(ClusterError):
    """Somebody else was faster; looking again and deciding anew is enough."""


class Gone(ClusterError):
    """The object, its namespace or its kind is not there, or is being taken away."""


class Refused(ClusterError):
    """The API server understood and does not want it; only a change by a person helps."""


class Forbidden(Refused):
    """The operator lacks the right to do it."""


class QuotaExceeded(Refused):
    """The namespace's quota has no room for it."""


class NameTaken(Refused):
    """Somebody else's object has the name."""


class Invalid(Refused):
    """The object breaks a rule of Kubernetes or of an admission policy."""
