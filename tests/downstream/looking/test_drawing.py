"""Pictures: what is painted where."""
import numpy as np
import pytest

from downstream.looking import drawing

GREY = np.full((100, 160, 3), 128, np.uint8)
PALETTE = [(200, 30, 30), (30, 30, 200)]


def test_masks_cover_half_and_small_ones_are_in_front():
    masks = np.zeros((2, 100, 160), bool)
    masks[0, 40:60, 40:60] = True  # the small one, first
    masks[1, 20:90, 20:120] = True
    colors = np.array([(250, 0, 0), (0, 0, 250)], np.uint8)
    boxes = np.array([[40, 40, 60, 60], [20, 20, 120, 90]], float)
    picture = drawing.draw_objects(GREY, boxes, masks, colors, ['', ''])
    assert (picture[:15, 50:] == GREY[:15, 50:]).all() and (picture[:, 130:] == GREY[:, 130:]).all()
    assert picture[80, 100].tolist() == [70, 70, 182]  # 0.55 grey + 0.45 blue
    assert picture[50, 50].tolist() == [151, 38, 100]  # red over that
    assert (GREY == 128).all()


def test_names_stay_in_the_picture():
    """A box at each corner: the plates are whole."""
    boxes = np.array([[-9, -9, 9, 9], [150, 0, 160, 9], [150, 95, 170, 110], [0, 95, 9, 99]], float)
    color = np.tile(np.array([[0, 250, 0]], np.uint8), (4, 1))
    for box in boxes:
        picture = drawing.draw_objects(GREY, box[None], None, color[:1], ['a name'])
        assert picture.shape == GREY.shape
        assert (picture == (0, 250, 0)).all(-1).sum() > 200  # the plate
        assert (picture[..., 1] < 60).sum() > 20  # black letters on it


def test_label_maps_are_named_where_they_are():
    labels = np.zeros((100, 160), int)
    labels[:, 120:] = 1
    picture = drawing.draw_labels(GREY, labels, ['left', 'right'], PALETTE)
    # Plates are of the pure colours, each in the middle of its region.
    for label, (low, high) in enumerate([(40, 80), (120, 160)]):
        where = np.argwhere((picture == PALETTE[label]).all(-1))
        assert len(where) > 100 and low < where[:, 1].mean() < high
    assert (picture[5, 119:121] == 255).any()  # the border


@pytest.mark.parametrize('mask, expected', [
    (np.pad(np.ones((3, 9), bool), ((2, 5), (1, 0))), (3, 3)),
    (np.ones((1, 1), bool), (0, 0)),
])
def test_middle(mask, expected):
    x, y = drawing.middle(mask)
    assert mask[y, x] and (y == expected[1])


def test_objects_of_a_class_differ():
    colors = drawing.instance_colors(np.array([0, 0, 1, 0, 0]), PALETTE)
    assert colors.shape == (5, 3) and len(np.unique(colors, axis=0)) == 5
    assert colors[0].argmax() == colors[1].argmax() == 0 and colors[2].argmax() == 2
    assert drawing.instance_colors(np.array([], int), PALETTE).shape == (0, 3)


def test_nothing():
    picture = drawing.draw_objects(GREY, np.zeros((0, 4)), np.zeros((0, 100, 160), bool),
                                   np.zeros((0, 3), np.uint8), [])
    assert (picture == GREY).all()
