"""What a check of data finds: counted, with examples and a remedy; errors stop, warnings don't."""
from dataclasses import dataclass, field

from ..errors import UserError, one_line

SHOWN = 5  # examples in a message
LONGEST = 200  # characters of one


@dataclass
class Finding:
    """One kind of mistake in one file or folder.

    Attributes:
        where: the file or folder.
        what: what is wrong, in words that follow a number ('boxes leave their images').
        examples: where to look: ids, names of files.
        count: how many there are.
        total: of how many.
        remedy: what to do, or what is done about it.
        error: whether training cannot begin.
        images: names of images that show it, for the page; maybe the same one several times.
        objects: the annotations that show it, one for each of ``images``, or none at all.
    """
    where: str
    what: str
    examples: list = field(default_factory=list)
    count: int = 0
    total: int = 0
    remedy: str = ''
    error: bool = False
    images: list[str] = field(default_factory=list)
    objects: list[dict] = field(default_factory=list)

    def __post_init__(self):
        self.count = self.count or len(self.examples)

    def __str__(self):
        number = f'{self.count:,}' + (f' of {self.total:,}' if self.total else '')
        examples = ', '.join(name if len(name) <= LONGEST else f'{name[:LONGEST]}…'
                             for name in map(str, self.examples[:SHOWN]))
        if self.count > SHOWN:
            examples += ', …'
        return one_line(f'{self.where}: {number} {self.what}'
                        + (f' ({examples})' if examples else '')
                        + (f'; {self.remedy}' if self.remedy else ''))


def stop_at_errors(findings: list[Finding]) -> list[str]:
    """The warnings among findings, as lines to log.

    Raises:
        UserError: there are errors; all of them are named.
    """
    errors = [str(finding) for finding in findings if finding.error]
    if len(errors) > 1:
        errors = [f'{len(errors)} mistakes in the data:', *errors]
    if errors:
        raise UserError('\n  '.join(errors))
    return [str(finding) for finding in findings]
