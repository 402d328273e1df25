"""The control loops of the operator, one folder a loop, and the runtime they share."""
