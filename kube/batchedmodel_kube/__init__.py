"""What operator, autoscaler and command line share of Kubernetes.

Its client, its errors and the election know nothing of what either process reads or writes. What is
read of BatchedModels and their classes, in a cluster or in a file, is judged in `manifest`, which
makes the settings of their pods as well. Nothing in a model's pod imports this package.
"""
