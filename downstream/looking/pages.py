"""HTML pages that are one file: they need no network and can be mailed."""
import base64
import datetime
import io
from pathlib import Path

import jinja2
import numpy as np
from PIL import Image

from ..errors import UserError
from ..saving import write_whole

LONGEST = 480  # pixels of a picture's longer side
# Names may hold escapes of a terminal, in which somebody may look at a page's text too.
CONTROLS = {i: repr(chr(i))[1:-1] for i in (*range(32), *range(127, 160)) if chr(i) not in '\t\n\r'}


def template(name: str, **filters) -> jinja2.Template:
    """A template of this folder; what is put into it is escaped. It knows ``now``, in words."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(filters)
    environment.globals['now'] = datetime.datetime.now().strftime('%Y-%m-%d %H:%M')
    return environment.get_template(name)


def data_uri(image: np.ndarray, longest: int = LONGEST) -> str:
    """(H, W, 3) RGB as an image that the page itself holds."""
    picture = Image.fromarray(image)
    picture.thumbnail((longest, longest))
    buffer = io.BytesIO()
    picture.save(buffer, 'WEBP', quality=80)
    return 'data:image/webp;base64,' + base64.b64encode(buffer.getvalue()).decode()


def save_page(text: str, folder: Path, flag: str) -> Path:
    """Write index.html into a folder.

    Args:
        flag: what named the folder, for the message.

    Raises:
        UserError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page = folder / 'index.html'
        # Names of files may hold bytes that are no text.
        write_whole(page, text.translate(CONTROLS).encode(errors='backslashreplace'))
    except OSError as error:
        raise UserError(f'{flag} {folder} cannot be written: {error.strerror}') from None
    return page
