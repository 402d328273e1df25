"""The best split per window in hindsight: one pass over a log gives the latencies at 91 splits, and says how sure it is.

`simulator.oracle.run.best_splits` is the door; docs/oracle.md has the model behind it.
"""
