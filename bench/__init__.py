"""What relayd costs, beside nginx and a plain aiohttp proxy, in one run: `python -m bench`.

The gateway under test has one core to itself; the upstream and the load, both written in C (bench/native),
share another.  docs/bench.md says what each figure means and what can spoil it.
"""
