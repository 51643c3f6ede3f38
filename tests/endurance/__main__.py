"""Start an endurance run: ``python -m endurance kills``, ``faults``, ``groups``, ``load``,
``interrupts``, ``memory``, ``shortages``, ``failing``, ``soak`` or ``attack``."""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
from pathlib import Path

from endurance.attacks import LOOP_ATTACKS, attacked
from endurance.chart import Line, Panel, chart
from endurance.faults import Faults, sessions_through_faults
from endurance.groups import GroupFaults, fault_rounds
from endurance.interrupts import LOOPS, interrupted_loop
from endurance.kills import Kills, kill_rounds
from endurance.load import Load, many_at_once, one_after_another
from endurance.memory import ATTACKS, attack
from endurance.processes import Snapshot
from endurance.shortages import failing_allocations, signalled, without_descriptors
from endurance.soak import Soak, soak

MIB = 2**20


def say(text: str) -> None:
    """Print a line and flush, because runs are long."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def shown(snapshot: Snapshot) -> str:
    """Format a snapshot of a server."""
    return (
        f"{snapshot.resident_bytes / MIB:.1f} MiB, {snapshot.descriptors} descriptors, "
        f"{snapshot.threads} threads, {snapshot.sessions} sessions, {snapshot.tensors} tensors of "
        f"{snapshot.tensor_bytes:,} bytes, {snapshot.offers} offers"
    )


def run_kills(given: argparse.Namespace) -> None:
    """Kill clients and servers for a number of rounds; print what the others saw."""
    seen = Kills()
    for number, seen in enumerate(kill_rounds(given.rounds, given.seed)):
        if number % 10 == 0:
            say(f"round {number}: {dict(seen.errors)}")
    assert seen.before and seen.after and seen.bystander
    say(f"killed: {seen.clients_killed} clients, {seen.servers_killed} servers")
    say(f"how the others ended: {dict(seen.errors)}")
    say(
        f"bystander: {seen.bystander.steps:,} steps, the longest took "
        f"{seen.bystander.longest_seconds * 1000:.0f} ms"
    )
    say(f"steady server after a tenth of the rounds: {shown(seen.before)}")
    say(f"steady server at the end: {shown(seen.after)}")


def run_faults(given: argparse.Namespace) -> None:
    """Run sessions over faulty networks; print the outcomes."""
    seen = Faults()
    for number, seen in enumerate(sessions_through_faults(given.runs, given.each, given.seed), 1):
        if number % 50 == 0:
            say(
                f"run {number}: {seen.total_faults:,} faults, {len(seen.lost)} lost, "
                f"{len(seen.wrong)} with wrong results, {seen.seconds:.0f} s"
            )
    say(
        f"{seen.sessions:,} sessions in {sum(seen.programs.values()):,} runs "
        f"{dict(seen.programs)}, {seen.results:,} results compared, {seen.seconds:.0f} s"
    )
    say(f"{seen.total_faults:,} faults: {dict(seen.faults)}")
    say(f"{seen.retried_openings} times a session was opened again")
    for what, which in (("lost", seen.lost), ("wrong results", seen.wrong)):
        say(f"{what}: {len(which)}")
        for line in which:
            say(f"  {line}")


def run_groups(given: argparse.Namespace) -> None:
    """Kill and stop members in the middle of a collective; print how long the others took."""
    seen = GroupFaults()
    rounds = fault_rounds(given.kills, given.stops, given.bound_seconds, given.seed)
    for number, seen in enumerate(rounds):
        if number % 10 == 0:
            memory = ", ".join(f"{each.resident_bytes / MIB:.0f}" for each in seen.now)
            say(
                f"round {number}: {len(seen.kill_seconds)} kills, {len(seen.stop_seconds)} stops, "
                f"resident MiB {memory}"
            )
    for what, times in (
        ("killed: all others raised", seen.kill_seconds),
        (f"stopped, bound {given.bound_seconds:g} s: all others raised", seen.stop_seconds),
        ("the rest regrouped and carried out a collective", seen.regroup_seconds),
    ):
        if times:
            say(
                f"{what} after {statistics.median(times):.3f} s (median), {max(times):.3f} s "
                f"(longest of {len(times)})"
            )
    for number, (before, after) in enumerate(zip(seen.before, seen.after, strict=True)):
        say(f"server {number} after a tenth of the rounds: {shown(before)}")
        say(f"server {number} at the end: {shown(after)}")


def run_load(given: argparse.Namespace) -> None:
    """Open sessions in parallel and in sequence."""
    for what, load in (
        ("at once", many_at_once(given.at_once)),
        ("one after another", one_after_another(given.in_turn)),
    ):
        _say_load(what, load)


def _say_load(what: str, load: Load) -> None:
    say(f"{load.sessions:,} sessions {what}: {load.reads:,} right results in {load.seconds:.1f} s")
    for moment in ("before", "during", "after"):
        say(f"  {moment}: {shown(getattr(load, moment))}")


def run_soak(given: argparse.Namespace) -> None:
    """Run clients for minutes; draw the servers' resources over time."""
    seen = Soak()
    for seen in soak(given.clients, given.minutes * 60, given.sample_seconds, given.seed):
        sample = seen.samples[-1]
        if len(seen.samples) % 12 == 1:
            say(f"{sample.seconds:.0f} s: {' | '.join(map(shown, sample.servers))}")
    given.picture.parent.mkdir(parents=True, exist_ok=True)
    given.picture.write_text(_picture(seen), "utf-8")
    say(f"clients: {dict(seen.endings)}; {seen.steps:,} steps of those that closed")
    say(f"{seen.cpu_seconds / seen.wall_seconds:.2f} of a core")
    say(f"the slowest answer of /metrics took {seen.slowest_scrape_seconds:.2f} s")
    for number, metrics in enumerate(seen.metrics):
        say(f"server {number}: {shown(seen.samples[-1].servers[number])}")
        for name in sorted(metrics):
            if name.startswith(("burn_remote_sessions", "burn_remote_transfers")):
                say(f"  {name} {metrics[name]:.0f}")


def run_attack(given: argparse.Namespace) -> None:
    """Run all attacks on the event loop, or those whose description contains a text."""
    say("| attack | worst ms | median ms | longest turn ms | probes | peak MiB |")
    for each in LOOP_ATTACKS:
        described = each.__doc__ or ""
        if given.only in described:
            seen = attacked(each)
            say(
                f"| {described} | {seen.worst:.0f} | {seen.median:.1f} | {seen.turn:.0f} | "
                f"{seen.probes} | {seen.peak_mebibytes:.0f} |"
            )


def _picture(seen: Soak) -> str:
    def panel(title: str, values: list[list[float]]) -> Panel:
        return Panel(title, [Line(f"server {n + 1}", line) for n, line in enumerate(values)])

    columns = [[sample.servers[n] for sample in seen.samples] for n in range(2)]
    minutes = [sample.seconds / 60 for sample in seen.samples]
    return chart(
        minutes,
        [
            panel("Resident memory, MiB", [[s.resident_bytes / MIB for s in c] for c in columns]),
            panel("Live tensors, MB", [[s.tensor_bytes / 1e6 for s in c] for c in columns]),
            panel("Open sessions", [[float(s.sessions) for s in c] for c in columns]),
        ],
    )


def run_interrupts(given: argparse.Namespace) -> None:
    """Interrupt each loop many times; print what was swallowed and left."""
    for name in LOOPS:
        seen = interrupted_loop(name, given.count, given.seed)
        say(
            f"{name}: {seen.sent} signals, {seen.seen} seen by the program, {seen.swallowed} "
            f"swallowed; {seen.tensors_left} tensors left, {seen.wrong} wrong results"
        )


def run_shortages(given: argparse.Namespace) -> None:
    """Take a server's descriptors, and send it signals; print how its clients ended."""
    for what, run in (("descriptors", without_descriptors), ("signals", signalled)):
        seen = run(given.rounds, given.seed)
        ends = [f"{one.steps} steps {one.ended or 'without an error'}" for one in seen.reports]
        say(f"{what}, {given.rounds} rounds: {', '.join(ends)}; exit code {seen.exit_code}")
        say(f"  before: {shown(seen.before)}")
        say(f"  after: {shown(seen.after)}")


def run_failing(given: argparse.Namespace) -> None:
    """Let allocations of servers fail; print how their clients ended."""
    for seed in range(given.seed, given.seed + given.runs):
        seen = failing_allocations(given.count, given.interval_seconds, seed)
        if seen.crash_code is not None:
            say(f"seed {seed}: the server crashed with code {seen.crash_code}")
            continue
        after = shown(seen.after) if seen.after is not None else "not measured"
        say(
            f"seed {seed}: {len(seen.ended)} clients ended, hung {seen.hung}, exit code "
            f"{seen.exit_code}; after: {after}"
        )


def run_memory(given: argparse.Namespace) -> None:
    """Run each attack on memory; print the growth of the server."""
    for name in given.attacks or ATTACKS:
        seen = attack(name, given.limit_mib * MIB)
        say(
            f"{name}: {seen.grown_bytes / MIB:.0f} MiB above {seen.base_bytes / MIB:.0f}, "
            f"{seen.grown_bytes / seen.limit_bytes:.2f} times the limit; "
            f"slowest health check {seen.healthz_milliseconds:.0f} ms"
        )
        assert seen.is_within_limit


def main() -> None:
    """Parse the command line and start the run."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    kills = commands.add_parser("kills", help="kill clients and servers")
    kills.add_argument("--rounds", type=int, default=200, help="number of kills")
    kills.add_argument("--seed", type=int, default=0)
    kills.set_defaults(run=run_kills)
    faults = commands.add_parser("faults", help="run sessions over faulty networks")
    faults.add_argument("--runs", type=int, default=1000, help="number of sessions")
    faults.add_argument("--each", type=int, default=11, help="network faults per session")
    faults.add_argument("--seed", type=int, default=0)
    faults.set_defaults(run=run_faults)
    groups = commands.add_parser("groups", help="kill and stop members in a collective")
    groups.add_argument("--kills", type=int, default=100, help="rounds with a killed member")
    groups.add_argument("--stops", type=int, default=20, help="rounds with a stopped member")
    groups.add_argument(
        "--bound-seconds", type=float, default=2.0, help="silence after which a member is lost"
    )
    groups.add_argument("--seed", type=int, default=0)
    groups.set_defaults(run=run_groups)
    load = commands.add_parser("load", help="open many sessions on one server")
    load.add_argument("--at-once", type=int, default=200, help="parallel sessions")
    load.add_argument("--in-turn", type=int, default=5000, help="sessions one after another")
    load.set_defaults(run=run_load)
    long = commands.add_parser("soak", help="run clients that come and go on two servers")
    long.add_argument("--clients", type=int, default=20, help="clients at any time")
    long.add_argument("--minutes", type=float, default=30)
    long.add_argument("--sample-seconds", type=float, default=5, help="time between samples")
    long.add_argument("--seed", type=int, default=0)
    long.add_argument(
        "--picture", type=Path, default=Path("docs/images/soak.svg"), help="chart to write"
    )
    long.set_defaults(run=run_soak)
    interrupts = commands.add_parser("interrupts", help="send Ctrl-C to loops of operations")
    interrupts.add_argument("--count", type=int, default=800, help="signals for each loop")
    interrupts.add_argument("--seed", type=int, default=0)
    interrupts.set_defaults(run=run_interrupts)
    memory = commands.add_parser("memory", help="try to take more memory than the limits")
    memory.add_argument("attacks", nargs="*", choices=[[], *ATTACKS], help="default: all")
    memory.add_argument("--limit-mib", type=int, default=160, help="the servers' memory limit")
    memory.set_defaults(run=run_memory)
    shortages = commands.add_parser("shortages", help="take descriptors, and send signals")
    shortages.add_argument("--rounds", type=int, default=20, help="floods, and bursts of signals")
    shortages.add_argument("--seed", type=int, default=0)
    shortages.set_defaults(run=run_shortages)
    failing = commands.add_parser("failing", help="let allocations of a server fail")
    failing.add_argument("--runs", type=int, default=6, help="servers")
    failing.add_argument("--count", type=int, default=2500, help="failing allocations of each")
    failing.add_argument("--interval-seconds", type=float, default=0.005)
    failing.add_argument("--seed", type=int, default=0)
    failing.set_defaults(run=run_failing)
    attack = commands.add_parser("attack", help="occupy the event loop of a server")
    attack.add_argument("--only", default="", help="a part of the descriptions of the attacks")
    attack.set_defaults(run=run_attack)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    given.run(given)


if __name__ == "__main__":
    main()
