"""What the links between nodes mean for people: normal, low or bad, against what, and what to try next."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping

from stratadvisor.probe.nodes.conductor import Found
from stratadvisor.probe.nodes.diagnosis import PROCESSOR_BYTES_PER_SECOND, Diagnosis, SlowLink, SlowNode, SlowWayOut
from stratadvisor.schema.profile import NicProfile, NodeProfile, Verdict
from stratadvisor.units import format_rate

BAD_SHARE = 0.3
"""Below this share of what is usual a link is bad, above it low."""
STATED_SHARE = 0.6
"""Of the rate that the driver states; TCP on a healthy link reaches 90 % and more, except where a core is the limit."""
MOST_NAMED = 20
_RDMA = ("infiniband", "roce", "efa")


def _verdict(level: str, subject: str, message: str, advice: str = "") -> Verdict:
    return Verdict.model_validate({"level": level, "subject": subject, "message": message, "advice": advice})


def lost_verdicts(lost: Mapping[int, str], names: Mapping[int, str]) -> list[Verdict]:
    """Return a problem for every node that was left out."""
    return [
        _verdict(
            "problem",
            names[rank],
            f"left out: {reason}",
            "look at this node (is it up, does its clock run, is it swapping?), or start without it",
        )
        for rank, reason in sorted(lost.items())
    ]


def link_verdicts(
    found: Found, diagnosis: Diagnosis, names: Mapping[int, str], nodes: Mapping[int, NodeProfile]
) -> list[Verdict]:
    """Return what there is to say about the network, the worst first."""
    stated, used = _stated(found), used_interfaces(found)
    verdicts = [_slow_node(node, names, stated, used, diagnosis) for node in diagnosis.nodes]
    verdicts += [_slow_way_out(way, names) for way in diagnosis.ways_out]
    verdicts += [_slow_link(link, names) for link in diagnosis.links]
    verdicts += _below_stated(diagnosis, names, stated, used)
    verdicts += _better_interface(names, nodes, used, stated)
    verdicts += _own_bridges(names, nodes)
    verdicts += _own_names(found, names)
    verdicts += _failed(found, names)
    order = {"problem": 0, "warning": 1, "info": 2}
    verdicts.sort(key=lambda verdict: order[verdict.level])
    if len(verdicts) > MOST_NAMED:
        more = len(verdicts) - MOST_NAMED
        verdicts = [*verdicts[:MOST_NAMED], _verdict("warning", "network", f"{more} more findings of this kind")]
    if diagnosis.reach and not any(verdict.level != "info" for verdict in verdicts):
        verdicts.append(_normal(diagnosis, stated))
    return verdicts


def _stated(found: Found) -> dict[int, float]:
    rates: dict[int, float] = {}
    for link in found.links:
        if link.stated[0] is not None:
            rates[link.a] = link.stated[0]
        if link.stated[1] is not None:
            rates[link.b] = link.stated[1]
    return rates


def used_interfaces(found: Found) -> dict[int, str]:
    """Return the interface that carried the last transfer of each node."""
    names: dict[int, str] = {}
    for link in found.links:
        names[link.a], names[link.b] = link.interfaces
    return {rank: name for rank, name in names.items() if name}


def _level(share: float) -> str:
    return "problem" if share < BAD_SHARE else "warning"


def _word(share: float) -> str:
    return "bad" if share < BAD_SHARE else "low"


def _slow_node(
    node: SlowNode, names: Mapping[int, str], stated: Mapping[int, float], used: Mapping[int, str], found: Diagnosis
) -> Verdict:
    reach, share = found.reach[node.rank], node.rate / node.usual
    interface = used.get(node.rank, "network")
    text = (
        f"slow connection: sends {format_rate(reach.sends)} and receives {format_rate(reach.receives)} at best,"
        f" with {reach.num_partners} other nodes; {share:.0%} of the {format_rate(node.usual)} that is usual here"
    )
    rate = stated.get(node.rank)
    if rate is not None and node.rate >= STATED_SHARE * rate:
        text += f"; its interface is a slower one ({format_rate(rate)} by its driver)"
        advice = "all nodes wait for it in collectives: move it to a faster port, or leave it out"
        return _verdict("warning", f"{names[node.rank]} {interface}", text, advice)
    text += f": {_word(share)}"
    if rate is not None:
        text += f", although its driver states {format_rate(rate)}"
    if node.direction == "both":
        advice = "check its cable, switch port and negotiated speed (ethtool), rate limits (tc, cloud), other traffic"
    else:
        advice = (
            f"only the direction in which it {node.direction} is slow: look at errors of the port (ethtool -S), at a "
            "rate limit (tc qdisc), and swap the cable or transceiver"
        )
    return _verdict(_level(share), f"{names[node.rank]} {interface}", text, advice)


def _slow_link(link: SlowLink, names: Mapping[int, str]) -> Verdict:
    share = link.rate / link.usual
    arrow = "and" if link.both_ways else "to"
    ways = "in both directions" if link.both_ways else "in this direction only"
    return _verdict(
        _level(share),
        f"{names[link.a]} {arrow} {names[link.b]}",
        f"slow link: {format_rate(link.rate)} {ways}, {share:.0%} of the {format_rate(link.usual)} that both reach"
        f" with others: {_word(share)}",
        "look at what lies between these two: switch uplinks, routing, a duplicate address, a virtual private network",
    )


def _slow_way_out(way: SlowWayOut, names: Mapping[int, str]) -> Verdict:
    share = way.rate / way.usual
    return _verdict(
        _level(share),
        f"{names[way.ranks[0]]} to {names[way.ranks[-1]]}",
        f"these {len(way.ranks)} neighbours are fast among themselves and reach {format_rate(way.rate)} to others,"
        f" {share:.0%} of the usual {format_rate(way.usual)}: {_word(share)}",
        "look at the uplink of the switch that they share, and keep traffic inside it (hierarchical synchronization)",
    )


def _below_stated(
    found: Diagnosis, names: Mapping[int, str], stated: Mapping[int, float], used: Mapping[int, str]
) -> Iterator[Verdict]:
    """Name the nodes that are as fast as the others and yet far below what their drivers state."""
    slow = {node.rank for node in found.nodes}
    groups: dict[tuple[str, float], list[int]] = defaultdict(list)
    for rank, reach in found.reach.items():
        rate, best = stated.get(rank), min(reach.sends, reach.receives)
        if rank not in slow and rate is not None and best < STATED_SHARE * rate and best < PROCESSOR_BYTES_PER_SECOND:
            groups[used.get(rank, ""), rate].append(rank)
    for (interface, rate), ranks in groups.items():
        best = statistics.median(min(found.reach[rank].sends, found.reach[rank].receives) for rank in ranks)
        share = best / rate
        hosts = ", ".join(names[rank] for rank in ranks[:4]) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
        yield _verdict(
            "warning",
            f"{hosts} {interface}".strip(),
            f"reported {format_rate(rate)}, measured {format_rate(best)}: {share:.0%} of what the driver states,"
            f" {_word(share)}; plans use what was measured",
            "a virtual or rate-limited interface states what it likes; on real hardware check cable, port and offloads",
        )


def _better_interface(
    names: Mapping[int, str], nodes: Mapping[int, NodeProfile], used: Mapping[int, str], stated: Mapping[int, float]
) -> Iterator[Verdict]:
    """Name the nodes whose traffic went over another interface than their fastest."""
    groups: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    for rank, interface in used.items():
        node = nodes.get(rank)
        rate = stated.get(rank)
        if node is None or rate is None:
            continue
        best = max((nic for nic in node.nics if _carries(nic)), key=_rate, default=None)
        if best is not None and best.name != interface and _rate(best) > 1.5 * rate:
            groups[interface, best.name, best.kind in _RDMA].append(rank)
    for (interface, name, rdma), ranks in groups.items():
        hosts = ", ".join(names[rank] for rank in ranks[:4]) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
        text = f"the transfers between nodes went over {interface}, though the faster {name} is up"
        if rdma:
            advice = (
                f"NCCL finds {name} by itself (NCCL_DEBUG=INFO tells); what was measured over TCP says nothing of it"
            )
            yield _verdict("info", hosts, text, advice)
        else:
            advice = (
                f"set GLOO_SOCKET_IFNAME={name} and NCCL_SOCKET_IFNAME={name}, or let host names lead to its address"
            )
            yield _verdict("warning", hosts, text, advice)


def _carries(nic: NicProfile) -> bool:
    return nic.kind not in ("loopback", "virtual") and nic.up is not False and nic.rate_bytes_per_second.known


def _rate(nic: NicProfile) -> float:
    return nic.rate_bytes_per_second.value or 0.0


def _own_bridges(names: Mapping[int, str], nodes: Mapping[int, NodeProfile]) -> Iterator[Verdict]:
    """Name interfaces whose address several nodes have: bridges of containers, which lead nowhere else."""
    owners: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, node in nodes.items():
        for nic in node.nics:
            for address in nic.addresses if nic.kind != "loopback" else ():
                if not address.lower().startswith(("fe80:", "127.")):  # link-local addresses repeat by design
                    owners[address, nic.name].append(rank)
    shared: dict[str, list[int]] = {}
    for (_, interface), ranks in owners.items():
        if len(ranks) > 1:
            shared.setdefault(interface, ranks)
    for interface, ranks in shared.items():
        yield _verdict(
            "info",
            interface,
            f"{len(ranks)} nodes have it with the same address: a bridge of containers, not a network between nodes",
            f"NCCL_SOCKET_IFNAME=^{interface},lo and GLOO_SOCKET_IFNAME with the right one keep traffic off it",
        )


def _own_names(found: Found, names: Mapping[int, str]) -> Iterator[Verdict]:
    ranks = [rank for rank, hello in sorted(found.hellos.items()) if hello.name_is_loopback and rank in found.profiles]
    if ranks:
        hosts = ", ".join(names[rank] for rank in ranks[:4]) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
        yield _verdict(
            "warning",
            hosts,
            "the host's own name leads to its loopback (/etc/hosts): gloo, which asks for it, then meets nobody",
            "set GLOO_SOCKET_IFNAME to the interface between the nodes, or give the name the host's real address",
        )


def _failed(found: Found, names: Mapping[int, str]) -> Iterator[Verdict]:
    """Name pairs that could not be measured though both nodes are there, unless they could in a later round."""
    fine = {frozenset(link.ends) for link in found.links} if found.failed else set()
    for pair in dict.fromkeys(tuple(sorted((a, b))) for a, b, _ in found.failed):
        if set(pair) & set(found.lost) or frozenset(pair) in fine:
            continue
        reason = next(text for a, b, text in found.failed if {a, b} == set(pair))
        yield _verdict(
            "problem",
            f"{names[pair[0]]} and {names[pair[1]]}",
            f"no transfer between them came to a result: {reason}",
            "check firewalls and routes between these two: training needs every pair",
        )


def _normal(found: Diagnosis, stated: Mapping[int, float]) -> Verdict:
    rates = [min(reach.sends, reach.receives) for reach in found.reach.values()]
    against = ""
    if len(stated) == len(found.reach) and stated:
        against = f"; drivers state {format_rate(min(stated.values()))} or more"
    text = f"{len(rates)} nodes reach {format_rate(min(rates))} to {format_rate(max(rates))} over TCP{against}: normal"
    return _verdict("info", "links between nodes", text)
