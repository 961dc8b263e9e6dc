"""A line on a terminal, plain lines elsewhere, and what is printed beside them."""
import io
import logging
import sys

from downstream import progress
from downstream.progress import Progress, printing_above


class Terminal(io.StringIO):
    def isatty(self):
        return True


def use_terminal(monkeypatch) -> Terminal:
    """(A fixture would be too early: pytest puts its own files in place before the test.)"""
    screen = Terminal()
    monkeypatch.setattr(sys, 'stdout', screen)
    monkeypatch.setattr(sys, 'stderr', screen)
    return screen


def visible(text: str) -> list[str]:
    """What a terminal shows of it: a carriage return begins the line anew."""
    lines = []
    for line in text.split('\n'):
        cells = []
        for part in line.split('\r'):
            cells[:len(part)] = part
        lines.append(''.join(cells).rstrip())
    return lines


def test_a_terminal_has_one_line_and_then_none(monkeypatch):
    terminal = use_terminal(monkeypatch)
    with Progress(['a', 'b', 'c'], 'reading', unit='files', mininterval=0) as items:
        assert list(items) == ['a', 'b', 'c']
    text = terminal.getvalue()
    assert '\n' not in text and visible(text) == ['']
    assert 'reading:  33%' in text and '1/3' in text and ' files/s' in text


def test_elsewhere_plain_lines_come_now_and_then(capsys, monkeypatch):
    assert list(Progress(range(3), 'reading')) == [0, 1, 2]
    assert capsys.readouterr() == ('', '')  # it was quick
    monkeypatch.setattr(progress, 'PLAIN', 0)
    with Progress(total=5, initial=2, desc='predicting', unit='images') as line:
        for _ in range(3):
            line.update()
    said, wrong = capsys.readouterr()
    assert not wrong and '\r' not in said and '\x1b' not in said
    lines = said.splitlines()
    assert len(lines) == 3 and all(line.isprintable() for line in lines)
    assert lines[0].startswith('predicting: 3 of 5 (60 %), ') and lines[0].endswith(' left')
    assert ' images/s, ' in lines[0]


def test_other_processes_are_silent(monkeypatch):
    terminal = use_terminal(monkeypatch)
    monkeypatch.setattr(progress, 'is_main_process', lambda: False)
    assert list(Progress(range(3), 'reading', mininterval=0)) == [0, 1, 2]
    assert terminal.getvalue() == ''


def test_what_is_printed_stands_above(monkeypatch):
    terminal = use_terminal(monkeypatch)
    logger = logging.Logger('own')
    handler = logging.StreamHandler(sys.stdout)
    logger.addHandler(handler)
    with Progress(total=3, desc='training', mininterval=0) as line, printing_above(logger):
        line.update()
        print('printed', 'in parts', end='')
        line.update()
        print(' and whole')
        logger.warning('logged')
        print('warned of', file=sys.stderr)
        line.update()
        shown = visible(terminal.getvalue())
        assert shown[:-1] == ['printed in parts and whole', 'logged', 'warned of']
        assert shown[-1].startswith('training: 100%')
    assert handler.stream is terminal and sys.stdout is terminal and sys.stderr is terminal
    assert visible(terminal.getvalue())[-1] == ''


def test_a_file_for_errors_has_no_line(monkeypatch):
    use_terminal(monkeypatch)
    errors = io.StringIO()
    monkeypatch.setattr(sys, 'stderr', errors)
    with Progress(total=1, mininterval=0) as line, printing_above():
        print('wrong', file=sys.stderr)
        line.update()
    assert errors.getvalue() == 'wrong\n'
