"""Processes that speak the engine contract: the reference engine, and adapters for real ones."""
