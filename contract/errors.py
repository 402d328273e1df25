"""What can go wrong when one part talks to another."""


class Unreachable(Exception):
    """The other side did not answer: refused, reset, timed out. Nothing is known about its state."""


class ProtocolViolation(Exception):
    """The other side answered something that the contract does not allow. Its answer must not be used."""
