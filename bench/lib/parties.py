"""A mesh in which every node is a party of its own, as federated jobs want it."""

import json
import threading
import time

from cluster import Mesh
from harness import Stop


class Parties(Mesh):
    """Node `i` is called `n<i>`, and so is its party. The first one founds the mesh, and all others train for it."""

    def found(self):
        self.mesh(0, "init", "--listen", f"{self.hosts[0].address}:0", "--name", "n0", "--party", "n0")
        self.learn(0)
        for i in range(1, self.size):
            self.admit(i)
        leader = self.wait_settled()
        for i in range(1, self.size):
            self.mesh(i, "node", "label", f"n{i}", "trains=n0")
        return leader

    def admit(self, i):
        """From the third party on the others have to agree, while the newcomer waits."""
        ticket = self.mesh(0, "ticket", "new", "--new-party").splitlines()[-1]
        failed = []

        def join():
            try:
                self.mesh(i, "join", ticket, "--listen", f"{self.hosts[i].address}:0", "--name", f"n{i}", "--party", f"n{i}")
            except Stop as stop:
                failed.append(stop)

        joining = threading.Thread(target=join)
        joining.start()
        while joining.is_alive():
            for other in range(i):
                self.grant_all(other)
            time.sleep(0.05)
        joining.join()
        if failed:
            raise failed[0]
        self.learn(i)

    def grant_all(self, i):
        """Says yes to all that others ask of this party."""
        for request in json.loads(self.mesh(i, "request", "ls", "--json"))["items"]:
            try:
                self.mesh(i, "grant", str(request["id"]))
            except Stop:
                # Decided meanwhile, or its own.
                pass
