"""Two readers of the fleet's ConfigMaps with the Python client, written as for one cluster.

`informer` is the client's SharedInformer, which lists once and then watches. `resuming` also lists once; it starts a new watch
each second from the last resource version, and lists again if the response is 410. Each reader stores the objects of its events,
and reports events that contradict earlier ones: an object that is added twice, or a change of an unknown object. For each line
on standard input, the state of both is printed as a line of JSON.

    readers.py KUBECONFIG PATH      PATH is appended to the server's address
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
    """The resource version in the object's member, from the fleet-wide resource version."""
    text = config_map.metadata.resource_version
    clusters = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return clusters.get(key(config_map).split("/")[0], "").split(".")[0]


class Reader:
    def __init__(self):
        self.lock = threading.Lock()
        self.objects = {}
        self.problems = []
        self.lists = 0

    def handle_list(self, config_maps):
        with self.lock:
            self.lists += 1
            self.objects = {key(one): (version(one), one.data) for one in config_maps}

    def handle_event(self, event_type, config_map):
        name, new_version = key(config_map), version(config_map)
        with self.lock:
            known = self.objects.get(name)
            if event_type == "ADDED" and known:
                self.problems.append(f"{name} was added twice")
            if event_type != "ADDED" and not known:
                self.problems.append(f"{name} was {event_type}, but it was unknown")
            if event_type == "MODIFIED" and known and known[0] == new_version:
                self.problems.append(f"{name} was reported twice with version {new_version}")
            if event_type == "DELETED":
                self.objects.pop(name, None)
            else:
                self.objects[name] = (new_version, config_map.data)

    def handle_error(self, error):
        with self.lock:
            self.problems.append(f"{type(error).__name__}: {error}")

    def state(self):
        with self.lock:
            objects = {name: (data or {}).get("v", "") for name, (_, data) in self.objects.items()}
            return {"objects": objects, "problems": self.problems, "lists": self.lists}


def start_informer(api):
    reader = Reader()
    informer = SharedInformer(api.list_config_map_for_all_namespaces, key_func=key)
    for event_type in ("ADDED", "MODIFIED", "DELETED"):
        informer.add_event_handler(event_type, lambda one, event_type=event_type: reader.handle_event(event_type, one))
    informer.add_event_handler("ERROR", reader.handle_error)
    informer.start()
    # Listed objects are reported as added. A second list would add some of them twice, which is a problem.
    reader.lists = 1
    return reader


def start_resuming_reader(api):
    reader = Reader()
    listed = api.list_config_map_for_all_namespaces(limit=7)
    items = listed.items
    while listed.metadata._continue:
        listed = api.list_config_map_for_all_namespaces(limit=7, _continue=listed.metadata._continue)
        items += listed.items
    reader.handle_list(items)

    def watch():
        nonlocal listed
        last_version = listed.metadata.resource_version
        while True:
            watch = Watch()
            try:
                arguments = {"resource_version": last_version, "timeout_seconds": 1, "allow_watch_bookmarks": True}
                for event in watch.stream(api.list_config_map_for_all_namespaces, **arguments):
                    if event["type"] != "BOOKMARK":
                        reader.handle_event(event["type"], event["object"])
            except client.ApiException as error:
                if error.status != 410:
                    reader.handle_error(error)
                    return
                # While a cluster leaves, there is no version from which a watch can resume.
                listed = api.list_config_map_for_all_namespaces()
                reader.handle_list(listed.items)
                last_version = listed.metadata.resource_version
                continue
            except Exception as error:  # pylint: disable=broad-except
                reader.handle_error(error)
                return
            last_version = watch.resource_version

    threading.Thread(target=watch, daemon=True).start()
    return reader


def main():
    configuration = client.Configuration()
    config.load_kube_config(sys.argv[1], client_configuration=configuration)
    configuration.host += sys.argv[2].rstrip("/")
    readers = {}
    for name, start in {"informer": start_informer, "resuming": start_resuming_reader}.items():
        readers[name] = start(client.CoreV1Api(client.ApiClient(configuration)))
    for _ in sys.stdin:
        print(json.dumps({name: reader.state() for name, reader in readers.items()}), flush=True)


main()
