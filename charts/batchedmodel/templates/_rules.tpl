{{/*
What the operator may do with models and their children, in all namespaces or in those it watches.
No rights on Secrets: it never reads one, and what names one only passes through it. A test replays
what it asked for against these, so that none is missing and none is left over.
*/}}
{{- define "batchedmodel.operatorRules" -}}
- apiGroups: [batchedmodel.dev]
  resources: [batchedmodels]
  verbs: [get, list, watch]
- apiGroups: [batchedmodel.dev]
  resources: [batchedmodels/status]
  verbs: [patch]
# What lasts as long as its model goes with it, by its owner reference.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch]
# Whose a pod is: a label can be set by anybody in the namespace.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
# The pod templates that are kept, so that another operator does not roll the pods.
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# Their annotations make the kubelet refresh the batch settings.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
# What it announces of a model.
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* What the operator may do with classes, which belong to the cluster. */}}
{{- define "batchedmodel.classRules" -}}
- apiGroups: [batchedmodel.dev]
  resources: [batchedmodelclasses]
  verbs: [list, watch]
{{- end }}

{{/* What the autoscaler may do with models, in all namespaces or in those it watches. */}}
{{- define "batchedmodel.autoscalerRules" -}}
- apiGroups: [batchedmodel.dev]
  resources: [batchedmodels]
  verbs: [list, watch]
# What it learnt of their pods, so that it need not learn it anew.
- apiGroups: [batchedmodel.dev]
  resources: [batchedmodels/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# The models' own for their size, and the autoscaler's to see whether it is being deleted.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch]
# Whose a pod is: a label can be set by anybody in the namespace.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
{{- end }}

{{/* What the HPA reads. */}}
{{- define "batchedmodel.readerRules" -}}
{{- if .Values.customMetrics.register -}}
- apiGroups: [custom.metrics.k8s.io]
  resources:
    - batchedmodels.batchedmodel.dev/batchedmodel_required_replicas
    - batchedmodels.batchedmodel.dev/batchedmodel_queue_length
    - batchedmodels.batchedmodel.dev/batchedmodel_concurrency
    - batchedmodels.batchedmodel.dev/batchedmodel_queue_time_seconds
  verbs: [get]
{{- end }}
{{ if .Values.externalMetrics.register -}}
# No name follows that of the metric, which therefore counts as listed.
- apiGroups: [external.metrics.k8s.io]
  resources:
    - batchedmodel_required_replicas
    - batchedmodel_queue_length
    - batchedmodel_concurrency
    - batchedmodel_queue_time_seconds
  verbs: [list]
{{- end }}
{{- end }}
