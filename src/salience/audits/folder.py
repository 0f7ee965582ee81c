"""The findings of an audit, as files in its folder."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from salience.audits.finding import Finding, Measure
from salience.core.files import write_json
from salience.core.stats import Estimate


def saved(file: Path, settings: Mapping[str, Any]) -> Finding | None:
    """A finding from its file, unless it was made with other settings or is damaged: then it is made again."""
    try:
        stored: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return finding_from(stored["finding"]) if stored["settings"] == _plain(settings) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(file: Path, settings: Mapping[str, Any], finding: Finding) -> None:
    write_json(file, {"settings": _plain(settings), "finding": asdict(finding)})


def _plain(settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(settings), default=asdict))


def finding_from(stored: Mapping[str, Any]) -> Finding:
    """Restore a finding from its JSON form."""
    if not stored["measures"]:
        raise ValueError("a finding rests on a measure")
    measures = tuple(
        Measure(m["name"], Estimate(**m["estimate"]), tuple(m["values"]), m["kind"]) for m in stored["measures"]
    )
    facts: dict[str, Any] = {**stored, "measures": measures}
    return Finding(**facts)
