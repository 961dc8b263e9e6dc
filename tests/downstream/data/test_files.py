"""What lies in a folder: links, pipes and folders where images are expected."""
import os

import pytest
from PIL import Image

from downstream.data.files import files_in, images_in, read_lines, read_list, read_yaml
from downstream.errors import UserError


def names(folder):
    return [path.relative_to(folder).as_posix() for path in images_in(folder)]


def image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (4, 4)).save(path)


def test_images_below_a_folder(tmp_path):
    image(tmp_path / 'set/b/1.jpg')
    image(tmp_path / 'set/a.PNG')
    image(tmp_path / 'set/._a.png')  # macOS
    (tmp_path / 'set/note.txt').write_text('')
    (tmp_path / 'set/folder.jpg').mkdir()
    os.mkfifo(tmp_path / 'set/pipe.jpg')  # reading one waits for ever
    (tmp_path / 'set/broken.jpg').symlink_to('nowhere')
    image(tmp_path / 'elsewhere/2.jpg')
    (tmp_path / 'set/link').symlink_to(tmp_path / 'elsewhere')
    (tmp_path / 'set/3.jpg').symlink_to(tmp_path / 'elsewhere/2.jpg')
    assert names(tmp_path / 'set') == ['3.jpg', 'a.PNG', 'b/1.jpg', 'link/2.jpg']


def test_links_that_lead_back(tmp_path):
    image(tmp_path / 'a/1.jpg')
    image(tmp_path / 'b/2.jpg')
    (tmp_path / 'a/up').symlink_to(tmp_path)
    (tmp_path / 'a/b').symlink_to(tmp_path / 'b')
    (tmp_path / 'b/a').symlink_to(tmp_path / 'a')
    (tmp_path / 'loop.jpg').symlink_to(tmp_path / 'loop.jpg')
    assert {'1.jpg', 'b/2.jpg'} <= set(names(tmp_path / 'a'))
    assert len(names(tmp_path)) == 4  # a/1, a/b/2, b/2, b/a/1


def test_links_of_every_folder_to_every_other(tmp_path):
    """Ways through n such folders are n! and more: nobody would live to see the end."""
    image(tmp_path / 'set/1.jpg')
    for i in range(12):
        (tmp_path / f'set/{i}').mkdir()
        for j in range(12):
            (tmp_path / f'set/{i}/{j}').symlink_to(tmp_path / f'set/{j}')
    with pytest.raises(UserError, match='over 100 links lead to the folder .*: take out those'):
        images_in(tmp_path / 'set')


def test_what_is_no_folder_or_no_file(tmp_path):
    (tmp_path / 'x.yaml').mkdir()
    with pytest.raises(UserError, match='the folder .*no cannot be read: No such file'):
        list(files_in(tmp_path / 'no'))
    for read in (read_yaml, read_lines, read_list):
        with pytest.raises(UserError, match='x.yaml cannot be read: Is a directory'):
            read(tmp_path / 'x.yaml')


def test_a_list_of_names(tmp_path):
    (tmp_path / 'x.txt').write_text('\ufeffroad \r\ncar\n\n\n', encoding='utf-8')
    assert read_list(tmp_path / 'x.txt') == ['road', 'car']
    (tmp_path / 'x.txt').write_text('\nroad')
    with pytest.raises(UserError, match='x.txt:1: the line is blank'):
        read_list(tmp_path / 'x.txt')
