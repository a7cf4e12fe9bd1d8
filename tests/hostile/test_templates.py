"""Templates of strangers: they cannot run code, read files or the environment, loop for ever or fill the memory."""

from __future__ import annotations

import pickle

import plan_examples
import pytest

from stratadvisor.emit import isolation
from stratadvisor.emit.bundle import render_bundle, render_here
from stratadvisor.errors import EmitError

PLAN = plan_examples.examples()["ddp_cpu"]
PROFILE = plan_examples.profile()


@pytest.fixture
def overlay(tmp_path):
    (tmp_path / "overlay" / "templates" / "torchrun").mkdir(parents=True)
    return tmp_path / "overlay"


def write(overlay, text: str) -> None:
    (overlay / "templates" / "torchrun" / "README.md.j2").write_text(text)


def readme(overlay, render=render_here) -> str:
    files = render(PLAN, PROFILE, None, (overlay,))
    return next(file.content for file in files if file.path == "README.md")


class Opened:
    """Unpickled, it opens (and so creates) a file."""

    def __init__(self, path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_a_document_cannot_be_made_to_unpickle(overlay, tmp_path):
    # BaseModel.parse_raw(text, proto="pickle", allow_pickle=True) runs whatever the text says
    text = pickle.dumps(Opened(tmp_path / "executed"), 0).decode()
    write(overlay, f"{{{{ plan.parse_raw({text!r}, proto='pickle', allow_pickle=true) }}}}")
    with pytest.raises(EmitError, match=r"README.md.j2, line 1: .*parse_raw.*unsafe"):
        readme(overlay)
    assert not (tmp_path / "executed").exists()
    pickle.loads(text.encode())  # the bait is real: without the sandbox it would have been swallowed
    assert (tmp_path / "executed").exists()


ESCAPES = [
    "{{ plan.parse_file('/etc/passwd') }}",
    "{{ plan.model_dump() }}",
    "{{ plan.model_construct }}",
    "{{ plan['parse_file']('/etc/passwd') }}",
    "{{ (plan|attr('parse_file'))('/etc/passwd') }}",
    "{{ [plan]|map(attribute='parse_file')|first }}",
    "{{ [plan]|map(attribute='__class__')|first }}",
    "{{ plan.__class__.__mro__ }}",
    "{{ plan['__class__'] }}",
    "{{ plan|attr('__init__') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ (1).__class__ }}",
    "{{ launch.__init__.__globals__ }}",
    "{{ launch.__dataclass_fields__ }}",
    "{{ figures.__class__ }}",
    "{{ plan.model_fields }}",
    "{{ plan.model_config }}",
    "{{ profile.model_copy(update={}) }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ range.__globals__ }}",
    "{{ dict.fromkeys([1]) }}",
    "{{ dict.mro() }}",
    "{{ lipsum.__globals__ }}",
    "{{ lipsum() }}",
    "{{ [1, 2]|random }}",
    "{{ config }}",
    "{{ environment }}",
    "{{ open('/etc/passwd') }}",
    "{{ import('os') }}",
    "{{ '{0.__class__}'.format(plan) }}",
    "{{ '{0.parse_file}'.format_map({'0': plan}) }}",
    "{{ ('%s' % plan.parse_file) }}",
    "{% set x = plan.groups.__class__ %}{{ x }}",
    "{% macro m() %}{{ caller.__globals__ }}{% endmacro %}{{ m.__globals__ }}",
    "{% for x in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{{ train_config.update({'seed': 1}) }}",
    "{{ train_config.pop('seed') }}",
    "{{ launch.environment.setdefault('LD_PRELOAD', 'x') }}",
    "{{ [].append(1) }}",
    "{{ range }}",
    "{% include '/etc/passwd' %}",
    "{% include '../../../../etc/passwd' %}",
    "{% include 'torchrun/../../../../etc/passwd' %}",
    "{% include 'bundled/../../pyproject.toml' %}",
    "{% extends '/proc/self/environ' %}",
    "{% import '/proc/self/environ' as x %}",
    "{% do plan.parse_file('/etc/passwd') %}",
    "{% debug %}",
]


@pytest.mark.parametrize("text", ESCAPES)
def test_no_way_out_of_the_sandbox(overlay, text, monkeypatch):
    monkeypatch.setenv("A_SECRET", "do-not-print-me")
    write(overlay, text)
    with pytest.raises(EmitError) as caught:
        readme(overlay)
    said = caught.value.message
    assert "do-not-print-me" not in said
    assert "root:" not in said


def test_what_templates_need_still_works(overlay):
    write(
        overlay,
        "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}"
        "{% for group in plan.groups %}{{ loop.index }}:{{ group.num_nodes }};{% endfor %}"
        "{% for name, value in train_config.items() if name == 'seed' %}{{ name.upper() }}={{ value }};{% endfor %}"
        "{% set ns = namespace(n=0) %}{% for x in range(3) %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }};"
        "{{ ', '.join(['a', 'b'])|upper }};{{ launch.ranges[0].ranks }}",
    )
    assert readme(overlay) == f"ababA1:{PLAN.groups[0].num_nodes};SEED=0;3;A, B;0".replace("ababA", "abab")


def test_a_link_in_an_overlay_does_not_carry_a_file_of_this_machine_into_a_bundle(overlay, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("do-not-print-me")
    (overlay / "templates" / "torchrun" / "README.md.j2").symlink_to(secret)
    with pytest.raises(EmitError, match="symbolic link that leads out") as caught:
        readme(overlay)
    assert "do-not-print-me" not in caught.value.message


def test_a_link_as_manifest_is_refused_as_well(overlay, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('summary = "x"')
    (overlay / "templates" / "torchrun" / "emitter.toml").symlink_to(secret)
    with pytest.raises(EmitError, match="symbolic link that leads out"):
        readme(overlay)


@pytest.mark.parametrize("path", ["../outside", "/etc/outside", "a/../../outside", "a\\\\b", "", "."])
def test_a_manifest_cannot_name_a_path_outside_the_bundle(overlay, path):
    (overlay / "templates" / "torchrun" / "emitter.toml").write_text(
        'summary = "x"\nsince = "1"\nstrategies = ["ddp"]\nentrypoint = "launch.sh"\n'
        f'[[output]]\ntemplate = "torchrun/launch.sh.j2"\npath = "{path}"\nformat = "shell"\nexecutable = true\n'
    )
    with pytest.raises(EmitError):
        readme(overlay)


def test_a_template_of_megabytes_is_refused_unread(overlay):
    write(overlay, "x" * 2_000_000)
    with pytest.raises(EmitError, match="larger than"):
        readme(overlay)


def test_an_overlay_renders_apart_to_the_same_bytes(overlay):
    write(overlay, "{{ plan.strategy }} {{ figures.step }} {{ launch.world_size }}\n")
    here = render_here(PLAN, PROFILE, None, (overlay,))
    assert render_bundle(PLAN, PROFILE, None, (overlay,)) == here


def test_a_loop_without_end_is_ended(overlay, monkeypatch):
    monkeypatch.setattr(isolation, "CPU_SECONDS", 2)
    loop = "{% for a in range(99999) %}"
    write(overlay, loop * 4 + "x" + "{% endfor %}" * 4)
    with pytest.raises(EmitError, match=r"processor time|memory|Memory"):
        readme(overlay, render_bundle)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'x' * 9000000000 }}",
        "{{ '%9999999999d'|format(1) }}",
        "{{ 'x'|center(9000000000) }}",
        "{{ ['x' * 1000000] * 40 }}",
        "{{ 'x' * 20000000 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'torchrun/README.md.j2' %}",
        "{% extends 'torchrun/README.md.j2' %}",
    ],
)
def test_a_bomb_is_one_sentence(overlay, text):
    write(overlay, text)
    with pytest.raises(EmitError) as caught:
        readme(overlay, render_bundle)
    assert len(caught.value.message) <= 2000


def test_a_yaml_bomb_in_an_overlay_stays_in_its_process(overlay, monkeypatch):
    monkeypatch.setattr(isolation, "CPU_SECONDS", 2)
    monkeypatch.setattr(isolation, "MEMORY_BYTES", 512 * 1024**2)
    lines = ["a0: &a0 {k: v}"] + [f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}, *a{i - 1}]}}" for i in range(1, 25)]
    write(overlay, "\n".join(lines))
    manifest = (
        'summary = "x"\nsince = "1"\nstrategies = ["ddp"]\nentrypoint = "launch.sh"\n'
        '[[output]]\ntemplate = "torchrun/launch.sh.j2"\npath = "launch.sh"\nformat = "shell"\nexecutable = true\n'
        '[[output]]\ntemplate = "torchrun/README.md.j2"\npath = "README.md"\nformat = "yaml"\n'
    )
    (overlay / "templates" / "torchrun" / "emitter.toml").write_text(manifest)
    try:
        files = render_bundle(PLAN, PROFILE, None, (overlay,))
    except EmitError as error:
        assert error.message
    else:  # no YAML library is installed: nothing was parsed
        assert {"launch.sh", "README.md"} <= {file.path for file in files}
