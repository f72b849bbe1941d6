"""What a person should know before trusting the answers, and where a profile comes from.

Pure: sentences about the manifest, the traffic and the profile.
"""

import tempfile
from collections.abc import Iterator
from typing import Final

from batchedmodel_cli.simulate.traffic import Traffic, longest_measured
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.kubernetes.names import ADMIN_PORT
from batchedmodel_contract.manifest.manifest import BatchedModel

_FEW: Final = 1000


def notes(
    manifest: BatchedModel,
    traffic: Traffic,
    profile: Profile,
    *,
    alone_seconds: float,
    assumed_length: bool,
    of_one_pod: bool,
) -> Iterator[str]:
    """What limits the answers; nothing where nothing does."""
    batching = manifest.spec.batching
    if manifest.spec.model.protocol is not None:
        yield (
            "a server of one's own tells its sidecar no profile: the policy learns the device from "
            "the traffic. Here it has before anything counts; a new pod's first batches go worse"
        )
    if of_one_pod:
        yield (
            "a sidecar records what its own pod received: the rate is one pod's, and the replicas "
            "are those that this part of the traffic needs"
        )
    if traffic.requests < _FEW:
        yield (
            f"{traffic.requests} requests are few: percentiles and rates of so short a traffic "
            "say little"
        )
    by_length = profile.cost_rule is not CostRule.ROWS
    if assumed_length and by_length:
        yield (
            f"all requests have length {traffic.typical_length}, the middle one of the profile; "
            "--lengths says otherwise"
        )
    longest = longest_measured(profile)
    if by_length and traffic.longest > longest:
        yield (
            f"lengths go up to {traffic.longest}, the profile only to {longest}: what is longer "
            "takes the time that a straight line foretells"
        )
    largest = largest_measured(profile)
    if batching.max_batch_size > largest:
        yield (
            f"maxBatchSize is {batching.max_batch_size}, the largest batch in the profile has "
            f"{largest} rows: what is larger takes the time that a straight line foretells"
        )
    target = batching.target_latency_milliseconds
    if target is not None and alone_seconds * 1000 > target:
        yield (
            f"no number of replicas meets the target: a request of length "
            f"{traffic.typical_length} takes {alone_seconds * 1000:.3g} ms on an idle device, and "
            f"targetLatencyMilliseconds is {target}"
        )


def largest_measured(profile: Profile) -> int:
    """Rows of the largest batch in the profile."""
    return max(point.rows for point in profile.points)


def how_to_get_a_profile(manifest: BatchedModel, file: str) -> str:
    """The commands that give a profile, ready to be typed."""
    if manifest.spec.model.protocol is not None:
        return (
            "A server of one's own measures no latency curve, so write it by hand, the times of a "
            'few batches in seconds:\n  {"cost_rule": "Padded", "device": "mine", "points": ['
            '{"rows": 1, "length": 128, "seconds": 0.006}, ...]}\n'
            f"then: batchedmodel simulate {file} --profile profile.json ..."
        )
    socket = f"{tempfile.gettempdir()}/batchedmodel-*/model.sock"
    return (
        "The model server measures it while it warms up. From one that runs here "
        f"(batchedmodel run {file}):\n"
        f"  batchedmodel simulate {file} --profile {socket} ...\n"
        "From a pod:\n"
        f"  kubectl port-forward deploy/{manifest.name} {ADMIN_PORT} &\n"
        f"  batchedmodel simulate {file} --profile http://127.0.0.1:{ADMIN_PORT} ..."
    )
