{{- define "hetsched.name" -}}
{{- if contains "hetsched" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-hetsched" (.Release.Name | trunc 40) }}{{ end }}
{{- end }}

{{/* Labels of everything; `role` is the process. */}}
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

{{/* Secrets are read from files: an environment is seen by whoever sees the process. */}}
{{- define "hetsched.environment" -}}
{{- range $name := list "SECRET_KEY" "DATABASE_URL" "REDIS_URL" }}
- {name: {{ $name }}_FILE, value: /run/secrets/hetsched/{{ $name }}}
{{- end }}
{{- if .Values.metrics.tokenKey }}
- {name: HETSCHED_METRICS_TOKEN_FILE, value: /run/secrets/hetsched/METRICS_TOKEN}
{{- end }}
- name: ALLOWED_HOSTS
  value: {{ concat (list "localhost" (include "hetsched.name" $)) .Values.allowedHosts (ternary (list .Values.ingress.host) list .Values.ingress.enabled) | join "," | quote }}
{{- if .Values.ingress.enabled }}
- {name: CSRF_TRUSTED_ORIGINS, value: {{ printf "https://%s" .Values.ingress.host | quote }}}
{{- if not (hasKey .Values.settings "HETSCHED_HTTPS") }}
- {name: HETSCHED_HTTPS, value: proxy}
{{- end }}
{{- end }}
{{- with .Values.images.registries }}
- {name: HETSCHED_REGISTRIES, value: {{ join "," . | quote }}}
{{- end }}
{{- with .Values.images.plainRegistries }}
- {name: HETSCHED_PLAIN_REGISTRIES, value: {{ join "," . | quote }}}
{{- end }}
{{- if and .Values.agent.enabled (not (hasKey .Values.settings "HETSCHED_AGENT_ACCOUNTS")) }}
- {name: HETSCHED_AGENT_ACCOUNTS, value: {{ printf "%s:%s-agent" .Release.Namespace (include "hetsched.name" .) | quote }}}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end }}

{{/* The pod of one process: dict root, role, command, resources; account true where it calls API servers, as the
     account with `identity` behind its name; env and the
     Secret `certificates` where it wants them. */}}
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
      env: {{- include "hetsched.environment" .root | trim | nindent 8 }}
        {{- with .env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
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
      emptyDir: {sizeLimit: 256Mi}
{{- end }}

{{/* A Deployment of one process, and what may be evicted of it at once. */}}
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
