"""The loop of autoscaling in virtual time: load, pods, the formula, and Kubernetes' HPA.

`hpa` is Kubernetes' arithmetic; `pods` and `loop` close the loop around the product's own formula.
"""
