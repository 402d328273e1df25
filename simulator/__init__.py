"""A generative recommendation fleet without accelerators: engine model, traces and workloads, the clock passed in."""
