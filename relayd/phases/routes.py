"""What a path means: whose words it speaks, where its model is, and how its streams end.

Paths that are not in the table pass through to any worker, as they are.
"""

from __future__ import annotations

from relayd._fast.sse import Terminator
from relayd.dialects.anthropic import Anthropic
from relayd.dialects.openai import OpenAI
from relayd.dialects.plain import Plain
from relayd.dialects.responses import Responses
from relayd.records import Route

_OPENAI = OpenAI()
_ANTHROPIC = Anthropic()

_DONE = Terminator.TERMINATOR_DONE

ONE_MODEL = b"/v1/models/"  # ... and its name

POSTS = {
    b"/v1/chat/completions": Route("chat", _OPENAI, _DONE, "json"),
    b"/v1/completions": Route("completions", _OPENAI, _DONE, "json"),
    b"/v1/responses": Route("responses", Responses(), Terminator.TERMINATOR_RESPONSE, "json"),
    b"/v1/messages": Route("messages", _ANTHROPIC, Terminator.TERMINATOR_MESSAGE_STOP, "json", True),
    b"/v1/messages/count_tokens": Route("count_tokens", _ANTHROPIC, body="json"),
    b"/v1/embeddings": Route("embeddings", _OPENAI, body="json"),
    b"/v1/rerank": Route("rerank", _OPENAI, body="json"),
    b"/v1/audio/speech": Route("audio", _OPENAI, body="json"),
    b"/v1/audio/transcriptions": Route("audio", _OPENAI, body="multipart"),
    b"/v1/audio/translations": Route("audio", _OPENAI, body="multipart"),
    b"/v1/images/generations": Route("images", _OPENAI, body="json"),
    b"/v1/images/edits": Route("images", _OPENAI, body="multipart"),
    b"/v1/images/variations": Route("images", _OPENAI, body="multipart"),
}

MODELS = Route("models", _OPENAI)
_MODELS_ANTHROPIC = Route("models", _ANTHROPIC)
_MODEL = Route("model", _OPENAI)
_MODEL_ANTHROPIC = Route("model", _ANTHROPIC)
_OTHER = Route("other", Plain())
_OTHER_ANTHROPIC = Route("other", _ANTHROPIC)


def route_for(method: str, path: bytes, anthropic: bool) -> Route:
    """Return the route of a request; `anthropic` says that it names an Anthropic version."""
    if method == "POST":
        route = POSTS.get(path)
        if route is not None:
            return route
    elif method in ("GET", "HEAD"):
        if path == b"/v1/models":
            return _MODELS_ANTHROPIC if anthropic else MODELS
        if path.startswith(ONE_MODEL):
            return _MODEL_ANTHROPIC if anthropic else _MODEL
    return _OTHER_ANTHROPIC if anthropic or path.startswith(b"/v1/messages") else _OTHER
