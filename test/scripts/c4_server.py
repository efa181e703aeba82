#!/usr/bin/env python3
"""A hub that misbehaves, for c4_hub.h: c4_server.py FOLDER LOG

Serves FOLDER at http://127.0.0.1:PORT/MODE/...; prints "PORT PID" first and ends with its parent.
LOG gets a line for each request: MODE, file, Range. The modes, N counts the requests for a file:

  ok              as it should be, with ranges
  truncate        each answer ends after a third of what it announced
  reset           the first two answers break off in the middle with a TCP reset
  stuck           knows no ranges and always ends after 2,000 bytes
  norange         knows no ranges, the first answer is cut
  status-C-N      the first N answers have status C; with -after-S also Retry-After: S, or the
                  time in 100 seconds if S is "date"
  html, htmlgzip  a web page with status 200, as text/html or as application/gzip
  late-html       half of the file, then such a page
  long, short     announces 10 bytes more, or fewer, than there are
  empty           no body
  crc-N           the first N answers have a wrong byte
  hub, hub-sha    redirects as the hub does, with size and hash of the file, or a wrong hash
  slow            4 KB every 4 ms
"""
import hashlib
import os
import socket
import struct
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

folder, log_path = sys.argv[1:]
counts = {}
lock = threading.Lock()
PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=(), length=None):
        """`length`: announced, if not that of the body; the connection closes behind the body."""
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def do_GET(self):
        _, mode, path = self.path.split("/", 2)
        asked = self.headers.get("Range", "")
        with lock:
            n = counts[self.path] = counts.get(self.path, 0) + 1
            with open(log_path, "a") as log:
                log.write(f"{mode} {path} {asked}\n")
        try:
            with open(os.path.join(folder, path), "rb") as file:
                data = file.read()
        except OSError:
            return self.answer(404, b"not here")
        mode, *numbers = mode.split("-") if mode.startswith(("status", "crc")) else [mode]
        if mode == "status" and n <= int(numbers[1]):
            after = [("Retry-After", numbers[3])] if len(numbers) > 2 else []
            if after and numbers[3] == "date":
                after = [("Retry-After", formatdate(time.time() + 100, usegmt=True))]
            return self.answer(int(numbers[0]), b"<html>no</html>", after)
        if mode in ("html", "htmlgzip") or (mode == "late-html" and n > 1):
            kind = "application/gzip" if mode == "htmlgzip" else "text/html; charset=utf-8"
            return self.answer(200, PAGE, [("Content-Type", kind)])
        if mode == "empty":
            return self.answer(200)
        if mode in ("hub", "hub-sha"):
            sha = hashlib.sha256(data).hexdigest() if mode == "hub" else "0" * 64
            return self.answer(302, headers=[
                ("Location", f"/ok/{path}"), ("X-Linked-Size", str(len(data))),
                ("X-Linked-ETag", f'"{sha}"'), ("Content-Type", "text/html")])
        if mode == "crc" and n <= int(numbers[0]):
            at = len(data) // 2
            data = data[:at] + bytes([data[at] ^ 255]) + data[at + 1:]
        if mode in ("long", "short"):
            length = len(data) + (10 if mode == "long" else -10)
            if asked:  # consistent: as if the file had that length
                first = int(asked[6:-1])
                return self.answer(206, data[first:length], [
                    ("Content-Range", f"bytes {first}-{length - 1}/{length}")], length - first)
            return self.answer(200, data[:length], length=length)
        status, headers, body = 200, [("Content-Type", "application/gzip")], data
        if asked and mode not in ("stuck", "norange"):
            first = int(asked[6:-1])
            if first >= len(data):
                return self.answer(416, headers=[("Content-Range", f"bytes */{len(data)}")])
            status, body = 206, data[first:]
            headers.append(("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}"))
        whole = len(body)
        if mode == "truncate" and whole > 500:
            body = body[:whole // 3]
        elif mode == "stuck":
            body = body[:2000]
        elif (mode == "norange" and n == 1) or mode == "late-html":
            body = body[:whole // 2]
        elif mode == "reset" and n <= 2:
            self.answer(status, body[:whole // 2], headers, whole)
            self.wfile.flush()
            time.sleep(0.1)  # what was sent shall arrive
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return os.close(self.connection.detach())
        elif mode == "slow":
            self.answer(status, b"", headers, whole)
            for at in range(0, whole, 4096):
                self.wfile.write(body[at:at + 4096])
                time.sleep(0.004)
            return None
        return self.answer(status, body, headers, whole)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args):
        pass  # clients that go away are what is tested


server = Server(("127.0.0.1", 0), Handler)
print(server.server_address[1], os.getpid(), flush=True)
parent = os.getppid()
threading.Thread(target=server.serve_forever, daemon=True).start()
while os.getppid() == parent:
    time.sleep(0.2)
