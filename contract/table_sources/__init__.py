"""Ways to the published routing table, for whoever follows it: routers, gateways and pickers read it by the same code."""
