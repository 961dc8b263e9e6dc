"""What a person may name, and what is said where it is nothing."""
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from downstream.errors import UserError
from downstream.looking.inputs import Video, find_inputs


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in 'a/1.jpg', 'a/b/2.PNG', 'a/c/1.jpg', 'a/notes.txt', 'film.mp4', 'empty/x.txt':
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b'')


def names(*sources):
    return [entry.name for entry in find_inputs(list(sources))]


def test_found():
    assert names('a') == ['1.jpg', 'b/2.PNG', 'c/1.jpg']
    assert names('a/c/1.jpg', 'film.mp4') == ['1.jpg', 'film.mp4']
    assert names('a/**/*.PNG', 'film.*') == ['2.PNG', 'film.mp4']
    assert names('a', 'a/b/2.PNG', './a/1.jpg') == ['1.jpg', '2.PNG', 'c/1.jpg']  # each once
    film, = find_inputs(['film.mp4'])
    assert film.video and film.stem == 'film'


@pytest.mark.parametrize('sources, message', [
    (['nothing'], 'there is no image, video or folder nothing'),
    (['a/*.gif'], 'there is no image, video or folder a/.*gif'),
    (['empty'], 'the folder empty holds no images or videos'),
    (['a/notes.txt'], 'a/notes.txt: not called as images or videos are'),
    (['a/1.jpg', 'a/c/1.jpg'], 'a/1.jpg and a/c/1.jpg would both be written as 1'),
])
def test_refused(sources, message):
    with pytest.raises(UserError, match=message):
        find_inputs(sources)


def test_not_a_video():
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save('x.png')
    Path('x.png').rename('x.mp4')
    Path('film.mp4').write_bytes(b'hello')
    with pytest.raises(UserError, match='video film.mp4 cannot be read'):
        Video(Path('film.mp4'))
