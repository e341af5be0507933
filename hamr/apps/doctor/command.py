"""Arguments of `hamr doctor`."""

from __future__ import annotations

from hamr.apps.shared.commands import Command


class DoctorCommand(Command):
    """Print this machine's resources, what is missing for the quickstart, and the command that installs it. Exit code
    0 if `hamr train experiment=quickstart` can run here, else 1.
    """

    def run(self) -> int:
        from hamr.apps.doctor.run import diagnose

        return diagnose()
