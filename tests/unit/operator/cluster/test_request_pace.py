from batchedmodel_operator.cluster.request_pace import RequestPace


def test_a_few_requests_need_not_wait_and_then_there_is_one_a_second() -> None:
    pace, now, times = RequestPace(), 100.0, []
    for _ in range(8):
        now += pace.seconds_to_wait("pods", now)
        times.append(now - 100.0)
    assert times == [0, 0, 0, 0, 1, 2, 3, 4]


def test_each_thing_has_a_pace_of_its_own_and_rest_is_remembered() -> None:
    pace = RequestPace()
    assert [pace.seconds_to_wait("pods", 5.0) for _ in range(5)][-1] > 0
    assert pace.seconds_to_wait("services", 5.0) == 0
    assert [pace.seconds_to_wait("pods", 60.0) for _ in range(4)] == [0, 0, 0, 0]
