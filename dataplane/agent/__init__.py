"""The agent beside one engine: it observes, estimates, decides and drives the EMB/KV split inside the last accepted intent.

It persists nothing and never talks to the API server. With the operator gone it works on for ever on its last intent; with the
engine gone it waits; with its own memory gone it adopts the split that the engine answers.
"""
