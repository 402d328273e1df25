"""``python -m testbed``: the commands of :mod:`testbed.cli`."""

from testbed.cli import app

app(prog_name="python -m testbed")
