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
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- /* With a digest, the tag names nothing. */ -}}
{{- define "switchyard.image" -}}
{{- with .Values.image -}}
{{ if .digest }}{{ printf "%s@%s" .repository .digest | quote }}{{ else }}{{ printf "%s:%s" .repository .tag | quote }}{{ end }}
{{- end }}
{{- end }}
{{- /* The port at the end of an address, such as [::]:10256. */ -}}
{{- define "switchyard.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}
{{- /* The request of a probe: of the path, at the port of healthzBindAddress, and at a loopback address if that is one. */ -}}
{{- define "switchyard.probe" -}}
{{- $address := (index . 1).Values.config.healthzBindAddress | default ":10256" -}}
{path: {{ index . 0 }}, port: {{ include "switchyard.port" $address }}
{{- if hasPrefix "127." $address }}, host: 127.0.0.1{{ else if hasPrefix "[::1]" $address }}, host: "::1"{{ end }}}
{{- end }}
