"""A sidecar that may have no more than `DESCRIPTORS` files and connections open."""

import resource
from typing import Final

DESCRIPTORS: Final = 1024

if __name__ == "__main__":
    from batchedmodel_sidecar.__main__ import main

    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    main()
