"""The page of tools/transfer.py: the same images for each backbone, means over seeds."""
import pickle

import torch

from downstream.data.generated import make_demo_data
from downstream.looking.transfer_page import examples, means, render
from downstream.scoring import transfer
from downstream.scoring.transfer import Settings, Trial
from downstream.scoring.transfer_table import Cell, Table


def test_means_are_of_the_seeds_that_got_there():
    runs = [[dict(at=10, loss=4.), dict(at=20, loss=2.), dict(at=20, mIoU=50.)],
            [dict(at=10, loss=2.)]]
    assert means(runs, 'loss') == ([10, 20], [3., 2.])
    assert means(runs, 'mIoU') == ([20], [50.])
    assert means([[]], 'loss') == ([], [])


def scored(tmp_path, backbone) -> Trial:
    """A trial that has its score, with predictions of one class everywhere."""
    trial = Trial(backbone, 'upernet', 0, Settings(tmp_path), cost=dict(
        params=2e6, flops=3e9, input=[512, 2048]))
    trial.cfg = transfer.compose(trial)
    trial.folder.mkdir(parents=True)
    trial.cfg.dump(trial.folder / 'config.py')
    images = sorted((tmp_path / 'data').glob('ade/*/images/validation/*.jpg'))
    assert len(images) == 4
    (trial.folder / 'results.pkl').write_bytes(pickle.dumps([
        dict(img_path=str(image), pred_sem_seg=dict(data=torch.zeros(1, 160, 160, dtype=torch.uint8)
                                                    )) for image in images]))
    trial.result = dict(scores={'mIoU': 12.5}, cost=trial.cost, first_loss=2., last_loss=1.,
                        images_a_second=3., memory=None)
    return trial


def test_each_backbone_on_the_same_images(tmp_path):
    make_demo_data(tmp_path / 'data', train=2, val=4)
    trials = [scored(tmp_path, name) for name in ('demo:focalnet', 'demo:container')]
    rows, notes = examples({trial.backbone: Cell([trial]) for trial in trials})
    assert not notes and len(rows) == 3
    for row in rows:
        assert [words for words, _ in row] == ['ground truth', 'demo:focalnet', 'demo:container']
        truth, first, second = (picture for _, picture in row)
        assert first == second != truth  # the same is predicted
    assert len({row[0][1] for row in rows}) == 3

    (trials[1].folder / 'results.pkl').unlink()
    trials.append(Trial('mine', 'upernet', 0, Settings(tmp_path), error='cannot <run>'))
    page = render(Table(trials))
    assert page.count('alt="demo:focalnet"') == 3 and 'alt="demo:container"' not in page
    assert 'No pictures of demo:container' in page and 'cannot &lt;run&gt;' in page
    assert '12.5 of 70' in page  # below what shows that it learns
    assert '2 of 3 runs have a score' in page
