{{- /*
The values of values.yaml for those that are absent: `helm upgrade --reuse-values` passes the values of the older chart
alone. Every template begins by including "baton.withDefaults". A test holds this list against values.yaml.
podPolicy and images are missing: the operator has the same defaults, and an image has none.
*/ -}}
{{- define "baton.defaults" -}}
watch: {clusterWide: false, namespaces: [default], nodes: true, sharedStreams: false}
operatorClass: ""
crds: {install: true}
replicas: 2
logLevel: info
logFormat: text
callsPerSecond: 200
clusterDomain: cluster.local
fetch: {ports: [443], cidrs: [], env: {}, caBundle: {configMapName: ""}, podLabels: {}, podAnnotations: {}}
masterKeys: {existingSecret: ""}
resources: {requests: {cpu: 100m, memory: 256Mi}, limits: {memory: 512Mi}}
nodeSelector: {}
tolerations: []
affinity: {}
priorityClassName: ""
podDisruptionBudget: {enabled: true}
podLabels: {}
podAnnotations: {}
extraEnv: []
securityContext: {runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001}
networkPolicy:
  enabled: true
  apiServerPorts: [443, 6443]
  dnsPorts: [53]
  workloads: Managed
  additionalIngress: []
  additionalEgress: []
monitoring: {namespace: "", podMonitor: false, prometheusRule: false, labels: {}, interval: "", dashboards: {enabled: false, labels: {grafana_dashboard: "1"}}}
serviceMonitor: {enabled: false}
batches: {claimName: "", namespaces: [], concurrency: 64, maxFileSize: 512Mi, maxTenantSize: 10Gi, maxTenantFiles: 1000}
identity:
  namespaces: []
  jwt: {issuer: "", audience: "", claim: sub, jwks: {url: "", configMapName: ""}, caBundle: {configMapName: ""}, algorithms: [], leewaySeconds: 60}
  trustedHeader: {secretName: ""}
ledger: ""
metricsCompat: ""
llmdLabels: false
routeTimeouts: true
inferencePool: {enabled: false}
aggregateRoles: true
secretsPolicy: {enabled: true}
{{- end }}

{{- define "baton.withDefaults" -}}
{{- $whole := list "resources" "nodeSelector" "securityContext" }}{{- /* as given, or else the default */ -}}
{{- range $key, $default := include "baton.defaults" . | fromYaml }}
  {{- if kindIs "invalid" (index $.Values $key) }}
    {{- $_ := set $.Values $key $default }}
  {{- else if and (kindIs "map" $default) (not (has $key $whole)) }}
    {{- range $name, $value := $default }}
      {{- if kindIs "invalid" (index $.Values $key $name) }}
        {{- $_ := set (index $.Values $key) $name $value }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- if not (index .Values "podPolicy") }}{{ $_ := set .Values "podPolicy" dict }}{{ end }}
{{- end }}
