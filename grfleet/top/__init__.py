"""`grfleet top`: pools and instances as the API server has them, worst first.

`read` lists three kinds, `view` turns plain objects into values that keep apart what is missing, stale and zero, `order` puts the
worst first, `columns` and `render` make tables or JSON of them, `show` puts those on a terminal or into a pipe, `follow` looks
again and again, `command` is the command line.
"""
