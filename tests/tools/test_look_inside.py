"""tools/look_inside.py: the page and the pictures that it writes, and what it refuses."""
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import command, refused, weights_of
from PIL import Image

pytestmark = pytest.mark.usefixtures('elsewhere')
look = command('look_inside').main
BACKBONES = {
    'FocalNet': dict(type='FocalNet', embed_dim=8, depths=(1, 2, 1, 1), focal_levels=(2,) * 4,
                     focal_windows=(3,) * 4),
    'Container': dict(type='Container', embed_dims=(8, 16, 32, 64), depths=(1, 1, 1, 2),
                      num_heads=2, mlp_ratios=(1,) * 4),
    'LocalViTPVT': dict(type='LocalViTPVT', img_size=64, embed_dims=(8, 16, 32, 64),
                        depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 2), mlp_ratios=(1,) * 4),
    'LocalViTSwin': dict(type='LocalViTSwin', embed_dim=8, depths=(1, 1, 1, 2),
                         num_heads=(1, 1, 2, 2), window_size=3),
    'ResNet': {},
}


def experiment(config, name):
    """A config of its own, with another backbone."""
    path = Path(f'{name}.py').absolute()
    backbone = ', '.join(f'{key}={value!r}' for key, value in BACKBONES[name].items())
    path.write_text(f"_base_ = '{config}'\n" + (
        f'model = dict(backbone=dict(_delete_=True, {backbone}))\n' if backbone else ''))
    return path


def run(*argv):
    look([str(arg) for arg in (*argv, '--device', 'cpu')])
    return Path('out/index.html').read_text()


def sections(page) -> dict:
    """{block: what its pictures show}."""
    parts = re.split(r'<h4>(.*?)</h4>', page)[1:]
    return {title: re.findall(r'<figcaption>([^<]*)</figcaption><img', part.split('<h3>')[0])
            for title, part in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize('name', BACKBONES)
def test_page_of_every_family(detection, coco, name, capsys):
    config = experiment(detection, name)
    page = run(config, weights_of(config), coco / 'val', '-o', 'out', '--point', 60, 3)
    assert 'MB' in capsys.readouterr().out
    assert not re.search(r'(src|href)="(?!data:|#)', page) and '<script src' not in page
    pictures = {path.relative_to('out/pictures').as_posix()
                for path in Path('out/pictures').rglob('*.png')}
    assert page.count('<img') == len(pictures)
    for image in 'val0', 'val1':
        assert {f'{image}/receptive_field_{i}.png' for i in range(1, 5)} <= pictures
    assert re.findall(r'<figcaption>map (\d), stride (\d+): 50%', page)[:4] == [
        ('1', '4'), ('2', '8'), ('3', '16'), ('4', '32')]
    shown = sections(page)
    assert 'there at 60, 3' in page
    last = {'FocalNet': ('layers.3.blocks.0, 2 x 2', [
                'gate of level 1', 'gate of level 2', 'gate of the global level', 'modulator']),
            'Container': ('blocks4.1, 2 x 2', [
                'dynamic affinity of the point', 'static affinity of the point',
                'both, as they are mixed', 'share of the dynamic affinity']),
            'LocalViTPVT': ('block4.0, 2 x 2', [
                'attention of the point', 'attention of the class token', 'locality']),
            'LocalViTSwin': ('layers.3.blocks.1, 2 x 2', ['attention of the point', 'locality']),
            'ResNet': None}[name]
    if last is None:
        assert not shown and 'only its receptive fields' in page and 'Kernels' not in page
        return
    assert shown[last[0]] == last[1]
    kernels = {title: found for title, found in shown.items() if ',' not in title}
    assert kernels and {title.split(',')[0] for title in shown} == set(kernels)
    if name == 'FocalNet':
        assert kernels['layers.3.blocks.0'] == [
            'modulation.focal_layers.0.0: 64 of 3 x 3', 'modulation.focal_layers.1.0: 64 of 5 x 5']
        assert 'layers.1.blocks.0' not in kernels  # not the last of its stage
        picture = Image.open('out/pictures/val0/layers.0.blocks.0/modulator.png')
        assert picture.width == 640 and picture.height > 640  # the scale is below
        assert np.asarray(picture)[:600].std() > 1


def test_every_block_of_a_backbones_own_file(detection, coco, capsys):
    """ImageNet weights have no detector around them; their kernels are fitted as in training."""
    config = experiment(detection, 'FocalNet')
    weights_of(config)
    state = {name.removeprefix('backbone.'): value for name, value in
             torch.load('weights.pth')['state_dict'].items() if name.startswith('backbone.')}
    name = 'layers.0.blocks.0.modulation.focal_layers.1.0.weight'
    state[name] = state[name][..., 1:-1, 1:-1]
    torch.save(dict(model={**state, 'head.weight': torch.zeros(1000, 64)}), 'imagenet.pth')
    page = run(config, 'imagenet.pth', coco / 'val' / 'val0.jpg', '-o', 'out', '--every-block',
               '--cfg-options', 'model.backbone.use_checkpoint=True')
    assert [title.split(',')[0] for title in sections(page) if ',' in title] == [
        f'layers.{i}.blocks.{j}' for i, j in ((0, 0), (1, 0), (1, 1), (2, 0), (3, 0))]
    assert 'backbone alone' in page and 'backbone alone' in capsys.readouterr().out
    assert 'there at 32, 32' in page


def test_what_is_refused(detection, segmentation, coco):
    config = experiment(detection, 'FocalNet')
    weights, image = weights_of(config), coco / 'val' / 'val0.jpg'
    assert '--point 64 3 is not in' in (message := refused(
        look, config, weights, image, '-o', 'out', '--point', 64, 3, '--device', 'cpu'))
    assert '64 x 64 pixels' in message
    other = experiment(detection, 'Container')
    message = refused(look, other, weights, image, '-o', 'out', '--device', 'cpu')
    assert 'weights.pth' in message
    torch.save({name.removeprefix('backbone.'): value for name, value in
                torch.load(weights)['state_dict'].items() if name.startswith('backbone.')},
               'imagenet.pth')
    assert 'it is another model' in refused(
        look, other, 'imagenet.pth', image, '-o', 'out', '--device', 'cpu')
    Path('film.mp4').write_bytes(b'')
    assert 'film.mp4 is a video' in refused(look, config, weights, 'film.mp4', '-o', 'out')
    Path('broken.jpg').write_bytes(image.read_bytes()[:300])
    assert 'broken.jpg' in refused(look, config, weights, 'broken.jpg', '-o', 'out', '--device',
                                   'cpu')
    assert not Path('out/index.html').exists()


def test_a_segmentor(segmentation, ade):
    config = experiment(segmentation, 'LocalViTPVT')
    Image.fromarray(np.zeros((40, 90, 3), np.uint8)).save('wide.png')
    page = run(config, weights_of(config), 'wide.png', '-o', 'out')
    assert 'pixels to the network' in page and 'attention of the class token' in page


@pytest.mark.skipif(not shutil.which('chromium'), reason='chromium is not installed')
def test_fits_a_phone(detection, coco, tmp_path):
    """In a browser 390 pixels wide: nothing sticks out, pictures grow when they are tapped."""
    config = experiment(detection, 'FocalNet')
    page = run(config, weights_of(config), coco / 'val' / 'val0.jpg', '-o', 'out')
    watch = '''<script>addEventListener('load', () => {
      document.querySelector('.small .pair').click();
      parent.postMessage(JSON.stringify({scroll: document.documentElement.scrollWidth,
        large: document.querySelectorAll('.large').length, broken: [...document.images].filter(
          image => !image.naturalWidth).length}), '*'); });</script>'''
    Path('watched.html').write_text(page.replace('<head>', '<head>' + watch))
    Path('phone.html').write_text(
        '<iframe src="watched.html" width="390" height="800" style="border: 0"></iframe><script>'
        'onmessage = event => { document.body.dataset.found = event.data; };</script>')
    done = subprocess.run(
        ['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run',
         '--disable-background-networking', '--disable-component-update', '--disable-sync',
         f'--user-data-dir={tmp_path / "profile"}', '--virtual-time-budget=5000', '--dump-dom',
         f'file://{tmp_path}/phone.html'], capture_output=True, text=True, timeout=60)
    seen = json.loads(re.search(r'data-found="(.*?)"', done.stdout)[1].replace('&quot;', '"'))
    assert seen.pop('scroll') <= 390 and seen == dict(large=1, broken=0)
