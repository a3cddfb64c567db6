"""A member of a BitTorrent swarm on libtorrent, for bench/swarm: over TCP, and only with those it is told of.

    torrent.py make FILE TORRENT
    torrent.py seed|get TORRENT DIR ADDRESS PORT [ADDRESS:PORT …]     "ready" ─ a line comes ─ {"seconds": …}
"""

import json
import os
import sys
import time

import libtorrent

PIECE_BYTES = 1 << 20


def make(file, torrent):
    storage = libtorrent.file_storage()
    libtorrent.add_files(storage, file)
    made = libtorrent.create_torrent(storage, PIECE_BYTES, libtorrent.create_torrent.v1_only)
    libtorrent.set_piece_hashes(made, os.path.dirname(file))
    with open(torrent, "wb") as out:
        out.write(libtorrent.bencode(made.generate()))


def take_part(role, torrent, dir, address, port, *others):
    session = libtorrent.session({
        "listen_interfaces": f"{address}:{port}",
        "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
        "enable_outgoing_utp": False, "enable_incoming_utp": False, "alert_mask": 0,
    })
    wanted = libtorrent.add_torrent_params()
    wanted.ti, wanted.save_path = libtorrent.torrent_info(torrent), dir
    flags = libtorrent.torrent_flags
    wanted.flags &= ~(flags.auto_managed | flags.paused)
    if role == "seed":
        wanted.flags |= flags.seed_mode
        handle = session.add_torrent(wanted)
    say("ready")
    sys.stdin.readline()
    if role == "get":
        began = time.monotonic()
        handle = session.add_torrent(wanted)
        for other in others:
            host, port = other.rsplit(":", 1)
            handle.connect_peer((host, int(port)))
        while not handle.status().is_seeding:
            time.sleep(0.02)
        say({"seconds": time.monotonic() - began})
    sys.stdin.read()


def say(value):
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    {"make": make}.get(sys.argv[1], lambda *words: take_part(sys.argv[1], *words))(*sys.argv[2:])
