from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.errors import StratadvisorError, UsageError
from stratadvisor.probe.host_list import MAX_HOSTS, parse_hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ("login",)),
        ("a,b c\nd", ("a", "b", "c", "d")),
        ("node[1-3]", ("node1", "node2", "node3")),
        ("node[08-11,20]", ("node08", "node09", "node10", "node11", "node20")),
        ("rack[1-2]node[1-2]", ("rack1node1", "rack1node2", "rack2node1", "rack2node2")),
        ("gpu[1,2]-ib.example.org", ("gpu1-ib.example.org", "gpu2-ib.example.org")),
        ("root@10.0.0.1,::1", ("root@10.0.0.1", "::1")),
        ("a,a,a[1-1],a1", ("a", "a1")),
    ],
)
def test_lists_as_slurm_writes_them(text, names):
    assert parse_hosts(text) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no host"),
        (" , ", "names no host"),
        ("node[1-", "not closed"),
        ("node1-2]", "not closed"),
        ("node[]", "is not a number"),
        ("node[a-b]", "is not a number"),
        ("node[3-1]", "counts backwards"),
        ("node[1-99999]", f"more than {MAX_HOSTS}"),
        ("a[1-100]b[1-100]", f"more than {MAX_HOSTS}"),
        ("-oProxyCommand=touch", "is not the name of a host"),
        ("x@-oProxyCommand=touch", "is not the name of a host"),
        ("a;reboot", "is not the name of a host"),
        ("$(reboot)", "is not the name of a host"),
        ("n\u00f6de", "is not the name of a host"),
    ],
)
def test_what_is_no_list_is_refused_in_one_sentence(text, said):
    with pytest.raises(UsageError, match=said) as caught:
        parse_hosts(text)
    assert "\n" not in str(caught.value)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.text(alphabet="an01-9[],. @:;$\n", max_size=24))
def test_any_text_gives_names_or_a_sentence(text):
    try:
        names = parse_hosts(text)
    except StratadvisorError:
        return
    assert names
    assert len(set(names)) == len(names) <= MAX_HOSTS
    assert not any(name.startswith("-") or set(name) & set(" ;$\n[],") for name in names)
