"""Engines run a job: an engine takes the job and its shards and yields events, in any order.

    engine(job, shards, workers) -> Iterator[Advance | Part]

Engines never write to the run folder; finished parts are returned as bytes.
"""
