"""An experiment on data of one's own: every layout, and each mistake named before training."""
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import command
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, DefaultScope
from PIL import Image

from downstream.data import label_maps, own
from downstream.data.checks import head_classes
from downstream.data.label_maps import MapsCheck
from downstream.data.layouts import find_layout
from downstream.data.own import held_out, use_data
from downstream.errors import UserError

CONFIGS = Path(__file__).resolve().parents[3] / 'configs'
SQUARE = [[4, 4, 24, 4, 24, 24, 4, 24]]


def experiment(name, tmp_path):
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    cfg.work_dir = str(tmp_path / 'work')
    return cfg


def built(cfg, split):
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return DATASETS.build(cfg[f'{split}_dataloader'].dataset)


def save(path, size=(48, 32), orientation=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.full((*size[::-1], 3), 128, np.uint8))
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    image.save(path, exif=exif)


def coco(folder, file='annotations/train.json', pictures='train', count=4, content=None):
    """A COCO data set of `count` images of 48 x 32 with a square each, of two classes."""
    content = content or dict(
        images=[dict(id=i, file_name=f'{i}.jpg', width=48, height=32) for i in range(count)],
        annotations=[dict(id=i + 1, image_id=i, category_id=1 + i % 2, bbox=[4, 4, 20, 20],
                          area=400, iscrowd=0, segmentation=SQUARE) for i in range(count)],
        categories=[dict(id=1, name='disc'), dict(id=2, name='square')])
    for image in content['images']:
        save(folder / pictures / image['file_name'])
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return content


def prepared(tmp_path, split='train'):
    return json.loads((tmp_path / 'work' / 'data' / f'{split}.json').read_text())


def use(tmp_path, name='maskrcnn_focalnet_t_1x', source=None, **kwargs):
    cfg = experiment(name, tmp_path)
    return cfg, use_data(cfg, str(source or tmp_path / 'set'), **kwargs)


# -- layouts -----------------------------------------------------------------------------------

@pytest.mark.parametrize(('annotations', 'images', 'val'), [
    ('annotations/instances_{}2017.json', '{}2017', 'val'),
    ('annotations/{}.json', 'images/{}', 'val'),
    ('{}/_annotations.coco.json', '{}', 'valid'),
])
def test_folders_that_are_understood(tmp_path, annotations, images, val):
    for split in ('train', val):
        coco(tmp_path / 'set', annotations.format(split), images.format(split))
    cfg, notes = use(tmp_path)
    assert cfg.model.roi_head.bbox_head.num_classes == cfg.model.roi_head.mask_head.num_classes == 2
    for split in ('train', 'val', 'test'):
        dataset = built(cfg, split)
        assert len(dataset) == 4 and dataset.metainfo['classes'] == ('disc', 'square')
        sample = dataset[1]['data_samples']
        assert sample.gt_instances.labels.tolist() == [1] and len(sample.gt_instances.masks) == 1
    assert cfg.test_evaluator.ann_file == cfg.test_dataloader.dataset.ann_file
    assert 'detection' in notes[0]


@pytest.mark.parametrize('name', [
    'atss_focalnet_t_3x', 'cascade_maskrcnn_focalnet_t_3x', 'detr_focalnet_t_50e',
    'dino_focalnet_l_4scale_12e', 'dino_focalnet_l_4scale_12e_detrex', 'maskrcnn_focalnet_t_1x',
    'retinanet_focalnet_t_1x', 'sparsercnn_focalnet_t_3x'])
def test_every_head_has_the_data_s_classes(tmp_path, name):
    coco(tmp_path / 'set')
    cfg, _ = use(tmp_path, name)
    numbers = [number for _, _, number in head_classes(cfg.model)]
    assert numbers and set(numbers) == {2}
    with torch.device('meta'):
        model = MODELS.build(dict(cfg.model, _scope_='mmdet'))
    layers = [module.out_features if isinstance(module, torch.nn.Linear) else module.out_channels
              for path, module in model.named_modules() if re.search(
                  r'(fc_cls|atss_cls|retina_cls|fc_cls|cls_branches\.\d+|conv_logits)$', path)]
    assert layers and set(layers) <= {2, 3, 9 * 2}  # with a background; nine anchors


def test_a_file_says_where_things_are(tmp_path, monkeypatch):
    coco(tmp_path / 'set/a', 'labels.json', 'pictures')
    (tmp_path / 'cells.yaml').write_text(
        '\ufeffroot: set/a\ntrain: {annotations: labels.json, images: pictures}\n'
        'val: {annotations: labels.json, images: pictures}\n', encoding='utf-8')
    monkeypatch.chdir('/')
    cfg, _ = use(tmp_path, source=tmp_path / 'cells.yaml')
    assert len(built(cfg, 'val')) == 4
    # The resolved config works alone, from anywhere.
    cfg.dump(tmp_path / 'alone.py')
    assert len(built(Config.fromfile(tmp_path / 'alone.py'), 'test')) == 4


@pytest.mark.parametrize(('text', 'message'), [
    ('train: [1', 'not a YAML file'),
    ('train: 5', 'says nothing of train'),
    ('trian: {}', "'trian', which means nothing here; did you mean 'train'"),
    ('train: {images: train}', 'train has no annotations, which an experiment in detection needs'),
    ('train: {annotations: no.json, images: set}', 'annotation file of train, .*no.json, does not'),
    ('train: {annotations: x.yaml, images: no}', 'folder of the images of train, .*no, does'),
])
def test_files_that_are_not_understood(tmp_path, text, message):
    (tmp_path / 'set').mkdir()
    (tmp_path / 'x.yaml').write_text(text)
    with pytest.raises(UserError, match=message):
        use(tmp_path, source=tmp_path / 'x.yaml')


def test_folders_that_are_not_understood(tmp_path):
    with pytest.raises(UserError, match='no such file or folder'):
        use(tmp_path)
    save(tmp_path / 'set/images/train/1.jpg')
    save(tmp_path / 'set/labels/train/1.png')
    with pytest.raises(UserError, match='is data for segmentation .images and labels.: label maps'):
        use(tmp_path)
    with pytest.raises(UserError, match='put the names of the values 0, 1, 2, … into .*classes'):
        use(tmp_path, 'upernet_focalnet_t_160k')


# -- detection ---------------------------------------------------------------------------------

def test_boxes_alone_are_trained_without_masks(tmp_path):
    data = coco(tmp_path / 'set')
    for annotation, mask in zip(data['annotations'], ([], None, [[1, 2]], []), strict=True):
        annotation['segmentation'] = mask
    coco(tmp_path / 'set', content=data)
    for name, kind in (('maskrcnn_focalnet_t_1x', 'FasterRCNN'),
                       ('cascade_maskrcnn_focalnet_t_3x', 'CascadeRCNN')):
        cfg, notes = use(tmp_path, name)
        assert cfg.model.type == kind and 'mask_head' not in cfg.model.roi_head
        assert 'No object has a mask: ' in ' '.join(notes)
        assert 'masks' not in built(cfg, 'train')[0]['data_samples'].gt_instances
    del data['annotations'][3]['segmentation']
    data['annotations'][0]['segmentation'] = SQUARE
    data['annotations'][2]['segmentation'] = []
    coco(tmp_path / 'set', content=data)
    with pytest.raises(UserError, match='3 of 4 objects have no mask, while others have one .id 2'):
        use(tmp_path)
    cfg, _ = use(tmp_path, 'retinanet_focalnet_t_1x')  # learns none
    assert cfg.model.bbox_head.num_classes == 2


def test_what_export_tools_leave_out_is_filled_in(tmp_path):
    data = coco(tmp_path / 'set')
    for annotation in data['annotations']:
        del annotation['iscrowd'], annotation['area']
    for image in data['images']:
        del image['width'], image['height']
    data['images'][0]['file_name'] = 'upload%2F3f-/0.jpg'
    data['images'][1]['file_name'] = 'C:\\labels\\1.jpg'
    data['annotations'][3]['segmentation'] = SQUARE[0]  # a flat list
    data['annotations'][2]['segmentation'] = [*SQUARE, [1, 2, 3, 4]]
    data['categories'].insert(0, dict(id=0, name='shapes', supercategory='none'))
    for category in data['categories'][1:]:
        category['supercategory'] = 'shapes'
    path = tmp_path / 'set/annotations/train.json'
    path.write_text(json.dumps(data), encoding='utf-8-sig')
    _, notes = use(tmp_path)
    text = '\n'.join(notes)
    for said in ('2 of 4 images are found by the last part of their name', 'no iscrowd: taken as 0',
                 'no area: computed', 'category 0 is the group of the others',
                 '1 of 4 objects have polygons of fewer than three points'):
        assert said in text
    found = prepared(tmp_path)
    assert [image['file_name'] for image in found['images']] == [f'{i}.jpg' for i in range(4)]
    assert {(image['width'], image['height']) for image in found['images']} == {(48, 32)}
    assert all(a['iscrowd'] == 0 and a['area'] == 400 and a['segmentation'] == SQUARE
               for a in found['annotations'])
    assert [c['name'] for c in found['categories']] == ['disc', 'square']


def change(data, **entries):
    data['annotations'][0].update(entries)


@pytest.mark.parametrize(('spoil', 'message'), [
    (lambda d: change(d, id=2), r'1 annotation ids are those of several annotations \(id 2\)'),
    (lambda d: change(d, bbox=['4', '4', '20', '20']), r'boxes are not four numbers \(id 1\)'),
    (lambda d: change(d, segmentation=[[1, 2, 3, 4]]), 'no polygon of three points or more .id 1'),
    (lambda d: change(d, segmentation='what'), 'neither polygons nor run lengths'),
    (lambda d: change(d, category_id=9), r'categories that the file does not define .*ids \[9\]'),
    (lambda d: d['images'][0].update(width=32, height=48), '0.jpg is 48 x 32, not 32 x 48'),
    (lambda d: d['images'][0].update(file_name='no.jpg'), r'images are not in .*no.jpg'),
    (lambda d: d.update(annotations=[]), 'lists no annotations'),
    (lambda d: d.pop('categories'), 'no list of categories'),
    (lambda d: d['annotations'][0].pop('bbox'), 'entry 0 of annotations has no bbox'),
    (lambda d: [a.update(bbox=[.1, .1, .5, .5]) for a in d['annotations']],
     'narrower than a pixel .*are they fractions of the image'),
    (lambda d: d['categories'][1].update(name='disc'), "several classes are called 'disc'"),
])
def test_mistakes_that_stop(tmp_path, spoil, message):
    data = coco(tmp_path / 'set')
    spoil(data)
    (tmp_path / 'set/annotations/train.json').write_text(json.dumps(data))
    with pytest.raises(UserError, match=message):
        use(tmp_path)


@pytest.mark.parametrize(('spoil', 'message', 'left'), [
    (lambda d: change(d, bbox=[4, 4, float('nan'), 20]), 'no area, or numbers that are not finite',
     3),
    (lambda d: change(d, bbox=[60, 4, 20, 20]), '1 of 4 boxes lie outside their images', 3),
    (lambda d: change(d, bbox=[40, 4, 20, 20]), 'boxes leave their images .*cut at the border', 4),
    (lambda d: change(d, image_id=77), '1 of 4 annotations are of images that the file', 3),
    (lambda d: d['images'][0].update(id=1), '1 of 4 images have the id of another one', 3),
    (lambda d: [a.update(bbox=[20, 16, 40, 30]) for a in d['annotations']],
     r'4 of 4 boxes leave their images .*most would fit as \[x1, y1, x2, y2\]', 4),
])
def test_slips_are_counted_and_left_out(tmp_path, spoil, message, left):
    data = coco(tmp_path / 'set')
    spoil(data)
    (tmp_path / 'set/annotations/train.json').write_text(json.dumps(data))
    _, notes = use(tmp_path)
    assert re.search(message, '\n'.join(notes))
    assert len(prepared(tmp_path)['annotations']) == left


def test_rotated_images(tmp_path):
    """By width and height the labels lie on the image as stored, or as EXIF turns it."""
    def shape(cfg):
        dataset = cfg.train_dataloader.dataset
        dataset.pipeline = dataset.pipeline[:1]
        return built(cfg, 'train')[0]['img_shape']

    data = coco(tmp_path / 'set')
    save(tmp_path / 'set/train/0.jpg', orientation=6)
    cfg, notes = use(tmp_path)  # the file says 48 x 32, as stored
    assert 'so that the rotation is not applied' in '\n'.join(notes) and shape(cfg) == (32, 48)
    data['images'][0].update(width=32, height=48)
    coco(tmp_path / 'set', content=data)
    save(tmp_path / 'set/train/0.jpg', orientation=6)
    cfg, notes = use(tmp_path)
    assert 'rotation' not in '\n'.join(notes) and shape(cfg) == (48, 32)
    save(tmp_path / 'set/train/1.jpg', orientation=6)
    with pytest.raises(UserError, match='EXIF rotation that their labels do not follow, while'):
        use(tmp_path)


def test_broken_images_are_named(tmp_path):
    coco(tmp_path / 'set')
    (tmp_path / 'set/train/2.jpg').write_bytes(b'nothing')
    with pytest.raises(UserError, match='images cannot be read .file_name 2.jpg'):
        use(tmp_path)


def test_splits_have_one_order_of_classes(tmp_path):
    """mmdet numbers classes in each file's own order."""
    data = coco(tmp_path / 'set')
    for category, name in zip(data['categories'], ('square', 'disc'), strict=True):
        category['name'] = name
    coco(tmp_path / 'set', 'annotations/val.json', 'val', content=data)
    cfg, _ = use(tmp_path)
    for split, label in (('train', 0), ('val', 1)):
        assert built(cfg, split).metainfo['classes'] == ('disc', 'square')
        assert built(cfg, split)[0]['data_samples'].gt_instances.labels.tolist() == [label]
    data['categories'][0]['name'] = 'star'
    coco(tmp_path / 'set', 'annotations/val.json', 'val', content=data)
    with pytest.raises(UserError, match='val.json has the categories star, which the classes'):
        use(tmp_path)


def test_images_held_out_for_validation(tmp_path):
    coco(tmp_path / 'set', count=30)
    cfg, notes = use(tmp_path)
    assert cfg.val_dataloader is None and 'save_best' not in cfg.default_hooks.checkpoint
    assert 'nothing is scored in training' in notes[-1]
    cfg, notes = use(tmp_path, val_split=0.2)
    names = {split: {image['file_name'] for image in prepared(tmp_path, split)['images']}
             for split in ('train', 'val')}
    assert not names['train'] & names['val'] and len(names['train'] | names['val']) == 30
    assert len(built(cfg, 'test')) == len(names['val'])
    coco(tmp_path / 'set', 'annotations/val.json', 'val')
    with pytest.raises(UserError, match='--val-split 0.2: .*set has images for validation'):
        use(tmp_path, val_split=0.2)
    # More images, or others in their place, move none of those that stay.
    more = held_out([f'{i}.png' for i in range(60)], 0.2)
    assert {Path(name).stem for name in names['val']} == {
        Path(name).stem for name in more if int(Path(name).stem) < 30}
    assert len(held_out(['a', 'b'], 1e-9)) == len(held_out(['a', 'b'], 0.999)) == 1
    with pytest.raises(UserError, match='too few images'):
        held_out(['a'], 0.1)


# -- segmentation ------------------------------------------------------------------------------

def labels(folder, values=(0, 1, 2, 255), split='train', count=3):
    for i in range(count):
        save(folder / f'images/{split}/{i}.jpg')
        path = folder / f'labels/{split}/{i}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.resize(np.array(values, np.uint8), (32, 48))).save(path)


def test_label_maps(tmp_path):
    labels(tmp_path / 'set', (7, 9, 11, 0))
    (tmp_path / 'set/roads.yaml').write_text(
        'train: {images: images/train, labels: labels/train}\n'
        'val: {images: images/train, labels: labels/train}\n'
        'classes: {7: road, 9: car, 11: tree}\nignore: [0, 255]\n')
    for name in ('upernet_focalnet_t_160k', 'mask2former_focalnet_l_ade20k_160k'):
        cfg, _ = use(tmp_path, name, tmp_path / 'set/roads.yaml')
        assert cfg.model.decode_head.num_classes == 3
        dataset = built(cfg, 'val')
        assert dataset.metainfo['classes'] == ('road', 'car', 'tree')
        assert dataset[0]['data_samples'].gt_sem_seg.data.unique().tolist() == [0, 1, 2, 255]
    assert cfg.model.decode_head.loss_cls.class_weight == [1., 1., 1., 0.1]


def test_classes_beside_a_folder_of_label_maps(tmp_path):
    labels(tmp_path / 'set')
    (tmp_path / 'set/classes.txt').write_text('road\ncar\ntree\n')
    cfg, _ = use(tmp_path, 'upernet_focalnet_t_160k', val_split=0.5)
    parts = [{Path(built(cfg, split).get_data_info(i)['img_path']).name
              for i in range(len(built(cfg, split)))} for split in ('train', 'val')]
    assert len(parts[0] | parts[1]) == 3 and not parts[0] & parts[1]


@pytest.mark.parametrize(('classes', 'message'), [
    ('', 'classes is None; label maps hold numbers'),
    ('classes: 3', 'classes is 3'),
    ('classes: [a, a]', "several classes are called 'a'"),
    ('classes: [a, b]\nignore: 1', r'the label values \[1\] are classes and ignored'),
    ('classes: [a]\nignore: x', "ignore is 'x'"),
])
def test_what_label_values_mean_has_to_be_said(tmp_path, classes, message):
    labels(tmp_path)
    (tmp_path / 'x.yaml').write_text(
        f'train: {{images: images/train, labels: labels/train}}\n{classes}\n')
    with pytest.raises(UserError, match=message):
        find_layout(str(tmp_path / 'x.yaml'), 'segmentation')


def test_label_maps_that_do_not_pair(tmp_path):
    labels(tmp_path / 'set')
    (tmp_path / 'set/classes.txt').write_text('road\ncar\ntree\n')
    os.remove(tmp_path / 'set/labels/train/1.png')
    with pytest.raises(UserError, match='1 of 3 images in .* have no label map .*: 1.jpg'):
        built(use(tmp_path, 'upernet_focalnet_t_160k')[0], 'train')


# -- panoptic ----------------------------------------------------------------------------------

def test_panoptic(tmp_path):
    from make_demo_data import make_demo_data
    make_demo_data(tmp_path / 'demo', train=2, val=2, size=64)
    cfg, notes = use(tmp_path, 'mask2former_focalnet_l_coco_panoptic_100e', tmp_path / 'demo/coco')
    assert '4 kinds of things, 3 of stuff' in notes
    for head in ('panoptic_head', 'panoptic_fusion_head'):
        assert (cfg.model[head].num_things_classes, cfg.model[head].num_stuff_classes) == (4, 3)
    assert cfg.model.panoptic_head.loss_cls.class_weight == [1.] * 7 + [0.1]
    assert built(cfg, 'val').metainfo['thing_classes'] == ('disc', 'square', 'triangle', 'star')
    assert [metric.type for metric in cfg.test_evaluator] == ['PanopticQuality', 'CocoMetric']


# -- label values ------------------------------------------------------------------------------

def described(tmp_path, text='classes: [road, car, tree]'):
    (tmp_path / 'set').mkdir(exist_ok=True)
    (tmp_path / 'set/x.yaml').write_text(
        f'train: {{images: images/train, labels: labels/train}}\n{text}\n')
    return tmp_path / 'set/x.yaml'


@pytest.mark.parametrize(('values', 'message'), [
    ((0, 1, 2, 3), r'3 of 3 label maps have the values \[3\], .*name them among the classes'),
    ((0, 254, 255), r'values \[254\]'),
    ((255,), 'label maps have no labelled pixel .*nothing is learned'),
])
def test_label_values_without_a_meaning(tmp_path, values, message):
    labels(tmp_path / 'set', values)
    with pytest.raises(UserError, match=message):
        use(tmp_path, 'upernet_focalnet_t_160k', described(tmp_path))


def test_masks_of_0_and_255(tmp_path):
    """One class drawn white: a mapping is asked for."""
    labels(tmp_path / 'set', (0, 255))
    with pytest.raises(UserError, match=r'values \[255\], .*255 is often "unlabelled"'):
        use(tmp_path, 'upernet_focalnet_t_160k', described(
            tmp_path, 'classes: [background, cell]\nignore: []'))
    cfg, _ = use(tmp_path, 'upernet_focalnet_t_160k', described(
        tmp_path, 'classes: {0: background, 255: cell}\nignore: []'))
    found = built(cfg, 'train')[0]['data_samples'].gt_sem_seg.data.unique().tolist()
    assert found == [0, 1]


def test_label_maps_of_another_kind(tmp_path):
    labels(tmp_path / 'set')
    save(tmp_path / 'set/labels/train/0.png')
    Image.new('L', (32, 48)).save(tmp_path / 'set/labels/train/1.png')
    (tmp_path / 'set/labels/train/2.png').write_bytes(b'nothing')
    with pytest.raises(UserError) as error:
        use(tmp_path, 'upernet_focalnet_t_160k', described(tmp_path))
    for said in ('3 mistakes', 'colour pictures', 'another size than their images',
                 'cannot be read'):
        assert said in str(error.value)


def test_a_part_of_the_label_maps_unless_all_are_known(tmp_path, monkeypatch):
    """The first ones are right, one of the others is not."""
    labels(tmp_path / 'set', count=12)
    Image.fromarray(np.full((32, 48), 9, np.uint8)).save(tmp_path / 'set/labels/train/1.png')
    layout = find_layout(str(described(tmp_path)), 'segmentation')
    maps, values = own.label_maps(layout.splits['train']), own.table(layout)
    few = MapsCheck(maps, values, most=6)
    assert len(few.pairs) == 6 and len(few.listed) == 12 and not few.findings
    whole = MapsCheck(maps, values, most=None)
    assert whole.read[0] == ((48, 32), dict.fromkeys((0, 1, 2, 255), 384))
    wrong, = whole.findings
    assert wrong.examples == ['1.png'] and (wrong.count, wrong.total) == (1, 12)
    monkeypatch.setattr(label_maps, 'values_of', None)  # nothing is decoded
    found, = MapsCheck(maps, values, most=6).findings
    assert str(found) == str(wrong)


def test_label_maps_of_turned_images(tmp_path):
    """Images are loaded as EXIF turns them; a label map has no EXIF."""
    labels(tmp_path / 'set')
    save(tmp_path / 'set/images/train/0.jpg', orientation=6)
    with pytest.raises(UserError, match='1 of 3 label maps lie on their images as stored'):
        use(tmp_path, 'upernet_focalnet_t_160k', described(tmp_path))
    save(tmp_path / 'set/images/train/0.jpg', (32, 48), orientation=6)
    dataset = built(use(tmp_path, 'upernet_focalnet_t_160k', described(tmp_path))[0], 'train')
    assert dataset[0]['data_samples'].ori_shape == (32, 48)


# -- tools/check_data.py -----------------------------------------------------------------------

def test_check_data(tmp_path, capsys):
    check = command('check_data').main
    data = coco(tmp_path / 'set')
    check([str(tmp_path / 'set')])
    said = capsys.readouterr().out
    assert 'train: 4 images, 4 objects, 4 of them with a mask' in said
    assert re.search(r'disc +2\n +square +2\n', said) and 'nothing is wrong' in said
    change(data, bbox=[60, 4, 20, 20])
    data['annotations'][1]['id'] = 3
    (tmp_path / 'set/annotations/train.json').write_text(json.dumps(data))
    with pytest.raises(SystemExit) as end:
        check([str(tmp_path / 'set')])
    assert end.value.code == 1
    *_, error, warning = capsys.readouterr().out.splitlines()
    assert error.startswith('error: ') and 'ids are those of several annotations (id 3)' in error
    assert warning.startswith('warning: ') and 'boxes lie outside their images (id 1)' in warning

    labels(tmp_path / 'maps', (0, 1, 9))
    (tmp_path / 'maps/classes.txt').write_text('road\ncar\n')
    with pytest.raises(SystemExit):
        check([str(tmp_path / 'maps'), '--kind', 'segmentation'])
    assert 'label maps have the values [9]' in capsys.readouterr().out
