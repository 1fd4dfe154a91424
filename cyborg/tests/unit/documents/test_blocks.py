# SPDX-License-Identifier: Apache-2.0
"""Every block of the documents is what it says it is, and would be taken by whom it is for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cyborg.tests.unit.documents import arguments, data, settings
from cyborg.tests.unit.documents.blocks import MISSING, Block, blocks, plain
from cyborg.tests.unit.documents.shell import ROOT, commands

#: Everything that people read and copy from.
DOCUMENTS = [
    *sorted(ROOT.glob("*.rst")),
    *sorted(path for part in ("doc", "api-ref") for path in (ROOT / part).rglob("*.rst")),
    *sorted((ROOT / "api-ref").rglob("*.inc")),
    *sorted(path for part in ("devstack", "tools") for path in (ROOT / part).rglob("*.rst")),
]
#: What is said of a kind that has no rule.
KINDS = "say what the block is: '.. code-block::' and one of "

RULES: dict[str, Callable[[Block], None]] = {
    "apache": lambda block: settings.as_apache(block.text),
    "console": lambda block: arguments.check(block.text, console=True),
    "ini": lambda block: settings.as_ini(block.text, block.caption),
    "json": lambda block: data.as_json(block.text),
    "local.conf": lambda block: settings.as_local_conf(block.text),
    "promql": lambda block: data.as_promql(block.text),
    "python": lambda block: data.as_python(block.text),
    # A file that is shown; errors are shown with what caused them.
    "sample": lambda block: data.parsed(block.text),
    "shell": lambda block: arguments.check(block.text),
    "sql": lambda block: data.as_sql(block.text),
    # Diagrams, output, and what else nobody would copy.
    "text": lambda block: None,
    "yaml": lambda block: data.as_yaml(block.text),
}


def complaint(block: Block) -> str:
    """What is wrong with a block; empty if nothing is."""
    rule = RULES.get(block.kind)
    if block.kind == MISSING:
        return "the file that is shown is not there"
    if rule is None:
        return KINDS + ", ".join(sorted(RULES.keys() - {"local.conf", "sample"}))
    try:
        rule(block)
    except ValueError as fault:
        return str(fault)
    return ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_code_block_is_valid(path: Path):
    complaints = {
        f"{path.relative_to(ROOT)}:{block.line}": said
        for block in blocks(path)
        if (said := complaint(block))
    }
    assert complaints == {}


def test_documents_have_blocks_of_every_kind():
    found = {block.kind for path in DOCUMENTS for block in blocks(path)}
    assert found >= {"apache", "ini", "json", "python", "shell", "sql", "text"}


def block(kind: str, text: str, caption: str = "") -> Block:
    return Block(Path("page.rst"), 1, kind, text, caption)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("", "? what is this", "say what the block is"),
        ("cobol", "MOVE 1 TO A", "say what the block is"),
        ("apache", "<VirtualHost *>", "<VirtualHost> is not closed"),
        ("apache", "WSGIScriptAlias / /usr/lib/cyborg/nothing.py", "there is no script"),
        ("ini", "[conductor]\nlease = never", "lease"),
        ("ini", "[conductor]\nleese = 3", "there is no option [conductor] leese"),
        ("ini", "[pci]\npassthrough_whitelist = {", "passthrough_whitelist"),
        ("ini", "[generic_driver]\nbackends = a\n[generic_driver:a]\nunits = 1", "resource_class"),
        ("ini", "lease = 3", "is no option in a section"),
        ("ini", "[uwsgi]\nmodule = cyborg.wsgi.api:nothing", "there is no application"),
        ("ini", "[uwsgi]\nproceses = 4", "uWSGI has no option"),
        (MISSING, "", "is not there"),
        ("json", "{", "not JSON"),
        ("json", '{"groups": []}', "groups"),
        ("json", '[{"resources:GOLD": "1"}]', "GOLD"),
        ("json", '{"name": "a b", "groups": [{"resources:FPGA": "1"}]}', "name"),
        ("local.conf", "[[local|localrc]]\nCYBORG_NOTHING=1", "CYBORG_NOTHING"),
        ("promql", "cyborg_nothing > 0", "there is no metric"),
        ("python", "def x(", "not Python"),
        ("sql", "SELECT colour FROM work", "no such column"),
        ("yaml", "a: [", "not YAML"),
        ("shell", "cyborg accelerator-list --colour red", "--colour"),
        ("shell", "cyborg accelerators", "accelerators"),
        ("shell", "cyborg --os-cloud production usages", "usages"),
        ("shell", "openstack --os-cloud production accelerator boil", "boil"),
        ("shell", "cyborg profile-create a --group resources:GOLD=1", "GOLD"),
        ("shell", "cyborg-dbsync downgrade", "downgrade"),
        ("shell", "cyborg-audit --repair", "--repair"),
        ("shell", "cyborg-status look", "look"),
        ("shell", "cyborg-agent --daemon", "--daemon"),
        ("shell", "openstack accelerator device boil $DEVICE", "boil"),
        ("shell", "openstack server reboot --gently $SERVER", "--gently"),
        (
            "shell",
            'openstack accelerator device profile create a \'[{"trait:A": "required"}]\'',
            "asks",
        ),
        ("shell", "openstack accelerator device enable <uuid>", "write a variable"),
        ("shell", "openstack server create --image ... a", "say what stands for"),
        ("shell", "tools/test --fast", "tools/test has no option --fast"),
        ("shell", "frobnicate", "there is no program frobnicate"),
        ("shell", "echo $(cyborg nothing)", "nothing"),
        ("shell", "curl $ENDPOINT/v2/nothing", "the API has no GET nothing"),
        ("shell", "curl -d '{' $ENDPOINT/v2/drivers", "not JSON"),
        ("shell", "# nothing", "there is no command"),
        ("console", "cyborg service-list", "there is no command"),
        ("console", "$ cyborg service-liszt\nfoo", "service-liszt"),
    ],
)
def test_invalid_blocks_are_found(kind: str, text: str, said: str):
    assert said in complaint(block(kind, text))


def test_caption_names_file_of_another_program():
    text = "[service_user]\nsend_service_user_token = true\nauth_url = http://keystone:5000"
    assert complaint(block("ini", text, "/etc/nova/nova.conf")) == ""
    assert "nova.conf" in complaint(block("ini", "[pci]\nalias2 = 1", "/etc/nova/nova.conf"))


def test_commands_are_found_in_the_path():
    text = """
    for host in a b; do cyborg service-show $host | grep up; done  # and so on
    sudo -u cyborg cyborg-dbsync upgrade && X=1 cyborg-audit > /tmp/found 2>&1
    cat <<END > file
    nothing to run
    END
    echo "$(cyborg usage-show)" \\
      more
    """
    names = [words[0] for words in commands(text)]
    assert names[1:] == [
        "cyborg", "grep", "cyborg-dbsync", "cyborg-audit", "cat", "cyborg", "echo",
    ]  # fmt: skip
    assert commands(text)[2] == ["grep", "up"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("cyborg service-list", "shell"),
        ("# first\nsudo systemctl start cyborg-api", "shell"),
        ("$ cyborg service-list", "console"),
        ("[agent]\na = b", "ini"),
        ("[[local|localrc]]", "local.conf"),
        ('[{"a": 1}]', "json"),
        ("SELECT 1", "sql"),
        ("Nova --> API", ""),
    ],
)
def test_plain_text_blocks_need_no_language(text: str, kind: str):
    assert plain(text) == kind


PAGE = """
1. First::

      cyborg service-list

   That lists them::

      cyborg \\
        driver-list

* then

.. code-block:: ini
   :caption: /etc/nova/nova.conf

   [pci]
   device_spec = {}

.. highlight:: console

Said before::

    $ cyborg usage-show
    nothing
"""


def test_blocks_end_where_the_paragraph_continues(tmp_path: Path):
    (tmp_path / "page.rst").write_text(PAGE)
    found = [(one.line, one.kind, one.text, one.caption) for one in blocks(tmp_path / "page.rst")]
    assert found == [
        (4, "shell", "cyborg service-list", ""),
        (8, "shell", "cyborg \\\n  driver-list", ""),
        (16, "ini", "[pci]\ndevice_spec = {}", "/etc/nova/nova.conf"),
        (23, "console", "$ cyborg usage-show\nnothing", ""),
    ]


@pytest.mark.parametrize(
    "groups",
    ["""'[{"resources:FPGA": "1"}]'""", "--group resources:FPGA=1,trait:CUSTOM_A=required"],
)
def test_both_client_spellings_of_a_profile_are_accepted(groups: str):
    text = f"openstack accelerator device profile create a {groups}"
    assert complaint(block("shell", text)) == ""
