"""The live line of tools/train.py and tools/test.py, on a terminal and elsewhere."""
import io
import re
import sys
import time
from pathlib import Path

import pytest
from commands import command

from downstream import progress

train, score = command('train').main, command('test').main


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def a_name_of_its_own(elsewhere):
    time.sleep(1.01 - time.time() % 1)  # mmengine names runs by the second


def lines_of(folder):
    log, = Path(folder).glob('*/*.log')
    return log.read_text().splitlines()


def messages(lines):
    """What the logger said, without date and level."""
    return [line.split(' - INFO - ', 1)[1].strip() for line in map(plain, lines)
            if ' - INFO - ' in line]


def plain(text):
    return re.sub(r'\x1b\[\d*m', '', text)  # without colours, which termcolor keeps for good


def test_on_a_terminal(detection, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, 'stdout', terminal)
    monkeypatch.setattr(progress, 'LIVE', 0)
    train([str(detection), '--work-dir', 'run', '--cfg-options', 'log_processor.window_size=1'])
    text = terminal.getvalue()
    drawn = [part for part in re.split(r'[\r\n]', text) if '%|' in part]
    loss = r'loss \d+\.\d{4}'
    assert any(re.match(rf'training  50%\|.*\| 1/2, eta 00:\d\d, {loss}', part) for part in drawn)
    assert any(re.match(rf'training 100%\|.*\| 2/2, eta 00:00, {loss}', part) for part in drawn)
    assert any(re.match(r'validation 100%\|.*\| 2/2, eta 00:00', part) for part in drawn)
    assert any(re.search(r'[\d.]+ images/s', part) for part in drawn)

    # All lines of the log are there, whole, but for those that the live line stands for.
    log = lines_of('run')
    assert not any('\r' in line or '%|' in line for line in log)
    repeated = [line for line in messages(log) if line.startswith('Iter(val)') and 'eta' in line]
    shown = messages(re.split(r'[\r\n]+', text))
    assert len(repeated) == 2 and not set(repeated) & set(shown)
    wanted = [line for line in messages(log) if re.match(r'Iter\(', line) and line not in repeated]
    assert len(wanted) == 3 and set(wanted) <= set(shown)

    time.sleep(1.01 - time.time() % 1)
    terminal.truncate(0)
    score([str(detection), 'run/iter_2.pth', '--work-dir', 'scored'])
    assert re.search(r'\rtest 100%\|.*\| 2/2, eta 00:00', terminal.getvalue())
    assert any('eta' in line for line in lines_of('scored'))
    assert sys.stdout is terminal


def test_elsewhere_it_is_as_ever(segmentation, capsys):
    train([str(segmentation), '--work-dir', 'run'])
    said = plain(capsys.readouterr().out)
    assert '\r' not in said and '\x1b' not in said and '%|' not in said
    assert len(re.findall(r'Iter\(train\) \[\d/2\].* eta: ', said)) == 2
    assert len(re.findall(r'Iter\(val\) \[\d/2\].* eta: ', said)) == 2


def test_a_failure_leaves_the_terminal_as_it_was(detection, coco, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, 'stdout', terminal)
    (coco / 'val' / 'val1.jpg').write_bytes(b'not an image')
    monkeypatch.setattr('downstream.training.run.check_data', lambda *args, **options: None)
    with pytest.raises(SystemExit, match='val1.jpg'):
        train([str(detection), '--work-dir', 'run'])
    assert sys.stdout is terminal
    assert terminal.getvalue().rsplit('\r', 1)[-1] == ''  # the line is gone
