"""``compatkit doctor``: what is installed, what does not fit together, and what to do about it."""

from __future__ import annotations

import click

from compatkit.cli.options import Options, command, option
from compatkit.cli.output import clean, counted, emit, fold
from compatkit.cli.roots import requested_root

COLORS = {"ok": "green", "warning": "yellow", "problem": "red"}


class DoctorOptions(Options):
    """Options of ``doctor``."""

    imports: bool = option("Also import every plugin, which takes seconds.", "--plugins")
    remotes: bool = option("Also ask each saved remote; otherwise nothing is sent.")


@command("doctor", DoctorOptions)
def doctor_command(options: DoctorOptions) -> int | None:
    """Look at libraries, machine, folders, plugins, registry and remotes; say what is wrong and what to do.

    Nothing is changed. Exit code 4 for a problem of the environment, 3 for a damaged registry.

    Examples:
        # everything that can be looked at in seconds
        compatkit doctor
        # also import all plugins, and ask all saved remotes
        compatkit doctor --plugins --remotes
        # for a report of a bug
        compatkit --registry parts doctor --json
    """
    from compatkit.health.doctor import doctor

    report = doctor(requested_root(), plugins=options.imports, remotes=options.remotes)
    if options.json:
        return emit(report.to_json(), report.exit_code)
    topic = ""
    for each in report.observations:
        if each.topic != topic:
            click.echo(f"{chr(10) * bool(topic)}{click.style(each.topic, bold=True)}")
            topic = each.topic
        click.echo(fold(each.state, f"{each.subject}: {each.found}", indent=2, size=7, fg=COLORS[each.state]))
        if each.remedy:
            click.echo(fold("", each.remedy, indent=2, size=7))
    problems, warnings = report.count("problem"), report.count("warning")
    click.echo(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
    if report.exit_code:
        click.echo(clean(f"exit code {report.exit_code}"))
    return report.exit_code
