"""Fine-tuning on other classes: rows of classes that both have are kept where names agree."""
import logging
from types import SimpleNamespace

import pytest
import torch
from mmdet.datasets import CocoDataset
from mmdet.datasets.objects365 import Objects365V2Dataset
from torch import nn

from downstream.training.checkpoints import CheckFits
from downstream.training.fine_tuning import known_classes, with_known_classes

THERE, HERE = ('cat', 'dog', 'car'), ('dog', 'bird', 'cat', 'tree')


def rows(*numbers):
    return torch.tensor(numbers, dtype=torch.float)[:, None]


@pytest.mark.parametrize(('theirs', 'expected'), [
    (rows(1, 2, 3), rows(2, 0, 1, 0)),  # a segmentor's, DETR's
    (rows(1, 2, 3, 9), rows(2, 0, 1, 0, 9)),  # with the background behind
    # Two anchors: the classes of the first, then those of the second.
    (rows(1, 2, 3, 11, 12, 13), rows(2, 0, 1, 0, 12, 0, 11, 0)),
    # A box for each class: four numbers of the first, then of the second.
    (rows(*range(12)), rows(4, 5, 6, 7, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0)),
])
def test_rows_of_known_classes(theirs, expected):
    kept = with_known_classes(torch.zeros_like(expected), theirs, HERE, THERE)
    assert kept.equal(expected)


def test_what_has_no_rows_of_classes():
    assert with_known_classes(torch.zeros(4, 1), torch.zeros(5, 1), HERE, THERE) is None
    assert with_known_classes(torch.zeros(4, 2), torch.zeros(3, 1), HERE, THERE) is None
    assert with_known_classes(torch.zeros(4, 1), torch.zeros(3, 1), HERE, ()) is None


@pytest.mark.parametrize('keep', [False, True])
def test_other_classes_take_one_line(caplog, keep):
    """mmengine would dump each tensor's shapes; what is left for it fits."""
    model = nn.Module()
    model.backbone, model.head = nn.Linear(2, 2), nn.Linear(2, 4)
    old = nn.Module()
    old.backbone, old.head = nn.Linear(2, 2), nn.Linear(2, 3)
    checkpoint = dict(state_dict={f'module.{name}': value for name, value in
                                  old.state_dict().items()},
                      meta=dict(dataset_meta=dict(classes=THERE)))
    runner = SimpleNamespace(
        model=model, logger=logging.getLogger('fine-tuning'), train_dataloader=SimpleNamespace(
            dataset=SimpleNamespace(metainfo=dict(classes=HERE))))
    with caplog.at_level('INFO'):
        CheckFits('old.pth', whole=False, keep_classes=keep).after_load_checkpoint(
            runner, checkpoint)
    loaded = model.load_state_dict(checkpoint['state_dict'], strict=False)
    assert not loaded.unexpected_keys and model.backbone.weight.equal(old.backbone.weight)
    line = caplog.messages[-1]
    if keep:
        assert line == ('old.pth: of 3 classes the 2 that are among the 4 here are kept in '
                        'head (2)')
        assert model.head.weight[[0, 2]].equal(old.head.weight[[1, 0]])
    else:
        assert loaded.missing_keys == ['head.weight', 'head.bias']
        assert line == ('old.pth: head (2) have another shape there (it has 3 classes, 4 are here) '
                        'and are made new')


def test_names_that_differ_in_capitals():
    assert known_classes(('wine glass', 'Cat', 'dog'), ('Dog ', 'cat', 'Wine Glass')) == {
        0: 2, 1: 1, 2: 0}
    assert known_classes(('Cat', 'cat'), ('cat', )) == {1: 0}  # which is the other's cat?
    assert known_classes(('cat', ), ('Cat', 'CAT')) == {}


def test_from_objects365_to_coco():
    """69 of COCO's 80 classes are among Objects365's, none under the same name to the letter."""
    here, there = CocoDataset.METAINFO['classes'], Objects365V2Dataset.METAINFO['classes']
    found = known_classes(here, there)
    assert len(found) == 69 and not set(here) & set(there)
    assert {here[i] for i in range(80)} - {here[i] for i in found} == {
        'bird', 'handbag', 'suitcase', 'skis', 'sports ball', 'bowl', 'orange', 'dining table',
        'tv', 'teddy bear', 'hair drier'}
    kept = with_known_classes(torch.full((80, 1), -1.), rows(*range(365)), here, there)
    assert kept[0] == there.index('Person') == 0
    assert kept[here.index('hot dog')] == there.index('Hot dog')
    assert kept[here.index('bird')] == -1
