"""Pure numerics of grfleet: arithmetic that virtual time, the agent and the operator share.

Nothing here reads a clock, a file, a socket or a log. A function gets values and returns values, so the same inputs give the
same plan in a test, in the simulator and in production.
"""
