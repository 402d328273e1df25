"""The wire between the parts of a fleet: engine contract, agent contract, routing table, keys and signatures.

This room imports nothing of ours, so that an engine author can take it alone. Values are msgspec structs (camelCase on the
wire, snake_case here); every decoder treats its input as hostile: sizes, ranges and types are checked before use.
"""
