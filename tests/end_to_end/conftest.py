"""A cluster on which the project is installed, and namespaces on it."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster.kubernetes import Cluster
from cluster.settings import Settings
from support.installed import INSTALLED, RELEASE_NAMESPACE, import_images, install, uninstall
from support.kube import Kube, Namespaces


@pytest.fixture(scope="session")
def installed(cluster: Cluster, cluster_settings: Settings) -> Iterator[Cluster]:
    if INSTALLED in os.environ:
        # Whoever runs it has installed it, for all that test on it.
        yield cluster
        return
    import_images(cluster, cluster_settings)
    # The definition of an earlier release stays behind, and belongs to that one.
    install(cluster, RELEASE_NAMESPACE, "--take-ownership")
    yield cluster
    uninstall(cluster, RELEASE_NAMESPACE)


@pytest.fixture(scope="module")
def namespaces(installed: Cluster) -> Iterator[Namespaces]:
    """Makes namespaces; at the end each of them is really gone."""
    made: list[str] = []

    @contextmanager
    def namespace(name: str) -> Iterator[Kube]:
        installed.kubectl("create", "namespace", name)
        made.append(name)
        yield Kube(installed, name)
        # Nobody else needs what its pods hold, and these may take their whole time to end.
        installed.kubectl("delete", "namespace", name, "--wait=false")

    yield namespace
    if made:
        installed.kubectl(
            *("delete", "namespace", *made, "--ignore-not-found", "--timeout=300s"), timeout_s=310
        )


@pytest.fixture
def kube(namespaces: Namespaces, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A namespace for one test."""
    words = re.findall("[a-z0-9]+", request.node.name.removeprefix("test_"))
    # The last is what tells the forms of one test apart.
    name = f"{'-'.join(words[:-1])[:40].strip('-')}-{words[-1]}"
    with namespaces(name) as kube:
        yield kube
