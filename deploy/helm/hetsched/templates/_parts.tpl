{{- define "hetsched.name" -}}
{{- if contains "hetsched" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-hetsched" (.Release.Name | trunc 40) }}{{ end }}
{{- end }}

{{/* Common labels of all objects. */}}
{{- define "hetsched.labels" -}}
app.kubernetes.io/name: hetsched
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "hetsched.selector" -}}
app.kubernetes.io/name: hetsched
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hetsched.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* URL of the server that agents report to. */}}
{{- define "hetsched.agentServer" -}}
{{- if .Values.agent.server }}{{ .Values.agent.server }}
{{- else if .Values.web.tlsSecret }}{{ printf "https://%s.%s.svc:%v" (include "hetsched.name" .) .Release.Namespace .Values.service.port }}
{{- else if .Values.ingress.enabled }}{{ printf "https://%s" .Values.ingress.host }}
{{- else if .Values.agent.allowPlainHttp }}{{ printf "http://%s:%v" (include "hetsched.name" .) .Values.service.port }}
{{- else }}{{ fail "agent.enabled needs HTTPS: set agent.server, web.tlsSecret or ingress.enabled, or agent.allowPlainHttp=true" }}
{{- end }}
{{- end }}

{{/* Environment of a container without duplicate names. Arguments: dict root, env. Precedence: `env` of the process, then
     `settings`, then the chart's defaults. Secrets are passed as files, because other processes may read an environment.
     Helm parses numbers as float64, which print as 1e+06 from one million on; therefore whole numbers become int64. */}}
{{- define "hetsched.environment" -}}
{{- $found := dict }}
{{- with .root }}
{{- range $name := list "SECRET_KEY" "DATABASE_URL" "REDIS_URL" }}
{{- $_ := set $found (printf "%s_FILE" $name) (printf "/run/secrets/hetsched/%s" $name) }}
{{- end }}
{{- if .Values.metrics.tokenKey }}
{{- $_ := set $found "HETSCHED_METRICS_TOKEN_FILE" "/run/secrets/hetsched/METRICS_TOKEN" }}
{{- end }}
{{- $hosts := list "localhost" (include "hetsched.name" .) (printf "%s.%s.svc" (include "hetsched.name" .) .Release.Namespace) }}
{{- $hosts = concat $hosts .Values.allowedHosts (ternary (list .Values.ingress.host) list .Values.ingress.enabled) }}
{{- $_ := set $found "ALLOWED_HOSTS" (join "," $hosts) }}
{{- if .Values.ingress.enabled }}
{{- $_ := set $found "CSRF_TRUSTED_ORIGINS" (printf "https://%s" .Values.ingress.host) }}
{{- with .Values.ingress.proxies }}
{{- $_ := set $found "FORWARDED_ALLOW_IPS" (join "," .) }}
{{- else }}
{{- if not (hasKey .Values.settings "FORWARDED_ALLOW_IPS") }}{{ fail "ingress.enabled needs ingress.proxies: the addresses or networks of the ingress controller's pods" }}{{ end }}
{{- end }}
{{- end }}
{{- if or .Values.ingress.enabled .Values.web.tlsSecret }}
{{- $_ := set $found "HETSCHED_HTTPS" (ternary "on" "proxy" (ne .Values.web.tlsSecret "")) }}
{{- end }}
{{- if .Values.agent.enabled }}
{{- $_ := set $found "HETSCHED_AGENT_ACCOUNTS" (printf "%s:%s-agent" .Release.Namespace (include "hetsched.name" .)) }}
{{- if hasPrefix "http://" (include "hetsched.agentServer" .) }}
{{- $_ := set $found "HETSCHED_AGENT_KEYS_OVER_HTTP" "1" }}
{{- end }}
{{- end }}
{{- with .Values.images.registries }}
{{- $_ := set $found "HETSCHED_REGISTRIES" (join "," .) }}
{{- end }}
{{- with .Values.images.plainRegistries }}
{{- $_ := set $found "HETSCHED_PLAIN_REGISTRIES" (join "," .) }}
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ $value = int64 $value }}{{ end }}
{{- $_ := set $found $name (toString $value) }}
{{- end }}
{{- end }}
{{- range $name, $value := .env }}{{ $_ := set $found $name $value }}{{ end }}
{{- range $name, $value := $found }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* Pod template of one process. Arguments: dict root, role, command, resources. Optional: account (true mounts the token
     of the service account), identity (suffix of that account's name), env, and certificates (name of a TLS Secret). */}}
{{- define "hetsched.pod" -}}
metadata:
  labels:
    {{- include "hetsched.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  {{- if and .account .root.Values.access.create }}
  serviceAccountName: {{ include "hetsched.name" .root }}{{ .identity }}
  automountServiceAccountToken: true
  {{- else }}
  automountServiceAccountToken: false
  {{- end }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  {{- with .restart }}
  restartPolicy: {{ . }}
  {{- end }}
  {{- with .root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not .restart }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "hetsched.selector" .root | nindent 10 }}
          app.kubernetes.io/component: {{ .role }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: {{ .role }}
      image: {{ include "hetsched.image" .root | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: {{- toYaml .command | nindent 8 }}
      env: {{- include "hetsched.environment" (dict "root" .root "env" .env) | trim | nindent 8 }}
      {{- with .more }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      resources: {{- toYaml .resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: secrets, mountPath: /run/secrets/hetsched, readOnly: true}
        {{- with .certificates }}
        - {name: certificates, mountPath: /run/secrets/certificates, readOnly: true}
        {{- end }}
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: secrets
      secret:
        secretName: {{ .root.Values.existingSecret }}
        defaultMode: 0440
        items:
          - {key: SECRET_KEY, path: SECRET_KEY}
          - {key: DATABASE_URL, path: DATABASE_URL}
          - {key: REDIS_URL, path: REDIS_URL}
          {{- with .root.Values.metrics.tokenKey }}
          - {key: {{ . }}, path: METRICS_TOKEN}
          {{- end }}
    {{- with .certificates }}
    - name: certificates
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    - name: data
      emptyDir: {sizeLimit: 256Mi}
    - name: tmp
      {{- /* The web process buffers request bodies and the file under inspection in /tmp. */}}
      emptyDir: {sizeLimit: {{ ternary "1Gi" "256Mi" (eq .role "web") }}}
{{- end }}

{{/* Deployment and PodDisruptionBudget of one process. */}}
{{- define "hetsched.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "hetsched.name" .root }}-{{ .role }}
  labels:
    {{- include "hetsched.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  replicas: {{ .replicas | default 1 }}
  {{- with .strategy }}
  strategy: {type: {{ . }}}
  {{- end }}
  selector:
    matchLabels:
      {{- include "hetsched.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
  template:
    {{- include "hetsched.pod" . | nindent 4 }}
{{- if .replicas }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "hetsched.name" .root }}-{{ .role }}
  labels: {{- include "hetsched.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "hetsched.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
{{- end }}
{{- end }}
