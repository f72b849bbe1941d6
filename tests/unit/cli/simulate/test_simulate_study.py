import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_cli.simulate import report
from batchedmodel_cli.simulate.changes import Change, batch_changes
from batchedmodel_cli.simulate.inputs import LengthsWish
from batchedmodel_cli.simulate.study import Answers, Measure, Study, Throughput, smallest
from batchedmodel_cli.simulate.traffic import Traffic, drawn, wished
from batchedmodel_cli.simulator.verdicts import Latency, Verdict
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, Objective, PolicyName
from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.spec import Model, Spec
from batchedmodel_kube.manifest.workload import Autoscaling


@dataclass(kw_only=True)
class PretendedPods:
    """Each replica serves so many in time, by policy; whatever is above that is late."""

    traffic: Traffic
    capacity: dict[PolicyName, float]
    alone: float = 0.01
    least: int = 1
    """Replicas below which nothing is in time."""
    asked: list[tuple[BatchSettings, int, float]] = field(default_factory=list)
    crowded: dict[int, float] = field(default_factory=dict)
    """In time a second, whatever is offered beyond 200/s, by rows of a batch."""
    fewer: dict[int, float] = field(default_factory=dict)
    """The part of the capacity that is left, by rows of a batch."""

    def run(self, settings: BatchSettings, replicas: int, rate: float) -> Verdict:
        self.asked.append((settings, replicas, rate))
        capacity = self.capacity[settings.policy] * self.fewer.get(settings.max_batch_size, 1.0)
        if rate > 200:
            capacity = self.crowded.get(settings.max_batch_size, capacity)
        share = min(1.0, replicas * capacity / rate) if replicas >= self.least else 0.0
        waits = 0.01 + settings.max_wait_seconds
        return Verdict(
            requests=100,
            in_time_share=share,
            longest_in_time_share=share,
            late_share=1 - share,
            refused_share=0.0,
            shed_share=0.0,
            expired_share=0.0,
            latency=Latency(mean=waits, p50=waits, p95=waits, p99=waits),
            goodput=share * rate,
            busy_share=0.5,
            mean_batch=4.0,
        )

    def throughput(self, settings: BatchSettings) -> Throughput:
        return Throughput(1.25 * self.capacity[settings.policy])

    def alone_share(self, settings: BatchSettings) -> float | None:
        target = settings.target_seconds
        return None if target is None else float(self.alone <= target)

    def changes(self, spec: Spec) -> Iterator[Change]:
        return changes(spec, self.traffic.sizes.longest)


def pretended(*, rate: float, **details: Any) -> PretendedPods:
    sizes = wished(LengthsWish(median=64), 512)
    traffic = drawn(rate=rate, burstiness=1, sizes=sizes, requests=1000)
    return PretendedPods(traffic=traffic, **details)


def changes(of: Spec, longest: int) -> Iterator[Change]:
    """With batches of up to 32 rows measured."""
    return batch_changes(of, longest, 32)


EQUAL = dict.fromkeys(PolicyName, 100.0)
DEADLINE_IS_BETTER = {**EQUAL, PolicyName.DEADLINE: 150.0}


def spec(**batching: Any) -> Spec:
    return Spec(model=Model(handler="simulated"), batching=Batching(**batching))


def answer(of: Spec, pods: PretendedPods, replicas: int = 1) -> Answers:
    return Study(spec=of, replicas=replicas, pods=pods).answers()


def fields(of: Spec, longest: int = 64) -> set[tuple[str, str]]:
    return {(change.field, change.value) for change in changes(of, longest)}


def test_a_change_changes_one_setting() -> None:
    before = BatchSettings()
    for change in changes(spec(target_latency_milliseconds=50), 64):
        after = dataclasses.asdict(change.settings)
        differ = {
            name for name, value in dataclasses.asdict(before).items() if after[name] != value
        }
        assert len(differ - {"target_seconds", "max_queue_size"}) == 1, change


def test_the_changes_of_a_plain_manifest() -> None:
    assert fields(spec()) == {
        ("maxBatchSize", "64"),
        ("maxBatchSize", "16"),
        ("maxWaitMilliseconds", "0"),
        ("maxWaitMilliseconds", "20"),
        ("policy", "Greedy"),
        ("policy", "Window"),
    }


def test_lateness_is_tried_where_there_is_a_target() -> None:
    assert ("lateness", "Refuse") in fields(spec(target_latency_milliseconds=50))
    refusing = spec(target_latency_milliseconds=50, lateness=Lateness.REFUSE)
    assert ("lateness", "Serve") in fields(refusing)


def test_the_other_objective_is_tried_where_rows_are_unlike() -> None:
    assert ("objective", "Rows") in fields(spec(target_latency_milliseconds=50))
    by_rows = spec(target_latency_milliseconds=50, objective=Objective.ROWS)
    assert ("objective", "Work") in fields(by_rows)
    alike = changes(spec(target_latency_milliseconds=50), 1)
    assert "objective" not in {change.field for change in alike}


def test_no_change_is_tried_that_a_manifest_may_not_hold() -> None:
    assert not any(name == "maxBatchSize" and value == "0" for name, value in fields(spec()))
    largest = spec(max_batch_size=4096, max_wait_milliseconds=900, request_timeout_seconds=1)
    assert ("maxBatchSize", "8192") not in fields(largest)
    assert ("maxWaitMilliseconds", "3600") not in fields(largest)
    smallest_one = fields(spec(max_batch_size=1))
    assert [value for name, value in smallest_one if name == "maxBatchSize"] == ["2"]


def test_a_bound_on_tokens_is_tried_at_twice_its_value_and_left_out() -> None:
    bounded = fields(spec(max_batch_tokens=64))
    assert {("maxBatchTokens", "absent"), ("maxBatchTokens", "128")} <= bounded
    assert "maxBatchTokens" not in {name for name, _ in fields(spec())}
    without = {
        change.settings.max_batch_tokens
        for change in changes(spec(max_batch_tokens=64), 64)
        if change.value == "absent"
    }
    assert without == {None}


def test_a_policy_that_never_waits_is_not_tried_with_other_waits() -> None:
    names = {name for name, _ in fields(spec(policy=PolicyName.GREEDY))}
    assert "maxWaitMilliseconds" not in names


def test_length_classes_are_tried_where_the_policy_chooses_none() -> None:
    greedy = spec(policy=PolicyName.GREEDY)
    assert ("lengthBuckets", "[16, 32, 64, 128]") in fields(greedy, longest=100)
    assert "lengthBuckets" not in {name for name, _ in fields(greedy, longest=1)}
    assert ("lengthBuckets", "[]") in fields(spec(length_buckets=(64, 128)))


def test_with_a_target_the_highest_rate_is_where_99_percent_are_in_time() -> None:
    pods = pretended(rate=50.0, capacity=EQUAL)
    found = answer(spec(target_latency_milliseconds=50), pods, replicas=3)
    assert found.outlook.highest_rate == pytest.approx(300 / 0.99, rel=0.03)
    assert found.replicas_needed == 1


def test_without_a_target_it_is_the_throughput_times_the_utilisation_that_is_meant() -> None:
    found = answer(spec(), pretended(rate=500.0, capacity=EQUAL), replicas=2)
    assert found.outlook.highest_rate == pytest.approx(200)
    assert found.replicas_needed == 5
    scaled = dataclasses.replace(
        spec(), autoscaling=Autoscaling(max_replicas=4, target_utilization_percent=40)
    )
    found = answer(scaled, pretended(rate=500.0, capacity=EQUAL), replicas=2)
    assert found.outlook.highest_rate == pytest.approx(100)


@pytest.mark.parametrize(("rate", "needed"), [(9.0, 1), (995.0, 10), (6440.0, 64), (6500.0, None)])
def test_replicas_are_added_until_99_percent_are_in_time(rate: float, needed: int | None) -> None:
    pods = pretended(rate=rate, capacity=EQUAL)
    found = answer(spec(target_latency_milliseconds=50), pods)
    assert found.replicas_needed == needed


def test_replicas_are_looked_for_where_the_given_ones_sustain_no_rate_at_all() -> None:
    # As of a trace in which several requests come at the same instant.
    pods = pretended(rate=10.0, capacity=EQUAL, least=4)
    found = answer(spec(target_latency_milliseconds=50), pods)
    assert (found.outlook.highest_rate, found.replicas_needed) == (0.0, 4)


@given(
    wanted=st.integers(min_value=1, max_value=80),
    guess=st.integers(min_value=-3, max_value=200),
)
def test_the_smallest_number_that_holds_is_found_from_any_guess(wanted: int, guess: int) -> None:
    asked: list[int] = []

    def holds(number: int) -> bool:
        asked.append(number)
        return number >= wanted

    assert smallest(holds, guess, 64) == (wanted if wanted <= 64 else None)
    assert all(1 <= number <= 64 for number in asked)
    most = 2 if guess == wanted <= 64 else 13
    assert len(asked) == len(set(asked)) <= most


def test_more_replicas_than_are_tried_are_no_number() -> None:
    pods = pretended(rate=10_000.0, capacity=EQUAL)
    for batching in ({"target_latency_milliseconds": 50}, {}):
        assert answer(spec(**batching), pods).replicas_needed is None


def test_a_target_below_the_time_of_a_lone_request_is_not_searched_for() -> None:
    pods = pretended(rate=10.0, capacity=dict.fromkeys(PolicyName, 0.0), alone=0.2)
    found = answer(spec(target_latency_milliseconds=50), pods)
    assert (found.outlook.highest_rate, found.replicas_needed) == (0.0, None)
    assert len(pods.asked) < 15


def test_a_better_policy_is_worth_changing_to() -> None:
    of = spec(policy=PolicyName.GREEDY, target_latency_milliseconds=50)
    found = answer(of, pretended(rate=150.0, capacity=DEADLINE_IS_BETTER))
    best = found.comparison.advised
    assert best is not None
    assert (best.change.field, best.change.value) == ("policy", "Deadline")
    assert best.gain == pytest.approx(0.5)
    assert found.comparison.rate_with_advised == pytest.approx(150 / 0.99, rel=0.03)
    sentence = report.advice(found)
    assert sentence.startswith(
        "worth changing: policy from Greedy to Deadline (+50.0% in time at 150/s); "
        "1 replica sustains 15"
    )


def test_settings_are_compared_where_they_matter_when_all_is_in_time() -> None:
    of = spec(policy=PolicyName.GREEDY, target_latency_milliseconds=50)
    found = answer(of, pretended(rate=20.0, capacity=DEADLINE_IS_BETTER))
    assert found.comparison.rate == pytest.approx(1.1 * found.outlook.highest_rate)
    assert found.comparison.advised is not None


def test_nothing_is_advised_where_nothing_helps() -> None:
    pods = pretended(rate=150.0, capacity=EQUAL)
    found = answer(spec(target_latency_milliseconds=50), pods)
    assert found.comparison.advised is None
    assert report.advice(found).startswith("nothing that was tried is worth changing")


def test_nothing_is_advised_that_lowers_what_is_sustained() -> None:
    of = spec(target_latency_milliseconds=50)
    pods = pretended(rate=1000.0, capacity=EQUAL, crowded={16: 150.0}, fewer={16: 0.9})
    found = answer(of, pods)
    best = found.comparison.tried[0]
    assert (best.change.field, best.change.value) == ("maxBatchSize", "16")
    assert best.gain == pytest.approx(0.5)
    assert (found.comparison.advised, found.comparison.rate_with_advised) == (None, None)


def test_the_next_best_is_advised_where_the_best_lowers_what_is_sustained() -> None:
    of = spec(target_latency_milliseconds=50)
    pods = pretended(rate=1000.0, capacity=EQUAL, crowded={16: 150.0, 64: 130.0}, fewer={16: 0.9})
    found = answer(of, pods).comparison
    assert found.advised is not None
    assert found.advised.change.value == "64"
    assert found.rate_with_advised == pytest.approx(100 / 0.99, rel=0.03)


def test_next_to_nothing_more_is_not_worth_changing() -> None:
    of = spec(policy=PolicyName.GREEDY, target_latency_milliseconds=50)
    found = answer(of, pretended(rate=20_000.0, capacity=DEADLINE_IS_BETTER))
    assert found.comparison.tried[0].gain > 0.2
    assert found.comparison.advised is None


def test_without_a_target_latency_decides_until_the_replicas_are_full() -> None:
    of = spec(policy=PolicyName.WINDOW)
    calm = answer(of, pretended(rate=50.0, capacity=EQUAL)).comparison
    assert calm.measure is Measure.P99
    assert calm.advised is not None
    assert (calm.advised.change.field, calm.advised.change.value) == ("maxWaitMilliseconds", "0")
    full = answer(of, pretended(rate=130.0, capacity=DEADLINE_IS_BETTER)).comparison
    assert full.measure is Measure.THROUGHPUT
    assert full.advised is not None
    assert full.advised.gain == pytest.approx(0.5)


def test_a_batch_larger_than_any_measured_is_marked() -> None:
    found = answer(spec(), pretended(rate=50.0, capacity=EQUAL)).comparison
    marked = {tried.change.value for tried in found.tried if tried.change.beyond_profile}
    assert marked == {"64"}
