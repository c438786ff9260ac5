{{- define "baton.name" -}}
{{- if eq .Release.Name "baton" -}}baton-operator{{- else -}}{{ printf "%s-baton-operator" .Release.Name | trunc 63 | trimSuffix "-" }}{{- end -}}
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
