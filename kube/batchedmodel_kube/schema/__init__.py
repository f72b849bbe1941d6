"""The kinds of values that only a cluster has a use for, Kubernetes' own types among them."""
