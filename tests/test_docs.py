"""What the README and the docs say is there is there, and their example works."""
import re
import shlex
from pathlib import Path

import pytest
import torch
from commands import command
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from backbones.testing import check_backbone

ROOT = Path(__file__).resolve().parents[1]
PATH = re.compile(r'(?<![\w/])(?:tools|tests|configs|docs|backbones|downstream)/'
                  r'[\w/.]+\.(?:py|sh|md)\b')
PAGES = [*sorted(ROOT.glob('*.md')), *sorted((ROOT / 'docs').glob('*.md'))]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page):
    text = page.read_text()
    links = [link for link in re.findall(r'\]\(([^)#]+)', text) if '://' not in link]
    assert all((page.parent / link).exists() for link in links), links
    paths = PATH.findall(text)
    missing = [path for path in paths if not (ROOT / path).exists() and 'mine' not in path]
    assert not missing, missing


def test_comments_name_files_that_exist():
    sources = [path for folder in ('backbones', 'downstream', 'tools', 'configs')
               for path in (ROOT / folder).rglob('*.py')]
    named = {name for path in sources for name in PATH.findall(path.read_text())}
    missing = {name for name in named if not (ROOT / name).exists()}
    assert named and not missing, missing


def test_a_backbone_of_ones_own(tmp_path):
    """The example in docs/backbone.md, as written."""
    text = (ROOT / 'docs' / 'backbone.md').read_text()
    code = re.search(r'```python\n(import torch.*?)```', text, re.DOTALL)[1]
    namespace = {'__name__': 'backbones.mine', '__package__': 'backbones'}
    exec(code, namespace)
    outs = namespace['Mine'](dims=(4, 8, 16, 32))(torch.zeros(1, 3, 64, 96))
    assert [tuple(out.shape) for out in outs] == [
        (1, 4, 16, 24), (1, 8, 8, 12), (1, 16, 4, 6), (1, 32, 2, 3)]
    report = check_backbone(namespace['Mine'](dims=(4, 8, 16, 32)))
    report.require()
    torch.save({'weight': torch.zeros(3)}, tmp_path / 'other.pth')
    model = namespace['Mine'](init_cfg=dict(type='Pretrained',
                                            checkpoint=str(tmp_path / 'other.pth')))
    with pytest.raises(ValueError, match='fills 0%'):
        model.init_weights()


def test_the_pieces_for_a_transformer_of_ones_own():
    """Feature2Pyramid's and LocalityFeedForward's examples in docs/backbone.md, as written."""
    blocks = re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / 'backbone.md').read_text(), re.S)
    names = {}
    exec(next(code for code in blocks if 'Feature2Pyramid' in code), names)
    scope = dict(_scope_='mmdet')
    backbone = MODELS.build(names['model']['backbone'] | scope).eval()
    x = torch.zeros(1, 3, 64, 96)
    maps = backbone(x)
    for neck in names['model']['neck']:
        maps = MODELS.build(neck | scope).eval()(maps)
    assert [tuple(m.shape[2:]) for m in maps] == [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]

    names = dict(x=torch.zeros(1, 192, 4, 6), tokens=torch.zeros(1, 25, 192), height=4, width=6)
    for code in blocks:
        if 'feed_forward' in code:
            exec(code, names)
            assert names['y'].shape in ((1, 192, 4, 6), (1, 25, 192))


def test_predicting(detection, coco, elsewhere):
    """The examples in docs/predict.md and the README, as written, with a tiny model."""
    page = (ROOT / 'docs' / 'predict.md').read_text()
    Path('configs').mkdir()
    pages = page, (ROOT / 'README.md').read_text()
    for name in re.findall(r"'(configs/maskrcnn\w+\.py)'", ''.join(pages)):
        Path(name).write_text(f"_base_ = '{detection}'\n")
    cfg = Config.fromfile(detection)
    with DefaultScope.overwrite_default_scope('mmdet'):
        weights = MODELS.build(cfg.model).state_dict()
    for name in 'epoch_12.pth', 'CHECKPOINT.pth':
        torch.save(dict(state_dict=weights), name)
    (coco / 'val' / 'val0.jpg').rename('image.jpg')
    for text in pages:
        blocks = [code for code in re.findall(r'```python\n(.*?)```', text, re.S)
                  if 'Predictor' in code or text is page]
        names = {}
        for code in blocks:
            exec(code, names)
        assert blocks and names['result'].boxes.shape[1] == 4
    assert Path('predicted.png').is_file() and names['result'].names is not None


def test_commands_take_the_options_that_pages_give_them():
    pages = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
    text = '\n'.join(page.read_text() for page in pages).replace('\\\n', ' ')
    names = ['check_data', 'convert_checkpoint', 'export', 'look_inside', 'predict', 'report',
             'reproduce', 'score', 'test', 'train', 'transfer']
    lines = re.findall(rf'^(?: {{4}})?(?:[A-Z_]+=\S+ )?tools/({"|".join(names)})\.py '
                       r'([^#\n]*)', text, re.MULTILINE)
    assert sorted({name for name, _ in lines}) == names
    for name, arguments in lines:
        command(name).parse_args(shlex.split(arguments))
        for config in re.findall(r'\bconfigs/\S+\.py', arguments):
            assert (ROOT / config).is_file(), config
