"""Where the attention state of users lies when it is not being computed: HBM, host memory, SSD, and what moves between them.

Exact and in model time: one instance, every user, every byte. The clock, the waiting queue and all sizes are passed in.
"""
