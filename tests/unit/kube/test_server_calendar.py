from datetime import UTC, datetime, timedelta

import pytest

from batchedmodel_kube.server_calendar import ServerCalendar

_AT = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
_DATE = "Tue, 06 May 2031 07:08:09 GMT"


def test_the_time_goes_on_from_the_last_answers_date_whatever_this_nodes_clock_says() -> None:
    now = 100.0
    calendar = ServerCalendar(clock=lambda: now)
    calendar.heard(_DATE)
    assert calendar.now() == _AT
    now += 90
    assert calendar.now() == _AT + timedelta(seconds=90)
    calendar.heard("Tue, 06 May 2031 07:09:00 GMT")
    assert calendar.now() == datetime(2031, 5, 6, 7, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "date",
    [
        "",
        "soon",
        "Tue, 99 May 2031 07:08:09 GMT",
        "Tue, 06 May 2031 07:08:09 -0000",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Mon, 01 Jan 1900 00:00:00 GMT",
    ],
)
def test_a_date_that_is_none_changes_nothing(date: str) -> None:
    calendar = ServerCalendar(clock=lambda: 0.0)
    calendar.heard(date)
    assert abs(calendar.now() - datetime.now(UTC)) < timedelta(seconds=5)
    calendar.heard(_DATE)
    calendar.heard(date)
    assert calendar.now() == _AT
