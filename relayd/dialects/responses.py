"""The words of OpenAI's Responses API: OpenAI's, but for errors inside a stream.

There an error is an event of its own, `event: error` with a flat body.  The official SDK raises only for an
`error` object, so the body has both.
"""

from __future__ import annotations

import msgspec

from relayd.dialects.openai import OpenAI
from relayd.faults import Fault
from relayd.registry import register


@register("dialects", "responses")
class Responses(OpenAI):
    """/v1/responses."""

    name = "responses"

    def error_event(self, fault: Fault, request_id: str) -> bytes:
        """Return the event that tells a stream's reader of an error."""
        error = msgspec.json.decode(self.error_body(fault, request_id))["error"]
        body = {
            "type": "error",
            "code": error["code"],
            "message": error["message"],
            "param": error["param"],
            "error": error,
        }
        return b"event: error\ndata: " + msgspec.json.encode(body) + b"\n\n"
