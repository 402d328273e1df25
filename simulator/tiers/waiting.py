"""What is known to come: requests that wait in the queue, and users whom an early signal of the cascade announced.

Each announcement gets the next ticket; a user's distance is how many announced requests are served before it, about. Policies
that look ahead know this queue and nothing else of the future, so a replay that announces W requests ahead gives them exactly W.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

NO_TICKET = np.int64(1 << 60)


class WaitingQueue:
    """Announced requests of numbered users.

    Parameters
    ----------
    users : int
    limit : int, optional
        Most announcements that are held; more are refused and counted in `refused`.
    """

    def __init__(self, users: int, *, limit: int | None = None) -> None:
        self.next_ticket: NDArray[np.int64] = np.full(users, NO_TICKET)
        self.refused = 0
        self._limit = limit
        self._tickets: dict[int, deque[int]] = {}
        self._issued = 0
        self._done = 0

    def __len__(self) -> int:
        return self._issued - self._done

    def announce(self, user: int) -> bool:
        """Note that a request of this user will come after all announced so far; False when the queue is full."""
        if self._limit is not None and len(self) >= self._limit:
            self.refused += 1
            return False
        tickets = self._tickets.setdefault(user, deque())
        if not tickets:
            self.next_ticket[user] = self._issued
        tickets.append(self._issued)
        self._issued += 1
        return True

    def leave(self, user: int) -> bool:
        """Take the user's first announcement out: it is served now, or was withdrawn. False when there was none."""
        tickets = self._tickets.get(user)
        if not tickets:
            return False
        tickets.popleft()
        self._done += 1
        if tickets:
            self.next_ticket[user] = tickets[0]
        else:
            del self._tickets[user]
            self.next_ticket[user] = NO_TICKET
        return True

    @property
    def newest_ticket(self) -> int:
        """Ticket of the latest announcement."""
        return self._issued - 1

    def waits(self, user: int) -> bool:
        return user in self._tickets

    def distance(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Announced requests until each user's next one, at least 1; huge for users that are not announced."""
        return np.maximum(self.next_ticket[users] - self._done + 1, 1)
