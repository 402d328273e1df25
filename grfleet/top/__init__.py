"""`grfleet top`: pools and instances as the API server has them, worst first.

`read` lists three kinds, `view` turns plain objects into values that keep apart what is missing, stale and zero, `order` puts the
worst first, `columns` and `render` show it, `command` is the command line and the loop.
"""
