"""Names of classes and files that are HTML, formulas, line breaks or escapes of a terminal."""
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from commands import command
from PIL import Image

from downstream.data.own import examine
from downstream.errors import printable
from downstream.looking.charts import bar_chart, line_chart
from downstream.looking.data_page import write_page
from downstream.looking.pages import save_page

pytestmark = pytest.mark.usefixtures('elsewhere')

CLASSES = ['<script>alert(1)</script>', '"onload="alert(1)', r'$\frac{$', '$', '&lt;b&gt;', '_',
           '%s', '{{ 7 * 7 }}', '</svg><img src=x onerror=alert(1)>', '猫']
FILES = ['<img src=x onerror=alert(1)>.jpg', 'a\nerror: b.jpg', '\x1b[2J\x1b]0;title\x07.jpg',
         '"quoted\'.jpg', b'\xff\xfe.jpg'.decode(errors='surrogateescape'), '\u202egpj.exe.jpg',
         '$(reboot).jpg', '{{ 7 * 7 }}.jpg', '%n.jpg', '猫.jpg']


@pytest.fixture
def data():
    """Boxes of these classes on images of these names, each named by a prefix that is not there."""
    root = Path('data')
    (root / 'train').mkdir(parents=True)
    for name in FILES:
        Image.new('RGB', (64, 48)).save(root / 'train' / name.replace('/', '_'))
    (root / 'train.json').write_text(json.dumps(dict(
        images=[dict(id=i, file_name=f'gone/{name}', width=64, height=48)
                for i, name in enumerate(FILES, 1)],
        annotations=[dict(id=i, image_id=i, category_id=i, bbox=[4, 4, 90, 20])
                     for i in range(1, 11)],
        categories=[dict(id=i, name=name) for i, name in enumerate(CLASSES, 1)])))
    return root


class Tags(HTMLParser):
    """Collects the elements of a page, and their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.found, self.scripts, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag == 'script'

    def handle_data(self, data):
        if self.inside:
            self.scripts.append(data)
            self.inside = False


def harmless(text: str):
    page = Tags(text)
    assert len(page.scripts) == 1 and 'alert' not in page.scripts[0]
    for tag, attrs in page.found:
        assert not any(name.startswith('on') for name in attrs)
        assert tag != 'img' or attrs['src'].startswith('data:')
    assert not re.search('[\x00-\x08\x0b-\x1f\x7f-\x9f]', text)
    assert '49' not in re.findall('{{.*?}}', text) and '{{ 7 * 7 }}' in text


def test_page_of_a_data_set(data):
    page = write_page(examine(str(data), 'detection'), Path('page'), images=20)
    harmless(page.read_text())
    for name in CLASSES[2:4]:
        assert name in page.read_text()


def test_lines_of_a_check(data, capsys):
    command('check_data').main([str(data)])
    out = capsys.readouterr().out
    assert out == printable(out) and '\nerror: b' not in out
    assert r'\x1b[2J' in ''.join(examine(str(data), 'detection').lines) or 'gone/' in out


def test_formulas_in_charts():
    """matplotlib sets what stands between two $, and raises where it is no formula."""
    names = [r'$\frac{$', '$5 and $6', '_hidden', '<b>']
    for title, drawing, legend in (bar_chart('$a$', names, {'': [1, 2, 3, 4]}, '$x$'),
                                   line_chart('$a$', {name: ([1, 2], [1, 2]) for name in names})):
        assert title == '$a$' and '<b>' not in drawing
        if legend:
            assert [label for label, _ in legend] == names
        else:
            assert r'$\frac{$' in drawing and '$5 and $6' in drawing


def test_control_characters_are_written_out():
    page = save_page('a\x1b[2J\x00\x9b\n\tb\udcff', Path('page'), '--report')
    assert page.read_text() == 'a\\x1b[2J\\x00\\x9b\n\tb\\udcff'
