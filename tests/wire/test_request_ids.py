"""Laws of ids of requests: 32 random digits behind a prefix, none given twice, nor by processes that are forked."""

from __future__ import annotations

import os
import re

import pytest

from plumbline.contract.wire.call import new_request_id


def test_no_id_is_given_twice() -> None:
    found = [new_request_id() for _ in range(1000)]
    assert len(set(found)) == 1000
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", each) for each in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_gives_ids_of_its_own() -> None:
    new_request_id()  # Some are left for the next requests.
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_request_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    its = os.read(read, 64).decode()
    os.close(read)
    os.close(write)
    assert its not in {new_request_id() for _ in range(256)}
