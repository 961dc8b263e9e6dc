"""Every layout given to every kind of experiment: it is taken, or said to be of another kind."""
import json
import re

import numpy as np
import pytest
from PIL import Image

from downstream.data.layouts import MEANING, find_layout
from downstream.errors import UserError

XML = '<annotation><object><name>a</name></object></annotation>'


def build(root, *files):
    """Small files by their suffix; FILE=TEXT for the content of one."""
    for file in files:
        name, _, text = file.partition('=')
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in ('.jpg', '.png'):
            Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)
        else:
            path.write_text(text or {'.txt': '0 .5 .5 .1 .1', '.xml': XML}.get(
                path.suffix, json.dumps(dict(shapes=[]))))


PANOPTIC = ('annotations/panoptic_train2017.json', 'train2017/1.jpg',
            'annotations/panoptic_train2017/1.png')
LAYOUTS = {
    'detection COCO': ('annotations/instances_train2017.json', 'train2017/1.jpg'),
    'detection COCO, images and annotations': ('annotations/train.json', 'images/train/1.jpg'),
    'detection Roboflow': ('train/_annotations.coco.json', 'train/1.jpg'),
    'detection YOLO': ('images/train/1.jpg', 'labels/train/1.txt', 'classes.txt=a'),
    'detection YOLO, data.yaml': ('data.yaml=train: train/images\nnames: [a]',
                                  'train/images/1.jpg', 'train/labels/1.txt'),
    'detection YOLO, a file': ('x.yaml=train: pictures\nnames: [a]', 'pictures/1.jpg',
                               'pictures/1.txt'),
    'detection VOC': ('JPEGImages/1.jpg', 'Annotations/1.xml'),
    'detection VOC as ADE20K lies': ('images/train/1.jpg', 'annotations/train/1.xml'),
    'detection VOC, flat': ('1.jpg', '1.xml'),
    'detection LabelMe': ('train/1.jpg', 'train/1.json'),
    'detection LabelMe, flat': ('1.jpg', '1.json'),
    'detection a file': ('a.json', 'b/1.jpg',
                         'x.yaml=train: {annotations: a.json, images: b}'),
    'segmentation labels': ('images/train/1.jpg', 'labels/train/1.png', 'classes.txt=a'),
    'segmentation masks': ('images/train/1.jpg', 'masks/train/1.png', 'classes.txt=a'),
    'segmentation ADE20K': ('images/training/1.jpg', 'annotations/training/1.png'),
    'segmentation a file': ('b/1.jpg', 'c/1.png',
                            'x.yaml=train: {images: b, labels: c}\nclasses: [a]'),
    'panoptic COCO': PANOPTIC,
    'panoptic a file': ('a.json', 'b/1.jpg', 'c/1.png',
                        'x.yaml=train: {annotations: a.json, images: b, labels: c}'),
}


@pytest.mark.parametrize('kind', MEANING)
@pytest.mark.parametrize('layout', LAYOUTS)
def test_every_layout_and_kind(tmp_path, layout, kind):
    build(tmp_path / 'set', *LAYOUTS[layout])
    source = tmp_path / 'set/x.yaml'
    source = str(source if source.exists() else tmp_path / 'set')
    is_for = layout.split()[0]
    if is_for == kind:
        assert find_layout(source, kind).kind == kind
        return
    with pytest.raises(UserError) as error:
        find_layout(source, kind)
    said = str(error.value)
    assert said.startswith(f'{source} is data for {is_for} (') and '\n' not in said
    assert re.search(rf'{kind} needs .*tools/check_data.py \S+ --kind {is_for}$', said)
    assert MEANING[is_for][1] in said
    assert ('masks of objects are not turned' in said) == (kind == 'segmentation'
                                                           and is_for == 'detection')


def test_what_is_there_for_several_kinds_is_taken_as_each(tmp_path):
    build(tmp_path, *PANOPTIC, 'annotations/instances_train2017.json')
    for kind in ('detection', 'panoptic'):
        assert kind in str(find_layout(str(tmp_path), kind))


def test_what_is_nothing_known(tmp_path):
    build(tmp_path, 'pictures/1.jpg')
    for kind in MEANING:
        with pytest.raises(UserError, match=f'for {kind} the folder should have one of'):
            find_layout(str(tmp_path), kind)


@pytest.mark.parametrize(('text', 'message'), [
    ('- train', 'the file is .*where names and values are expected'),
    ('train: [a, b]', 'says nothing of train, or not its parts'),
    ('train: {annotations: [a], images: b}', r"annotations of train is \['a'\], not one path"),
    ('train: {annotations: a, images: null}', 'images of train is None, not one path'),
    ('train: {annotations: a.json, images: b}\nclasses: [a, a]', 'several classes are called'),
    ('train: {annotations: a.json, images: b}\nclasses: [true]', 'True is no text; in quotes'),
    ('train: {annotations: a.json, images: b}\nclasses: ["a\\e[2J"]', 'has control characters'),
    ('train: {annotations: a.json, images: b}\nclasses: a', "classes is 'a', not a list"),
    ('train: !!python/object/apply:os.system [id]', 'not a YAML file: could not determine'),
    ('a: &a [x, x, x, x, x, x]\n' + ''.join(
        f'{b}: &{b} [{", ".join([f"*{a}"] * 6)}]\n' for a, b in zip('abcdefghi', 'bcdefghij',
                                                                  strict=True))
     + 'train: {annotations: *j, images: b}', 'which means nothing here'),
    ('train: ' + '[' * 5000, 'nested too deeply|not a YAML file'),
    ('train: 2020-99-99', 'not a YAML file'),
    ('a: 1\na: 2', 'not a YAML file'),
    ('? [a]\n: b', 'not a YAML file|means nothing'),
    ('', 'where names and values are expected'),
])
def test_files_that_are_not_as_they_should_be(tmp_path, text, message):
    (tmp_path / 'x.yaml').write_text(text)
    with pytest.raises(UserError, match=message) as error:
        find_layout(str(tmp_path / 'x.yaml'), 'detection')
    assert len(str(error.value)) < 2000


def test_files_that_are_no_text_or_no_files(tmp_path):
    (tmp_path / 'x.yaml').write_bytes(b'train: \xff\xfe')
    with pytest.raises(UserError, match='not a YAML file'):
        find_layout(str(tmp_path / 'x.yaml'), 'detection')
    build(tmp_path / 'set', *LAYOUTS['segmentation labels'])
    (tmp_path / 'set/classes.txt').write_bytes(b'\xff\xfer\0')
    with pytest.raises(UserError, match='not a text file in UTF-8'):
        find_layout(str(tmp_path / 'set'), 'segmentation')
    (tmp_path / 'set/classes.txt').write_text('road\n\ncar')
    with pytest.raises(UserError, match='classes.txt:2: the line is blank'):
        find_layout(str(tmp_path / 'set'), 'segmentation')


@pytest.mark.parametrize(('classes', 'values', 'ignore'), [
    ('[yes, no]', {0: 0, 1: 1}, (255, )),  # YAML 1.2: names
    ('[1, 2]', {0: 0, 1: 1}, (255, )),
    ('{0: road, 7: road, 9: car}', {0: 0, 7: 0, 9: 1}, (255, )),
    ('{0: ground, 255: cell}', {0: 0, 255: 1}, ()),  # 255 is a class, so it is not ignored
    ('{0: ground, 254: cell}\nignore: [7, 255]', {0: 0, 254: 1}, (7, 255)),
    (str([f'c{i}' for i in range(255)]), {i: i for i in range(255)}, (255, )),
])
def test_label_values(tmp_path, classes, values, ignore):
    build(tmp_path, *LAYOUTS['segmentation a file'])
    (tmp_path / 'x.yaml').write_text(f'train: {{images: b, labels: c}}\nclasses: {classes}')
    layout = find_layout(str(tmp_path / 'x.yaml'), 'segmentation')
    assert layout.values == values and layout.ignore == ignore
    assert all(isinstance(name, str) for name in layout.classes)


@pytest.mark.parametrize(('classes', 'message'), [
    ('[]', r'classes is \[\]'),
    (str([f'c{i}' for i in range(256)]), '256 classes are more than the 255'),
    (str([f'c{i}' for i in range(300)]), '300 classes are more than the 255'),
    ('{300: road}', 'values from 0 to 255'),
    ('{-1: road}', 'values from 0 to 255'),
    ('{true: road}', 'values from 0 to 255'),
    ('{0: [road]}', r"class name \['road'\] is no text"),
    ('{0: road, 255: cell}\nignore: 255', r'label values \[255\] are classes and ignored'),
    ('[road]\nignore: true', 'ignore is True, not a label value'),
    ('[road]\nignore: [[1]]', 'ignore is .*not a label value'),
    ('[" "]', 'empty name'),
])
def test_label_values_that_cannot_be(tmp_path, classes, message):
    build(tmp_path, *LAYOUTS['segmentation a file'])
    (tmp_path / 'x.yaml').write_text(f'train: {{images: b, labels: c}}\nclasses: {classes}')
    with pytest.raises(UserError, match=message):
        find_layout(str(tmp_path / 'x.yaml'), 'segmentation')
