{{/* What `serve` and `install` read, mount and are told. The keys are `crowsnest serve`'s flags; values.config goes before them. */}}
{{- define "crowsnest.config" -}}
{{- $name := include "crowsnest.fullname" . -}}
{{- $host := printf "%s.%s.svc.%s" $name .Release.Namespace .Values.clusterDomain -}}
{{- $kubeconfig := eq .Values.controlPlane.mode "included" | ternary "/etc/crowsnest/kubeconfig" "/etc/crowsnest-pki/control-plane/kubeconfig" -}}
{{- $own := dict
  "kubeconfig" $kubeconfig
  "data-dir" "/var/lib/crowsnest"
  "listen" "0.0.0.0:8443"
  "metrics-listen" "0.0.0.0:8080"
  "ui-listen" "0.0.0.0:7080"
  "tls-cert-file" "/etc/crowsnest-pki/server/tls.crt"
  "tls-private-key-file" "/etc/crowsnest-pki/server/tls.key"
  "tls-ca-file" "/etc/crowsnest-pki/server/ca.crt"
  "advertise" (printf "%s:8443" (default $host .Values.controlPlane.external.advertise))
-}}
{{- mergeOverwrite $own (deepCopy .Values.config) | toYaml -}}
{{- end -}}

{{- define "crowsnest.env" -}}
- {name: CROWSNEST_LOG, value: {{ .Values.log | quote }}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if ne .Values.postgres.mode "none" }}
- name: CROWSNEST_DB
  valueFrom: {secretKeyRef: {name: {{ include "crowsnest.databaseSecret" . }}, key: url}}
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
