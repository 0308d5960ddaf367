"""Names of the blocks of the prefix cache, which vLLM makes by hashing their tokens and the names before them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any


def private_hashes(
    hasher: Callable[[Any], list[bytes]], clean_blocks: int, owner: str
) -> Callable[[Any], list[bytes]]:
    """A hasher of blocks that makes all hashes after the first `clean_blocks` the owner's own.

    Args:
        hasher: Gives the hashes of a request's blocks that have none yet.
        clean_blocks: Number of blocks that others may share.
        owner: What distinguishes the request.
    """

    def hashes(request: Any) -> list[bytes]:
        known = len(request.block_hashes)
        new = hasher(request)
        shared = max(clean_blocks - known, 0)
        return new[:shared] + [hashlib.sha256(owner.encode() + b"\0" + value).digest() for value in new[shared:]]

    return hashes
