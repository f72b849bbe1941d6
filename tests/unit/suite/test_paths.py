"""Where the API server has what is asked for in kubectl's words."""

import pytest

from cluster.paths import path_of


@pytest.mark.parametrize(
    ("what", "path"),
    [
        ("pods", "/api/v1/namespaces/team/pods"),
        ("Pod/one", "/api/v1/namespaces/team/pods/one"),
        ("bm/minilm", "/apis/batchedmodel.dev/v1alpha1/namespaces/team/batchedmodels/minilm"),
        ("crd/a.b", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/a.b"),
    ],
)
def test_an_object_or_a_list_has_a_path(what: str, path: str) -> None:
    assert path_of("team", what) == path


def test_selectors_are_a_query() -> None:
    path = path_of("team", "pods", label="a=b", field="c=d")
    assert path == "/api/v1/namespaces/team/pods?labelSelector=a%3Db&fieldSelector=c%3Dd"


def test_a_kind_that_is_not_known_is_named() -> None:
    with pytest.raises(LookupError, match="secret"):
        path_of("team", "secret/one")
