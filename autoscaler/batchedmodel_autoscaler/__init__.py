"""The process that the HPA asks how many replicas a model needs: `batchedmodel-autoscaler`."""
