"""The server behind the sidecar: ours, or one of somebody else's."""
