"""The process that turns BatchedModels into Deployments, Services, ConfigMaps and autoscalers.

Kopf tells that something changed, and of which BatchedModel; a keyed queue makes one job of many
events; a job is `reconcile`: observe, plan, apply, report.
"""
