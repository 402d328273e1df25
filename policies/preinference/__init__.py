"""Which user prefixes are computed ahead of ranking, and how much capacity that gets.

RelayGR's observation is the model: most tokens of a ranking request are the user's history and known before ranking starts, so
its attention state can be computed earlier, for requests that would otherwise miss their budget, in bounded memory and load.
"""
