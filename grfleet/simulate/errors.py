"""What a person has to set right before a simulation can begin: exit code 1, one line."""


class BadInput(ValueError):
    """An input cannot be used; the message names the file, the field or line, the reason, and what to do."""

    def __init__(self, where: str, problem: str, *, then: str = "") -> None:
        super().__init__(f"{where}: {problem}" + (f"; {then}" if then else ""))
