{{- define "crowsnest.kubeconfigPath" -}}
{{- eq .Values.controlPlane.mode "included" | ternary "/etc/crowsnest/kubeconfig" "/etc/crowsnest-pki/control-plane/kubeconfig" -}}
{{- end -}}

{{/* The Secret that encrypts the UI's cookies. Empty if Secrets are external and none is configured. */}}
{{- define "crowsnest.sessionKeySecret" -}}
{{- if .Values.ui.sessionKeySecret -}}
{{ .Values.ui.sessionKeySecret }}
{{- else if ne .Values.certificates.mode "external" -}}
{{ include "crowsnest.fullname" . }}-ui-session-key
{{- end -}}
{{- end -}}

{{/* The configuration file of `crowsnest serve`: names of its flags, and values. values.config overrides these settings. */}}
{{- define "crowsnest.config" -}}
{{- /* A subfolder, since the root of the volume may contain lost+found. */ -}}
{{- $own := dict
  "kubeconfig" (include "crowsnest.kubeconfigPath" .)
  "data-dir" "/var/lib/crowsnest/data"
  "listen" "0.0.0.0:8443"
  "metrics-bind-address" "0.0.0.0:8080"
  "health-probe-bind-address" "0.0.0.0:10357"
  "ui-listen" "0.0.0.0:7080"
  "tls-cert-file" "/etc/crowsnest-pki/server/tls.crt"
  "tls-private-key-file" "/etc/crowsnest-pki/server/tls.key"
  "shutdown-delay-duration" "10s"
  "log-format" "json"
-}}
{{- if include "crowsnest.sessionKeySecret" . }}
{{- $_ := set $own "ui-session-key-file" "/etc/crowsnest-pki/ui/session-key" }}
{{- end }}
{{- with .Values.search }}
{{- if eq .backend "opensearch" }}
{{- if not .opensearch.urls }}
{{- fail "search.opensearch.urls: set it to the nodes of the search engine" }}
{{- end }}
{{- $_ := set $own "index-backend" .backend }}
{{- $_ := set $own "opensearch-url" .opensearch.urls }}
{{- $_ := set $own "opensearch-index-prefix" .opensearch.indexPrefix }}
{{- $_ := set $own "opensearch-shards" (int .opensearch.shards) }}
{{- if ge (int .opensearch.replicas) 0 }}
{{- $_ := set $own "opensearch-replicas" (int .opensearch.replicas) }}
{{- end }}
{{- if .opensearch.credentialsSecret }}
{{- $_ := set $own "opensearch-credentials-dir" "/etc/crowsnest-pki/opensearch" }}
{{- end }}
{{- else if or .opensearch.urls .opensearch.credentialsSecret }}
{{- fail "search.backend: set it to opensearch, or remove the settings of search.opensearch" }}
{{- end }}
{{- end }}
{{- with .Values.tracing }}
{{- if .endpoint }}
{{- $_ := set $own "tracing-endpoint" .endpoint }}
{{- $_ := set $own "tracing-sampling-rate-per-million" (int .samplingRatePerMillion) }}
{{- if .caSecret }}
{{- $_ := set $own "tracing-ca-file" "/etc/crowsnest-pki/tracing/ca.crt" }}
{{- end }}
{{- else if or .headersSecret .caSecret }}
{{- fail "tracing.endpoint: set it to an OTLP receiver, or remove the Secrets for it" }}
{{- end }}
{{- end }}
{{- mergeOverwrite $own (deepCopy .Values.config) | toYaml -}}
{{- end -}}

{{- define "crowsnest.env" -}}
- {name: CROWSNEST_LOG, value: {{ .Values.log | quote }}}
# Identifies this replica in the shared cache.
- name: CROWSNEST_REPLICA
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if ne .Values.postgres.mode "none" }}
- name: CROWSNEST_DB
  valueFrom: {secretKeyRef: {name: {{ include "crowsnest.databaseSecret" . }}, key: url}}
{{- end }}
{{- with .Values.tracing.headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ . }}, key: headers}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "crowsnest.mounts" -}}
- {name: config, mountPath: /etc/crowsnest, readOnly: true}
- {name: control-plane, mountPath: /etc/crowsnest-pki/control-plane, readOnly: true}
- {name: server, mountPath: /etc/crowsnest-pki/server, readOnly: true}
{{- if or (include "crowsnest.includesPostgres" .) (and (eq .Values.postgres.mode "external") .Values.postgres.external.caSecret) }}
- {name: postgres, mountPath: /etc/crowsnest-pki/postgres, readOnly: true}
{{- end }}
{{- end -}}

{{- define "crowsnest.volumes" -}}
{{- $name := include "crowsnest.fullname" . -}}
- name: config
  configMap: {name: {{ $name }}}
- name: control-plane
  secret: {secretName: {{ include "crowsnest.controlPlaneSecret" . }}, defaultMode: 0440}
- name: server
  secret: {secretName: {{ $name }}-server, defaultMode: 0440}
{{- if include "crowsnest.includesPostgres" . }}
- name: postgres
  secret: {secretName: {{ $name }}-postgres, defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}
{{- else if and (eq .Values.postgres.mode "external") .Values.postgres.external.caSecret }}
- name: postgres
  secret: {secretName: {{ .Values.postgres.external.caSecret }}, defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- end -}}
