"""`relayd demo`: a fleet on this machine, traffic, a worker that dies, and what clients saw of it.

plan      what is asked, and when: the same for every run with the same seed
client    one request as its client lives it, on the wire
fleet     the processes: three simulated workers and a relayd
act       one run of the plan on one fleet, with a worker killed half way
promises  what must hold, checked on every single request
figures   what the requests of a run add up to
report    the figures, for people and for machines
progress  what a person sees while it runs

It uses of relayd only the command line, so that it sees what any user would see.
"""
