"""What requests cost, and when it is too late for them, by all that was learnt."""

from typing import Final

from batchedmodel_scheduling.batching.items import NEVER
from batchedmodel_scheduling.generation.at_server import Running
from batchedmodel_scheduling.generation.lengths import OutputLengths
from batchedmodel_scheduling.generation.requests import GenerationRequest, Waiting
from batchedmodel_scheduling.generation.token_costs import TokenCosts


class Estimates:
    """Learnt lengths and costs together; `limit` is how many run at once."""

    def __init__(self, lengths: OutputLengths, costs: TokenCosts) -> None:
        self.lengths: Final = lengths
        self.costs: Final = costs

    def work(self, request: GenerationRequest, limit: int) -> float:
        """Device seconds that a request is expected to cost."""
        output = self.lengths.mean(request.key, request.max_tokens) * request.choices
        return self.costs.work(request.prompt_tokens, output, limit)

    def cost(self, running: Running, output_tokens: int | None, limit: int) -> float:
        """What an ended request has cost; of one that nobody saw the end of, as far as was seen."""
        request = running.waiting.request
        if output_tokens is None and not request.streams:
            return running.waiting.work
        output = running.tokens + running.started if output_tokens is None else output_tokens
        return self.costs.work(running.read_tokens, output, limit)

    def learn_length(self, request: GenerationRequest, output_tokens: int) -> None:
        """All choices of a request together became so long."""
        each = output_tokens / max(1, request.choices)
        self.lengths.observe(request.key, request.max_tokens, each)

    def late_from(self, waiting: Waiting, limit: int) -> float:
        """When it is too late for it to go: its first token would miss the target.

        Not before half of the target, so that a wrong guess keeps nobody from a free server.
        """
        if waiting.due == NEVER:
            return NEVER
        first = self.costs.cautious_first_token(waiting.request.there.prompt_tokens, limit)
        return waiting.due - min(first, (waiting.due - waiting.request.arrived) / 2)
