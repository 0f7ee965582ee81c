"""How much one server does at once. What is more is refused with a message, so that nothing hangs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server."""

    characters: int = 20_000
    """Of a text, a prompt or all messages of a chat."""
    body: int = 2**20
    """Bytes of a request."""
    patience: float = 30.0
    """Seconds in which a request must arrive."""
    methods: int = 8
    """Methods of one request."""
    workers: int = 2
    """Requests that one model works on at once. Their passes take turns."""
    together: int = 16
    """Waiting requests for the same explanations that are worked on in the same passes."""
    waiting: int = 64
    """Requests that wait for one model."""
    seconds: float = 60.0
    """How long a request may take. Longer work is a background job."""
    jobs: int = 16
    """Background jobs that wait or run; as many finished ones are remembered."""
    answer_tokens: int = 256
    """Tokens of a generated answer."""
