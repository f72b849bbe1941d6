{{/* Beginning of all names; short enough for a suffix such as -autoscaler. */}}
{{- define "batchedmodel.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- /* A release's name may have dots, that of a Service may not. */ -}}
{{- .Values.fullnameOverride | default $full | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "batchedmodel.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/part-of: batchedmodel
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What pods of one part are selected by. Takes (list context part). */}}
{{- define "batchedmodel.selector" -}}
app.kubernetes.io/name: batchedmodel-{{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
{{- end }}

{{/* What all pods of the release are selected by, in its namespace. */}}
{{- define "batchedmodel.partOfRelease" -}}
app.kubernetes.io/part-of: batchedmodel
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/*
Reference of an image. Takes (list context values-of-the-image). What stands in front of the first slash
is a registry where no part of a name could be so, as for all who pull images.
*/}}
{{- define "batchedmodel.image" -}}
{{- $image := index . 1 -}}
{{- $repository := $image.repository -}}
{{- with (index . 0).Values.global.imageRegistry -}}
{{- $repository = printf "%s/%s" . (regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" $repository "") -}}
{{- end -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default (index . 0).Values.images.tag }}
{{- end -}}
{{- end }}

{{/*
What both Deployments' pods have in common. Takes (list context part values-of-the-part). The
chart's version is no label of pods: it would start them anew where nothing else has changed.
*/}}
{{- define "batchedmodel.podMetadata" -}}
labels:
  app.kubernetes.io/part-of: batchedmodel
  {{- include "batchedmodel.selector" . | nindent 2 }}
  {{- with merge (dict) (index . 2).podLabels (index . 0).Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- /* Nothing that is needed again lies in it, so the node may be removed. */}}
  {{- $movable := dict "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes" "tmp" }}
  {{- merge (dict) ((index . 2).podAnnotations | default dict) $movable | toYaml | nindent 2 }}
{{- end }}

{{- define "batchedmodel.podSettings" -}}
# A Service named batchedmodel would put variables among the settings.
enableServiceLinks: false
serviceAccountName: {{ include "batchedmodel.fullname" (index . 0) }}-{{ index . 1 }}
securityContext:
  runAsNonRoot: true
  {{- if eq (index . 0).Values.security.ids "Fixed" }}
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- with (index . 0).Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with index . 2 }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}
{{- $mine := dict "labelSelector" (dict "matchLabels" (include "batchedmodel.selector" . | fromYaml)) }}
{{- $spread := list }}
{{- range (index . 2).topologySpreadConstraints }}
{{- $spread = append $spread (merge (dict) . $mine) }}
{{- end }}
{{- with $spread }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Namespaces that a list of the values stands for, a YAML list. Takes (list context name list).
*/}}
{{- define "batchedmodel.namespaces" -}}
{{- $context := index . 0 -}}
{{- $listed := index . 2 -}}
{{- if has "*" $listed -}}
{{- $listed = $context.Values.watchNamespaces -}}
{{- if not $listed -}}
{{- range (lookup "v1" "Namespace" "" "").items -}}
{{- /* One that is being deleted takes nothing new. */ -}}
{{- if not .metadata.deletionTimestamp -}}
{{- $listed = append $listed .metadata.name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $listed -}}
{{- fail (printf "networkPolicy.%s is [*], and no cluster is asked here which namespaces there are: list them there or in watchNamespaces" (index . 1)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $listed -}}
{{- end }}

{{/* Which versions of which metrics APIs this release serves, a YAML list. */}}
{{- define "batchedmodel.metricsApis" -}}
{{- if and .Values.autoscaler.install .Values.customMetrics.register }}
- {group: custom.metrics.k8s.io, version: v1beta1, priority: 100}
- {group: custom.metrics.k8s.io, version: v1beta2, priority: 200}
{{- end }}
{{- if and .Values.autoscaler.install .Values.externalMetrics.register }}
- {group: external.metrics.k8s.io, version: v1beta1, priority: 100}
{{- end }}
{{- end }}

{{/* What processes are told of it. */}}
{{- define "batchedmodel.metricsApisTold" -}}
{{- range $variable, $api := dict "CUSTOM" .Values.customMetrics "EXTERNAL" .Values.externalMetrics }}
- name: BATCHEDMODEL_{{ $variable }}_METRICS
  value: {{ and $.Values.autoscaler.install $api.register | quote }}
{{- end }}
{{- end }}

{{- define "batchedmodel.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* How the API server is reached where a proxy stands in front of it: variables, and the file that one names. */}}
{{- define "batchedmodel.proxyVariables" -}}
{{- with .Values.proxy }}
{{- range $variable, $value := dict "HTTPS_PROXY" .httpsProxy "NO_PROXY" .noProxy }}
{{- with $value }}
- name: {{ $variable }}
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- with .trustedCA }}
{{- if .configMap }}
- name: SSL_CERT_FILE
  value: {{ printf "/etc/batchedmodel/trusted-ca/%s" .key | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "batchedmodel.proxyMount" -}}
{{- if .Values.proxy.trustedCA.configMap -}}
- {name: trusted-ca, mountPath: /etc/batchedmodel/trusted-ca, readOnly: true}
{{- end -}}
{{- end }}

{{- define "batchedmodel.proxyVolume" -}}
{{- with .Values.proxy.trustedCA -}}
{{- if .configMap -}}
- name: trusted-ca
  configMap: {name: {{ .configMap | quote }}, items: [{key: {{ .key | quote }}, path: {{ .key | quote }}}]}
{{- end -}}
{{- end -}}
{{- end }}
