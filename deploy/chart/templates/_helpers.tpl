{{/* Base name of all resources. */}}
{{- define "crowsnest.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Selector labels of Services and NetworkPolicies. Arguments: (context, component). */}}
{{- define "crowsnest.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ $root.Release.Name | trunc 63 }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "crowsnest.labels" -}}
{{- $root := index . 0 -}}
{{ include "crowsnest.selector" . }}
app.kubernetes.io/part-of: crowsnest
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Image reference; a digest takes precedence over a tag. Arguments: (image, tag). */}}
{{- define "crowsnest.imageOf" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (index . 1) -}}
{{- end -}}
{{- end -}}

{{- define "crowsnest.image" -}}
{{- include "crowsnest.imageOf" (list .Values.image (default .Chart.AppVersion .Values.image.tag)) -}}
{{- end -}}

{{/* Containers do not run as root, write only to volumes, and have no capabilities. */}}
{{- define "crowsnest.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Argument: user ID. */}}
{{- define "crowsnest.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Placement of pods. Arguments: (context, component). */}}
{{- define "crowsnest.placement" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $root.Values.topologySpread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "crowsnest.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{/* Volume claim template. Arguments: (name, persistence). */}}
{{- define "crowsnest.claim" -}}
{{- $persistence := index . 1 -}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata:
    name: {{ index . 0 }}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with $persistence.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ $persistence.size }}
{{- end -}}

{{- define "crowsnest.includesControlPlane" -}}
{{- if eq .Values.controlPlane.mode "included" }}true{{ end -}}
{{- end -}}

{{- define "crowsnest.includesEtcd" -}}
{{- if and (eq .Values.controlPlane.mode "included") (eq .Values.etcd.mode "included") }}true{{ end -}}
{{- end -}}

{{- define "crowsnest.includesPostgres" -}}
{{- if eq .Values.postgres.mode "included" }}true{{ end -}}
{{- end -}}

{{- define "crowsnest.apiserverName" -}}
{{ include "crowsnest.fullname" . }}-kube-apiserver
{{- end -}}

{{- define "crowsnest.etcdEndpoints" -}}
{{- if eq .Values.etcd.mode "external" -}}
{{- join "," .Values.etcd.external.endpoints -}}
{{- else -}}
{{- $name := printf "%s-etcd" (include "crowsnest.fullname" .) -}}
{{- $root := . -}}
{{- $all := list -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $all = append $all (printf "https://%s-%d.%s.%s.svc.%s:2379" $name $i $name $root.Release.Namespace $root.Values.clusterDomain) -}}
{{- end -}}
{{- join "," $all -}}
{{- end -}}
{{- end -}}

{{- define "crowsnest.etcdSecret" -}}
{{- if eq .Values.etcd.mode "external" }}{{ .Values.etcd.external.tlsSecret }}{{ else }}{{ include "crowsnest.fullname" . }}-etcd-client{{ end -}}
{{- end -}}

{{/* The Secret with Crowsnest's client certificate for the control plane, or with its kubeconfig. */}}
{{- define "crowsnest.controlPlaneSecret" -}}
{{- if include "crowsnest.includesControlPlane" . }}{{ include "crowsnest.fullname" . }}-client{{ else }}{{ .Values.controlPlane.external.kubeconfigSecret }}{{ end -}}
{{- end -}}

{{/* The Secret with the database's URL. */}}
{{- define "crowsnest.databaseSecret" -}}
{{- if include "crowsnest.includesPostgres" . }}{{ include "crowsnest.fullname" . }}-database{{ else }}{{ .Values.postgres.external.urlSecret }}{{ end -}}
{{- end -}}

{{/* Kubeconfig for the included control plane. Arguments: (context, user, folder of the certificates). */}}
{{- define "crowsnest.kubeconfig" -}}
{{- $root := index . 0 -}}
{{- $folder := index . 2 -}}
apiVersion: v1
kind: Config
current-context: control-plane
clusters:
  - name: control-plane
    cluster:
      server: https://{{ include "crowsnest.apiserverName" $root }}.{{ $root.Release.Namespace }}.svc:{{ $root.Values.kubeApiserver.service.port }}
      certificate-authority: {{ $folder }}/ca.crt
users:
  - name: {{ index . 1 }}
    user:
      client-certificate: {{ $folder }}/tls.crt
      client-key: {{ $folder }}/tls.key
contexts:
  - name: control-plane
    context: {cluster: control-plane, user: {{ index . 1 }}}
{{- end -}}

{{/* Controllers of kube-controller-manager. They were renamed in 1.28; older versions reject the new names. */}}
{{- define "crowsnest.controllers" -}}
{{- if semverCompare ">=1.28.0-0" .Values.controlPlane.kubernetesVersion -}}
namespace-controller,garbage-collector-controller,serviceaccount-token-controller,ttl-after-finished-controller,bootstrap-signer-controller,token-cleaner-controller,certificatesigningrequest-cleaner-controller,certificatesigningrequest-signing-controller,clusterrole-aggregation-controller
{{- else -}}
namespace,garbagecollector,serviceaccount-token,ttl-after-finished,bootstrapsigner,tokencleaner,csrcleaner,csrsigning,clusterrole-aggregation
{{- end -}}
{{- end -}}

{{/* Checks that the schema cannot express. */}}
{{- define "crowsnest.check" -}}
{{- if and (gt (int .Values.replicas) 1) (eq .Values.postgres.mode "none") -}}
{{- fail "replicas: more than one replica requires a shared database: set postgres.mode to included or external" -}}
{{- end -}}
{{- if and (eq .Values.controlPlane.mode "external") (not .Values.controlPlane.external.kubeconfigSecret) -}}
{{- fail "controlPlane.external.kubeconfigSecret: set it to the Secret with the control plane's kubeconfig" -}}
{{- end -}}
{{- if and (eq .Values.controlPlane.mode "external") .Values.networkPolicies.enabled (not .Values.networkPolicies.aggregatedFrom) -}}
{{- fail "networkPolicies.aggregatedFrom: set it to the peers from which the control plane reaches port 8443" -}}
{{- end -}}
{{- if and (eq .Values.postgres.mode "external") (not .Values.postgres.external.urlSecret) -}}
{{- fail "postgres.external.urlSecret: set it to the Secret with the database's URL" -}}
{{- end -}}
{{- if and (eq .Values.controlPlane.mode "included") (eq .Values.etcd.mode "external") -}}
{{- if or (not .Values.etcd.external.endpoints) (not .Values.etcd.external.tlsSecret) -}}
{{- fail "etcd.external: set endpoints, and tlsSecret to the Secret with certificate, key and authority" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ui.ingress.enabled (not .Values.ui.ingress.host) -}}
{{- fail "ui.ingress.host: set it to the DNS name of the UI" -}}
{{- end -}}
{{- if and .Values.ui.ingress.enabled .Values.networkPolicies.enabled (not .Values.networkPolicies.uiFrom) -}}
{{- fail "networkPolicies.uiFrom: set it to the peers of the Ingress controller" -}}
{{- end -}}
{{- end -}}
