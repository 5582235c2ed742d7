"""Templates become scripts: values whole, blocks where an administrator put them, faults told with file, line and name."""

from __future__ import annotations

import pytest

from slurmtrain.errors import TemplateError
from slurmtrain.launch.render import context, render
from tests.launch.bad_templates import CASES, EXTENDS
from tests.launch.samples import INSTALLED, job, request, site, templates

BY_BASH = {"bash cannot read it"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "templates"


def written(folder, **files: str):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.sbatch.j2").write_text(text)
    return templates(folder)


def mine(folder, text: str, **files: str) -> str:
    return render(request(job(template="mine")), written(folder, mine=text, **files))


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in BY_BASH], ids=lambda case: case.name)
def test_a_bad_template_is_refused_with_file_line_and_name(case, folder):
    with pytest.raises(TemplateError) as caught:
        mine(folder, case.text, **case.files)
    line = str(caught.value)
    assert "\n" not in line
    for words in case.says:
        assert words in line


def test_directives_come_first_and_words_after_the_dashes_last():
    lines = render(request(passthrough=("--mail-user", "bob x")), templates()).splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert lines[0] == "#!/bin/bash"
    assert directives == lines[1 : 1 + len(directives)]
    assert directives[-1] == '#SBATCH --mail-user "bob x"'
    assert lines[-1] == 'exit "$slurmtrain_code"'


def test_blocks_can_be_added_to(folder):
    text = mine(
        folder,
        EXTENDS
        + "{% block header %}\n{{ super() }}\n#SBATCH --licenses=matlab\n{% endblock %}\n"
        + "{% block before %}\n{{ super() }}\nnvidia-smi -L\n{% endblock %}\n{% block after %}\necho over\n{% endblock %}",
    )
    assert text.index("#SBATCH --licenses") < text.index("nvidia-smi") < text.index("slurmtrain_pid=$!") < text.index("echo over")


def test_a_chain_of_three_and_the_installed_one_under_its_own_name(folder):
    train = '{% extends "installed/train.sbatch.j2" %}{% block before %}echo site{% endblock %}'
    text = mine(folder, '{% extends "train.sbatch.j2" %}{% block after %}echo group{% endblock %}', train=train)
    assert "echo site" in text
    assert "echo group" in text


def test_an_own_base_may_keep_the_fixed_text(folder):
    base = '{% extends "installed/base.sbatch.j2" %}{% block environment %}{{ super() }}\nexport SITE=1\n{% endblock %}'
    assert "export SITE=1" in render(request(), written(folder, base=base))


def test_a_template_may_be_named_by_its_path(tmp_path):
    path = tmp_path / "special.sbatch.j2"
    path.write_text(EXTENDS + "{% block before %}echo special{% endblock %}")
    found = templates()

    def find(name):
        return path if name == str(path) else found.find(name)

    assert "echo special" in render(request(job(template=str(path))), type(found)(find, found.installed))


def test_windows_line_ends_do_not_reach_bash(folder):
    folder.mkdir()
    (folder / "mine.sbatch.j2").write_bytes(EXTENDS.replace("\n", "\r\n").encode() + b"{% block before %}\r\necho a\r\n{% endblock %}\r\n")
    assert "\r" not in render(request(job(template="mine")), templates(folder))


def test_binary_and_missing_templates(folder):
    folder.mkdir()
    (folder / "mine.sbatch.j2").write_bytes(b"\xff\xfe")
    with pytest.raises(TemplateError, match=r"mine.*UTF-8"):
        render(request(job(template="mine")), templates(folder))
    with pytest.raises(TemplateError, match="no template 'gone'"):
        render(request(job(template="gone")), templates(folder))


def test_modules_limits_and_lines_of_the_site():
    environment = {"modules": ("cuda/12.4",), "ulimits": {"l": "unlimited"}, "before": ("echo $HOME",)}
    text = render(request(a_site=site(environment=environment)), templates())
    assert "\nmodule load cuda/12.4 ||" in text
    assert "\nulimit -l unlimited ||" in text
    assert "\necho $HOME\n" in text


def test_the_page_on_templates_tells_every_name_and_its_example_renders(folder):
    page = (INSTALLED.parent / "docs/templates.md").read_text()
    for name in context(request()):
        assert f"`{name}`" in page, name
    example = page.split("```jinja\n")[1].split("```")[0]
    text = render(request(), written(folder, train=example))
    assert "#SBATCH --licenses=lustre" in text
    assert "nvidia-smi -L" in text
