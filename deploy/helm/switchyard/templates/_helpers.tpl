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
{{- /* The port of an address such as [::]:10256, or the second value if the address has none. */ -}}
{{- define "switchyard.port" -}}
{{ if regexMatch "^([^:]*|\\[.*\\]):[0-9]+$" (index . 0) }}{{ regexFind "[0-9]+$" (index . 0) }}{{ else }}{{ index . 1 }}{{ end }}
{{- end }}
{{- /* The request of a probe: of the path, at the port of healthzBindAddress, and at a loopback address if that is one. */ -}}
{{- define "switchyard.probe" -}}
{{- $address := (index . 1).Values.config.healthzBindAddress | default "" -}}
{path: {{ index . 0 }}, port: {{ include "switchyard.port" (list $address 10256) }}
{{- if hasPrefix "127." $address }}, host: 127.0.0.1{{ else if regexMatch "^(\\[::1\\]|::1$)" $address }}, host: "::1"{{ end }}}
{{- end }}
