"""What the limits of one scope gave to one request, and how it comes back.

A grant notes each thing as it is taken, so at any time all of it, and nothing else, can be given back.
Compiled, with the types of grants.pxd.
"""

from __future__ import annotations

from relayd.limits.scopes import Scope, Tenant

NO_WINDOW = -1


class Grant:
    """What a tier gave to a request; what the model's own limits gave is a grant in it."""

    def __init__(self, scope: Scope, tenant: Tenant) -> None:
        self.scope = scope
        self.tenant = tenant
        self.model: Grant | None = None
        self.reserved = False
        self.ended = False
        self.has_request = False  # one of the request rate
        self.has_slot = False  # one of the requests at the same time
        self.request_window = NO_WINDOW  # in which the request counts
        self.tokens = 0  # of the token rate
        self.quota = 0  # of the token quota
        self.quota_window = NO_WINDOW

    def take_request(self, now_ns: int, now_wall: float) -> bool:
        """Take one request of each limit on them; on False, give_back what was taken."""
        scope, tenant = self.scope, self.tenant
        if scope.requests is not None:
            if scope.requests.take_of(tenant.low, tenant.high, 1, now_ns):
                return False
            self.has_request = True
        if scope.slots is not None:
            if not scope.slots.take_of(tenant.low, tenant.high, scope.concurrency):
                return False
            self.has_slot = True
        if scope.quota_requests is not None:
            window = scope.quota_requests.take(tenant, 1, now_wall)
            if window < 0:
                return False
            self.request_window = window
        return True

    def take_tokens(self, tokens: int, now_ns: int, now_wall: float) -> bool:
        """Take so many tokens, or all that can ever be had; on False, give_back_tokens.

        A limit in debt gives nothing, not even 0 tokens.
        """
        scope, tenant = self.scope, self.tenant
        if scope.tokens is not None:
            cost = min(tokens, scope.tokens.rate.burst)
            if scope.tokens.take_of(tenant.low, tenant.high, cost, now_ns):
                return False
            self.tokens = cost
        if scope.quota is not None:
            cost = min(tokens, scope.quota.most)
            window = scope.quota.take(tenant, cost, now_wall)
            if window < 0:
                return False
            self.quota = cost
            self.quota_window = window
        return True

    def give_back(self) -> None:
        """Give everything back."""
        scope, tenant = self.scope, self.tenant
        if self.has_request and scope.requests is not None:
            scope.requests.give_back_of(tenant.low, tenant.high, 1)
            self.has_request = False
        if self.request_window != NO_WINDOW and scope.quota_requests is not None:
            scope.quota_requests.table.give_back_of(tenant.low, tenant.high, 1, self.request_window)
            self.request_window = NO_WINDOW
        self.give_back_slot()
        self.give_back_tokens()

    def give_back_slot(self) -> None:
        """Give back that the request is under way."""
        if self.has_slot and self.scope.slots is not None:
            self.scope.slots.give_back_of(self.tenant.low, self.tenant.high)
            self.has_slot = False

    def give_back_tokens(self) -> None:
        """Give all tokens back."""
        scope, tenant = self.scope, self.tenant
        if self.tokens and scope.tokens is not None:
            scope.tokens.give_back_of(tenant.low, tenant.high, self.tokens)
            self.tokens = 0
        if self.quota and scope.quota is not None:
            scope.quota.table.give_back_of(tenant.low, tenant.high, self.quota, self.quota_window)
            self.quota = 0

    def settle_tokens(self, used: int, now_ns: int, now_wall: float) -> None:
        """Give back what was taken and not used, or charge what was used beyond it."""
        scope, tenant = self.scope, self.tenant
        if scope.tokens is not None:
            if used < self.tokens:
                scope.tokens.give_back_of(tenant.low, tenant.high, self.tokens - used)
            elif used > self.tokens:
                scope.tokens.charge_of(tenant.low, tenant.high, used - self.tokens, now_ns)
        if scope.quota is not None:
            if used < self.quota:
                scope.quota.table.give_back_of(tenant.low, tenant.high, self.quota - used, self.quota_window)
            elif used > self.quota:
                scope.quota.charge(tenant, used - self.quota, now_wall)
