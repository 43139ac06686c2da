"""Serves an archive of this node to nodes of its cluster, while its client is there.

Only to who knows the token, on one address of the node. What is served is no secret (packages of an
index), and what arrives is trusted by its SHA-256 alone, which nodes get from their client.
"""

import http.server
import os
import re
import shutil
import socketserver
import sys
import threading

from cloudtrain.node import client


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256
    folder = b""
    token = ""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        found = re.match(r"/([0-9a-f]+)/(part-\d+\.tar\.[a-z]+)\Z", self.path)
        if found is None or found.group(1) != Server.token:
            self.send_error(404)
            return
        with open(os.path.join(Server.folder, found.group(2).encode()), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            wanted = re.match(r"bytes=(\d+)-(\d+)\Z", self.headers.get("Range") or "")
            first, last = (int(wanted.group(1)), int(wanted.group(2))) if wanted else (0, size - 1)
            last = min(last, size - 1)
            if first > last:
                self.send_error(416)
                return
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(last - first + 1))
            self.end_headers()
            self.wfile.flush()
            while first <= last:
                sent = os.sendfile(self.connection.fileno(), file.fileno(), first, last + 1 - first)
                if not sent:
                    raise ConnectionError("the peer is gone")
                first += sent

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: paths have the token."""


def main() -> None:
    order = client.order()
    archive = os.path.abspath(client.plain(order["archive"]))
    address, token = str(order["address"]), str(order["token"])
    Server.folder, Server.token = archive + b"/parts", token
    try:
        server = Server((address, 0), Handler)
    except OSError as error:
        client.tell({"error": str(error)})
        os._exit(0)
    client.attend()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client.tell({"port": server.server_address[1]})
    while sys.stdin.buffer.read(1 << 16):
        pass
    shutil.rmtree(archive, ignore_errors=True)
    os._exit(0)
