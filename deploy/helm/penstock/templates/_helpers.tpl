{{- define "penstock.podSecurity" -}}
{runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
{{- end }}

{{- define "penstock.containerSecurity" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- /* The image of a container, and when it is pulled. */}}
{{- define "penstock.image" -}}
image: {{ .Values.image.name | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "penstock.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - {name: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- /* Variables of Prefect's clients. */}}
{{- define "penstock.prefectEnv" -}}
- {name: PREFECT_API_URL, value: {{ .Values.prefect.apiUrl | quote }}}
- name: PREFECT_API_AUTH_STRING
  valueFrom: {secretKeyRef: {name: {{ .Values.secrets.prefectAuth | quote }}, key: auth-string}}
{{- end }}

{{- define "penstock.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /home/penstock}
- {name: cache, mountPath: /cache}
- {name: tls, mountPath: /etc/dask/tls, readOnly: true}
{{- end }}

{{- define "penstock.volumes" -}}
- {name: tmp, emptyDir: {}}
- {name: home, emptyDir: {}}
- {name: cache, emptyDir: {sizeLimit: {{ .Values.cacheSize | quote }}}}
- {name: tls, secret: {secretName: {{ .Values.secrets.tls | quote }}, defaultMode: 0440}}
{{- end }}

{{- /* A group of workers. Takes root, group (its values), resource (of Dask) and slots. */}}
{{- define "penstock.worker" -}}
replicas: {{ .group.replicas }}
spec:
  automountServiceAccountToken: false
  securityContext: {{ include "penstock.podSecurity" .root }}
  {{- with .group.nodeSelector }}
  nodeSelector: {{ toJson . }}
  {{- end }}
  {{- with .group.tolerations }}
  tolerations: {{ toJson . }}
  {{- end }}
  {{- include "penstock.pullSecrets" .root | nindent 2 }}
  containers:
    - name: worker
      {{- include "penstock.image" .root | nindent 6 }}
      args:
        - dask
        - worker
        - tls://penstock-scheduler:8786
        - --name=$(DASK_WORKER_NAME)
        - --nthreads={{ .slots }}
        - --resources={{ .resource }}={{ .slots }}
        - --memory-limit=0
        - --local-directory=/tmp
        - --no-dashboard
      env:
        - {name: OMP_NUM_THREADS, value: "1"}
        {{- include "penstock.prefectEnv" .root | nindent 8 }}
      envFrom: [{secretRef: {name: {{ .root.Values.secrets.storeAccess | quote }}}}]
      resources: {{ toJson .group.resources }}
      securityContext: {{ include "penstock.containerSecurity" .root }}
      volumeMounts:
        {{- include "penstock.mounts" .root | nindent 8 }}
  volumes:
    {{- include "penstock.volumes" .root | nindent 4 }}
{{- end }}
