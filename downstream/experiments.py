"""Where the experiments' configs lie, and how a config that lies elsewhere inherits them."""
import difflib
from pathlib import Path

from .errors import UserError

HERE = Path(__file__).resolve().parent
# Inside this package once it is installed (setup.py), beside it in a checkout.
CONFIGS = next((path for path in (HERE / 'configs', HERE.parent / 'configs') if path.is_dir()),
               HERE / 'configs')
ROOT = CONFIGS.parent  # the checkout


def inherit(*names: str) -> list[str]:
    """The paths of the project's configs, for the ``_base_`` of a config anywhere.

    ``_base_ = __import__('downstream').inherit('maskrcnn_focalnet_t_1x.py')``. mmengine evaluates
    ``_base_`` as an expression and takes a file with an ``import`` statement for another kind of
    config, hence ``__import__``. (Its own ``PACKAGE::FILE`` finds packages of OpenMMLab only, and
    only files in folders.)

    Args:
        names: relative to configs/, e.g. '_base_/models/maskrcnn.py'.

    Raises:
        UserError: there is no such config.
    """
    known = {path.relative_to(CONFIGS).as_posix(): str(path) for path in CONFIGS.rglob('*.py')}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            raise UserError(f'the project has no config {name}'
                            + (f'; did you mean {" or ".join(close)}?' if close else ''))
    return [known[name] for name in names]
