"""Texts that are generated together: which run, what a step computes, and who is told what.

A sequence joins and leaves at any step. What is in a step `StepPlanner` plans; a `StepRunner`
computes it. This is the owner of sequences and blocks between them: no torch, no loop, no clock.

A text that is admitted begins behind what the cache has of its beginning; so does one that had to
give way, whose own blocks are there until others need them. Texts of one salt give way to another
that has little of the engine (`GivingWay`).

A step that fails is computed again. Without memory the newest sequence ends. Of one that fails for
another reason the newest prompt ends, or where none is in it each sequence that fails alone.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import logging
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from batchedmodel_contract.generation.frames import (
    Configure,
    Finish,
    Refusal,
    Refused,
    StepReport,
    Submit,
    Token,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import NO_ADAPTER
from batchedmodel_model_server.api.generator import Draw, Sampled, StepPart, StepRunner
from batchedmodel_model_server.errors import DeviceLost, ForwardFailed, OutOfMemory, translating
from batchedmodel_model_server.generation.block_pool import BlockPool, PrefixHashes
from batchedmodel_model_server.lora.registry import Kept, Weights
from batchedmodel_model_server.lora.slots import NO_SLOT, DeviceAdapters
from batchedmodel_scheduling.engine.giving_way import GivingWay
from batchedmodel_scheduling.engine.step_planner import (
    EngineSequence,
    Part,
    StepPlanner,
    StepSettings,
)
from batchedmodel_scheduling.latency.step_times import StepCost
from batchedmodel_scheduling.lora.text_turns import WaitingText, may_begin
from batchedmodel_scheduling.queue.items import NEVER, Priority

MOST_TEXTS: Final = 4096
"""So many are taken, whatever runs at once: the caller's queue is elsewhere, but lists of prompts
come whole, and so does all that had begun in an engine which ran more."""
MOST_BYTES: Final = 256 << 20
"""Of the prompts of all that is taken."""
_NOTHING: Final = float("nan")
_log = logging.getLogger(__name__)


class EngineText:
    """One text, or several choices of it until the first token of each is there."""

    __slots__ = (
        *("blocks", "cached", "choice", "choices", "deadline", "draw", "given", "hashes", "ids"),
        *("sequence", "since", "slot", "submit", "unwanted", "weights"),
    )

    def __init__(
        self, submit: Submit, choice: int, ids: array[int], hashes: PrefixHashes, deadline: float
    ) -> None:
        self.submit: Final = submit
        self.choice: Final = choice
        self.choices = 1
        """That this is until the first token; then each of them is a text."""
        self.ids: Final = ids
        self.hashes: Final = hashes
        self.cached: int | None = None
        """Tokens of its prompt that it found in the cache when it first ran; None: it has not."""
        self.deadline: Final = deadline
        self.blocks: Final[list[int]] = []
        self.sequence: EngineSequence
        prompt_tokens = len(submit.ids) - submit.given
        self.given = len(ids) - prompt_tokens
        """Tokens of the text itself."""
        self.draw: Final = Draw(submit.sampling, choice, ids, prompt_tokens)
        """Its next token, whichever that is: the ids grow."""
        self.weights: Weights | None = None
        """Of its adapter, if it has one."""
        self.since = 0.0
        """When it came."""
        self.slot = NO_SLOT
        """Where its adapter is while it runs."""
        self.unwanted: Final[set[int]] = set()
        """Of several choices that have not begun, those that nobody waits for."""

    @property
    def begun(self) -> bool:
        """Whether a token of its request was told since that came."""
        return self.given > self.submit.given or self.choice > self.submit.first_choice

    def draws(self, places: int) -> list[Draw]:
        """Its next token; of several choices those of as many more as there are places."""
        more = range(1, min(self.choices, 1 + places))
        return [self.draw, *(self.draw._replace(choice=self.choice + at) for at in more)]

    def fork(self, choice: int) -> EngineText:
        """Another choice of the same prompt, of which nothing is in the cache yet."""
        ids = array("i", self.ids)
        other = EngineText(self.submit, choice, ids, self.hashes.of_fork(ids), self.deadline)
        other.cached = 0  # it is told of their prompt once
        other.weights, other.since = self.weights, self.since
        other.sequence = replace(self.sequence, computed=0, blocks=0, shared=0, unused=0)
        return other


class TakenRequest:
    """A request that was taken and has not ended yet."""

    __slots__ = ("adapter", "bytes", "choices", "leaving")

    def __init__(self, submit: Submit) -> None:
        self.adapter: Kept | None = None
        self.bytes: Final = submit.ids.itemsize * len(submit.ids)
        self.choices: Final = set(range(submit.first_choice, submit.first_choice + submit.choices))
        """Those that its caller still waits for."""
        self.leaving = False
        """Whether nobody waits for it, though the engine may have it still."""

    def over(self, texts: int, byte_count: int) -> str | None:
        """Which bound it would pass beside so many texts, and prompts of so many bytes."""
        if texts + len(self.choices) > MOST_TEXTS:
            return f"the engine has {texts} texts already, and takes {MOST_TEXTS}"
        if byte_count + self.bytes > MOST_BYTES:
            return f"the engine has prompts of {byte_count} bytes already, and takes {MOST_BYTES}"
        return None


def check_submit(
    submit: Submit, settings: StepSettings, vocabulary: int, *, max_context_tokens: int
) -> None:
    """Raise `InvalidInput` for one that can never be served.

    How its tokens are chosen was checked where it was asked for.
    """
    ids, given, choices = submit.ids, submit.given, submit.choices
    if given >= len(ids):
        raise InvalidInput("prompt", "is empty")
    values = np.frombuffer(ids, np.int32)
    wrong = values[(values < 0) | (values >= vocabulary)]
    if len(wrong):
        rule = f"holds a token id that is not from 0 to {vocabulary - 1}"
        raise InvalidInput("prompt", rule, int(wrong[0]))
    if submit.max_tokens <= given:
        raise InvalidInput("max_tokens", f"is not above the {given} tokens given")
    if choices > 1 and given:
        raise InvalidInput("n", "is more than 1 for a text that has begun", choices)
    whole = len(ids) - given + submit.max_tokens
    if whole > max_context_tokens:
        rule = f"with its text has {whole} tokens; the model takes {max_context_tokens}"
        raise InvalidInput("prompt", rule)
    if not settings.holds(whole):
        room = settings.blocks * settings.block_tokens
        raise InvalidInput("prompt", f"with its text has {whole} tokens; the cache holds {room}")


class Engine:
    """The sequences of one model. Whoever calls it does so from one thread at a time."""

    def __init__(
        self,
        runner: StepRunner,
        settings: StepSettings,
        cost: StepCost,
        *,
        vocabulary: int,
        max_context_tokens: int,
        adapters: DeviceAdapters | None = None,
    ) -> None:
        self._runner: Final = runner
        self._vocabulary: Final = vocabulary
        self._max_context: Final = max_context_tokens
        self._cost: Final = cost
        self._adapters: Final = adapters
        self._planner = StepPlanner(settings, cost)
        self._giving_way: Final = GivingWay()
        self._pool = BlockPool(settings.blocks)
        self._texts: Final[dict[EngineSequence, EngineText]] = {}
        self._running: list[EngineSequence] = []
        self._waiting: list[EngineSequence] = []
        self._tokens: list[Token] = []
        self._cached: list[tuple[int, int]] = []
        self._refused: list[Refused] = []
        self._preemptions = self._prefill_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._running or self._waiting)

    def submit(self, submit: Submit, now: float, weights: Weights | None = None) -> None:
        """Take a request, and its adapter's weights if it has one.

        Raises `InvalidInput` before anything of it is kept.
        """
        check_submit(
            submit, self._planner.settings, self._vocabulary, max_context_tokens=self._max_context
        )
        deadline = NEVER if submit.deadline is None else now + submit.deadline
        ids = array("i", submit.ids)
        size = self._planner.settings.block_tokens
        hashes = PrefixHashes.of_text(ids, size, submit.salt, submit.adapter)
        text = EngineText(submit, submit.first_choice, ids, hashes, deadline)
        text.choices = submit.choices
        text.weights, text.since = weights, now
        one = text.sequence = EngineSequence(
            id=submit.id,
            length=len(ids),
            priority=Priority(submit.priority),
            tenant=submit.salt,
            weight=submit.weight,
        )
        self._texts[one] = text
        self._waiting.append(one)

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """Forget a request, or one of its choices; unknown ones are ignored."""
        for text in list(self._texts.values()):
            if text.submit.id != request_id:
                continue
            if choice is None or (text.choices == 1 and text.choice == choice):
                self._leave(text)
            elif text.choices > 1:
                text.unwanted.add(choice)

    def configure(self, bounds: Configure) -> None:
        """Plan by other bounds from the next step on; what runs above them goes on."""
        present = self._planner.settings
        most = max(1, bounds.max_sequences)
        self._planner = StepPlanner(
            StepSettings(
                max_sequences=most,
                max_tokens_per_step=max(most, bounds.max_tokens_per_step),
                block_tokens=present.block_tokens,
                blocks=present.blocks,
                token_seconds=bounds.token_seconds,
            ),
            self._cost,
        )

    def step(self, now: float, *, batch_waits: bool = False) -> None:
        """Compute one step; raises `DeviceLost`. `take` says what came of it.

        `batch_waits`: for the device as well.
        """
        self._refuse_late(now)
        if self._pool.free < len(self._running) or self._has_rivals:
            # Somebody may have to give way: it matters how much that frees.
            for one in self._running:
                one.shared = self._pool.shared(self._texts[one].blocks)
        self._make_way(now)
        waiting = map(self._looked_up, self._may_run(now))
        plan = self._planner.plan(self._running, waiting, self._pool.free, batch_waits=batch_waits)
        for one in plan.preempted:
            self._preempt(one)
        for one in plan.admitted:
            self._admit(one)
        for one in plan.admitted:
            # Only now: no block is taken that another of these has found.
            self._give_blocks(self._texts[one], one.length)
            self._enter_slot(self._texts[one])
        parts = [part for part in plan.parts if part.sequence in self._texts]
        for one, tokens in parts:
            if one.computed + tokens > one.blocks * self._planner.settings.block_tokens:
                self._give_blocks(self._texts[one], one.computed + tokens)
        for part, sampled in self._computed(parts):
            self._advance(part, sampled)

    def begin_anew(self) -> None:
        """End the newest text, and compute all others anew: nobody knows what a step has left."""
        newest = (self._running or self._waiting)[-1:]
        self._fail([self._texts[one] for one in newest])
        here = [*self._running, *self._waiting]
        self._running, self._waiting = [], [one for one in here if one in self._texts]
        self._pool = BlockPool(self._pool.blocks)
        for text in self._texts.values():
            self._leave_slot(text)
            self._forget_blocks(text)

    def _fail(self, texts: Iterable[EngineText]) -> None:
        for text in texts:
            self._told_end(text, Refusal.BUSY, "the engine failed")
            self._leave_slot(text)
            del self._texts[text.sequence]

    def take(self, seconds: float) -> tuple[StepReport, list[Refused]]:
        """What came since this was asked last, and how the engine is now."""
        tokens, self._tokens = self._tokens, []
        cached, self._cached = self._cached, []
        refused, self._refused = self._refused, []
        missing = [one.length - one.computed for one in (*self._running, *self._waiting)]
        report = StepReport(
            seconds=seconds,
            running=len(self._running),
            waiting=len(self._waiting),
            free_blocks=self._pool.free,
            blocks=self._pool.blocks,
            backlog=sum([tokens for tokens in missing if tokens > 1]),
            preemptions=self._preemptions,
            prefill_tokens=self._prefill_tokens,
            tokens=tokens,
            cached=tuple(cached),
        )
        return report, refused

    def _refuse_late(self, now: float) -> None:
        late = [text for text in self._texts.values() if text.deadline <= now and not text.begun]
        for text in late:
            self._end(text, Refusal.LATE, "the first token would come after its deadline")

    def _looked_up(self, one: EngineSequence) -> EngineSequence:
        """One that waits, with what the cache has of it now."""
        found = self._found(one)
        one.blocks = len(found)
        one.computed = one.blocks * self._planner.settings.block_tokens
        one.unused = self._pool.unused(found)
        return one

    def _found(self, one: EngineSequence) -> list[int]:
        # Its last token is computed in any case: behind it the next one is drawn.
        most = (one.length - 1) // self._planner.settings.block_tokens
        return self._pool.find(self._texts[one].hashes.first(most))

    def _admit(self, one: EngineSequence) -> None:
        text, found = self._texts[one], self._found(one)
        self._waiting.remove(one)
        self._running.append(one)
        self._pool.share(found)
        text.blocks.extend(found)
        one.unused = 0
        if text.cached is None:
            text.cached = one.computed

    def _make_way(self, now: float) -> None:
        """Let those wait that give way to whoever has little of the engine."""
        if not self._waiting:
            return
        settings, running, way = self._planner.settings, self._running, self._giving_way
        self._waiting = way.in_turn(self._waiting, running, settings)
        if self._waiting[0] not in self._may_run(now):
            return  # its adapter finds no slot, whoever gives way
        first = self._looked_up(self._waiting[0])
        for one in way.to(first, running, self._pool.free, settings, self._cost, now):
            one.moved += 1
            self._preempt(one, behind=1)

    def _preempt(self, one: EngineSequence, *, behind: int = 0) -> None:
        """It waits, behind so many others."""
        text = self._texts[one]
        self._running.remove(one)
        self._empty(text)
        self._waiting.insert(behind, one)
        self._preemptions += 1

    def _empty(self, text: EngineText) -> None:
        self._leave_slot(text)
        self._pool.give_back(text.blocks)
        self._forget_blocks(text)

    def _forget_blocks(self, text: EngineText) -> None:
        text.blocks.clear()
        text.sequence.blocks = text.sequence.shared = text.sequence.computed = 0

    def _give_blocks(self, text: EngineText, tokens: int) -> None:
        wanted = self._planner.settings.blocks_of(tokens)
        while len(text.blocks) < wanted:
            text.blocks.append(self._pool.take())
        text.sequence.blocks = len(text.blocks)

    # The slots of their adapters

    def _may_run(self, now: float) -> Sequence[EngineSequence]:
        """Those of the waiting whose adapters have room."""
        if self._adapters is None:
            return self._waiting
        running = Counter([self._texts[one].submit.adapter for one in self._running])
        texts = [self._texts[one] for one in self._waiting]
        waiting = [WaitingText(text.submit.adapter, text.since) for text in texts]
        allowed = may_begin(waiting, running, self._adapters.table.slots, now)
        return [one for one, may in zip(self._waiting, allowed, strict=True) if may]

    def _enter_slot(self, text: EngineText) -> None:
        """It runs from now on, or ends where its adapter cannot be copied; raises `DeviceLost`."""
        number = text.submit.adapter
        if self._adapters is None or number == NO_ADAPTER:
            return
        try:
            text.slot = translating(partial(self._adapters.enter, number, text.weights))
        except DeviceLost:
            raise
        except ForwardFailed as error:
            self._end(text, Refusal.BUSY, f"its adapter finds no room: {error}")

    def _leave_slot(self, text: EngineText) -> None:
        if self._adapters is not None and text.slot != NO_SLOT:
            self._adapters.table.unpin(text.submit.adapter)
            text.slot = NO_SLOT

    # What a step computes

    def _computed(self, parts: list[Part]) -> Iterable[tuple[Part, list[Sampled]]]:
        """Each part that was computed, and what was drawn behind it."""
        found: list[tuple[Part, list[Sampled]]] = []
        while parts:
            try:
                return [*found, *zip(parts, self._run(parts), strict=True)]
            except DeviceLost:
                raise
            except ForwardFailed as error:
                _log.warning("a step of %d sequences failed: %s", len(parts), error)
                suspects = [part for part in parts if part.sequence.missing > 1]
                if isinstance(error, OutOfMemory):
                    suspects = suspects or list(parts)  # with one less the others may have room
                if len(parts) == 1 or not suspects:
                    return [*found, *self._one_by_one(parts)]
                newest = max(suspects, key=lambda part: self._running.index(part.sequence))
                # It may be the reason or not: alone it shows.
                parts.remove(newest)
                found += self._one_by_one([newest])
        return found

    def _one_by_one(self, parts: Sequence[Part]) -> list[tuple[Part, list[Sampled]]]:
        found = []
        for part in parts:
            try:
                found.append((part, self._run([part])[0]))
            except DeviceLost:
                raise
            except ForwardFailed as error:
                self._end(self._texts[part.sequence], Refusal.FAILED, str(error))
        return found

    def _run(self, parts: Sequence[Part]) -> list[list[Sampled]]:
        # No step draws more than it has places for: its memory is measured by these.
        places, found = self._places, list[StepPart]()
        for one, tokens in parts:
            text, start = self._texts[one], one.computed
            draws: list[Draw] = []
            if start + tokens == one.length:
                draws = text.draws(places)
                places -= len(draws) - 1
            ids = text.ids[start : start + tokens]
            found.append(StepPart(ids, start, text.blocks, draws, text.slot))
        return self._runner.run(found)

    def _advance(self, part: Part, sampled: Sequence[Sampled]) -> None:
        one, tokens = part
        text = self._texts[one]
        if tokens > 1 or not text.given:
            self._prefill_tokens += tokens
        size = self._planner.settings.block_tokens
        whole = one.computed // size
        one.computed += tokens
        for at in range(whole, one.computed // size):
            self._pool.keep(text.blocks[at], text.hashes.of(at))
        if text.choices == 1:
            for drawn in sampled:
                self._tell(text, drawn)
        elif sampled:
            self._begin_choices(text, sampled)

    @property
    def _has_rivals(self) -> bool:
        """Whether one tenant waits while another one runs."""
        waiting = self._waiting
        return bool(waiting) and any(
            one.tenant != waiting[0].tenant for one in (*waiting, *self._running)
        )

    @property
    def _places(self) -> int:
        """That nobody has."""
        return max(0, self._planner.settings.max_sequences - len(self._running))

    def _begin_choices(self, text: EngineText, sampled: Sequence[Sampled]) -> None:
        """Each goes on for itself: it runs where there is room, and else it waits."""
        places, here = self._places, len(self._running)
        begin, wait = list[EngineText](), list[EngineText]()
        for at in range(1, text.choices):
            other = text.fork(text.choice + at)
            # A block more for each that runs, as for any other that begins.
            room = at < len(sampled) and len(begin) < places and self._pool.free > here + len(begin)
            (begin if room and self._go_on(other, text) else wait).append(other)
        # None is here before all can be: what fails until then fails for all of them.
        unwanted, text.choices = text.unwanted, 1
        self._texts.update({one.sequence: one for one in (*begin, *wait)})
        self._running += [one.sequence for one in begin]
        for one in begin:
            self._enter_slot(one)
        self._waiting[:0] = [one.sequence for one in wait]
        each = sorted((text, *begin, *wait), key=lambda one: one.choice)
        for one, drawn in zip(each, sampled, strict=False):
            self._tell(one, drawn)
        for one in each:
            if one.choice in unwanted and one.sequence in self._texts:
                self._leave(one)

    def _go_on(self, other: EngineText, text: EngineText) -> bool:
        """Whether this choice has what was computed of its prompt; else it is computed anew."""
        one, computed = other.sequence, text.sequence.computed
        whole, rest = divmod(computed, self._planner.settings.block_tokens)
        copies: list[int] = []
        if rest:
            copies = [self._pool.take()]
            try:
                self._runner.copy_block(text.blocks[whole], copies[0])
            except DeviceLost:
                raise
            except ForwardFailed as error:
                _log.warning("a block could not be copied: %s", error)
                self._pool.give_back(copies)
                return False
        self._pool.share(text.blocks[:whole])
        other.blocks.extend([*text.blocks[:whole], *copies])
        one.computed, one.blocks = computed, len(other.blocks)
        return True

    def _tell(self, text: EngineText, drawn: Sampled) -> None:
        submit = text.submit
        token, logprob, top = drawn
        if text.cached and not text.given:
            self._cached.append((submit.id, text.cached))
        text.ids.append(token)
        text.given += 1
        text.sequence.length += 1
        finish = Finish.NONE
        if token in submit.stop_ids:
            finish = Finish.STOP
        elif text.given >= submit.max_tokens:
            finish = Finish.LENGTH
        self._tokens.append(Token(submit.id, text.choice, token, logprob, finish, top))
        if finish is not Finish.NONE:
            self._leave(text)

    def _end(self, text: EngineText, why: Refusal, message: str) -> None:
        """Give a text up."""
        self._told_end(text, why, message)
        self._leave(text)

    def _told_end(self, text: EngineText, why: Refusal, message: str) -> None:
        if text.begun:
            self._tokens.append(Token(text.submit.id, text.choice, 0, _NOTHING, Finish.FAILED))
        else:
            self._refused.append(Refused(id=text.submit.id, why=why, message=message))

    def _leave(self, text: EngineText) -> None:
        one = text.sequence
        del self._texts[one]
        self._empty(text)
        (self._running if one in self._running else self._waiting).remove(one)
