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

{{/* Component whose pods serve console and API. */}}
{{- define "hetsched.webRole" -}}
{{- ternary "server" "web" (eq .Values.layout "single") }}
{{- end }}

{{/* Options that set the mode of the cluster of this release. */}}
{{- define "hetsched.modeOption" -}}
{{- if eq .Values.mode "shadow" }}{{ printf "--shadow=%s" .Values.shadow.scheduler }}{{ else }}--no-shadow{{ end }}
{{- end }}

{{/* Not empty if node facts are published. In shadow mode hetsched writes nothing to the cluster of this release. */}}
{{- define "hetsched.discovers" -}}
{{- if and .Values.discovery.enabled (or (eq .Values.mode "active") (not .Values.access.create)) }}true{{ end }}
{{- end }}

{{/* Not empty if the chart runs PostgreSQL and Redis itself. */}}
{{- define "hetsched.ownServices" -}}
{{- if and (eq .Values.layout "distributed") (not .Values.existingSecret) }}true{{ end }}
{{- end }}

{{- define "hetsched.secret" -}}
{{ .Values.existingSecret | default (include "hetsched.name" .) }}
{{- end }}

{{/* Not empty if the chart generates the token for /metrics. */}}
{{- define "hetsched.ownMetricsToken" -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.metrics.tokenKey) }}true{{ end }}
{{- end }}

{{- define "hetsched.metricsKey" -}}
{{ .Values.metrics.tokenKey | default "METRICS_TOKEN" }}
{{- end }}

{{/* Secret with the token for /metrics; empty if there is no such token. */}}
{{- define "hetsched.metricsSecret" -}}
{{- if .Values.metrics.tokenKey }}{{ .Values.metrics.secret | default .Values.existingSecret }}
{{- else if .Values.serviceMonitor.enabled }}{{ include "hetsched.name" . }}-metrics{{ end }}
{{- end }}

{{/* Reject combinations of values that the schema cannot express. */}}
{{- define "hetsched.check" -}}
{{- if eq .Values.layout "single" }}
{{- if .Values.existingSecret }}{{ fail "existingSecret needs layout=distributed: the single pod keeps its data and secret key on its volume" }}{{ end }}
{{- if .Values.extender.enabled }}{{ fail "extender.enabled needs layout=distributed" }}{{ end }}
{{- if .Values.web.tlsSecret }}{{ fail "web.tlsSecret needs layout=distributed: use an ingress for TLS" }}{{ end }}
{{- if .Values.discovery.enabled }}{{ fail "discovery.enabled needs layout=distributed: discovery writes with its own service account" }}{{ end }}
{{- end }}
{{- if and .Values.metrics.tokenKey (not (include "hetsched.metricsSecret" .)) }}{{ fail "metrics.tokenKey needs metrics.secret, the Secret with this key" }}{{ end }}
{{- if and .Values.web.tlsSecret .Values.ingress.enabled }}{{ fail "web.tlsSecret is for installations without an ingress: set one of the two" }}{{ end }}
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
     `settings` and `extraEnv`, then the chart's defaults. Secrets are passed as files, because other processes may read an environment.
     Helm parses numbers as float64, which print as 1e+06 from one million on; therefore whole numbers become int64. */}}
{{- define "hetsched.environment" -}}
{{- $found := dict }}
{{- with .root }}
{{- if eq .Values.layout "distributed" }}
{{- range $name := list "SECRET_KEY" "DATABASE_URL" "REDIS_URL" }}
{{- $_ := set $found (printf "%s_FILE" $name) (printf "/run/secrets/hetsched/%s" $name) }}
{{- end }}
{{- end }}
{{- if include "hetsched.metricsSecret" . }}
{{- $_ := set $found "HETSCHED_METRICS_TOKEN_FILE" "/run/secrets/hetsched/METRICS_TOKEN" }}
{{- end }}
{{- /* 127.0.0.1 is the address of the probes of `hetsched scheduler`. */}}
{{- $hosts := list "localhost" "127.0.0.1" (include "hetsched.name" .) (printf "%s.%s.svc" (include "hetsched.name" .) .Release.Namespace) }}
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
{{- range $name, $value := .Values.extraEnv }}
{{- if regexMatch "^(HETSCHED_.*|(SECRET_KEY|DATABASE_URL|REDIS_URL|ALLOWED_HOSTS|CSRF_TRUSTED_ORIGINS|FORWARDED_ALLOW_IPS)(_FILE)?)$" $name }}
{{- fail (printf "extraEnv.%s is reserved: names that begin with HETSCHED_, and names such as DATABASE_URL, are for settings; write it under settings, or use the value or the Secret that sets it" $name) }}
{{- end }}
{{- $_ := set $found $name $value }}
{{- end }}
{{- end }}
{{- range $name, $value := .env }}{{ $_ := set $found $name $value }}{{ end }}
{{- range $name, $value := $found }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* Pod template of one process. Arguments: dict root, role, command, resources. Optional: account (true mounts the token
     of the service account), identity (suffix of that account's name), env, certificates (name of a TLS Secret), claim
     (name of the PersistentVolumeClaim of /data) and grace (seconds until a process that does not stop is killed). */}}
{{- define "hetsched.pod" -}}
{{- $secrets := or (eq .root.Values.layout "distributed") (include "hetsched.metricsSecret" .root) }}
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
  terminationGracePeriodSeconds: {{ .grace | default 30 }}
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
  {{- if not (or .restart .grace) }}
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
    # A volume with many files is not changed again at each start.
    fsGroupChangePolicy: OnRootMismatch
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
        {{- if $secrets }}
        - {name: secrets, mountPath: /run/secrets/hetsched, readOnly: true}
        {{- end }}
        {{- with .certificates }}
        - {name: certificates, mountPath: /run/secrets/certificates, readOnly: true}
        {{- end }}
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
  volumes:
    {{- if $secrets }}
    - name: secrets
      projected:
        defaultMode: 0440
        sources:
          {{- if eq .root.Values.layout "distributed" }}
          - secret:
              name: {{ include "hetsched.secret" .root }}
              items:
                - {key: SECRET_KEY, path: SECRET_KEY}
                - {key: DATABASE_URL, path: DATABASE_URL}
                - {key: REDIS_URL, path: REDIS_URL}
          {{- end }}
          {{- with include "hetsched.metricsSecret" .root }}
          - secret:
              name: {{ . }}
              items:
                - {key: {{ include "hetsched.metricsKey" $.root }}, path: METRICS_TOKEN}
          {{- end }}
    {{- end }}
    {{- with .certificates }}
    - name: certificates
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    - name: data
      {{- if .claim }}
      persistentVolumeClaim: {claimName: {{ .claim }}}
      {{- else }}
      emptyDir: {sizeLimit: {{ ternary "8Gi" "256Mi" (eq .role "server") }}}
      {{- end }}
    - name: tmp
      {{- /* The web process buffers request bodies and the file under inspection in /tmp. */}}
      emptyDir: {sizeLimit: {{ ternary "1Gi" "256Mi" (has .role (list "web" "server")) }}}
{{- end }}

{{/* Deployment and PodDisruptionBudget of one process. With `surges`, a new pod is ready before a previous one ends. */}}
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
  {{- if .surges }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
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

{{/* PersistentVolumeClaim that outlives the release. Arguments: dict root, name, of (size, storageClass). */}}
{{- define "hetsched.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ .name }}
  labels: {{- include "hetsched.labels" .root | nindent 4 }}
  annotations: {helm.sh/resource-policy: keep}
spec:
  accessModes: [ReadWriteOnce]
  {{- with .of.storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests: {storage: {{ .of.size }}}
{{- end }}

{{/* PostgreSQL or Redis: a pod of an official image and its Service. Arguments: dict root, role, of (values), port, probe,
     items (keys of the Secret), folders (writable). Optional: command, env, claim (true mounts the volume). */}}
{{- define "hetsched.service" -}}
{{- $name := printf "%s-%s" (include "hetsched.name" .root) .role }}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- include "hetsched.labels" .root | nindent 4 }}
spec:
  selector:
    {{- include "hetsched.selector" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
  ports:
    - {name: {{ .role }}, port: {{ .port }}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels:
    {{- include "hetsched.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  replicas: 1
  serviceName: {{ $name }}
  selector:
    matchLabels:
      {{- include "hetsched.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
  template:
    metadata:
      labels:
        {{- include "hetsched.labels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .role }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 60
      {{- with .root.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .root.Values.image.pullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        # User of the official images.
        runAsUser: 999
        runAsGroup: 999
        fsGroup: 999
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: {{ .role }}
          image: {{ .of.image.repository }}{{ if .of.image.digest }}@{{ .of.image.digest }}{{ else }}:{{ .of.image.tag }}{{ end }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          {{- with .command }}
          command: {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .env }}
          env:
            {{- range $variable, $value := . }}
            - {name: {{ $variable }}, value: {{ $value | quote }}}
            {{- end }}
          {{- end }}
          ports:
            - {name: {{ .role }}, containerPort: {{ .port }}}
          readinessProbe: {{- toYaml .probe | nindent 12 }}
          livenessProbe: {{- toYaml (merge (dict "failureThreshold" 6 "initialDelaySeconds" 60) .probe) | nindent 12 }}
          resources: {{- toYaml .of.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          volumeMounts:
            - {name: secrets, mountPath: /run/secrets/hetsched, readOnly: true}
            {{- if .claim }}
            - {name: data, mountPath: /var/lib/postgresql/data}
            {{- end }}
            {{- range $number, $folder := .folders }}
            - {name: folder-{{ $number }}, mountPath: {{ $folder }}}
            {{- end }}
      volumes:
        - name: secrets
          secret:
            secretName: {{ include "hetsched.secret" .root }}
            defaultMode: 0440
            items:
              {{- range .items }}
              - {key: {{ . }}, path: {{ . }}}
              {{- end }}
        {{- if .claim }}
        - name: data
          persistentVolumeClaim: {claimName: {{ $name }}}
        {{- end }}
        {{- range $number, $folder := .folders }}
        - {name: folder-{{ $number }}, emptyDir: {sizeLimit: 256Mi}}
        {{- end }}
{{- end }}
