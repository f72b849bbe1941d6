"""Why a batch has no reply, as its callers are told."""

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_sidecar.batching.in_flight import replied
from batchedmodel_sidecar.errors import Lost


async def test_a_reason_keeps_nothing_of_the_batch_that_it_is_about() -> None:
    """Its rows stayed in shared memory, which is used no more, until a collection of cycles."""
    lost = Lost("the model server went away")

    async def ask() -> BatchReply:
        raise lost

    assert await replied(ask) is lost
    assert lost.__traceback__ is None
