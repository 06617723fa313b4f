{{/*
Certificates and passwords of all components. The job, the Certificates of cert-manager and the job's Role are generated
from this list. There are three authorities; servers of one do not trust client certificates of another.
*/}}
{{- define "crowsnest.credentials" -}}
{{- $name := include "crowsnest.fullname" . -}}
{{- $ns := .Release.Namespace -}}
{{- $domain := .Values.clusterDomain -}}
{{- $api := include "crowsnest.apiserverName" . -}}
secrets:
  - {kind: authority, name: {{ $name }}-ca, commonName: {{ $name }}}
  - kind: certificate
    name: {{ $name }}-server
    issuer: {{ $name }}-ca
    commonName: {{ $name }}
    usages: [server]
    names:
      - {{ $name }}
      - {{ $name }}.{{ $ns }}
      - {{ $name }}.{{ $ns }}.svc
      - {{ $name }}.{{ $ns }}.svc.{{ $domain }}
      # Server certificate for requests of the control plane's aggregation layer and webhooks.
      - crowsnest.karmada-system.svc
      {{- with .Values.controlPlane.external.advertise }}
      - {{ . | quote }}
      {{- end }}
  {{- if include "crowsnest.includesControlPlane" . }}
  - {kind: authority, name: {{ $name }}-front-proxy-ca, commonName: {{ $name }}-front-proxy}
  - kind: certificate
    name: {{ $api }}
    issuer: {{ $name }}-ca
    commonName: kube-apiserver
    usages: [server]
    names:
      - localhost
      - 127.0.0.1
      - kubernetes
      - kubernetes.default
      - kubernetes.default.svc
      - kubernetes.default.svc.{{ $domain }}
      - {{ $api }}
      - {{ $api }}.{{ $ns }}
      - {{ $api }}.{{ $ns }}.svc
      - {{ $api }}.{{ $ns }}.svc.{{ $domain }}
      {{- range .Values.kubeApiserver.certificateNames }}
      - {{ . | quote }}
      {{- end }}
  # Signs service account tokens. Renewing the certificate keeps its key.
  - {kind: certificate, name: {{ $name }}-service-accounts, issuer: {{ $name }}-ca, commonName: service-accounts, usages: [client], keepKey: true}
  - {kind: certificate, name: {{ $name }}-front-proxy-client, issuer: {{ $name }}-front-proxy-ca, commonName: front-proxy-client, usages: [client]}
  - {kind: certificate, name: {{ $name }}-kube-controller-manager, issuer: {{ $name }}-ca, commonName: "system:kube-controller-manager", usages: [client]}
  - {kind: certificate, name: {{ $name }}-client, issuer: {{ $name }}-ca, commonName: "system:crowsnest", organization: "system:masters", usages: [client]}
  {{- if .Values.certificates.administrator }}
  # Initial access for administrators: docs/DEPLOY.md shows how to create a kubeconfig from it.
  - {kind: certificate, name: {{ $name }}-admin, issuer: {{ $name }}-ca, commonName: "system:admin", organization: "system:masters", usages: [client]}
  {{- end }}
  {{- end }}
  {{- if include "crowsnest.includesEtcd" . }}
  - {kind: authority, name: {{ $name }}-etcd-ca, commonName: {{ $name }}-etcd}
  - kind: certificate
    name: {{ $name }}-etcd-server
    issuer: {{ $name }}-etcd-ca
    commonName: etcd
    usages: [server, client]
    names:
      - localhost
      - 127.0.0.1
      {{- range $i := until (int .Values.etcd.replicas) }}
      - {{ $name }}-etcd-{{ $i }}.{{ $name }}-etcd.{{ $ns }}.svc.{{ $domain }}
      {{- end }}
  - {kind: certificate, name: {{ $name }}-etcd-client, issuer: {{ $name }}-etcd-ca, commonName: kube-apiserver-etcd-client, usages: [client]}
  {{- end }}
  {{- if not .Values.ui.sessionKeySecret }}
  # Encrypts the UI's cookies. Replicas and restarted pods with the same key accept each other's sessions.
  - {kind: password, name: {{ $name }}-ui-session-key, url: "{password}"}
  {{- end }}
  {{- if include "crowsnest.includesPostgres" . }}
  - kind: certificate
    name: {{ $name }}-postgres
    issuer: {{ $name }}-ca
    commonName: {{ $name }}-postgres
    usages: [server]
    names:
      - {{ $name }}-postgres
      - {{ $name }}-postgres.{{ $ns }}.svc
  - kind: password
    name: {{ $name }}-database
    url: "postgres://crowsnest:{password}@{{ $name }}-postgres.{{ $ns }}.svc:5432/crowsnest?sslmode=verify-full&sslrootcert=/etc/crowsnest-pki/postgres/ca.crt"
  {{- end }}
{{- end -}}
