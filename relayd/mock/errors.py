"""How each engine says no.

vLLM and SGLang put the status in `code`; SGLang's error is not nested, though inside a
stream it is; OpenAI and Anthropic have types.  The Messages route always answers in
Anthropic's shape, with the words of the engine that serves it.
"""

from __future__ import annotations

from typing import Any

import orjson

_ENGINE_TYPES = {
    400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 429: "RateLimitError",
    500: "InternalServerError", 503: "ServiceUnavailableError",
}  # fmt: skip
_OPENAI_TYPES = {429: "requests", 401: "invalid_request_error", 403: "invalid_request_error"}
_OPENAI_CODES = {429: "rate_limit_exceeded", 401: "invalid_api_key"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
    504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip

_REASONS = {
    429: "Rate limit reached for requests. Please try again later.",
    500: "The server had an error while processing your request.",
    503: "The server is overloaded or not ready yet.",
    529: "Overloaded",
}


def reason(status: int) -> str:
    """Return what an engine says with `status` when nothing in particular is wrong."""
    return _REASONS.get(status, f"The server answered with status {status}.")


def in_messages(engine: str, status: int, message: str, request_id: str) -> dict[str, Any]:
    """Return the error object of the Messages routes."""
    if engine in ("vllm", "sglang"):
        return {"type": "error", "error": {"type": _engine_type(status), "message": message}}
    kind = _ANTHROPIC_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def in_stream(engine: str, status: int, message: str) -> dict[str, Any]:
    """Return the object an OpenAI route's stream carries when generation fails."""
    return {"error": _openai_error(engine, status, message, None, None)}


def in_body(engine: str, status: int, message: str, code: str | None, param: str | None) -> dict[str, Any]:
    """Return the error object of the OpenAI routes."""
    error = _openai_error(engine, status, message, code, param)
    if engine == "sglang":
        return {"object": "error", **error}
    return {"error": error}


def encode(error: dict[str, Any]) -> bytes:
    """Return an error object as JSON."""
    return orjson.dumps(error)


def _openai_error(
    engine: str, status: int, message: str, code: str | None, param: str | None
) -> dict[str, Any]:
    if engine in ("vllm", "sglang"):
        return {"message": message, "type": _engine_type(status), "param": param, "code": status}
    kind = _OPENAI_TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    return {"message": message, "type": kind, "param": param, "code": code or _OPENAI_CODES.get(status)}


def _engine_type(status: int) -> str:
    return _ENGINE_TYPES.get(status) or ("InternalServerError" if status >= 500 else "BadRequestError")
