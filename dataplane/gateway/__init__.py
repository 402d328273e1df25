"""The reference gateway: HAProxy on the path, and beside it an agent that keeps HAProxy's tables what the routing table says."""
