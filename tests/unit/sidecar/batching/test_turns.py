"""What of the tenants' line a policy sees: one kind of rows where a batch may leave, or all."""

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.spec import PolicyName
from batchedmodel_scheduling.batching.items import ItemId
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_sidecar.batching.request_window import Backoff, Turns
from support.strategies import an_item

AHEAD = (1.0, 8)


class Line:
    """Tenants with a row each and the policy that sees them; row n is of the key n % kinds."""

    def __init__(self, rows: int, kinds: int) -> None:
        settings = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=8)
        self.policy: BasePolicy = new_policy(settings, None)
        self.backoff = Backoff()
        self.turns = Turns(self.backoff, str)
        for number in range(rows):
            item = an_item(number, key=str(number % kinds))
            self.turns.add(str(number), item, self.policy)
        self.turns.show(AHEAD, self.policy, 0.0)

    def sees(self, *, may_leave: bool, in_turn: bool = True) -> set[ItemId]:
        """The rows that the policy sees then."""
        self.turns.choose(AHEAD, self.policy, 0.0, may_leave=may_leave, in_turn=in_turn)
        return {item.id for item in self.policy.waiting()}


def test_where_a_batch_may_leave_the_policy_sees_the_rows_of_one_kind() -> None:
    line = Line(rows=12, kinds=3)
    assert line.sees(may_leave=True) == {0, 3, 6, 9}
    assert line.turns.line.unseen == 0, "the others stay shown, and are not lined up anew"


def test_it_sees_all_of_a_few_kinds_where_none_may_leave_or_the_one_in_turn_waits() -> None:
    line = Line(rows=12, kinds=3)
    for _ in range(3):
        assert len(line.sees(may_leave=True)) == 4
        assert line.sees(may_leave=False) == set(range(12))
        assert len(line.sees(may_leave=True)) == 4
        assert line.sees(may_leave=True, in_turn=False) == set(range(12))


def test_of_many_kinds_it_sees_one_until_the_one_in_turn_waits() -> None:
    line = Line(rows=60, kinds=30)
    assert line.sees(may_leave=False) == {0, 30}
    assert line.sees(may_leave=True) == {0, 30}
    assert line.sees(may_leave=True, in_turn=False) == set(range(60))


def test_when_a_kind_has_left_the_next_one_is_seen() -> None:
    line = Line(rows=60, kinds=30)
    seen = set[ItemId]()
    for _ in range(14):
        batch = line.sees(may_leave=False)
        assert len(batch) == 2
        seen |= batch
        for item_id in batch:
            line.policy.withdraw(item_id, 0.0)
            line.turns.left(item_id)
    assert len(seen) == 28


def test_rows_of_one_kind_are_all_seen() -> None:
    line = Line(rows=12, kinds=1)
    assert not line.turns.choose(AHEAD, line.policy, 0.0, may_leave=True, in_turn=True)
    assert line.sees(may_leave=True) == set(range(12))


def test_a_row_that_is_kept_back_can_go_or_rest_meanwhile() -> None:
    line = Line(rows=12, kinds=3)
    assert line.sees(may_leave=True) == {0, 3, 6, 9}
    line.turns.discard(ItemId(4))
    line.backoff.rest("2", "5", until=1.0)
    assert line.sees(may_leave=False) == set(range(12)) - {4, 5}
    assert ItemId(5) not in line.turns
    assert [item.id for item in line.backoff.woken(1.0)] == [5]
