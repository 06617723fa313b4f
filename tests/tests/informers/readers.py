"""Two readers of the fleet's ConfigMaps, written as for one cluster, with the Python client.

`informer` is the client's SharedInformer, which lists once and goes on. `resuming` lists once, too, and then begins a watch each
second from the version that the one before reached, or lists again where that is answered with 410. Each keeps what it was told, and what it should not have been told: an object
twice, or a change of one it had not heard of. Asked by a line on standard input, both are told as a line of JSON.

    readers.py KUBECONFIG PATH      PATH is put behind the server's address
"""

import base64
import json
import sys
import threading

from kubernetes import client, config
from kubernetes.informer import SharedInformer
from kubernetes.watch import Watch

CACHED_FROM = "resource.karmada.io/cached-from-cluster"


def key(config_map):
    """Cluster, namespace and name."""
    meta = config_map.metadata
    return "/".join([(meta.annotations or {}).get(CACHED_FROM, ""), meta.namespace, meta.name])


def version(config_map):
    """That of its member, out of the fleet's."""
    text = config_map.metadata.resource_version
    clusters = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return clusters.get(key(config_map).split("/")[0], "").split(".")[0]


class Reader:
    def __init__(self):
        self.lock = threading.Lock()
        self.objects = {}
        self.problems = []
        self.beginnings = 0

    def begin(self, config_maps):
        with self.lock:
            self.beginnings += 1
            self.objects = {key(one): (version(one), one.data) for one in config_maps}

    def hear(self, kind, config_map):
        name, now = key(config_map), version(config_map)
        with self.lock:
            known = self.objects.get(name)
            if kind == "ADDED" and known:
                self.problems.append(f"{name} was added twice")
            if kind != "ADDED" and not known:
                self.problems.append(f"{name} was {kind}, and nothing was known of it")
            if kind == "MODIFIED" and known and known[0] == now:
                self.problems.append(f"{name} was told twice as of {now}")
            if kind == "DELETED":
                self.objects.pop(name, None)
            else:
                self.objects[name] = (now, config_map.data)

    def complain(self, error):
        with self.lock:
            self.problems.append(f"{type(error).__name__}: {error}")

    def told(self):
        with self.lock:
            objects = {name: (data or {}).get("v", "") for name, (_, data) in self.objects.items()}
            return {"objects": objects, "problems": self.problems, "beginnings": self.beginnings}


def inform(api):
    reader = Reader()
    informer = SharedInformer(api.list_config_map_for_all_namespaces, key_func=key)
    for kind in ("ADDED", "MODIFIED", "DELETED"):
        informer.add_event_handler(kind, lambda one, kind=kind: reader.hear(kind, one))
    informer.add_event_handler("ERROR", reader.complain)
    informer.start()
    # What it lists is told as added, each once: another beginning would add some twice, or complain.
    reader.beginnings = 1
    return reader


def resume(api):
    reader = Reader()
    listed = api.list_config_map_for_all_namespaces(limit=7)
    items = listed.items
    while listed.metadata._continue:
        listed = api.list_config_map_for_all_namespaces(limit=7, _continue=listed.metadata._continue)
        items += listed.items
    reader.begin(items)

    def watch():
        nonlocal listed
        reached = listed.metadata.resource_version
        while True:
            watch = Watch()
            try:
                arguments = {"resource_version": reached, "timeout_seconds": 1, "allow_watch_bookmarks": True}
                for event in watch.stream(api.list_config_map_for_all_namespaces, **arguments):
                    if event["type"] != "BOOKMARK":
                        reader.hear(event["type"], event["object"])
            except client.ApiException as error:
                if error.status != 410:
                    reader.complain(error)
                    return
                # While a cluster leaves, there is no version to go on from.
                listed = api.list_config_map_for_all_namespaces()
                reader.begin(listed.items)
                reached = listed.metadata.resource_version
                continue
            except Exception as error:  # pylint: disable=broad-except
                reader.complain(error)
                return
            reached = watch.resource_version

    threading.Thread(target=watch, daemon=True).start()
    return reader


def main():
    configuration = client.Configuration()
    config.load_kube_config(sys.argv[1], client_configuration=configuration)
    configuration.host += sys.argv[2].rstrip("/")
    readers = {}
    for name, begin in {"informer": inform, "resuming": resume}.items():
        readers[name] = begin(client.CoreV1Api(client.ApiClient(configuration)))
    for _ in sys.stdin:
        print(json.dumps({name: reader.told() for name, reader in readers.items()}), flush=True)


main()
