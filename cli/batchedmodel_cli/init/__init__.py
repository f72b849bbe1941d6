"""`batchedmodel init`: the first files of a service."""
