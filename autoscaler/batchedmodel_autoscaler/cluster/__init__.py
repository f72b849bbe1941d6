"""The Kubernetes API server: lists, watches, and the objects that they bring."""
