"""A web server of this machine, which fails in the ways that servers do."""
import contextlib
import http.server
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves files of a dict in parts; ``breaks`` holds after how many bytes, for each request."""

    def do_HEAD(self):
        content = self.server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()

    def do_GET(self):
        content = self.server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        asked = self.headers.get('Range')
        self.server.ranges.append(asked)
        self.server.paths.append(self.path)
        start = int(asked.removeprefix('bytes=').removesuffix('-')) if asked else 0
        if start and not self.server.resumes:
            start = 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header('Content-Range', f'bytes */{len(content)}')
            self.send_header('Content-Length', '0')
            return self.end_headers()
        self.send_response(206 if start else 200)
        if content.startswith(b'<html>'):
            self.send_header('Content-Type', 'text/html; charset=utf-8')
        self.send_header('Content-Length', str(len(content) - start))
        self.end_headers()
        stop = start + self.server.breaks.pop(0) if self.server.breaks else None
        self.wfile.write(content[start:stop])

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serving():
    """A server with ``url``, ``files`` ({path: bytes}), and what was asked (``paths``, ``ranges``).
    """
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
        server.files, server.breaks, server.ranges, server.paths = {}, [], [], []
        server.resumes = True
        server.url = f'http://127.0.0.1:{server.server_port}'
        thread = threading.Thread(target=server.serve_forever, args=(0.01, ), daemon=True)
        thread.start()
        yield server
        server.shutdown()
