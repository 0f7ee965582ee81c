"""Where a run is worked on. An engine takes a job and its shards and tells what is done, in any order.

    engine(job, shards, workers) -> Iterator[Advance | Part]

Engines never write to the run folder: the parts come back as bytes.
"""
