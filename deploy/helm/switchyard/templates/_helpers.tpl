{{- define "switchyard.labels" -}}
app.kubernetes.io/name: switchyard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}
{{- define "switchyard.selector" -}}
app.kubernetes.io/name: switchyard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "switchyard.serviceAccount" -}}
{{ .Values.serviceAccount.existing | default .Release.Name }}
{{- end }}
{{- define "switchyard.configMap" -}}
{{ .Values.existingConfigMap | default .Release.Name }}
{{- end }}
{{- define "switchyard.args" -}}
- --config=/var/lib/kube-proxy/config.conf
- --hostname-override=$(NODE_NAME)
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- define "switchyard.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef: {fieldPath: spec.nodeName}
{{- end }}
