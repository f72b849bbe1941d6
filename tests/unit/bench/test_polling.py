"""What the table about asking sidecars says of what was measured."""

import polling


def test_cost_is_told_per_question_and_the_latest_answer_counts() -> None:
    found = polling.Found(
        polls=6000.0,
        silent=2.0,
        polling_seconds=10.0,
        cpu=3.0,
        memory=90_000_000,
        gap=5.5,
        reads=[0.002] * 98 + [0.06] * 2,
    )
    told = {figure.name: (figure.value, figure.holds) for figure in polling.figures_of(found)}
    assert told["1,000 models x 3 pods: polls answered"] == (600.0, None)
    assert told["polls not answered"] == (2.0, None)
    assert told["CPU of the autoscaler per poll"] == (500.0, None)
    assert told["CPU of the autoscaler"] == (30.0, None)
    assert told["memory of its process while it only polls"] == (90.0, None)
    assert told["age of a metric at worst"] == (5.5, True)
    assert told["metric: GET, p99"] == (60.0, False)
