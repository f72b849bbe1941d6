"""`batchedmodel validate`: the checks of manifests that need no cluster."""
