"""The sidecar as it is, without the collector of cycles.

What only the collector would free stays for good here, so a test sees it however few objects there
are.
"""

import gc
import sys

if __name__ == "__main__":
    from batchedmodel_sidecar.__main__ import main

    gc.disable()
    sys.exit(main())
