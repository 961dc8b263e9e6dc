"""What the fuzz tests share. FUZZ_EXAMPLES=20000 runs so many examples of each, new ones each time.

    FUZZ_EXAMPLES=20000 .venv/bin/python -m pytest -k fuzz --hypothesis-show-statistics

Every example has to end within a minute and within a bound of memory.
"""
import contextlib
import copy
import os
import signal
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from memory import peak_growth

LONG = int(os.environ.get('FUZZ_EXAMPLES', 0))
MINUTE = 60
MEMORY = 300 << 20  # bytes


def examples(count: int):
    """A decorator: so many examples in the suite, always the same ones."""
    return settings(max_examples=LONG or count, derandomize=not LONG, database=None, deadline=None,
                    suppress_health_check=list(HealthCheck), print_blob=bool(LONG),
                    # the first finding ends a long run; in the suite it is made small first
                    phases=[Phase.generate] if LONG else list(Phase))


class TooLong(BaseException):
    """No handler of the code under test takes it."""


@contextlib.contextmanager
def bounded(memory: int = MEMORY):
    """Within, a minute and so many bytes are all there is; gives a new folder."""
    def late(*_):
        raise TooLong(f'over {MINUTE} seconds')

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(MINUTE)
    try:
        with tempfile.TemporaryDirectory() as folder, peak_growth() as grown:
            yield Path(folder)
            assert grown() < memory
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# -- JSON --------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(-3, 70), st.integers(), st.floats(), st.floats(-10, 80),
    st.sampled_from([2**31, 2**53, 2**63, 10**400, -1, 0, 1e308, float('nan'), float('inf'),
                     1e-320]))
TEXTS = st.one_of(st.text(max_size=6), st.sampled_from(
    ['../../etc/passwd', '/etc/passwd', '\x1b[2J', '<script>alert(1)</script>', 'a\nb', '\0', '1',
     'x' * 300, '\u202e', '\ud800', '']))
VALUES = st.recursive(st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS), lambda inner: st.one_of(
    st.lists(inner, max_size=5), st.dictionaries(TEXTS, inner, max_size=3)), max_leaves=6)


@st.composite
def changed(draw, content, most: int = 3):
    """Plain content with some of its values replaced, taken away, doubled or moved."""
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, most))):
        parent, key = None, None
        node = content
        while isinstance(node, dict | list) and node and (parent is None or draw(
                st.integers(0, 4))):
            parent = node
            key = draw(st.sampled_from(sorted(node) if isinstance(node, dict)
                                       else range(len(node))))
            node = node[key]
        if parent is None:
            continue
        how = draw(st.sampled_from(['replace', 'remove', 'twice', 'nudge', 'other']))
        if how == 'remove':
            del parent[key]
        elif how == 'twice' and isinstance(parent, list):
            parent.append(copy.deepcopy(node))
        elif how == 'nudge' and type(node) in (int, float):
            parent[key] = node + draw(st.sampled_from([-1, 1, 0.5, 100, -100, 1e-9]))
        elif how == 'other':
            parent[key] = copy.deepcopy(parent[draw(st.sampled_from(
                sorted(parent) if isinstance(parent, dict) else range(len(parent))))])
        else:
            parent[key] = draw(VALUES)
    return content


# -- bytes -------------------------------------------------------------------------------------

@st.composite
def damaged(draw, content: bytes, most: int = 4):
    """Bytes flipped, cut, doubled, put in or taken out."""
    for _ in range(draw(st.integers(1, most))):
        place = draw(st.integers(0, len(content)))
        end = min(len(content), place + draw(st.integers(1, 16)))
        how = draw(st.sampled_from(['flip', 'cut', 'set', 'insert', 'remove', 'double', 'huge']))
        if how == 'flip' and place < len(content):
            bit = 1 << draw(st.integers(0, 7))
            content = content[:place] + bytes([content[place] ^ bit]) + content[place + 1:]
        elif how == 'cut':
            content = content[:place]
        elif how == 'set':
            content = content[:place] + draw(st.binary(max_size=8)) + content[end:]
        elif how == 'insert':
            content = content[:place] + draw(st.binary(max_size=8)) + content[place:]
        elif how == 'remove':
            content = content[:place] + content[end:]
        elif how == 'double':
            content = content[:end] + content[place:]
        elif how == 'huge':
            content = content[:place] + draw(st.sampled_from(
                [b'\xff' * 4, b'\xff' * 8, b'\x7f\xff\xff\xff', b'\xff\xff\xff\x7f', bytes(8)])) + (
                content[min(len(content), place + 8):])
    return content
