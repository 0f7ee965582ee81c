"""The places of the page, as far as there is something to see there."""

from salience.server.served import answering, predicts
from salience.server.state import State


def places(here: State) -> list[tuple[str, str]]:
    """Addresses and names, in order."""
    models = list(here.served.models.values())
    known = [
        ("/", "Explore", any(map(predicts, models))),
        ("/answers", "Answers", any(map(answering, models))),
        ("/runs", "Runs", bool(here.folders.roots)),
        ("/compare", "Compare", len([model for model in models if predicts(model)]) > 1),
        ("/reports", "Reports", bool(here.folders.roots)),
        ("/jobs", "Jobs", True),
        ("/api", "API", True),
    ]
    return [(place, name) for place, name, useful in known if useful]
