"""What can go wrong with the test cluster: a closed family that every module here keeps to."""


class ClusterError(Exception):
    """Base of every error that this package raises on purpose."""


class Unavailable(ClusterError):
    """This machine cannot do what was asked, and the message says what it lacks.

    Tests skip with this message; it is no fault of what they test.
    """


class StartFailed(ClusterError):
    """A program of the cluster died or did not get ready; the message ends with its log."""


class CommandFailed(ClusterError):
    """A command ended with a status other than 0; the message holds the end of its output."""
