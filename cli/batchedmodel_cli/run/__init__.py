"""`batchedmodel run FILE`: serves a manifest on this machine."""
