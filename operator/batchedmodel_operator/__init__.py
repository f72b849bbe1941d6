"""The process that turns BatchedModels into Deployments, Services, ConfigMaps and autoscalers.

Kopf says of which BatchedModel something changed. A queue makes one job of many such events. A job
is `reconcile`: observe, plan, apply, report.
"""
