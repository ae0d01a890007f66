"""A path that relayd does not know: its body is anybody's, so every event is content."""

from __future__ import annotations

from relayd._fast.leg import EventKind
from relayd.dialects.openai import OpenAI, data_of
from relayd.registry import register


@register("dialects", "plain")
class Plain(OpenAI):
    """OpenAI's error shape, and no idea of what events mean."""

    name = "plain"

    def judge(self, event: bytes) -> int:
        """Return content for every event but a comment."""
        return EventKind.EVENT_PREAMBLE if data_of(event) is None else EventKind.EVENT_CONTENT
