"""The Kubernetes API server and the pods' sidecars: reads, writes, watches."""
