{{- define "baton.name" -}}
{{- if eq .Release.Name "baton" -}}baton-operator{{- else -}}{{ printf "%s-baton-operator" .Release.Name | trunc 63 | trimSuffix "-" }}{{- end -}}
{{- end }}

{{- /* Of objects outside the release's namespace, where releases of one name from several namespaces meet. */ -}}
{{- define "baton.clusterName" -}}
{{ .Release.Namespace }}-{{ include "baton.name" . }}
{{- end }}

{{- define "baton.image" -}}
{{- $field := printf "images.%s" .name }}
{{- required (printf "%s: must be IMAGE@sha256:DIGEST; make images prints the digests" $field) (get .images .name) }}
{{- end }}

{{- /* The ids of Pods as JSON; one that is absent or null is null: left to the namespace. */ -}}
{{- define "baton.podIds" -}}
{{- $ids := dict }}
{{- range list "runAsUser" "runAsGroup" "fsGroup" }}
  {{- $_ := set $ids . (index $.Values.securityContext .) }}
{{- end }}
{{- $ids | toJson }}
{{- end }}

{{- define "baton.selector" -}}
app.kubernetes.io/name: baton-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: baton
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "baton.masterKeys" -}}
{{ .Values.masterKeys.existingSecret | default (printf "%s-master-keys" (include "baton.name" .)) }}
{{- end }}

{{- define "baton.namespaces" -}}
{{ join "," .Values.watch.namespaces }}
{{- end }}
