"""The endpoint picker: answers a gateway of Envoy's family, over its external processing protocol, where each request goes."""
