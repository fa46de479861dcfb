"""One measurement in a process of its own: `python -m bench.child SPEC` prints the figures as the last line."""

import importlib
import json
import sys

if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    measured = importlib.import_module(f"bench.{spec['subject']}").measure(spec)
    print(json.dumps(measured))
