"""A fleet of GR instances in virtual time: many requests a second on one core, at a level of detail that states its own error.

The same two caches, link and server as `simulator.core`, as loops over columns instead of objects (docs/fleet.md).
"""
