"""What the operator and the autoscaler share: Kubernetes' client, its errors, the election, ports.

Knows nothing of what either process reads or writes.
"""
