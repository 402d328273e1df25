"""Benchmarks: `python -m bench NAME [--quick] [--json]`. Each runs its baseline in the same run and prints the spread."""
