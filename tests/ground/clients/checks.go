package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"crowsnest/ground/clients/options"
	"crowsnest/ground/clients/record"
)

const (
	// syncTimeout limits the initial sync of an informer, and its delay after the last write.
	syncTimeout = 30 * time.Second
	// startTimeout limits the start of `crowsnest up`.
	startTimeout = 5 * time.Minute
)

// minWatchDuration is the shortest time after which client-go ends a watch and starts another one.
const minWatchDuration = 5 * time.Minute

// observation is an address with its informers and the expected writes.
type observation struct {
	address
	churn     *churn
	client    kubernetes.Interface
	origin    kubernetes.Interface
	informers []*informer
}

// checkInformers runs informers at all addresses while objects are written. If this program started crowsnest, the check is repeated while
// crowsnest is restarted.
func checkInformers(ctx context.Context, o options.Options, config *rest.Config, addresses []address, fleet *crowsnest, r *results) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.Member != "" {
		if err := registerConfigMaps(ctx, config, o.Member); err != nil {
			return err
		}
		if err := waitForFleet(ctx, addresses); err != nil {
			return err
		}
	}
	targets, churns, err := observe(ctx, o, addresses)
	if err != nil {
		return err
	}
	writeCtx, cancelWrites := context.WithTimeout(ctx, o.Duration)
	defer cancelWrites()
	if err := errors.Join(runChurns(writeCtx, churns, o.Seed), ctx.Err()); err != nil {
		return err
	}
	before := map[*informer]record.Requests{}
	for _, target := range targets {
		for _, i := range target.informers {
			r.add(target.name, i.title(), i.summary(record.Requests{}), target.check(ctx, i))
			before[i] = i.requests.Total()
		}
	}
	if fleet == nil {
		return nil
	}
	for _, churn := range churns {
		churn.tolerant = true
	}
	// Writes continue during the restart of crowsnest, and afterwards for the same duration as before.
	restartCtx, cancelRestartWrites := context.WithCancel(ctx)
	defer cancelRestartWrites()
	restartResult := make(chan error, 1)
	go func() {
		err := fleet.restart(ctx, o.Member)
		if err != nil {
			cancelRestartWrites()
		}
		time.AfterFunc(o.Duration, cancelRestartWrites)
		restartResult <- err
	}()
	err = runChurns(restartCtx, churns, o.Seed+1)
	if err := errors.Join(<-restartResult, err, ctx.Err()); err != nil {
		return err
	}
	for _, target := range targets {
		for _, i := range target.informers {
			r.add(target.name, i.title()+" after a restart", i.summary(before[i]), target.checkAfterRestart(ctx, i, before[i]))
		}
	}
	return nil
}

// observe starts all informers. Addresses of the same cluster share one churn.
func observe(ctx context.Context, o options.Options, addresses []address) ([]*observation, []*churn, error) {
	g := newGates()
	var targets []*observation
	churns := map[string]*churn{}
	var startedChurns []*churn
	for _, a := range addresses {
		client, err := kubernetes.NewForConfig(a.config)
		if err != nil {
			return nil, nil, err
		}
		origin, err := kubernetes.NewForConfig(a.origin)
		if err != nil {
			return nil, nil, err
		}
		if churns[a.namespace] == nil {
			churns[a.namespace] = newChurn(origin.CoreV1().ConfigMaps(a.namespace), o.Rate)
			startedChurns = append(startedChurns, churns[a.namespace])
		}
		target := &observation{address: a, churn: churns[a.namespace], client: client, origin: origin}
		for _, streams := range []bool{false, true} {
			informers, err := startInformers(ctx, g, a.config, a.namespace, streams)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", a.name, err)
			}
			target.informers = append(target.informers, informers...)
		}
		targets = append(targets, target)
	}
	return targets, startedChurns, nil
}

// runChurns writes to all clusters concurrently until the context is done.
func runChurns(ctx context.Context, churns []*churn, seed uint64) error {
	failures := make([]error, len(churns))
	var running sync.WaitGroup
	for index, churn := range churns {
		running.Go(func() { failures[index] = churn.run(ctx, seed) })
	}
	running.Wait()
	return errors.Join(failures...)
}

// title returns the name of an informer in the output.
func (i *informer) title() string {
	if i.streams {
		return i.name + " informer, WatchList"
	}
	return i.name + " informer"
}

// summary formats the numbers of events and of requests since an earlier count.
func (i *informer) summary(since record.Requests) string {
	return fmt.Sprintf("%d events, %v", i.history.Count(), i.requests.Total().Since(since))
}

// check returns the problems of an informer that ran without a restart of its server.
func (t *observation) check(ctx context.Context, i *informer) []string {
	problems := t.checkStore(ctx, i)
	err := waitFor(ctx, syncTimeout, func() string {
		if differences := i.history.Differences(t.churn.writes); len(differences) > 0 {
			return differences[0]
		}
		return ""
	})
	if err != nil {
		problems = append(problems, i.history.Differences(t.churn.writes)...)
	}
	contradictions, replayed := i.history.Contradictions()
	problems = append(problems, contradictions...)
	if replayed > 0 {
		problems = append(problems, fmt.Sprintf("%d events repeat an unchanged object", replayed))
	}
	want := record.Requests{Lists: 1, Watches: i.requests.Total().Watches}
	if i.streams {
		want.Lists, want.Streams = 0, 1
	}
	if got := i.requests.Total(); got != want {
		problems = append(problems, fmt.Sprintf("%v, not %v", got, want))
	}
	if maximum := 1 + int(time.Since(t.churn.startedAt)/minWatchDuration); want.Watches > maximum {
		problems = append(problems, fmt.Sprintf("%d watches, expected at most %d", want.Watches, maximum))
	}
	return problems
}

// checkAfterRestart returns the problems of an informer after its server was restarted. It may have listed once more.
func (t *observation) checkAfterRestart(ctx context.Context, i *informer, before record.Requests) []string {
	problems := t.checkStore(ctx, i)
	contradictions, _ := i.history.Contradictions()
	problems = append(problems, contradictions...)
	if got := i.requests.Total().Since(before); got.Lists+got.Streams > 1 {
		problems = append(problems, fmt.Sprintf("%d lists and %d streams for one restart", got.Lists, got.Streams))
	}
	return problems
}

// checkStore compares an informer's store with a list from the same address, and with one from the cluster itself.
func (t *observation) checkStore(ctx context.Context, i *informer) []string {
	var differences []string
	err := waitFor(ctx, syncTimeout, func() string {
		listed, err := listObjects(ctx, t.client, t.namespace)
		if err != nil {
			return fmt.Sprintf("cannot list: %v", err)
		}
		origin, err := listObjects(ctx, t.origin, t.namespace)
		if err != nil {
			return fmt.Sprintf("cannot list in the cluster: %v", err)
		}
		store := i.store()
		differences = slices.Concat(record.StoreDifferences(store, listed), record.StoreDifferences(withoutVersions(store), withoutVersions(origin)))
		if len(differences) > 0 {
			return differences[0]
		}
		return ""
	})
	if err != nil && len(differences) == 0 {
		return []string{err.Error()}
	}
	return differences
}

var resourceRegistries = schema.GroupVersionResource{Group: "search.karmada.io", Version: "v1alpha1", Resource: "resourceregistries"}

// registerConfigMaps adds a member's ConfigMaps to the fleet-wide proxy.
func registerConfigMaps(ctx context.Context, config *rest.Config, member string) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	registry := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry",
		"metadata": map[string]any{"name": "ground-clients"},
		"spec": map[string]any{
			"targetCluster":     map[string]any{"clusterNames": []any{member}},
			"resourceSelectors": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}},
		},
	}}
	_, err = client.Resource(resourceRegistries).Apply(ctx, registry.GetName(), registry, metav1.ApplyOptions{FieldManager: "ground-clients", Force: true})
	return err
}

// waitForFleet waits until the fleet-wide proxy shows a ConfigMap of the member.
func waitForFleet(ctx context.Context, addresses []address) error {
	for _, a := range addresses {
		if a.name != fleetProxyName {
			continue
		}
		origin, err := kubernetes.NewForConfig(a.origin)
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(a.config)
		if err != nil {
			return err
		}
		// The ConfigMap has no sequence, so informers ignore it.
		marker := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "marker"}}
		if _, err := origin.CoreV1().ConfigMaps(a.namespace).Create(ctx, marker, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := waitFor(ctx, syncTimeout, func() string {
			if _, err := client.CoreV1().ConfigMaps(a.namespace).Get(ctx, marker.Name, metav1.GetOptions{}); err != nil {
				return fmt.Sprintf("the fleet-wide proxy does not show the member's ConfigMaps: %v", err)
			}
			return ""
		}); err != nil {
			return err
		}
	}
	return nil
}
