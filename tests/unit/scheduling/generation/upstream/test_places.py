"""When a long prompt may go to a server that is shared."""

from batchedmodel_scheduling.generation.at_server import AtServer
from batchedmodel_scheduling.generation.fair_turns import FairTurns
from batchedmodel_scheduling.generation.requests import Waiting
from batchedmodel_scheduling.generation.upstream.concurrency import Concurrency
from batchedmodel_scheduling.generation.upstream.costs import Costs
from batchedmodel_scheduling.generation.upstream.places import Places
from support.generation_requests import request


def test_those_that_go_because_nothing_is_unread_put_the_next_turn_off_once() -> None:
    concurrency = Concurrency()
    places = Places(concurrency, AtServer(), Costs(), FairTurns())
    concurrency.share(True)
    for number in range(100):
        now = 0.1 * number
        places.released(Waiting(request(prompt=6000), work=5.0, target=None), now)
        assert now < places.next_event(now) <= now + 5.0
