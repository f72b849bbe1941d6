"""The documents say what the code does, as far as a machine can tell."""

import ast
import re
import tomllib
from itertools import pairwise

import pytest

from batchedmodel_autoscaler import model_metrics
from batchedmodel_contract.outcomes import Outcome, Rejection, ReleaseReason
from batchedmodel_contract.processes import sidecar_metrics
from batchedmodel_model_server.api import handler
from support.encoders import ENCODERS
from support.random_checkpoints import ARCHITECTURES
from support.repository import ROOT
from support.settings_rows import SettingRow, settings

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = {
    re.split(r"[<>=~\[]", requirement)[0].lower()
    for requirement in (
        *PROJECT["dependencies"],
        *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
    )
} - {PROJECT["name"]}
"""All libraries that the project asks for; an extra may name others of its own."""


@pytest.mark.parametrize("row", [*settings()], ids=lambda row: f"{row.section}.{row.name}")
def test_the_reference_shows_every_setting_as_the_contract_declares_it(row: SettingRow) -> None:
    page = (ROOT / "docs" / "reference.md").read_text("utf-8")
    section = page.split(f"# `{row.section}`\n")[1].split("\n#")[0]
    beginnings = (f"| `{row.name}` |", f"| [`{row.name}`](")
    shown = next(line for line in section.splitlines() if line.startswith(beginnings))
    assert row.default in shown
    assert row.doc in shown
    kind = shown.split(" | ")[1]
    assert kind == "boolean" or _words(row.rule) <= _words(shown)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[\w%]+(?:\.[\w%]+)*", text))


def test_the_page_of_dependencies_gives_a_reason_for_each_and_for_no_other() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    explained = {row[0].lower() for row in re.findall(r"^\| `([\w-]+)` \|(.+)\|$", page, re.M)}
    assert explained == REQUIREMENTS


def test_every_dependency_is_pinned() -> None:
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert pinned >= REQUIREMENTS


KINDS = {
    "batchedmodels": "BatchedModels",
    "batchedmodels/status": "status",
    "deployments": "Deployment",
    "services": "Services",
    "configmaps": "ConfigMap",
    "replicasets": "ReplicaSets",
    "controllerrevisions": "ControllerRevisions",
    "horizontalpodautoscalers": "HPAs",
    "poddisruptionbudgets": "PodDisruptionBudgets",
    "pods": "pods",
    "events": "Events",
    "leases": "Lease",
    "customresourcedefinitions": "definition of BatchedModel",
    "apiservices": "APIServices",
    "namespaces": "own namespace",
}
"""By resource, as the table of rights calls them."""
RIGHTS = {
    "operator": ("operator-rbac.yaml", "batchedmodel.operatorRules"),
    "autoscaler": ("autoscaler-rbac.yaml", "batchedmodel.autoscalerRules"),
    "helm-test": ("tests/helm-test.yaml", ""),
}
"""By account: the template with its roles, and the rules that it includes."""
VERBS = {"delete": "deletes", "patch": "patches", "create": "makes", "update": "updates"}


def _rights(account: str) -> str:
    """What the table says in the rows of an account, of which only the first names it."""
    page = (ROOT / "docs" / "installing.md").read_text()
    lines = page.split("| Account | Where | Rights |")[1].split("\n\n")[0].splitlines()
    found, whose = "", ""
    for line in lines[2:]:
        first, _, rights, _ = (cell.strip() for cell in line.strip("|").split("|"))
        whose = first or whose
        found += f"{rights}\n" if whose == account else ""
    return found


@pytest.mark.parametrize("account", RIGHTS)
def test_the_table_of_rights_names_all_that_the_chart_gives_an_account(account: str) -> None:
    templates = ROOT / "charts" / "batchedmodel" / "templates"
    file, included = RIGHTS[account]
    text = (templates / file).read_text()
    if included:
        rules = (templates / "_rules.tpl").read_text()
        text += rules.split(f'define "{included}"')[1].split("{{- end }}")[0]
    rights = _rights(f"`RELEASE-{account}`")
    found = re.findall(
        r"resources: \[([^\]]+)\](?:\n\s+resourceNames: [^\n]+)?\n\s+verbs: (.+)", text
    )
    assert len(found) == len(re.findall(r"^\s+verbs:", text, re.M))
    for resources, verbs in found:
        for resource in resources.split(", "):
            assert KINDS[resource] in rights, resource
        for verb in verbs.strip("[]").split(", "):
            assert VERBS.get(verb, "") in rights, (resources, verb)


def test_every_account_of_the_chart_is_in_the_table_of_rights() -> None:
    templates = ROOT / "charts" / "batchedmodel" / "templates"
    made = {
        str(path.relative_to(templates))
        for path in templates.rglob("*.yaml")
        if re.search(r"kind: ServiceAccount$|\"ServiceAccount\"", path.read_text(), re.M)
    }
    assert made == {file for file, _ in RIGHTS.values()}


def test_the_operations_page_names_every_metric_and_every_label_value() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    names = [
        value
        for name, value in vars(sidecar_metrics).items()
        if name.isupper() and name != "PREFIX" and isinstance(value, str)
    ]
    assert len(names) > 10
    for name in names:
        assert f"`{name}" in page, name
    for name in model_metrics.FAMILIES:
        assert f"`{name}" in page, name
    for member in (*Rejection, *Outcome, *ReleaseReason):
        assert f"`{member.value}`" in page, member


def test_the_operations_page_explains_every_alert_of_the_chart_and_no_other() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rules = (ROOT / "charts" / "batchedmodel" / "files" / "rules.yaml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert re.findall(r"^\| `(BatchedModel\w+)` \|", page, re.M) == alerts


def test_the_page_of_language_models_lists_those_that_tests_serve() -> None:
    page = (ROOT / "docs" / "language-models.md").read_text()
    names = list(ARCHITECTURES)
    assert f"Tests do so for {', '.join(names[:-1])} and {names[-1]}." in page


def test_the_list_of_text_encoders_is_that_of_the_tests() -> None:
    text = " ".join((ROOT / "docs" / "handlers.md").read_text().split())
    assert f" {', '.join(ENCODERS)}. " in text


def test_the_handlers_reference_has_all_that_a_handler_may_import_and_define() -> None:
    """Attributes without a docstring, as `cost_rule` was, would not be on the page at all."""
    page = (ROOT / "docs" / "handler-reference.md").read_text("utf-8")
    source = ROOT / "model_server" / "batchedmodel_model_server" / "api" / "handler.py"
    module = ast.parse(source.read_text("utf-8"))
    classes = {name for name in handler.__all__ if isinstance(getattr(handler, name), type)}
    shown = set(re.findall(r"^::: [\w.]+\.(\w+)$", page, re.M))
    assert classes <= shown
    undocumented = [
        ast.unparse(statement)
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name in ("Handler", "Spec")
        for statement, following in pairwise(node.body)
        if isinstance(statement, ast.AnnAssign) and not _is_text(following)
    ]
    assert undocumented == []


def _is_text(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
