"""A proxy as a competent person writes it with aiohttp in an afternoon: the bar that relayd has to clear.

    python -m bench.rivals.plain_aiohttp --worker http://127.0.0.1:9000 --listen 127.0.0.1:8080

One process on uvloop, aiohttp's server in front of aiohttp's client, answers streamed as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import signal

import uvloop
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
    "content-length",
}


def end_to_end(headers) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP]


class Proxy:
    def __init__(self, worker: str) -> None:
        self.worker = worker

    async def session(self, app: web.Application):
        connector = TCPConnector(limit=0, keepalive_timeout=3600)
        timeout = ClientTimeout(total=None, sock_connect=2)
        async with ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self.client:
            yield

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            async with self.client.request(
                request.method,
                self.worker + request.raw_path,
                headers=end_to_end(request.headers),
                data=body or None,
            ) as answer:
                if answer.content_length is not None:
                    return web.Response(
                        status=answer.status, headers=end_to_end(answer.headers), body=await answer.read()
                    )
                response = web.StreamResponse(status=answer.status, headers=end_to_end(answer.headers))
                response.enable_chunked_encoding()
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except ClientError as error:
            return web.json_response({"error": {"message": str(error)}}, status=502)


async def serve(worker: str, host: str, port: int) -> None:
    proxy = Proxy(worker)
    app = web.Application(client_max_size=32 * 1024 * 1024)
    app.cleanup_ctx.append(proxy.session)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=3600)
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=4096).start()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", required=True)
    parser.add_argument("--listen", required=True)
    args = parser.parse_args()
    host, _, port = args.listen.rpartition(":")
    uvloop.run(serve(args.worker, host, int(port)))


if __name__ == "__main__":
    main()
