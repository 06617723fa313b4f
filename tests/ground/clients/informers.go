package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"crowsnest/ground/clients/record"
)

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// gates turn the feature WatchListClient on and off. An informer reads the gate once, when it starts.
type gates struct {
	clientfeatures.Gates
	watchList atomic.Bool
}

func (g *gates) Enabled(feature clientfeatures.Feature) bool {
	if feature == clientfeatures.WatchListClient {
		return g.watchList.Load()
	}
	return g.Gates.Enabled(feature)
}

// newGates replaces the feature gates of client-go in this process.
func newGates() *gates {
	g := &gates{Gates: clientfeatures.FeatureGates()}
	clientfeatures.ReplaceFeatureGates(g)
	return g
}

// informer is a shared informer of ConfigMaps in one namespace, whose requests and events are recorded.
type informer struct {
	// name of the client, such as "dynamic"
	name string
	// streams is true if the informer begins with a stream (WatchList), not with a list.
	streams  bool
	requests *record.Counter
	history  *record.History
	informer cache.SharedIndexInformer
}

// clientKinds are the kinds of client-go clients that informers use.
var clientKinds = []struct {
	name  string
	build func(config *rest.Config, namespace string) (cache.SharedIndexInformer, error)
}{
	{"typed", func(config *rest.Config, namespace string) (cache.SharedIndexInformer, error) {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
		return factory.Core().V1().ConfigMaps().Informer(), nil
	}},
	{"dynamic", func(config *rest.Config, namespace string) (cache.SharedIndexInformer, error) {
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		return dynamicinformer.NewFilteredDynamicInformer(client, configMaps, namespace, 0, cache.Indexers{}, nil).Informer(), nil
	}},
	{"metadata", func(config *rest.Config, namespace string) (cache.SharedIndexInformer, error) {
		client, err := metadata.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		return metadatainformer.NewFilteredMetadataInformer(client, configMaps, namespace, 0, cache.Indexers{}, nil).Informer(), nil
	}},
}

// startInformers starts an informer for each kind of client, with lists or with streams, and waits until all have synced.
func startInformers(ctx context.Context, g *gates, config *rest.Config, namespace string, streams bool) ([]*informer, error) {
	g.watchList.Store(streams)
	var started []*informer
	for _, kind := range clientKinds {
		i := &informer{name: kind.name, streams: streams, history: record.NewHistory()}
		i.requests = &record.Counter{Collection: "/namespaces/" + namespace + "/configmaps"}
		configWithCounter := rest.CopyConfig(config)
		configWithCounter.Wrap(func(next http.RoundTripper) http.RoundTripper {
			i.requests.Next = next
			return i.requests
		})
		var err error
		if i.informer, err = kind.build(configWithCounter, namespace); err != nil {
			return nil, err
		}
		if _, err := i.informer.AddEventHandler(i.handler()); err != nil {
			return nil, err
		}
		go i.informer.RunWithContext(ctx)
		started = append(started, i)
	}
	for _, i := range started {
		if err := waitFor(ctx, syncTimeout, func() string {
			if i.informer.HasSynced() {
				return ""
			}
			return fmt.Sprintf("the %s informer has not synced (%v)", i.name, i.requests.Total())
		}); err != nil {
			return nil, err
		}
	}
	return started, nil
}

// handler records the events of objects that the churn writes.
func (i *informer) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if name, state, ok := stateOf(object); ok {
				i.history.Add(name, state)
			}
		},
		UpdateFunc: func(_, object any) {
			if name, state, ok := stateOf(object); ok {
				i.history.Update(name, state)
			}
		},
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if name, state, ok := stateOf(object); ok {
				i.history.Delete(name, state)
			}
		},
	}
}

// stateOf reads an object of any kind of client; false if the churn did not write it.
func stateOf(object any) (string, record.State, bool) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", record.State{}, false
	}
	sequence, err := strconv.Atoi(accessor.GetAnnotations()[sequenceAnnotation])
	return accessor.GetName(), record.State{UID: string(accessor.GetUID()), Sequence: sequence, Version: accessor.GetResourceVersion()}, err == nil
}

// store returns the objects of the informer's store by name.
func (i *informer) store() map[string]record.State {
	objects := map[string]record.State{}
	for _, object := range i.informer.GetStore().List() {
		if name, state, ok := stateOf(object); ok {
			objects[name] = state
		}
	}
	return objects
}

// listObjects lists the objects without an informer, by name.
func listObjects(ctx context.Context, client kubernetes.Interface, namespace string) (map[string]record.State, error) {
	configMaps, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	objects := map[string]record.State{}
	for index := range configMaps.Items {
		if name, state, ok := stateOf(&configMaps.Items[index]); ok {
			objects[name] = state
		}
	}
	return objects, nil
}

// withoutVersions removes resource versions, so that objects that were read through different addresses can be compared.
func withoutVersions(objects map[string]record.State) map[string]record.State {
	plain := map[string]record.State{}
	for name, object := range objects {
		object.Version = ""
		plain[name] = object
	}
	return plain
}

// waitFor waits until a condition returns an empty string instead of a problem.
func waitFor(ctx context.Context, limit time.Duration, condition func() string) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		problem := condition()
		if problem == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("after %v, %s", limit, problem)
		case <-poll.C:
		}
	}
}
