"""Annotation tools' label files: the same data set in every layout, and each mistake named."""
import base64
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image
from pycocotools import mask as rle

from downstream.data.layouts import find_layout
from downstream.data.own import examine, use_data
from downstream.errors import UserError

CONFIGS = Path(__file__).resolve().parents[3] / 'configs'
SIZE = 48, 32  # of the images here


def use(tmp_path, source=None, name='maskrcnn_focalnet_t_1x', **kwargs):
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    cfg.work_dir = str(tmp_path / 'work')
    return cfg, use_data(cfg, str(source or tmp_path / 'set'), **kwargs)


def save(path, size=SIZE, orientation=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    Image.new('RGB', size, 'gray').save(path, exif=exif)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding='utf-8')


def prepared(tmp_path, split='train'):
    return json.loads((tmp_path / 'work' / 'data' / f'{split}.json').read_text())


# -- one data set in every layout --------------------------------------------------------------

def content(count=4):
    """COCO's format: a triangle in each image but the last, and one rectangle more in the first."""
    shapes = [[4, 4, 24, 4.5, 10, 24.5], [30.25, 8, 44, 8, 44, 20, 30.25, 20]]
    annotations = [dict(id=i + 1, image_id=i % (count - 1), category_id=2 - i % 2, iscrowd=0,
                        area=200, segmentation=[shape], bbox=[
                            min(shape[::2]), min(shape[1::2]), max(shape[::2]) - min(shape[::2]),
                            max(shape[1::2]) - min(shape[1::2])])
                   for i, shape in enumerate([shapes[0]] * (count - 1) + shapes[1:])]
    return dict(images=[dict(id=i, file_name=f'{i}.jpg', width=SIZE[0], height=SIZE[1])
                        for i in range(count)], annotations=annotations,
                categories=[dict(id=1, name='disc'), dict(id=2, name='square')])


def of_images(data):
    """(image, its annotations) of COCO's format."""
    for image in data['images']:
        yield image, [a for a in data['annotations'] if a['image_id'] == image['id']]


def as_coco(root, split, data):
    write(root / f'annotations/{split}.json', data)
    return root / split


def as_roboflow(root, split, data):
    split = dict(val='valid').get(split, split)
    write(root / split / '_annotations.coco.json', data)
    return root / split


def as_yolo(root, split, data, masks=True):
    """Ultralytics' layout; a polygon of several parts becomes one."""
    numbers = {c['id']: i for i, c in enumerate(data['categories'])}
    names = '\n'.join(f'  {i}: {c["name"]}' for i, c in enumerate(data['categories']))
    write(root / 'data.yaml', f'path: .\ntrain: images/train\nval: images/val\nnames:\n{names}\n')
    for image, annotations in of_images(data):
        scale = image['width'], image['height']
        lines = []
        for annotation in annotations:
            x, y, w, h = annotation['bbox']
            values = [value for part in annotation['segmentation'] for value in part]
            if not masks:
                values = x + w / 2, y + h / 2, w, h
            lines.append(' '.join(map(str, [numbers[annotation['category_id']], *(
                min(max(value / scale[i % 2], 0), 1) for i, value in enumerate(values))])))
        if annotations:
            write(root / f'labels/{split}/{Path(image["file_name"]).stem}.txt', '\n'.join(lines))
    return root / 'images' / split


def as_yolo_boxes(root, split, data):
    return as_yolo(root, split, data, masks=False)


def as_voc(root, split, data):
    names = {c['id']: c['name'] for c in data['categories']}
    write(root / f'ImageSets/Main/{split}.txt', ''.join(
        f'{Path(image["file_name"]).stem}\n' for image in data['images']))
    for image, annotations in of_images(data):
        objects = ''
        for annotation in annotations:
            x, y, w, h = annotation['bbox']
            objects += (f'<object>\n<name>{names[annotation["category_id"]]}</name>\n'
                        f'<difficult>0</difficult><bndbox><xmin>{round(x) + 1}</xmin>'
                        f'<ymin>{round(y) + 1}</ymin><xmax>{round(x + w)}</xmax>'
                        f'<ymax>{round(y + h)}</ymax></bndbox></object>\n')
        write(root / f'Annotations/{Path(image["file_name"]).stem}.xml',
              f'<annotation><filename>{image["file_name"]}</filename><size><width>{image["width"]}'
              f'</width><height>{image["height"]}</height></size>\n{objects}</annotation>')
    return root / 'JPEGImages'


def as_labelme(root, split, data):
    """Each polygon is a shape; an object of several is a group."""
    names = {c['id']: c['name'] for c in data['categories']}
    for image, annotations in of_images(data):
        shapes = [dict(label=names[a['category_id']], shape_type='polygon', group_id=a['id'],
                       points=[part[i:i + 2] for i in range(0, len(part), 2)])
                  for a in annotations for part in a['segmentation']]
        if shapes:
            write((root / split / image['file_name']).with_suffix('.json'), dict(
                shapes=shapes, imagePath=image['file_name'], imageWidth=image['width'],
                imageHeight=image['height'], imageData=None))
    return root / split


LAYOUTS = as_coco, as_roboflow, as_yolo, as_yolo_boxes, as_voc, as_labelme


def seen(cfg, split):
    """{image: boxes with labels, in order} as mmdet loads a split, and whether they have masks."""
    loader = cfg[f'{split}_dataloader'].dataset
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = DATASETS.build(dict(loader, filter_cfg=None, test_mode=True, pipeline=[]))
    infos = [dataset.get_data_info(i) for i in range(len(dataset))]
    return dataset.metainfo['classes'], {
        Path(info['img_path']).name: sorted((i['bbox_label'], *i['bbox']) for i in
                                            info['instances']) for info in infos}, [
        bool(i.get('mask')) for info in infos for i in info['instances']]


def same(found, wanted, tolerance=1.):
    """Whether two splits have the same images, with the same boxes but for so many pixels."""
    assert found.keys() == wanted.keys()
    for name, rows in wanted.items():
        others = list(found[name])
        assert len(others) == len(rows), name
        for row in rows:  # rounding may change their order
            near = min(others, key=lambda other: max(
                1e9 * (other[0] != row[0]), *map(abs, np.subtract(other, row))))
            assert near[0] == row[0] and np.abs(np.subtract(near, row)).max() <= tolerance, name
            others.remove(near)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_every_layout_is_the_same_data_set(tmp_path, layout):
    for split, count in (('train', 4), ('val', 3)):
        data = content(count)
        for image in data['images']:
            image['file_name'] = f'{split}_{image["file_name"]}'
            for write_as in (as_coco, layout):
                save(write_as(tmp_path / write_as.__name__, split, data) / image['file_name'])
    expected, _ = use(tmp_path, tmp_path / 'as_coco')
    expected = {split: seen(expected, split) for split in ('train', 'val', 'test')}
    cfg, notes = use(tmp_path, tmp_path / layout.__name__)
    for split, (classes, boxes, _) in expected.items():
        found = seen(cfg, split)
        assert found[0] == classes == ('disc', 'square')
        same(found[1], boxes, 1. if layout is as_voc else 1e-3)
        assert all(found[2]) is (layout not in (as_voc, as_yolo_boxes))
    masks = 'mask_head' in cfg.model.roi_head
    assert masks is (layout not in (as_voc, as_yolo_boxes))
    if layout in (as_yolo, as_labelme):
        assert '1 of 4 images have no label file' in '\n'.join(notes)


# -- layouts -----------------------------------------------------------------------------------

def yolo(root, lines='0 .5 .5 .5 .5', images='images/train', labels='labels/train', count=2,
         names='disc\nsquare\n'):
    for i in range(count):
        save(root / images / f'{i}.jpg')
        write(root / labels / f'{i}.txt', lines)
    if names:
        write(root / 'classes.txt', names)


def voc(root, objects, images='train', labels='train', count=1, before='', size=SIZE):
    for i in range(count):
        save(root / images / f'{i}.jpg')
        width, height = f'<width>{size[0]}</width>', f'<height>{size[1]}</height>'
        write(root / labels / f'{i}.xml', f'{before}<annotation>\n<size>{width}{height}</size>\n'
              f'{objects}</annotation>')


def box(*corners, name='disc', more=''):
    return f'<object><name>{name}</name>{more}<bndbox>' + ''.join(
        f'<{key}>{value}</{key}>' for key, value in zip(
            ('xmin', 'ymin', 'xmax', 'ymax'), corners, strict=False)) + '</bndbox></object>\n'


def labelme(root, *shapes, folder='train'):
    save(root / folder / '0.jpg')
    write(root / folder / '0.json', dict(shapes=[dict(dict(label='disc'), **shape)
                                                 for shape in shapes]))


@pytest.mark.parametrize(('images', 'labels'), [
    ('images/train', 'labels/train'), ('train/images', 'train/labels'), ('images', 'labels')])
def test_yolo_without_a_file(tmp_path, images, labels):
    yolo(tmp_path / 'set', images=images, labels=labels, names='')
    with pytest.raises(UserError, match='put the names of 0, 1, 2, … into .*classes.txt'):
        use(tmp_path)
    os.makedirs(tmp_path / 'set/labels', exist_ok=True)
    write(tmp_path / 'set' / 'labels/classes.txt' if labels != 'train/labels' else
          tmp_path / 'set/classes.txt', 'disc\nsquare\n')
    cfg, _ = use(tmp_path)
    classes, boxes, _ = seen(cfg, 'train')
    assert classes == ('disc', 'square') and boxes['0.jpg'] == [(0, 12, 8, 36, 24)]


@pytest.mark.parametrize(('text', 'note'), [
    ('path: set\ntrain: images/train\nval: images/train\ntest: images/no\nnames: [disc, square]',
     'images/no, its test: done without'),
    ('path: /nowhere\ntrain: images/train\nvalidation: images/train\nnames: {0: disc, 1: square}',
     'there is no /nowhere; its own folder is taken'),
    ('train: ../images/train\nval: ../images/train\nnames: [disc, square]\nnc: 2', ''),
    ('path: set\ntrain: list.txt\nval: [images/train]\nnames: [disc, square]',
     '(2 images)'),
    ('train: /elsewhere/images/train\nval: /elsewhere/images/val\nnames: [disc, square]',
     'there is no /elsewhere/images/train; its own folder is taken'),
    ('names: [disc, square]', 'where the images of train are; its own folder is taken'),
])
def test_ultralytics_files(tmp_path, text, note):
    for split in ('train', 'val'):
        yolo(tmp_path / 'set', images=f'images/{split}', labels=f'labels/{split}', names='')
    write(tmp_path / 'set/list.txt', './images/train/0.jpg\nimages/train/1.jpg\n\n')
    file = tmp_path / ('x.yaml' if text.startswith('path: set') else 'set/x.yaml')
    write(file, text)
    for source in (file, file.parent):
        cfg, notes = use(tmp_path, source)
        classes, boxes, _ = seen(cfg, 'val')
        assert classes == ('disc', 'square') and boxes['1.jpg'] == [(0, 12, 8, 36, 24)]
        assert len(seen(cfg, 'train')[1]) == 2
        assert note in '\n'.join(notes)
        assert note or 'own folder' not in '\n'.join(notes)


@pytest.mark.parametrize(('text', 'message'), [
    ('names: 5', 'names is 5, not a list of class names'),
    ('names: [a, a]', "several classes are called 'a'; names have to differ"),
    ('names: [a]\nnc: 2', 'nc is 2, but there are 1 names'),
    ('nc: 2', 'names is None'),
    ('names: [a]', 'does not say where the images of train are'),
    ('names: [a]\ntrain: no', "train is 'no', but there is no .*/no"),
    ('names: [a]\ntrain: empty', 'train is empty, which holds no images'),
    ('names: [a]\ntrain: list.txt', r'list.txt:2: there is no .*no.jpg'),
    ('names: [a]\ntrain: image.jpg', 'image.jpg is not a text file'),
    ('names: [a]\ntrain: some\nkpt_shape: 5', r'kpt_shape is 5, not \[points, numbers of each'),
])
def test_ultralytics_files_that_are_not_understood(tmp_path, text, message):
    (tmp_path / 'empty').mkdir()
    save(tmp_path / 'image.jpg')
    save(tmp_path / 'some/1.jpg')
    write(tmp_path / 'list.txt', 'image.jpg\nno.jpg\n')
    write(tmp_path / 'x.yaml', text)
    with pytest.raises(UserError, match=message):
        use(tmp_path, tmp_path / 'x.yaml')


def test_which_file_describes_a_folder(tmp_path):
    yolo(tmp_path / 'set')
    for name in ('a', 'b'):
        write(tmp_path / f'set/{name}.yaml', 'names: [disc]')
    with pytest.raises(UserError, match='say which, --data .*a.yaml or --data .*b.yaml'):
        use(tmp_path)


def test_label_files_are_for_detection(tmp_path):
    write(tmp_path / 'x.yaml', 'names: [a]\ntrain: images')
    with pytest.raises(UserError, match='for detection .YOLO.*segmentation needs label maps'):
        find_layout(str(tmp_path / 'x.yaml'), 'segmentation')
    voc(tmp_path / 'set', box(1, 1, 2, 2))
    with pytest.raises(UserError, match='is data for detection .Pascal VOC'):
        find_layout(str(tmp_path / 'set'), 'segmentation')


@pytest.mark.parametrize(('images', 'labels'), [
    ('JPEGImages', 'Annotations'), ('images/train', 'annotations/train'), ('train', 'train'),
    ('images', 'annotations'), ('.', '.')])
def test_voc_folders(tmp_path, images, labels):
    voc(tmp_path / 'set', box(1, 1, 48, 32) + box(11, 11, 20, 20, name='a b'), images, labels)
    cfg, notes = use(tmp_path)
    classes, boxes, _ = seen(cfg, 'train')
    assert classes == ('a b', 'disc')
    assert boxes == {'0.jpg': [(0, 10, 10, 20, 20), (1, 0, 0, 48, 32)]}
    assert '2 classes, in the order of their names: a b, disc' in '\n'.join(notes)
    assert 'No object has a mask' in '\n'.join(notes)


def test_voc_lists(tmp_path):
    voc(tmp_path / 'set', box(1, 1, 48, 32), 'JPEGImages', 'Annotations', count=4)
    write(tmp_path / 'set/ImageSets/Main/trainval.txt', '0  1\n1 -1\n2\n')
    write(tmp_path / 'set/ImageSets/Main/test.txt', '3\n')
    cfg, _ = use(tmp_path, val_split=0.4)
    assert [len(seen(cfg, split)[1]) for split in ('train', 'val', 'test')] in (
        [2, 1, 1], [1, 2, 1])
    write(tmp_path / 'set/ImageSets/Main/trainval.txt', '0\n\n7\n')
    with pytest.raises(UserError, match=r'trainval.txt:3: there is no image 7 in'):
        use(tmp_path)


def test_labelme_folders(tmp_path):
    polygon = dict(points=[[1, 2], [11, 2], [11, 8]])
    for folder in ('train', 'valid', 'test'):
        labelme(tmp_path / 'set', polygon, folder=folder)
    cfg, _ = use(tmp_path)
    assert seen(cfg, 'val')[1] == {'0.jpg': [(0, 1, 2, 11, 8)]}
    labelme(tmp_path / 'flat', polygon, folder='.')
    cfg, _ = use(tmp_path, tmp_path / 'flat')
    assert seen(cfg, 'train')[1] == {'0.jpg': [(0, 1, 2, 11, 8)]}


# -- what label files say ----------------------------------------------------------------------

def test_yolo_numbers(tmp_path):
    """Sparse class numbers, numbers written as 1.0, polygons, a byte-order mark, blank lines."""
    yolo(tmp_path / 'set', '\ufeff7.0 .5 .5 .5 .5\n\n3 0 0 .5 0 .5 1.0000001\n', names='')
    write(tmp_path / 'set/data.yaml', 'train: images/train\nnames: {7: disc, 3: square}')
    cfg, _ = use(tmp_path, name='retinanet_focalnet_t_1x')
    classes, boxes, _ = seen(cfg, 'train')
    assert classes == ('square', 'disc')
    assert boxes['0.jpg'] == pytest.approx(np.array([(0, 0, 0, 24, 32), (1, 12, 8, 36, 24)]),
                                           abs=1e-4)
    with pytest.raises(UserError, match='2 of 4 objects have no mask, .*train/0.txt:1'):
        use(tmp_path)


def test_yolo_boxes_lie_on_the_image_as_shown(tmp_path):
    yolo(tmp_path / 'set', '0 .25 .5 .5 1', count=1)
    save(tmp_path / 'set/images/train/0.jpg', orientation=6)  # shown it is 32 x 48
    cfg, notes = use(tmp_path)
    assert seen(cfg, 'train')[1]['0.jpg'] == [(0, 0, 0, 16, 48)]
    assert 'rotation' not in '\n'.join(notes)


def test_yolo_poses(tmp_path):
    yolo(tmp_path / 'set', '0 .5 .5 .5 .5 .1 .2 2 .3 .4 1', names='')
    write(tmp_path / 'set/data.yaml', 'train: images/train\nnames: [disc]\nkpt_shape: [2, 3]')
    cfg, _ = use(tmp_path)
    assert seen(cfg, 'train')[1]['0.jpg'] == [(0, 12, 8, 36, 24)]


def test_voc_pixels_counted_from_0_and_difficult_objects(tmp_path):
    voc(tmp_path / 'set', box(0, 4, 48, 32) + box(10, 10, 20, 20, more='<difficult>1</difficult>'),
        size=(0, 0))  # which some tools write
    cfg, notes = use(tmp_path)
    assert seen(cfg, 'train')[1]['0.jpg'] == [(0, 0, 4, 48, 32), (0, 10, 10, 20, 20)]
    assert 'counted from 0' in '\n'.join(notes)
    assert '1 of 2 objects are marked difficult' in '\n'.join(notes)
    with DefaultScope.overwrite_default_scope('mmdet'):
        info = DATASETS.build(cfg.train_dataloader.dataset).get_data_info(0)
    assert [i['ignore_flag'] for i in info['instances']] == [0, 1]


def picture(array):
    buffer = io.BytesIO()
    Image.fromarray(np.array(array, bool)).save(buffer, 'PNG')
    return base64.b64encode(buffer.getvalue()).decode()


def test_labelme_shapes(tmp_path):
    triangle = [[1, 2], [11, 2], [11, 8]]
    labelme(tmp_path / 'set',
            dict(points=triangle, group_id=1), dict(points=[[20, 2], [30, 2], [30, 8]], group_id=1),
            dict(points=[[20, 20], [10, 12]], shape_type='rectangle', label='square'),
            dict(points=[[24, 16], [24, 20]], shape_type='circle', label='ring'),
            dict(points=[[40, 4], [43, 5]], shape_type='mask', label='paint',
                 mask=picture([[1, 1, 0, 0], [0, 1, 0, 0]])),
            dict(points=[[40, 24], [43, 25]], shape_type='mask', label='parts', group_id=2,
                 mask=picture(np.ones((2, 4)))),
            dict(points=triangle, label='parts', group_id=2),
            dict(points=[[3, 3]], shape_type='point'))
    cfg, notes = use(tmp_path)
    text = '\n'.join(notes)
    assert '1 shapes are points or lines (train/0.json:shape 8); they are not used' in text
    assert '1 of 5 objects are rectangles, taken as masks' in text
    assert 'no label file' not in text
    found = {a['category_id']: a for a in prepared(tmp_path)['annotations']}
    names = [c['name'] for c in prepared(tmp_path)['categories']]
    assert names == ['disc', 'paint', 'parts', 'ring', 'square']
    disc, paint, parts, ring, square = (found[i + 1] for i in range(5))
    assert disc['bbox'] == [1, 2, 29, 6] and len(disc['segmentation']) == 2
    assert square['bbox'] == [10, 12, 10, 8] and square['area'] == 80
    assert ring['bbox'] == [20, 12, 8, 8] and ring['area'] == pytest.approx(np.pi * 16, rel=0.1)
    assert paint['bbox'] == [40, 4, 2, 2] and paint['area'] == 3
    assert np.argwhere(rle.decode(paint['segmentation'])).tolist() == [[4, 40], [4, 41], [5, 41]]
    assert parts['bbox'] == [1, 2, 43, 24] and parts['area'] > 8 + 25
    steps = cfg.train_dataloader.dataset.pipeline[:2]  # no augmentation, which may lose small ones
    with DefaultScope.overwrite_default_scope('mmdet'):
        sample = DATASETS.build(dict(cfg.train_dataloader.dataset, pipeline=steps))[0]
    assert [step['type'] for step in steps] == ['LoadImageFromFile', 'LoadAnnotations']
    areas = dict(zip(sample['gt_bboxes_labels'], sample['gt_masks'].areas, strict=True))
    assert areas[1] == 3 and areas[4] == 80 and len(areas) == 5


def test_labelme_rectangles_alone_are_boxes(tmp_path):
    labelme(tmp_path / 'set', dict(points=[[1, 2], [11, 8]], shape_type='rectangle'))
    cfg, _ = use(tmp_path)
    assert cfg.model.type == 'FasterRCNN'


# -- mistakes ----------------------------------------------------------------------------------

@pytest.mark.parametrize(('line', 'message'), [
    ('0 .5 .5 x .5', r'lines hold something that is no number \(labels/train/0.txt:2'),
    ('0 .5 .5 .5', r'wrong number of values \(labels/train/0.txt:2: 4, .*class x y width height'),
    ('0 .5 .5 .5 .5 .9', r'wrong number of values \(labels/train/0.txt:2: 6'),
    ('2 .5 .5 .5 .5', r'class number without a name \(labels/train/0.txt:2: 2'),
    ('0.5 .5 .5 .5 .5', r'class number without a name \(labels/train/0.txt:2: 0.5'),
    ('-1 .5 .5 .5 .5', r'class number without a name \(labels/train/0.txt:2: -1'),
    ('0 24 16 24 16', r'outside 0..1 \(labels/train/0.txt:2, .*not pixels'),
    ('0 nan .5 .5 .5', r'outside 0..1 \(labels/train/0.txt:2'),
])
def test_mistakes_in_yolo_label_files(tmp_path, line, message):
    yolo(tmp_path / 'set', f'0 .5 .5 .5 .5\n{line}\n')
    with pytest.raises(UserError, match=message):
        use(tmp_path)


def test_all_mistakes_are_named_together(tmp_path):
    yolo(tmp_path / 'set', '0 .5\n9 .5 .5 .5 .5\n0 5 5 5 5\nx')
    (tmp_path / 'set/labels/train/1.txt').write_bytes(b'\xff\xfe0 .5')
    with pytest.raises(UserError, match='(?s)5 mistakes in the data:.*label files are no text'):
        use(tmp_path)
    findings = examine(str(tmp_path / 'set'), 'detection').findings
    assert len(findings) == 5 and all(finding.error for finding in findings)
    yolo(tmp_path / 'set', '0 .5 .5 .5 .5\n1 .5 .5 .5 0')
    found = examine(str(tmp_path / 'set'), 'detection')
    assert 'train: 2 images, 2 objects, 0 of them with a mask' in found.lines
    assert [str(finding) for finding in found.findings] == [
        f'{tmp_path}/set/labels/train: 2 of 4 boxes have no area, or numbers that are not finite '
        '(labels/train/0.txt:2, labels/train/1.txt:2); they are not used']


@pytest.mark.parametrize(('objects', 'before', 'message'), [
    ('<object>\n<name>', '', r'not XML, or not all of it \(train/0.xml:4: mismatched tag'),
    ('<object>\n<bndbox/></object>', '', r'objects have no name \(train/0.xml:3\)'),
    (box(1, 1, 9), '', r'objects have no box of four numbers \(train/0.xml:3\); a bndbox with'),
    (box(1, 1, 9, 'x'), '', r'objects have no box of four numbers \(train/0.xml:3\)'),
    ('<object>\n<name>a</name></object>', '', r'no box of four numbers \(train/0.xml:3\)'),
    (box(1, 1, 9, 9, name='&a;'), '<!DOCTYPE a [<!ENTITY a "aaaa">]>',
     r'declare a document type \(train/0.xml\)'),
    ('', '', 'train: 0 of 1 label files have an object'),
])
def test_mistakes_in_voc(tmp_path, objects, before, message):
    voc(tmp_path / 'set', objects, before=before)
    with pytest.raises(UserError, match=message):
        use(tmp_path)


def test_other_xml(tmp_path):
    save(tmp_path / 'set/train/0.jpg')
    write(tmp_path / 'set/train/0.xml', '<annotations/>')
    with pytest.raises(UserError, match='not Pascal VOC.s .train/0.xml: its root is annotations'):
        use(tmp_path)


@pytest.mark.parametrize(('shape', 'message'), [
    (dict(label='', points=[]), r'shapes have no label \(train/0.json:shape 2\)'),
    (dict(points=[[1, 2], [3]]), r'points that are not two numbers \(train/0.json:shape 2\)'),
    (dict(points=[[1, 2], [3, 4]]), r'too few points, or too many \(.*shape 2: polygon of 2\)'),
    (dict(points=[[1, 2]], shape_type='circle'), 'shape 2: circle of 1'),
    (dict(points=[[1, 2]], shape_type='cube'), r'unknown type \(train/0.json:shape 2: cube\)'),
    (dict(points=[[1, 2], [3, 4]], shape_type='mask', mask='?'), 'masks that cannot be read'),
    (dict(points=[[99, 2], [3, 4]], shape_type='mask', mask=picture([[1]])),
     'masks that cannot be read'),
])
def test_mistakes_in_labelme(tmp_path, shape, message):
    labelme(tmp_path / 'set', dict(points=[[1, 2], [11, 2], [11, 8]]), shape)
    with pytest.raises(UserError, match=message):
        use(tmp_path)


@pytest.mark.parametrize(('text', 'message'), [
    ('{"shapes":\n[', r'not JSON, or not all of it \(train/0.json:2: Expecting value\)'),
    ('[' * 100_000, 'not JSON, or not all of it'),
    ('[]', r"JSON, but not LabelMe's \(train/0.json\); a list of shapes"),
])
def test_other_json(tmp_path, text, message):
    save(tmp_path / 'set/train/0.jpg')
    write(tmp_path / 'set/train/0.json', text)
    with pytest.raises(UserError, match=message):
        use(tmp_path)


def test_files_that_do_not_pair(tmp_path):
    yolo(tmp_path / 'set', count=4)
    save(tmp_path / 'set/images/train/._0.jpg')  # macOS' own, of which there is no label file
    os.remove(tmp_path / 'set/images/train/3.jpg')
    os.remove(tmp_path / 'set/labels/train/2.txt')
    _, notes = use(tmp_path)
    text = '\n'.join(notes)
    assert '1 of 3 images have no label file (.txt): they are taken to show no objects' in text
    assert '1 of 3 label files have no image of their name (labels/train/3.txt); they are' in text
    assert len(prepared(tmp_path)['images']) == 3
    save(tmp_path / 'set/images/train/0.png')
    with pytest.raises(UserError, match='2 of 4 images share their label file with another'):
        use(tmp_path)
    os.remove(tmp_path / 'set/images/train/0.png')
    os.remove(tmp_path / 'set/images/train/1.jpg')
    with pytest.raises(UserError, match='2 of 3 label files have no image of their name'):
        use(tmp_path)


def test_labels_in_a_folder_of_another_name(tmp_path):
    yolo(tmp_path / 'set', images='images/train', labels='annotations', names='')
    write(tmp_path / 'set/data.yaml', 'train: images/train\nnames: [disc]')
    with pytest.raises(UserError, match='0 label files have an object'):
        use(tmp_path)


def test_images_that_cannot_be_read(tmp_path):
    yolo(tmp_path / 'set')
    (tmp_path / 'set/images/train/1.jpg').write_bytes(b'nothing')
    with pytest.raises(UserError, match='images cannot be read .file_name 1.jpg'):
        use(tmp_path)


def test_labelme_groups_of_anything(tmp_path):
    """Uniting polygons draws them, which takes time and memory by their length."""
    far = [[0, 0], [1e9, 0], [1e9, 1e9]]
    near = [[4, 4], [24, 4], [24, 24]]
    spot = dict(shape_type='mask', points=[[1, 1], [3, 3]], mask=picture(np.ones((3, 3))))
    for group in ([1], {'a': 1}, True, 1, float('nan')):
        labelme(tmp_path / 'set', dict(label='disc', points=near, group_id=group),
                dict(label='disc', group_id=group, **spot))
        examine(str(tmp_path / 'set'), 'detection')
    labelme(tmp_path / 'set', dict(label='disc', points=far, group_id=1),
            dict(label='disc', group_id=1, **spot))
    findings = examine(str(tmp_path / 'set'), 'detection').findings
    assert 'mask that cannot lie in its image' in ' '.join(map(str, findings))


def test_labelme_sizes_that_are_not_the_images(tmp_path):
    labelme(tmp_path / 'set', dict(label='disc', shape_type='mask', points=[[1, 1], [3, 3]],
                                   mask=picture(np.ones((3, 3)))))
    for file in (tmp_path / 'set').rglob('*.json'):
        said = json.loads(file.read_text())
        write(file, dict(said, imageWidth=10**9, imageHeight=10**9))
    findings = examine(str(tmp_path / 'set'), 'detection').findings
    assert 'images have another size than the file says' in ' '.join(map(str, findings))


def test_names_that_are_no_names(tmp_path):
    voc(tmp_path / 'set', box(1, 1, 20, 20, name='a\nb'))
    with pytest.raises(UserError, match=r"class name 'a.nb' has control characters"):
        examine(str(tmp_path / 'set'), 'detection')
    for names in ('[a, a]', '[[a]]', '[null]', '[true]', '{true: a}', '["\\e[2J"]'):
        write(tmp_path / 'x.yaml', f'names: {names}\ntrain: set')
        with pytest.raises(UserError, match='class|names is'):
            find_layout(str(tmp_path / 'x.yaml'), 'detection')


def test_pipes_and_folders_among_label_files(tmp_path):
    yolo(tmp_path / 'set', count=2)
    os.mkfifo(tmp_path / 'set/images/train/pipe.jpg')
    (tmp_path / 'set/x.yaml').mkdir()
    os.mkfifo(tmp_path / 'set/y.yaml')
    (tmp_path / 'set/labels/train/0.txt').write_bytes(b'')
    found = examine(str(tmp_path / 'set'), 'detection')
    assert 'train: 2 images, 1 objects, 0 of them with a mask' in found.lines
    assert not found.findings


def test_deep_xml(tmp_path):
    voc(tmp_path / 'set', box(1, 1, 20, 20) + '<a>' * 50000 + '</a>' * 50000)
    findings = examine(str(tmp_path / 'set'), 'detection').findings
    assert not findings
