"""What a caller of the router client may have to catch. No message holds a raw user id or a key."""

from collections.abc import Sequence


class ClientError(Exception):
    """Base of all errors of this library."""


class NoInstance(ClientError):
    """No instance may take this request: no table yet, a withdrawn or empty one, or all its owners were excluded."""


class KeyMismatch(ClientError):
    """The table was made for a pool key that this client does not hold; raised only where `strict_key` is asked for."""


class BadUserId(ClientError, ValueError):
    """The id is empty or cannot be encoded. It is not repeated here, and not in the chain of causes."""


class InstanceFailed(ClientError):
    """For a caller's `send` to raise: the instance did not answer this request, try another one."""


class AllFailed(ClientError):
    """Every instance that was tried failed.

    Attributes
    ----------
    errors : tuple of (str, Exception)
        Name of the instance and what `send` raised, in the order of the tries.
    """

    def __init__(self, errors: Sequence[tuple[str, Exception]]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(f"{name}: {type(error).__name__}" for name, error in self.errors))
