"""tools/check_data.py --report: the right numbers and pictures, in a page that is one file."""
import base64
import html
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import command
from PIL import Image

from downstream.data.generated import make_demo_data
from downstream.data.own import examine
from downstream.looking.data_page import size_rows, write_page
from downstream.looking.drawing import WRONG

pytestmark = pytest.mark.usefixtures('elsewhere')


def page_of(source, kind='detection') -> str:
    text = write_page(examine(str(source), kind), Path('page'), images=8).read_text()
    assert not re.search(r'\b(?:src|href|srcset|action)="(?!#|data:)|url\((?!["\']?[#d])|@import',
                         text)
    return text


def rows_of(page: str) -> list[list[str]]:
    return [[re.sub(r'<.*?>', '', cell).strip() for cell in
             re.findall(r'<td.*?</td>', row, re.DOTALL)]
            for row in re.findall(r'<tr>(.*?)</tr>', page, re.DOTALL) if '<td' in row]


def pictures_in(page: str) -> dict[str, np.ndarray]:
    """{caption: RGB} of the first picture of each caption."""
    found = {}
    for words, content in re.findall(
            r'<figcaption>([^<]*)</figcaption><img alt="[^"]*" src="data:image/webp;base64,(.*?)"',
            page):
        with Image.open(io.BytesIO(base64.b64decode(content))) as image:
            found.setdefault(html.unescape(words), np.asarray(image.convert('RGB')).astype(int))
    return found


def red(picture: np.ndarray) -> np.ndarray:
    """Where something is pointed out; WebP blurs a little."""
    return (abs(picture - WRONG) < 40).all(-1)


def change(coco, spoil):
    file = coco / 'annotations' / 'train.json'
    content = json.loads(file.read_text())
    spoil(content)
    file.write_text(json.dumps(content))
    return content


def test_what_is_in_it(coco):
    def spoil(content):
        content['categories'][0]['name'] = '<b>$x_$</b>'
        content['images'][1]['file_name'] = 'a & "b".jpg'
        content['annotations'].append({**content['annotations'][0], 'id': 3})

    change(coco, spoil)
    (coco / 'train/train1.jpg').rename(coco / 'train/a & "b".jpg')
    (coco / 'annotations/val.json').unlink()
    page = page_of(coco)
    assert 'Nothing is wrong that a check can see' in page
    assert '2 images, 3 objects, 3 of them with a mask' in page
    assert rows_of(page) == [['&lt;b&gt;$x_$&lt;/b&gt;', '2', '1'], ['square', '1', '1'],
                             ['train', '0.0', '100.0', '0.0']]  # 40 x 40 pixels: medium
    assert '<b>$' not in page and page.count('<svg ') == 4
    pictures = pictures_in(page)
    assert set(pictures) == {'train0.jpg', 'a & "b".jpg'}
    # A mask in its class's colour (the palette's first is red), the rest as it was.
    drawn = pictures['train0.jpg'].astype(float)
    with Image.open(coco / 'train/train0.jpg') as image:
        before = np.asarray(image.convert('RGB')).astype(float)
    gain = (drawn - before)[20:40, 20:40].mean((0, 1))
    assert gain[0] > 20 and gain[1] < -20
    assert abs((drawn - before)[52:, 52:].mean((0, 1))).max() < 12


def test_findings_point_out_what_is_wrong(coco):
    def spoil(content):
        first = content['annotations'][0]
        content['annotations'] += [
            {**first, 'id': 11, 'bbox': [50, 20, 30, 10]},
            {**first, 'id': 12, 'bbox': [30, 10, 0.25, 20]},
            {**first, 'id': 13, 'bbox': [0, 0, float('nan'), 20]},
            {**first, 'id': 2}, {**first, 'id': 14, 'segmentation': 'what'}]
        content['images'] += [dict(id=5, file_name='gone.jpg', width=64, height=64)]

    change(coco, spoil)
    with pytest.raises(SystemExit) as end:
        command('check_data').main([str(coco), '--report', 'page'])
    assert end.value.code == 1
    page = Path('page/index.html').read_text()
    levels = re.findall(r'<section class="finding (\w+)">', page)
    assert levels == ['error'] * 3 + ['warning'] * 3
    assert '3 kinds of error' in page and '3 kinds of warning' in page
    assert 'gone.jpg: cannot be drawn (FileNotFoundError)' in page
    pictures = pictures_in(page)
    for words in ('id 11', 'id 12', 'id 13', 'id 2', 'id 14'):
        assert any(f': {words}' in caption for caption in pictures), words
    leaving = pictures['train0.jpg: id 11']
    assert leaving.shape[1] == 64 + 16 + 4 and leaving.shape[0] == 64 + 4  # margins of 2 beside
    assert red(leaving)[22:32, 64:].any() and not red(leaving)[40:].any()
    assert red(pictures['train0.jpg: id 12'])[5:40, 20:45].any()  # and a ring, or none would see it
    assert not red(pictures['train0.jpg: id 13']).any()  # there is no such box


def test_label_files_that_are_not_understood(tmp_path):
    """Nothing can be drawn of their labels: the images alone are shown."""
    for name in 'ab':
        path = tmp_path / f'set/images/train/{name}.jpg'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (48, 32), 'gray').save(path)
        path = tmp_path / f'set/labels/train/{name}.txt'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('0 .5 .5 .5 .5\n' + '7 .5 .5 .5 .5\n' * (name == 'b'))
    (tmp_path / 'set/classes.txt').write_text('disc\n')
    page = page_of(tmp_path / 'set')
    assert 'class number without a name' in page and 'labels could not be read' in page
    assert set(pictures_in(page)) == {'b.jpg'}


def test_turned_images(coco):
    """Labels on the image as stored: the picture is not turned."""
    image = Image.new('RGB', (64, 32))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(coco / 'train/train0.jpg', exif=exif)
    change(coco, lambda content: content['images'][0].update(height=32))
    page = page_of(coco)
    assert 'train: images with an EXIF rotation' in page
    assert pictures_in(page)['train0.jpg'].shape == (32, 64, 3)
    change(coco, lambda content: content['images'][0].update(height=64, width=32))
    assert pictures_in(page_of(coco))['train0.jpg'].shape == (64, 32, 3)


def test_label_maps(ade):
    (ade / 'set.yaml').write_text(
        'train: {images: images/train, labels: labels/train}\n'
        'val: {images: images/val, labels: labels/val}\nclasses: {1: wall, 2: building}\n')
    values = np.full((64, 64), 1, np.uint8)
    values[:16] = 255
    Image.fromarray(values).save(ade / 'labels/train/0.png')
    values[:16] = 9
    Image.fromarray(values).save(ade / 'labels/val/0.png')
    page = page_of(ade / 'set.yaml', 'segmentation')
    assert '2 images; 12.5 % of the pixels are not labelled' in page
    assert rows_of(page)[:2] == [['wall', '2', '62.50'], ['building', '1', '25.00']]
    assert '1 of 2 label maps have the values [9]' in page
    pictures = pictures_in(page)
    assert set(pictures) == {'0.jpg', '1.jpg'}
    # First the finding's: the value 9 is drawn white.
    assert pictures['0.jpg'][:14].mean() > pictures['0.jpg'][18:].mean() + 30


def test_shares_of_sizes_are_coco_s():
    class Split:
        areas = [1, 32**2 - 1, 32**2, 96**2]
    assert size_rows({'train': Split}) == {'train': [50, 25, 25]}


def test_panoptic_maps(tmp_path):
    make_demo_data(tmp_path / 'demo', train=2, val=2, size=64)
    root = tmp_path / 'demo/coco'
    file = root / 'annotations/panoptic_train2017.json'
    content = json.loads(file.read_text())
    gone = content['annotations'][0]['segments_info'].pop()
    for segment in content['annotations'][1]['segments_info']:
        del segment['bbox']  # computed
    file.write_text(json.dumps(content))
    page = page_of(root, 'panoptic')
    number = sum(len(a['segments_info']) for a in content['annotations'])
    assert f'2 images, {number} segments' in page and 'cannot be drawn' not in page
    assert 'panoptic maps have ids that their segments_info lacks' in page
    assert f'{content["annotations"][0]["file_name"]}: {gone["id"]}' in page
    names = {image['file_name'] for image in content['images']}
    assert names <= pictures_in(page).keys()
