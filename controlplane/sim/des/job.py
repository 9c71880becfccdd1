"""One request on its way through the simulated platform, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What became of a request."""

    OPEN = "in_flight"  # not ended when the run did
    DONE = "completed"
    LIMITED = "limited"  # 429
    FORBIDDEN = "forbidden"  # 403: the policy does not let this tenant use the model here
    GAVE_UP = "gave_up"  # no first token within the client's patience
    FAILED = "failed"  # its pod was lost, or none was up


@dataclass(slots=True, eq=False)
class Job:
    """Times are seconds since the start of the run."""

    key: int  # position in the run's list of keys
    arrived_s: float
    prompt_tokens: int
    answer_tokens: int
    outcome: Outcome = Outcome.OPEN
    would_limit: bool = False  # observe mode: let through though a limit was reached
    pod: int = -1
    first_s: float = -1.0  # first token; negative: none yet
    end_s: float = -1.0
    generated: int = 0
    todo_tokens: int = 0  # still to prefill; of use to its pod alone, like what follows
    blocks: int = 0  # KV blocks while it prefills
    base: int = 0  # tokens minus the pod's step number while it decodes: constant

    @property
    def admitted(self) -> bool:
        return self.outcome not in (Outcome.LIMITED, Outcome.FORBIDDEN)

    @property
    def work_tokens(self) -> int:
        """Prompt + 3 * answer: roughly what a request costs a pod."""
        return self.prompt_tokens + 3 * self.answer_tokens

    def within(self, ttft_s: float, token_gap_s: float) -> bool:
        """Completed, with the first token and the mean gap between tokens within their objectives."""
        if self.outcome is not Outcome.DONE or self.first_s - self.arrived_s > ttft_s:
            return False
        return self.end_s - self.first_s <= token_gap_s * max(1, self.answer_tokens - 1)
