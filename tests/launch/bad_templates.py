"""Every kind of bad template, with what its one line must say. Also used by the tests of the command line."""

from __future__ import annotations

from dataclasses import dataclass, field

EXTENDS = '{% extends "base.sbatch.j2" %}\n'
BLOCKS = {
    "header": "#SBATCH --nodes=1 --x\n#SBATCH --ntasks-per-node=1\n#SBATCH --open-mode=append\n#SBATCH --comment=x\n",
    "environment": "true\n",
    "before": "true\n",
    "supervise": "true\n",
    "after": "true\n",
}


def standalone(*, without: str = "", last: str = 'exit "$slurmtrain_code"', first: str = "#!/bin/bash") -> str:
    blocks = "".join(f"{{% block {name} %}}\n{text}{{% endblock %}}\n" for name, text in BLOCKS.items() if name != without)
    return f"{first}\n{blocks}{last}\n"


@dataclass(frozen=True)
class BadTemplate:
    """`files`: name to text, in a folder of the search path; the template asked for is `mine`. `says`: words of the line."""

    name: str
    text: str
    says: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)


CASES = [
    BadTemplate(
        "unknown name", EXTENDS + "{% block before %}\necho {{ nmae }}\n{% endblock %}", ("mine.sbatch.j2:3", "'nmae'", "did you mean name")
    ),
    BadTemplate(
        "unknown name in a branch that is not taken",
        EXTENDS + "{% block before %}\n{% if false %}{{ colour }}{% endif %}\n{% endblock %}",
        ("mine.sbatch.j2:3", "'colour'", "known are"),
    ),
    BadTemplate("unknown attribute", EXTENDS + "{% block before %}\n\n{{ name.colour }}\n{% endblock %}", ("mine.sbatch.j2:4", "colour")),
    BadTemplate("unknown filter", EXTENDS + "{% block before %}{{ name | quote }}{% endblock %}", ("mine.sbatch.j2:2", "quote")),
    BadTemplate("unclosed block", EXTENDS + "{% block before %}\n", ("mine.sbatch.j2", "endblock")),
    BadTemplate("broken tag", EXTENDS + "{% block %}", ("mine.sbatch.j2:2",)),
    BadTemplate("division by zero", EXTENDS + "{% block before %}\n{{ 1 // 0 }}\n{% endblock %}", ("mine.sbatch.j2", "zero")),
    BadTemplate("misspelt block", EXTENDS + "{% block enviroment %}x{% endblock %}", ("mine.sbatch.j2:2", "'enviroment'", "'environment'")),
    BadTemplate("a block of its own", EXTENDS + "{% block finally %}x{% endblock %}", ("'finally'", "never be rendered", "supervise")),
    BadTemplate("text outside of blocks", EXTENDS + "export A=1\n", ("mine.sbatch.j2", "outside of a block")),
    *(
        BadTemplate(f"no block {name}", standalone(without=name), ("mine.sbatch.j2", f"block '{name}' is missing"))
        for name in ("header", "environment", "before", "supervise", "after")
    ),
    *(
        BadTemplate(
            f"emptied block {name}",
            EXTENDS + f"{{% block {name} %}}\n{{% endblock %}}",
            ("mine.sbatch.j2:2", f"'{name}' is dropped", "super()"),
        )
        for name in ("header", "environment", "supervise")
    ),
    BadTemplate(
        "changed supervise",
        EXTENDS + "{% block supervise %}\n{{ super() | replace('TERM', 'INT') }}\n{% endblock %}",
        ("'supervise' is fixed text",),
    ),
    BadTemplate(
        "another supervise", EXTENDS + "{% block supervise %}\nsrun python train.py\n{% endblock %}", ("'supervise' is fixed text",)
    ),
    BadTemplate("supervise of a standalone template", standalone(), ("'supervise' is fixed text",)),
    BadTemplate("no shebang", standalone(first="# a script"), ("#!/bin/bash", "# a script")),
    BadTemplate("another last line", standalone(last="exit 0"), ("last line", "exit 0")),
    BadTemplate(
        "header without super", EXTENDS + "{% block header %}\n#SBATCH --nodes=1\n{% endblock %}", ("--ntasks-per-node", "super()")
    ),
    BadTemplate(
        "directive after a command",
        EXTENDS + "{% block before %}\n#SBATCH --qos=x\n{% endblock %}{% block environment %}\n:\n{{ super() }}{% endblock %}",
        ("#SBATCH --qos=x", "after a command", "header"),
    ),
    BadTemplate("extends what is not there", '{% extends "gone.sbatch.j2" %}', ("gone",)),
    BadTemplate("extends a name that is no template", '{% extends "base" %}', ("'base'", ".sbatch.j2")),
    BadTemplate("extends itself", '{% extends "mine.sbatch.j2" %}', ("mine.sbatch.j2", "extends itself", "installed/")),
    BadTemplate("extends by a variable", "{% extends name %}", ("mine.sbatch.j2:1", "by name")),
    BadTemplate(
        "parent drops a block",
        '{% extends "ours.sbatch.j2" %}',
        ("ours.sbatch.j2", "block 'after' is missing"),
        {"ours": standalone(without="after")},
    ),
    BadTemplate("bash cannot read it", EXTENDS + "{% block before %}\nif true; then\n{% endblock %}", ("bash", "syntax error")),
]
