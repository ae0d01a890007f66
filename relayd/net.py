"""HTTP for relayd's own questions: which models a worker has.

Not the path of a client's bytes (that is `_fast/leg`): a few small requests, each bounded in time and size.
"""

from __future__ import annotations

import asyncio
import ssl

import aiohttp

LARGEST_ANSWER = 4 << 20


class FetchError(Exception):
    """The answer cannot be had; the message says why, in a few words."""


async def fetch(url: str, *, timeout_s: float, tls: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    """Return (status, body) of a GET.  Redirects are not followed, proxies not used.

    Raises:
        FetchError: no answer in time, an answer that is too large, or none at all.
    """
    limits = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(
                timeout=limits, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            ) as session,
            session.get(url, allow_redirects=False, ssl=tls if tls is not None else True) as answer,
        ):
            body = await answer.content.read(LARGEST_ANSWER + 1)
            while body and len(body) <= LARGEST_ANSWER:
                more = await answer.content.read(LARGEST_ANSWER)
                if not more:
                    break
                body += more
    except TimeoutError:
        raise FetchError(f"no answer within {timeout_s:g} s") from None
    except aiohttp.ClientConnectorError as error:
        raise FetchError(words_for(error)) from None
    except (aiohttp.ClientError, asyncio.IncompleteReadError, ValueError, OSError) as error:
        raise FetchError(f"what answers there is not HTTP: {type(error).__name__}") from None
    if len(body) > LARGEST_ANSWER:
        raise FetchError("the answer is larger than 4 MiB")
    return answer.status, body


def words_for(error: aiohttp.ClientConnectorError) -> str:
    """Return why a connection was not made, in a few words."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientSSLError):
        return "it does not speak TLS on this port; its URL should begin with http://"
    cause = error.os_error
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    return (cause.strerror or str(cause) or type(cause).__name__).lower()
