"""What is printed of a simulation: that its parts agree with each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_cli.simulate import report
from batchedmodel_cli.simulate.batches import BatchPods
from batchedmodel_cli.simulate.inputs import LengthsWish
from batchedmodel_cli.simulate.study import Answers, Comparison, Measure, Outlook, Throughput
from batchedmodel_cli.simulate.traffic import drawn, wished
from batchedmodel_cli.simulator.verdicts import Verdict
from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.manifest import BatchedModel
from batchedmodel_kube.manifest.spec import Model, Spec
from support.simulate_command import PROFILE

ENDS = ("answered in 50 ms", "late", "refused", "given up", "timed out")
MANIFEST = BatchedModel(
    name="minilm",
    spec=Spec(model=Model(handler="hf"), batching=Batching(target_latency_milliseconds=50)),
)
PODS = BatchPods(
    traffic=drawn(
        rate=100.0, burstiness=1.0, sizes=wished(LengthsWish(median=64), 64), requests=1000
    ),
    profile=PROFILE,
    upstream=False,
    hand_off_seconds=0.0,
    seed=0,
)


def ended(*counts: int) -> Verdict:
    """So many in time, late, refused, given up and timed out."""
    total = sum(counts)
    in_time, late, refused, shed, expired = (count / total for count in counts)
    return Verdict(
        requests=total,
        in_time_share=in_time,
        longest_in_time_share=in_time,
        late_share=late,
        refused_share=refused,
        shed_share=shed,
        expired_share=expired,
        latency=None,
        goodput=100 * in_time,
        busy_share=0.5,
        mean_batch=4.0,
    )


def printed(verdict: Verdict) -> dict[str, str]:
    """The lines about how the offered traffic ended, by name, without rates."""
    comparison = Comparison(
        measure=Measure.IN_TIME,
        rate=100.0,
        present=verdict,
        tried=(),
        advised=None,
        rate_with_advised=None,
    )
    answers = Answers(
        replicas=1,
        outlook=Outlook(offered=verdict, throughput=Throughput(100.0), highest_rate=80.0),
        replicas_needed=1,
        comparison=comparison,
    )
    lines = {}
    for line in report.table(MANIFEST, PODS, answers):
        for name in (*ENDS, "as it is"):
            if line.strip().startswith(f"{name}  "):
                lines[name] = line.strip().removeprefix(name).strip().split(",")[0]
    return lines


@pytest.mark.parametrize(
    ("counts", "in_time", "late"),
    [
        ((2000, 0, 0, 0, 0), "100.0%", None),
        ((19_999, 1, 0, 0, 0), ">99.9%", "<0.1%"),
        ((1999, 1, 0, 0, 0), ">99.9%", "<0.1%"),
        ((1998, 2, 0, 0, 0), "99.9%", "0.1%"),
        ((0, 2000, 0, 0, 0), "0.0%", "100.0%"),
    ],
)
def test_not_everything_is_in_time_where_some_are_late(
    counts: tuple[int, ...], in_time: str, late: str | None
) -> None:
    found = printed(ended(*counts))
    assert found[ENDS[0]] == found["as it is"].split()[0] == in_time
    assert found.get("late") == late


@given(st.lists(st.integers(0, 30_000), min_size=5, max_size=5).filter(any))
def test_the_parts_that_are_printed_add_up_to_the_whole(counts: list[int]) -> None:
    found = printed(ended(*counts))
    tenths = 0
    for name, count in zip(ENDS, counts, strict=True):
        assert (name in found) == (count > 0 or name == ENDS[0])
        text = found.get(name, "0.0%")
        assert (text == "0.0%") == (count == 0)
        assert (text == "100.0%") == (count == sum(counts))
        exact = {"<0.1%": 0, ">99.9%": 1000}.get(text)
        tenths += round(10 * float(text[:-1])) if exact is None else exact
        assert exact is None or 0 < count < sum(counts)
    assert tenths == 1000
