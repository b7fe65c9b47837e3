"""Runs checks on a library, as a process of its own (see runner.judge() and runner.about()).

worker.py LIBRARY CHECK...      prints a line before and after each check
worker.py --about LIBRARY...    prints a line with the version and the features of each library
"""

import json
import sys

import libraries
import runner

if __name__ == "__main__":
    if sys.argv[1] == "--about":
        for name in sys.argv[2:]:
            print(json.dumps({name: runner.described(name)}), flush=True)
    else:
        runner.serve(libraries.find(sys.argv[1]), sys.argv[2:])
