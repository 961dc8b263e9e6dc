"""What was read of files: from the cache while they are the same, and never wrong."""
import json
import os
import threading

import pytest

from downstream.data.cache import Cache, cache_folder, load, save


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv('DOWNSTREAM_CACHE', str(tmp_path / 'cache'))
    found = []
    for name in 'abc':
        (tmp_path / 'set').mkdir(exist_ok=True)
        (tmp_path / 'set' / name).write_text(name)
        found.append((str(tmp_path / 'set' / name), ))
    return found


def read(files, asked=None) -> list:
    """What is in the files, and in ``asked`` which of them were opened."""
    def contents(entries):
        for path, in entries:
            if asked is not None:
                asked.append(path[-1])
            with open(path) as file:
                yield [file.read()]
    return Cache('texts', files).read(contents)


def test_only_what_changed_is_read_again(files):
    for wanted in (['a', 'b', 'c'], []):
        asked = []
        assert read(files, asked) == [['a'], ['b'], ['c']] and asked == wanted
    path = files[1][0]
    before = os.stat(path)
    with open(path, 'w') as file:
        file.write('B')  # as long as before, and its time is set back
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    asked = []
    assert read(files, asked) == [['a'], ['B'], ['c']] and asked == ['b']
    asked = []
    assert read(files[:1], asked) == [['a']] and asked == []  # a part of them, the same folder
    assert read(files, asked) and asked == []  # and the others are not forgotten
    os.rename(files[2][0], files[0][0])
    assert read(files[:2], asked) == [['c'], ['B']] and asked == ['a']


def test_what_failed_is_tried_again(files):
    for text in ('not there', 'still not'):
        assert Cache('texts', files).read(lambda entries, text=text: [text] * len(entries)) == [
            text] * 3


def test_what_was_read_before_an_interruption_is_kept(files):
    def interrupted(entries):
        yield ['first']
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cache('texts', files).read(interrupted)
    assert Cache('texts', files).known() == [['first'], None, None]


@pytest.mark.parametrize('spoil', [
    lambda text: b'', lambda text: text[:-5], lambda text: text.replace(b'"a"', b'"x"'),
    lambda text: b'\xff' + text, lambda text: b'{}'])
def test_a_damaged_cache_is_none(files, spoil):
    read(files)
    file, = cache_folder().rglob('*.json')
    file.write_bytes(spoil(file.read_bytes()))
    assert load(file) == {} and read(files) == [['a'], ['b'], ['c']]
    assert len(load(file)) == 3  # written anew


def test_a_cache_that_cannot_be_written(files, monkeypatch, tmp_path):
    (tmp_path / 'file').write_text('')  # (a read-only folder stops no superuser)
    monkeypatch.setenv('DOWNSTREAM_CACHE', str(tmp_path / 'file'))
    asked = []
    assert read(files, asked) == read(files, asked) == [['a'], ['b'], ['c']]
    assert asked == list('abcabc')


def test_several_write_at_once(tmp_path):
    """One of them wins, whole; no other file stays."""
    file = tmp_path / 'x.json'
    contents = [{str(i): [i] * 5000} for i in range(4)]
    torn = []

    def write(content):
        for _ in range(20):
            save(file, content)
            if load(file) not in contents:
                torn.append(1)

    threads = [threading.Thread(target=write, args=(content, )) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torn and os.listdir(tmp_path) == ['x.json'] and load(file) in contents


def test_it_holds_json_alone(files):
    """No pickle: what lies in a cache folder is never executed."""
    read(files)
    file, = cache_folder().rglob('*.json')
    assert set(json.loads(file.read_bytes().split(b'\n', 1)[1])) == {path for path, in files}
