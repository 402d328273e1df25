module grfleet.dev/testbed/inference

go 1.24.0

require sigs.k8s.io/gateway-api-inference-extension v1.6.0
