"""The web page: explanations to look at, compare and question in a browser. Needs the extra ``serve``."""

from salience.server.app import create_app
from salience.server.limits import Limits
from salience.server.serving import serve

__all__ = ["Limits", "create_app", "serve"]
