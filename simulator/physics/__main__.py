"""Print how right the laws are: the table of docs/physics.md."""

import sys

from simulator.physics.fidelity import markdown, rows

sys.stdout.write(markdown(rows()))
