"""Configs that lie elsewhere inherit the project's."""
from pathlib import Path

import pytest
from mmengine.config import Config

import downstream
from downstream.errors import UserError
from downstream.experiments import CONFIGS
from downstream.training.launching import read_config


def test_inherit_gives_paths_in_order():
    names = 'maskrcnn_focalnet_t_1x.py', '_base_/models/maskrcnn.py', 'demo/maskrcnn_focalnet.py'
    assert downstream.inherit(*names) == [str(CONFIGS / name) for name in names]
    assert all(Path(path).is_file() for path in downstream.inherit(*names))


@pytest.mark.parametrize('name, near', [
    ('maskrcnn_focalnet_t_1x', 'did you mean maskrcnn_focalnet_t_1x.py or'),
    ('_base_/model/maskrcnn.py', 'did you mean _base_/models/maskrcnn.py or'),
    ('_base_', 'the project has no config _base_'),  # a folder
])
def test_inherit_names_what_is_near(name, near):
    with pytest.raises(UserError, match='the project has no config') as error:
        downstream.inherit('_base_/models/maskrcnn.py', name)
    assert near in str(error.value)


@pytest.mark.parametrize('read', [lambda path: read_config(path, {}, 'model'), Config.fromfile],
                         ids=['tools', 'mmengine'])
def test_a_config_elsewhere_is_the_experiment(tmp_path, read):
    """One that inherits all of it, one the parts, one from the first with a variable of a base."""
    ours = Config.fromfile(CONFIGS / 'maskrcnn_focalnet_t_1x.py').to_dict()
    inherit = "_base_ = __import__('downstream').inherit("
    (tmp_path / 'whole.py').write_text(inherit + "'maskrcnn_focalnet_t_1x.py')\n")
    (tmp_path / 'chain.py').write_text("_base_ = './whole.py'\nscale = _base_.data_root\n")
    assert read(tmp_path / 'whole.py').to_dict() == ours
    assert read(tmp_path / 'chain.py').to_dict() == {**ours, 'scale': ours['data_root']}

    parts = [f'_base_/{part}.py' for part in ('models/maskrcnn', 'datasets/coco_instance',
                                              'schedules/1x')]
    (tmp_path / 'parts.py').write_text(inherit + f'*{parts})\nmodel = {ours["model"]}\n')
    assert read(tmp_path / 'parts.py').to_dict() == ours
