"""What things cost on an accelerator: compute, batches, the host link, moving memory. Constants are data files with sources.

Everything here is a pure function or a small event model with the time passed in; docs/physics.md says how right it is.
"""
