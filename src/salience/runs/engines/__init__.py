"""Engines run a job: an engine takes the job and its shards and yields events, in any order.

    engine(job, shards, workers) -> Iterator[Advance | Part]

Engines never write to the run folder; finished parts are returned as bytes.
"""

from salience.errors import BadInput, choose

ENGINES = ("local", "ray")


def check_engine(engine: str, address: str | None) -> None:
    """Raise for an engine that does not exist, and for an address that it does not use. This needs no torch."""
    choose(engine, ENGINES, "engine")
    if address is not None and engine != "ray":
        raise BadInput("address is only used by the engine 'ray': use --engine ray, or engine='ray' in Python")
