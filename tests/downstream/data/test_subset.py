"""A tiny COCO of a few images, chosen for memorising."""
import json

import pytest
import subset_coco


@pytest.fixture
def coco_root(tmp_path):
    """Images 0..3: good; a crowd; only small objects; good."""
    root = tmp_path / 'coco'
    (root / 'train2017').mkdir(parents=True)
    (root / 'annotations').mkdir()
    images = [dict(id=i, file_name=f'{i}.jpg', width=200, height=200) for i in range(4)]
    for image in images:
        (root / 'train2017' / image['file_name']).write_bytes(b'picture')
    annotations = [
        dict(id=1, image_id=0, iscrowd=0, area=10000), dict(id=2, image_id=0, iscrowd=0, area=9),
        dict(id=3, image_id=1, iscrowd=1, area=10000), dict(id=4, image_id=2, iscrowd=0, area=900),
        dict(id=5, image_id=3, iscrowd=0, area=9500)]
    (root / 'annotations' / 'instances_train2017.json').write_text(
        json.dumps(dict(images=images, annotations=annotations, categories=[dict(id=1)])))
    return root


def test_chooses_large_objects_without_crowds(coco_root, tmp_path):
    out = tmp_path / 'few'
    subset_coco.main([str(coco_root), str(out), '--images', '2'])
    for split in ('train2017', 'val2017'):
        content = json.loads((out / 'annotations' / f'instances_{split}.json').read_text())
        assert [image['id'] for image in content['images']] == [0, 3]
        assert [a['id'] for a in content['annotations']] == [1, 2, 5]
        assert content['categories'] == [dict(id=1)]
        assert sorted(path.name for path in (out / split).iterdir()) == ['0.jpg', '3.jpg']


@pytest.mark.parametrize('spoil, message', [
    (lambda file: file.unlink(), 'No such file'),
    (lambda file: file.write_text('{'), 'instances_train2017.json: Expecting'),
    (lambda file: file.write_text('{"images": []}'), 'not in COCO instance format'),
    (lambda file: None, 'only 2 images qualify, not 3'),
])
def test_bad_input_ends_in_one_message(coco_root, tmp_path, spoil, message):
    spoil(coco_root / 'annotations' / 'instances_train2017.json')
    with pytest.raises(SystemExit, match=message):
        subset_coco.main([str(coco_root), str(tmp_path / 'few'), '--images', '3'])


def test_never_overwrites_its_source(coco_root):
    before = (coco_root / 'annotations' / 'instances_train2017.json').read_text()
    for arguments in ([str(coco_root), str(coco_root / '.')],
                      [str(coco_root), str(coco_root.parent / 'few'), '--images', '0']):
        with pytest.raises(SystemExit, match='error: '):
            subset_coco.main(arguments)
    assert (coco_root / 'annotations' / 'instances_train2017.json').read_text() == before
