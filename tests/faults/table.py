"""List the faults that the server survives, each with what clients see and the tests that cause it.

python tests/faults/table.py docs/reference/faults.md      writes the page
python tests/faults/table.py                               runs the tests; options of pytest may follow
python tests/faults/table.py --record                      runs them, keeps how long the server took to recover, and
                                                           writes the page
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from support.servers.recovery import collect, keep, measured  # noqa: E402

_PAGE = "docs/reference/faults.md"
_BLOB = "../../"


class Fault(NamedTuple):
    """A fault. Nothing that the server has acknowledged is lost in any of them."""

    name: str
    seen: str
    """What clients see whose requests it hits; others notice nothing, unless this says so."""
    recovers: str
    """When the server is as before."""
    tests: tuple[str, ...]
    """Files or ids of tests."""
    operator: str = ""
    """What the operator can see besides: lines of the log, metrics, probes."""


FAULTS: dict[str, tuple[Fault, ...]] = {
    "Engine": (
        Fault(
            "A step raises an error",
            "the request at fault gets a 500 or an error event; the others of its batch are computed again and get the "
            "same tokens",
            "at once; the requests of the batch are tried alone, one step each",
            (
                "tests/engines/test_trials.py",
                "tests/faults/test_engine.py::test_a_step_that_fails_ends_one_request_and_no_other",
            ),
            "log with traceback; `plumbline_engine_failed_steps_total`",
        ),
        Fault(
            "The thread of the engine dies, or five steps fail in a row",
            "requests in flight get a 500 or an error event; new ones a 503 with `Retry-After: 1` meanwhile",
            "milliseconds: the weights stay in memory, only queues and caches are new",
            (
                "tests/engines/test_restarts.py::test_a_thread_that_dies_is_replaced",
                "tests/engines/test_restarts.py"
                "::test_a_core_that_breaks_is_replaced_and_one_that_cannot_work_at_all_is_dead",
                "tests/engines/test_restarts.py::test_requests_that_come_while_it_starts_again_are_told_to_try_again",
                "tests/faults/test_engine.py::test_a_thread_that_dies_ends_answers_in_the_form_of_their_api",
            ),
            "log; `plumbline_engine_restarts_total`",
        ),
        Fault(
            "A step hangs",
            "requests in flight end with an error after three times `--stuck-after`; the next ones are answered by a "
            "new core (llama.cpp's engine, which has one cache, counts as dead)",
            "3 × `--stuck-after`, then milliseconds",
            (
                "tests/engines/test_restarts.py::test_a_step_that_hangs_is_left_alone",
                "tests/engines/test_restarts.py::test_stopping_does_not_wait_for_a_step_that_hangs",
                "tests/server/access/test_load.py::test_health_reports_a_dead_or_stuck_engine",
            ),
            "`/health/ready` is 503 from `--stuck-after` on; log; `plumbline_engine_restarts_total`",
        ),
        Fault(
            "The engine cannot go on: a second step hangs, new cores fail as well, there is no memory for one",
            "503 with `Retry-After: 10`, then the engine's process ends and is started again, as when it dies; after "
            "three times within a minute the server ends with status 1, or, with several models, only this one is "
            "unloaded, and loaded again by its next request",
            "a start of the engine's process, 2 s and the time to read the weights",
            (
                "tests/engines/test_restarts.py::test_a_second_step_that_hangs_is_the_end",
                "tests/engines/test_restarts.py::test_an_engine_that_cannot_start_again_is_dead",
                "tests/faults/test_engine.py::test_an_engine_that_is_beyond_repair_refuses_with_a_hint",
                "tests/server/http/test_listener.py::test_a_server_with_a_dead_engine_ends_so_that_it_is_started_again",
                "tests/server/api_servers/test_api_servers.py::test_a_dead_engine_ends_all_api_servers",
                "tests/server/models/test_several_models.py::test_a_model_with_a_dead_engine_is_loaded_again",
            ),
            "log; at the third time `/health/live` is 503 and `plumbline_engine_alive` 0",
        ),
        Fault(
            "The process of the engine dies (SIGSEGV in a kernel, no memory)",
            "what it was computing ends with a 503 or an error event, with the code `engine_died`; "
            "what waited is answered, and so are new requests, which wait meanwhile",
            "a start of the engine's process, 2 s and the time to read the weights",
            (
                "tests/faults/test_engine_process.py"
                "::test_the_end_of_the_engine_ends_what_it_computes_and_keeps_what_waits",
                "tests/faults/test_engine_process.py"
                "::test_an_engine_without_addresses_ends_and_what_waits_is_answered",
                "tests/engines/remote/test_next_process.py",
            ),
            "`/health/ready` is 503 with the cause, then `/health` is `degraded` for a minute; "
            "`plumbline_engine_deaths_total` by cause; log with the lines that ran",
        ),
        Fault(
            "One of vLLM's workers dies",
            "streams end with an error event, other requests with a 503; new requests wait until the engine's process "
            "has started again with new workers",
            "a start of vLLM, 40 to 60 s on two cores",
            (
                "tests/faults/test_workers.py::test_two_workers_answer_as_one_and_a_killed_one_is_replaced",
                "tests/faults/test_workers.py::test_a_server_that_ends_while_workers_start_leaves_none",
            ),
            "`/health/ready` is 503; `plumbline_engine_restarts_total`; log",
        ),
        Fault(
            "The process of the engine hangs in native code",
            "requests end with an error after `--stuck-after`; the process is killed after three times as long",
            "3 × `--stuck-after`, then as when it dies",
            (
                "tests/faults/test_engine_process.py"
                "::test_an_engine_that_is_silent_for_good_is_killed_and_started_again",
            ),
            "`/health/ready` is 503; `plumbline_engine_deaths_total`; log",
        ),
        Fault(
            "A request ends the engine's process each time",
            "twice as above; from the third time on that request gets a 400 (`request_quarantined`), for an "
            "hour",
            "as above",
            (
                "tests/faults/test_engine_process.py::test_a_request_that_ends_the_engine_each_time_is_refused",
                "tests/server/start/test_deaths.py",
            ),
            "`plumbline_engine_quarantined_requests`; log",
        ),
        Fault(
            "The process of the engine dies three times within a minute",
            "503, then the server ends with status 1",
            "a start of the server",
            (
                "tests/faults/test_engine_process.py"
                "::test_three_ends_within_a_minute_end_the_server_with_a_reason",
            ),
            "`/health/live` is 503; the log says why",
        ),
        Fault(
            "The cache is out of blocks",
            "nothing: the last request waits and goes on with the same tokens",
            "when others have ended",
            ("tests/engines/native/test_reproducibility.py", "tests/engines/test_request_core.py"),
            "`vllm:num_preemptions_total`",
        ),
        Fault(
            "Memory is short when a request is admitted, or in a step",
            "that request gets a 500",
            "at once",
            (
                "tests/faults/test_engine.py::test_memory_that_is_short_at_an_admission_ends_one_request",
                "tests/faults/test_engine_process.py::test_memory_that_is_short_in_a_step_ends_one_request",
            ),
            "log; `plumbline_engine_failed_steps_total`",
        ),
        Fault(
            "A tokenizer or a template fails, or a template never ends",
            "that request gets a 500; a 400 if the template refuses it, or takes more than 10 s",
            "at once",
            (
                "tests/faults/test_engine.py::test_a_prompt_that_cannot_be_rendered_or_encoded_ends_one_request",
                "tests/text/test_template_bounds.py::test_a_template_that_exceeds_a_bound_is_an_error_and_the_next_one_renders",
            ),
            "log with traceback",
        ),
        Fault(
            "An image hangs while it is encoded",
            "a 400 after three times `--stuck-after`; images behind it wait so long; while two hang, requests with "
            "others get a 503",
            "at once: a new thread encodes the next image",
            (
                "tests/engines/native/test_image_reader.py",
                "tests/server/access/test_load.py::test_health_and_metrics_report_images_that_hang",
            ),
            "`/health` is `degraded`; `plumbline_engine_hanging_images`; log",
        ),
    ),
    "Processes": (
        Fault(
            "The process is stopped and goes on (SIGSTOP, a laptop that sleeps)",
            "silence; nothing else",
            "at once",
            (
                "tests/faults/test_processes.py::test_a_server_that_was_stopped_for_a_while_goes_on",
                "tests/engines/test_restarts.py::test_an_hour_in_which_the_process_was_stopped_is_no_hang",
            ),
        ),
        Fault(
            "The clock of the machine or of the database is set; the machine sleeps",
            "nothing; times that are shown follow the clock, and what was stored weeks ago expires by it",
            "at once; a server that was killed before it was set back keeps its leases for as long as the step",
            ("tests/store/test_clocks.py",),
        ),
        Fault(
            "The engine's process of several API servers is stopped",
            "streams end with an error event after `--stuck-after`; new requests get a 503 with `Retry-After: 1`",
            "within a second after it goes on",
            (
                "tests/faults/test_processes.py::test_an_engine_process_that_is_stopped_ends_streams_and_comes_back",
                "tests/engines/remote/test_remote.py"
                "::test_a_host_that_sends_nothing_ends_streams_until_it_answers_again",
            ),
            "`/health/ready` is 503, `/health/live` 200; log",
        ),
        Fault(
            "The engine's process is slow, or its readers are",
            "nothing: the engine waits",
            "at once",
            ("tests/engines/remote/test_remote.py::test_a_reader_that_is_far_behind_holds_the_engine",),
        ),
        Fault(
            "The first process is killed, which keeps the engine and has the hub of claims",
            "streams end with an error event; all API servers end, and the port is free",
            "a start of the server",
            (
                "tests/faults/test_processes.py::test_a_first_process_that_is_killed_ends_streams_and_frees_its_port",
                "tests/engines/remote/test_remote.py::test_the_end_of_the_host_ends_streams_with_an_error",
            ),
        ),
        Fault(
            "An API server is killed while it starts, or later",
            "its own streams break off",
            "a start of one process, 2 to 5 s; others answer meanwhile",
            (
                "tests/server/api_servers/test_api_servers.py"
                "::test_a_killed_api_server_takes_only_its_own_streams_along",
                "tests/server/api_servers/test_api_servers.py"
                "::test_an_api_server_that_is_killed_while_it_starts_is_started_again",
                "tests/server/api_servers/test_api_servers.py::test_api_servers_that_cannot_start_end_the_supervisor",
            ),
            "log",
        ),
        Fault(
            "SIGKILL",
            "streams break off; responses in the background become `failed`",
            "a start of the server; the failed responses within 15 s",
            (
                "tests/faults/test_processes.py::test_a_server_that_is_killed_has_what_it_acknowledged",
                "tests/faults/test_engine_process.py::test_no_process_outlives_a_server_that_is_killed",
                "tests/store/test_durability.py::test_what_was_acknowledged_survives_kills",
            ),
        ),
        Fault(
            "SIGTERM and SIGINT, once and twice; a closed terminal",
            "connections are refused from then on, and what comes on those that are open is answered; streams have "
            "`--shutdown-timeout`, then an error event, at once after the second signal",
            "–",
            (
                "tests/faults/test_processes.py::test_a_signal_ends_streams_with_an_error_event",
                "tests/faults/test_engine_process.py::test_no_process_outlives_a_server_that_ends",
                "tests/faults/test_engine_process.py::test_a_signal_to_all_processes_lets_streams_finish",
                "tests/server/http/test_draining.py",
                "tests/server/http/test_hangup.py",
            ),
            "`/health/ready` is 503 with `draining`; log with the number of requests",
        ),
        Fault(
            "A replica is killed",
            "its streams break off; new requests go to the others; its responses in the background become `failed` "
            "with what they had, and any other replica sends the rest of their streams",
            "new requests at once; the failed responses within 15 s; its conversations after 10 s",
            (
                "tests/scale_out/test_replicas.py::test_a_replica_that_dies_takes_only_its_own_streams_along",
                "tests/store/test_shared_store.py",
                "tests/store/test_histories.py",
            ),
        ),
    ),
    "Store": (
        Fault(
            "The database is locked, may not be written, or its file is moved away",
            "requests that store get a 503, or an error event instead of the terminal one; others are answered",
            "at once, when the fault ends; a lock fails requests after 10 s",
            (
                "tests/faults/test_store.py::test_a_store_that_fails_costs_only_what_it_should_keep",
                "tests/store/test_store_faults.py",
            ),
            "`/health` is `degraded`; one line when it begins and one when it ends; `plumbline_store_failing`",
        ),
        Fault(
            "The disk of the database is full",
            "what does not fit gets a 503, smaller writes are kept",
            "at once, when there is room",
            ("tests/store/test_store_faults.py::test_a_full_disk_fails_what_does_not_fit",),
            "`/health` is `degraded` below 256 MiB",
        ),
        Fault(
            "The file is damaged",
            "requests that read or write the damaged part get a 503; a start is refused",
            "restore a backup",
            (
                "tests/faults/test_store.py"
                "::test_a_store_that_is_damaged_while_it_runs_is_reported_and_no_other_answer_changes",
                "tests/store/test_store_faults.py::test_a_file_of_another_kind_is_refused_at_the_start",
            ),
            "log",
        ),
        Fault(
            "The database is slow",
            "requests that store wait for it, 10 s at most",
            "at once",
            ("tests/faults/test_store.py::test_a_slow_store_delays_only_what_it_keeps",),
            "`plumbline_store_transaction_seconds`, `plumbline_store_pending_writes`",
        ),
        Fault(
            "PostgreSQL crashes or restarts",
            "requests that store get a 503",
            "at once, when it is there again",
            (
                "tests/faults/test_store.py::test_a_database_server_that_crashes_costs_only_what_it_should_keep",
                "tests/store/test_postgres_faults.py",
            ),
            "`/health` is `degraded`; log",
        ),
    ),
    "Clients and the network": (
        Fault(
            "A connection to PostgreSQL falls silent",
            "requests that store get a 503 after 10 s; responses in the background and conversations stay with their "
            "server, which renews its leases on a new connection after 3 s",
            "at once, on new connections",
            ("tests/store/test_dead_connections.py",),
            "`/health` is `degraded`; log",
        ),
        Fault(
            "A client resets its connection, at any event",
            "–",
            "at once: its request is aborted, its blocks are free",
            (
                "tests/faults/test_clients.py::test_a_reset_at_any_event_changes_nothing_for_others",
                "tests/server/answers/test_streams.py::test_a_client_that_leaves_ends_its_request",
            ),
        ),
        Fault(
            "A client reads slowly, or not at all",
            "its request is paused; after 5 minutes without any reading the connection is cut",
            "at once",
            (
                "tests/hostile/test_slow_readers.py",
                "tests/server/http/test_listener.py::test_a_client_that_does_not_read_is_given_up",
                "tests/server/http/test_listener.py::test_a_client_that_reads_on_in_time_misses_nothing",
            ),
        ),
        Fault(
            "Half-open connections: a client vanishes before, within or after its request",
            "408, or the connection is closed",
            "`--header-timeout`, `--body-timeout`, `--idle-timeout`",
            (
                "tests/server/http/test_listener.py::test_headers_that_do_not_come_end_the_connection",
                "tests/server/http/test_listener.py::test_a_body_that_brings_nothing_is_given_up",
                "tests/server/http/test_listener.py::test_a_connection_that_stays_silent_after_an_answer_is_closed",
            ),
        ),
        Fault(
            "More connections than allowed, or than the process has descriptors",
            "further connections get a 503 with `Retry-After: 1`; those that are open go on",
            "when some are closed",
            (
                "tests/faults/test_clients.py::test_more_connections_than_descriptors_get_a_503",
                "tests/server/http/test_listener.py::test_more_connections_than_allowed_are_turned_away",
            ),
            "a line at the start, and one a minute",
        ),
        Fault(
            "The name server is dead or silent, for media and for MCP",
            "a 400 that names the file, an item with an error of the MCP server, after `--media-timeout` or "
            "10 s at most",
            "at once",
            (
                "tests/faults/test_surroundings.py::test_files_of_hosts_without_an_address_are_refused_in_time",
                "tests/faults/test_surroundings.py::test_a_dead_name_server_ends_in_an_item_with_an_error",
            ),
        ),
        Fault(
            "An MCP server is dead, dies or is silent",
            "an item with an error, which the model reads",
            "at once",
            (
                "tests/server/tools/test_mcp.py::test_a_dead_server_ends_in_an_item_with_an_error_and_not_in_a_dead_response",
                "tests/server/tools/test_mcp.py::test_a_server_that_dies_after_its_list_ends_in_a_failed_call",
                "tests/tools/test_mcp_client.py::test_a_server_that_is_silent_is_given_up",
            ),
        ),
    ),
    "The machine": (
        Fault(
            "The clock jumps by a day",
            "nothing",
            "–",
            ("tests/faults/test_surroundings.py::test_a_clock_that_jumps_by_a_day_changes_no_answer",),
        ),
        Fault(
            "The user has no home, the program no streams, or the working directory was deleted",
            "nothing; without a home the server does not start, unless the place of the store is given",
            "–",
            tuple(
                f"tests/faults/test_surroundings.py::{name}"
                for name in (
                    "test_a_user_without_a_home_is_told_what_to_give",
                    "test_a_program_without_streams_works",
                    "test_a_folder_that_is_gone_is_left",
                )
            ),
            "one line that names HOME, XDG_DATA_HOME and the option",
        ),
        Fault(
            "The port or the socket is taken",
            "the server does not start, and names a free one",
            "–",
            ("tests/server/start/test_start_failures.py",),
            "one line",
        ),
        Fault(
            "The disk of the log is full",
            "nothing",
            "at once",
            ("tests/faults/test_processes.py::test_a_log_on_a_full_disk_stops_no_answer",),
        ),
    ),
}

_HEAD = """\
# Faults

What the server survives, by test. Nothing that it has acknowledged is lost in any of these faults, and streams of other
clients stay exactly as they are, unless the table says so. `nox -s faults` causes each of them, `nox -s soak` some at
random for an hour at saturation, beside hostile requests. `tests/faults/table.py` writes this page.

"Measured" is the longest time from the end of a fault to the first answer that is as before, in the last recorded run
(`nox -s faults -- --record`, on two cores shared with other work). It includes the start of a process where there is
one, and the lease of 10 s of a response in the background whose process was killed.

The last soak of an hour (seed 0, 2026-12-01, at a load of 12 on two cores) sent 85,822 requests, 1,677 of them hostile,
and caused 979 faults. The median of memory was 626 MB after ten minutes, while workers of the hostile rows ran, and
568 MB in the last two. Descriptors went from 39 to 69 and threads from 13 to 32, because workers start with their first
use. No block, no request and no row of the store was left.
"""


def page() -> str:
    """Return the page of the documentation."""
    parts = [_HEAD]
    times = measured()
    for title, faults in FAULTS.items():
        parts.append(f"\n## {title}\n")
        parts.append(
            "| fault | clients see | works again | measured | the operator sees | tests |\n|---|---|---|---|---|---|"
        )
        for fault in faults:
            files = dict.fromkeys(Path(test.partition("::")[0]) for test in fault.tests)
            links = ", ".join(f"[{file.stem.removeprefix('test_')}]({_BLOB}{file})" for file in files)
            parts.append(
                f"| {fault.name} | {fault.seen} | {fault.recovers} | {_seconds(times.get(fault.name))} | "
                f"{fault.operator or '–'} | {links} |"
            )
    return "\n".join(parts) + "\n"


def _seconds(time: float | None) -> str:
    if time is None:
        return "–"
    return f"{time:.2g} s" if time < 10 else f"{time:.0f} s"


def named_tests() -> list[str]:
    """Return the files and ids of all tests, each once."""
    found = dict.fromkeys(test for faults in FAULTS.values() for fault in faults for test in fault.tests)
    return [test for test in found if "::" not in test or test.partition("::")[0] not in found]


def main(arguments: list[str]) -> int:
    """Write the page, or run the tests."""
    if len(arguments) == 1 and arguments[0].endswith(".md"):
        Path(arguments[0]).write_text(page(), "utf-8")
        return 0
    records = "--record" in arguments
    options = [option for option in arguments if option != "--record"]
    with TemporaryDirectory() as folder:
        times = Path(folder, "times")
        times.touch()
        collect(times)
        status = int(pytest.main(["-m", "", *options, *(str(ROOT / test) for test in named_tests())]))
        if records:
            keep(times)
            (ROOT / _PAGE).write_text(page(), "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
