import os

import per

# Ray's workers import per and libper from the same places as the tests.
package = os.path.dirname(os.path.dirname(per.__file__))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
