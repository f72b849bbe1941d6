"""What the operator and the autoscaler share of Kubernetes: the client, its errors, the election.

Knows nothing of what either process reads or writes.
"""
