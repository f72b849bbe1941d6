"""Which of several replicas of a process may write, agreed on by a Lease of Kubernetes.

Used by the operator and the autoscaler, each with a client and a Lease of its own. Knows nothing of
what is written.
"""
