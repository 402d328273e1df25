{{- define "grfleet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "grfleet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "grfleet.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "grfleet.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Names of objects that no namespace separates: two releases in two namespaces must not meet. */ -}}
{{- define "grfleet.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "grfleet.fullname" .) -}}
{{- end -}}

{{- define "grfleet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "grfleet.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "grfleet.selector" -}}
app.kubernetes.io/name: {{ include "grfleet.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- /* All labels of an object or pod, none twice: what selects it, then its own, then those of everything. Takes (dict "root" $ "selector" <text> "labels" {}). */ -}}
{{- define "grfleet.labels" -}}
{{- toYaml (merge (dict) (.selector | fromYaml) (.labels | default dict) (include "grfleet.origin" .root | fromYaml)) -}}
{{- end -}}

{{- /* Labels of everything, whichever part it belongs to. */ -}}
{{- define "grfleet.origin" -}}
app.kubernetes.io/part-of: grfleet
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* metadata of one object. Takes (dict "root" $ "name" ... "namespace" ... "labels" {} "annotations" {} "selector" ...); no namespace: cluster-wide; no selector: a part of the operator. */ -}}
{{- define "grfleet.metadata" -}}
{{- $annotations := merge (dict) (.annotations | default dict) (.root.Values.commonAnnotations | default dict) -}}
{{- $selector := .selector | default (include "grfleet.selector" .root) -}}
metadata:
  name: {{ .name | quote }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "grfleet.labels" (dict "root" .root "selector" $selector "labels" .labels) | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- /* Reference of an image. Takes (dict "root" $ "image" <repository, tag, digest>); nothing without a repository. */ -}}
{{- define "grfleet.image" -}}
{{- if .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Fails unless the API server serves a kind of the Prometheus operator. Takes (dict "root" $ "kind" ... "value" ...). */ -}}
{{- define "grfleet.needsMonitoring" -}}
{{- $served := printf "monitoring.coreos.com/v1/%s" .kind -}}
{{- if not (.root.Capabilities.APIVersions.Has $served) -}}
{{- fail (printf "%s needs the kind %s of the Prometheus operator, which this API server does not serve: install its CustomResourceDefinitions first, or set %s=false. Without a cluster (helm template, helm lint) say --api-versions %s" .value .kind .value $served) -}}
{{- end -}}
{{- end -}}

{{- /* Milliseconds of a duration such as 1m30s. */ -}}
{{- define "grfleet.milliseconds" -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h)" . -1 -}}
{{- $unit := get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexReplaceAll "[0-9]+" . "") -}}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | int64) $unit) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- /* Fails where a scrape may take longer than the time between two: the Prometheus operator would leave the monitor out and say so in its log alone. Takes (dict "name" <of the values> "values" ...). */ -}}
{{- define "grfleet.refuseLongScrape" -}}
{{- with .values -}}
{{- if and .interval .scrapeTimeout (gt (include "grfleet.milliseconds" .scrapeTimeout | int64) (include "grfleet.milliseconds" .interval | int64)) -}}
{{- fail (printf "%s.scrapeTimeout (%s) is longer than %s.interval (%s), and the Prometheus operator takes no such monitor" $.name .scrapeTimeout $.name .interval) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Selects the series of this release's operator, as its ServiceMonitor labels them. */ -}}
{{- define "grfleet.operatorSeries" -}}
namespace="{{ .Release.Namespace }}",job="{{ include "grfleet.fullname" . }}-metrics"
{{- end -}}

{{- /* Namespaces that get a Role: the served ones and the release's own; nothing when the whole cluster is served. */ -}}
{{- define "grfleet.roleNamespaces" -}}
{{- if .Values.watchNamespaces -}}
{{- append .Values.watchNamespaces .Release.Namespace | uniq | sortAlpha | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{- /* Where a release says that it serves: the namespaces that get a Role, or "" for the whole cluster. */ -}}
{{- define "grfleet.servedPlaces" -}}
{{- if .Values.watchNamespaces -}}
{{- include "grfleet.roleNamespaces" . -}}
{{- else -}}
[""]
{{- end -}}
{{- end -}}

{{- /* Fails where another release serves the same already. Helm would refuse too, but would not say what it means. */ -}}
{{- define "grfleet.refuseOverlap" -}}
{{- range $namespace := include "grfleet.servedPlaces" . | fromJsonArray -}}
{{- $kind := empty $namespace | ternary "ClusterRole" "Role" -}}
{{- $served := lookup "rbac.authorization.k8s.io/v1" $kind $namespace "grfleet-served" -}}
{{- if $served -}}
{{- $owner := $served.metadata.annotations | default dict -}}
{{- $name := get $owner "meta.helm.sh/release-name" -}}
{{- $place := get $owner "meta.helm.sh/release-namespace" -}}
{{- if not (and (eq $name $.Release.Name) (eq $place $.Release.Namespace)) -}}
{{- $what := empty $namespace | ternary "the whole cluster" (printf "namespace %s" $namespace) -}}
{{- fail (printf "release %q in namespace %q serves %s already, and two operators must not serve the same pools: uninstall it, or give both releases watchNamespaces that do not overlap (%s grfleet-served says who serves)" $name $place $what $kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* Who serves the whole cluster may read these, and they are few: every release has one in its own namespace. */ -}}
{{- if and (not .Values.watchNamespaces) (include "grfleet.policiesServed" .) -}}
{{- range (lookup "grfleet.dev/v1alpha1" "HBMPolicy" "" "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $owner := .metadata.annotations | default dict -}}
{{- $name := get $owner "meta.helm.sh/release-name" -}}
{{- $ours := and (eq $name $.Release.Name) (eq .metadata.namespace $.Release.Namespace) -}}
{{- if and $name (not $ours) (eq (get $labels "app.kubernetes.io/part-of") "grfleet") (eq (get $labels "app.kubernetes.io/component") "operator") -}}
{{- fail (printf "release %q in namespace %q serves some namespaces already, and two operators must not serve the same pools: uninstall it, or give this release watchNamespaces too" $name .metadata.namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A mapping as YAML without the keys whose value is null, at any depth. Takes the mapping. */ -}}
{{- define "grfleet.compact" -}}
{{- $kept := dict -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}
{{- $_ := set $kept $key (include "grfleet.compact" $value | fromYaml) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $kept $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $kept -}}
{{- end -}}

{{- /* Whether the API server serves the policy kinds already; on a first install it does not, and Helm could not name them. */ -}}
{{- define "grfleet.policiesServed" -}}
{{- $api := .Capabilities.APIVersions -}}
{{- if and ($api.Has "grfleet.dev/v1alpha1/HBMPolicy") ($api.Has "grfleet.dev/v1alpha1/RoutingPolicy") ($api.Has "grfleet.dev/v1alpha1/PreInferencePolicy") -}}
yes
{{- end -}}
{{- end -}}

{{- /* Labels that select the gateway or picker pods of one pool. Takes (dict "root" $ "pool" <name> "component" gateway|picker). */ -}}
{{- define "grfleet.edge.selector" -}}
app.kubernetes.io/name: {{ include "grfleet.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
grfleet.dev/{{ .component }}: {{ .pool | quote }}
{{- end -}}

{{- /* Fails where a pool is named twice: its objects would have the same names. Takes (dict "part" gateway|picker "pools" <list>). */ -}}
{{- define "grfleet.edge.refuseTwice" -}}
{{- $seen := list -}}
{{- range .pools -}}
{{- $pool := printf "%s/%s" .namespace .name -}}
{{- if has $pool $seen -}}
{{- fail (printf "%s.pools names the pool %s of namespace %s twice" $.part .name .namespace) -}}
{{- end -}}
{{- $seen = append $seen $pool -}}
{{- end -}}
{{- end -}}

{{- /* An account that may read routing tables in its namespace, see whether its pool is still there, and nothing else. Takes (dict "name" ... "namespace" ... "pool" ... "metadata" <text>). */ -}}
{{- define "grfleet.edge.account" -}}
apiVersion: v1
kind: ServiceAccount
{{ .metadata }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
{{ .metadata }}
rules:
  - apiGroups: [grfleet.dev]
    resources: [grroutingtables]
    verbs: [get, list, watch]
  - apiGroups: [grfleet.dev]
    resources: [grservingpools]
    resourceNames: [{{ .pool | quote }}]
    verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
{{ .metadata }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ .name | quote }}
    namespace: {{ .namespace | quote }}
{{- end -}}

{{- /* Volumes with the pool's key and the account's token, mounted where they are needed only. Takes an item of pools. */ -}}
{{- define "grfleet.edge.volumes" -}}
- name: pool-key
  secret:
    secretName: {{ .keySecret.name | quote }}
    defaultMode: 0440
    items:
      - key: {{ .keySecret.key | default "key" | quote }}
        path: key
- name: account
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3600
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
{{- with .ca }}
- name: ca
  {{- if .secret }}
  secret:
    secretName: {{ .secret | quote }}
    defaultMode: 0440
  {{- else }}
  configMap:
    name: {{ .configMap | quote }}
  {{- end }}
    items:
      - key: {{ .key | default "ca.crt" | quote }}
        path: ca.crt
{{- end }}
{{- end -}}

{{- /* Where authorities are mounted, the same in all containers. Takes an item of pools. */ -}}
{{- define "grfleet.edge.caMount" -}}
{{- if .ca -}}
- name: ca
  mountPath: /etc/grfleet-ca
  readOnly: true
{{- end -}}
{{- end -}}

{{- /* The argument that names them. Takes an item of pools. */ -}}
{{- define "grfleet.edge.caFile" -}}
{{- if .ca -}}
- --ca-file=/etc/grfleet-ca/ca.crt
{{- end -}}
{{- end -}}

{{- /* Replicas on nodes of their own, as far as possible. Takes the labels that select them, as text. */ -}}
{{- define "grfleet.edge.affinity" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- . | nindent 12 }}
{{- end -}}

{{- /* Arguments by which a gateway or picker finds hot users. Takes the values hotUsers. */ -}}
{{- define "grfleet.edge.hotUsers" -}}
{{- if .agents }}
- {{ printf "--agents=%s" .agents | quote }}
{{- end }}
{{- end -}}

{{- /* Service at which clients read hot users, inside the cluster only, whatever the type of the other one; a client stays with one
replica, which answers "nothing new". Takes (dict "metadata" "selector" "port"). */ -}}
{{- define "grfleet.edge.agentService" -}}
apiVersion: v1
kind: Service
{{ .metadata }}
spec:
  type: ClusterIP
  sessionAffinity: ClientIP
  selector:
    {{- .selector | nindent 4 }}
  ports:
    - name: http
      port: 8081
      targetPort: {{ .port }}
      protocol: TCP
{{- end -}}

{{- /* Who reads hot users. Takes (dict "policy" <networkPolicy of a part> "port" <name of the port>). */ -}}
{{- define "grfleet.edge.clientsIngress" -}}
{{- with .policy.clientsFrom }}
- ports:
    - port: {{ $.port }}
      protocol: TCP
  from:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{- /* What every container of ours may not do. */ -}}
{{- define "grfleet.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
privileged: false
capabilities:
  drop:
    - ALL
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* The container of a gateway's agent up to its arguments, to which more may be added. Takes (dict "root" $ "pool" <item of gateway.pools>). */ -}}
{{- define "grfleet.gateway.agent" -}}
{{- $gateway := .root.Values.gateway -}}
image: {{ include "grfleet.image" (dict "root" .root "image" $gateway.image) | quote }}
imagePullPolicy: {{ $gateway.image.pullPolicy }}
{{- with $gateway.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "grfleet.restricted" .root | nindent 2 }}
volumeMounts:
  - name: run
    mountPath: /run/grfleet
  - name: pool-key
    mountPath: /etc/grfleet
    readOnly: true
  - name: account
    mountPath: /var/run/secrets/kubernetes.io/serviceaccount
    readOnly: true
  {{- with include "grfleet.edge.caMount" .pool }}
  {{- . | nindent 2 }}
  {{- end }}
command: [python, -m, dataplane.gateway.main]
args:
  - --table=kubernetes:{{ .pool.namespace }}/{{ .pool.name }}
  - --pool-key=/etc/grfleet/key
  - --key-id={{ .pool.keySecret.name }}
  - --directory=/run/grfleet
  - --haproxy-master=/run/grfleet/master.sock
  - --bind=:{{ $gateway.port }}
  - --metrics-bind=:8082
  - --health-bind=0.0.0.0:8081
  - --id-header={{ $gateway.idHeader }}
  - --check-path={{ .pool.checkPath | default $gateway.checkPath }}
  - --max-connections={{ int64 $gateway.maxConnections }}
  - --retriable-bytes={{ int64 $gateway.retriableBytes }}
  - --threads={{ $gateway.threads }}
  - --drain-seconds={{ $gateway.drainSeconds }}
  {{- with include "grfleet.edge.caFile" .pool }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "grfleet.edge.hotUsers" $gateway.hotUsers | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if not $gateway.honourChoices }}
  - --ignore-choices
  {{- end }}
{{- end -}}
