"""Serve the bundled model and some folders at a free port, and print the address; benchmarks.serve starts it."""

import sys

from salience.server import serve

if __name__ == "__main__":
    serve(["sentiment"], folders=sys.argv[1:], port=0, ready=lambda address: print(address, flush=True))
