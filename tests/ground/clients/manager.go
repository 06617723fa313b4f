package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	metav1apply "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"crowsnest/ground/clients/record"
)

const (
	roleLabel   = "ground.crowsnest.io/role"
	sourceRole  = "source"
	copySuffix  = "-copy"
	copierOwner = "ground-copier"
	// sourceCount is the number of objects that the manager copies.
	sourceCount = 20
)

// copier keeps a copy of each ConfigMap that has the label of a source, by server-side apply.
type copier struct {
	client client.Client
	// name of the manager, a label of each copy
	name       string
	reconciles *atomic.Int64
}

func (c *copier) Reconcile(ctx context.Context, request controllerruntime.Request) (controllerruntime.Result, error) {
	c.reconciles.Add(1)
	var source corev1.ConfigMap
	if err := c.client.Get(ctx, request.NamespacedName, &source); err != nil {
		return controllerruntime.Result{}, client.IgnoreNotFound(err)
	}
	if source.Labels[roleLabel] != sourceRole || source.DeletionTimestamp != nil {
		return controllerruntime.Result{}, nil
	}
	owner := metav1apply.OwnerReference().WithAPIVersion("v1").WithKind("ConfigMap").
		WithName(source.Name).WithUID(source.UID).WithController(true).WithBlockOwnerDeletion(true)
	copied := corev1apply.ConfigMap(source.Name+copySuffix, source.Namespace).
		WithOwnerReferences(owner).WithData(source.Data).WithLabels(map[string]string{"ground.crowsnest.io/manager": c.name})
	return controllerruntime.Result{}, c.client.Apply(ctx, copied, client.FieldOwner(copierOwner), client.ForceOwnership)
}

// runningManager is a manager with its own election, cache and requests.
type runningManager struct {
	requests   *record.Counter
	reconciles atomic.Int64
	elected    <-chan struct{}
	stop       context.CancelFunc
	// result receives the error of the manager when it ends.
	result chan error
}

// startManager starts a manager that copies sources once it is elected.
func startManager(ctx context.Context, a address, name string) (*runningManager, error) {
	r := &runningManager{requests: &record.Counter{Collection: "/namespaces/" + a.namespace + "/configmaps"}, result: make(chan error, 1)}
	configWithCounter := rest.CopyConfig(a.config)
	configWithCounter.Wrap(func(next http.RoundTripper) http.RoundTripper {
		r.requests.Next = next
		return r.requests
	})
	lease, renew, retry := 6*time.Second, 4*time.Second, time.Second
	skipNameValidation := true
	manager, err := controllerruntime.NewManager(configWithCounter, controllerruntime.Options{
		Scheme:                        scheme.Scheme,
		Metrics:                       server.Options{BindAddress: "0"},
		Cache:                         cache.Options{DefaultNamespaces: map[string]cache.Config{a.namespace: {}}},
		LeaderElection:                true,
		LeaderElectionID:              "ground-copier",
		LeaderElectionNamespace:       a.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &lease, RenewDeadline: &renew, RetryPeriod: &retry,
		// Two managers in this process have a controller with the same name.
		Controller: config.Controller{SkipNameValidation: &skipNameValidation},
	})
	if err != nil {
		return nil, err
	}
	c := &copier{client: manager.GetClient(), name: name, reconciles: &r.reconciles}
	if err := controllerruntime.NewControllerManagedBy(manager).For(&corev1.ConfigMap{}).Owns(&corev1.ConfigMap{}).Complete(c); err != nil {
		return nil, err
	}
	r.elected = manager.Elected()
	ctx, r.stop = context.WithCancel(ctx)
	go func() { r.result <- manager.Start(ctx) }()
	return r, nil
}

// waitForElection waits until the manager is elected.
func (r *runningManager) waitForElection(ctx context.Context) error {
	select {
	case <-r.elected:
		return nil
	case err := <-r.result:
		return fmt.Errorf("the manager ended: %w", err)
	case <-time.After(syncTimeout):
		return fmt.Errorf("the manager was not elected within %v", syncTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkManager runs two managers, one of which is elected, stops it so that the other one is elected, and compares the copies with their
// sources.
func checkManager(ctx context.Context, a address) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	direct, err := client.New(a.config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return "", err
	}
	first, err := startManager(ctx, a, "first")
	if err != nil {
		return "", err
	}
	if err := first.waitForElection(ctx); err != nil {
		return "", err
	}
	second, err := startManager(ctx, a, "second")
	if err != nil {
		return "", err
	}
	if err := writeSources(ctx, direct, a.namespace, "one"); err != nil {
		return "", err
	}
	if err := waitForCopies(ctx, direct, a.namespace, "one", "first"); err != nil {
		return "", err
	}
	if count := second.reconciles.Load(); count > 0 {
		return "", fmt.Errorf("a manager that is not elected reconciled %d times", count)
	}
	first.stop()
	if err := <-first.result; err != nil {
		return "", fmt.Errorf("the first manager ended with %w", err)
	}
	if err := second.waitForElection(ctx); err != nil {
		return "", err
	}
	if err := writeSources(ctx, direct, a.namespace, "two"); err != nil {
		return "", err
	}
	if err := waitForCopies(ctx, direct, a.namespace, "two", "second"); err != nil {
		return "", err
	}
	if err := checkOwnership(ctx, direct, a.namespace); err != nil {
		return "", err
	}
	if err := checkQuiet(ctx, second); err != nil {
		return "", err
	}
	if err := deleteSources(ctx, direct, a.namespace); err != nil {
		return "", err
	}
	second.stop()
	if err := <-second.result; err != nil {
		return "", fmt.Errorf("the second manager ended with %w", err)
	}
	var problems []string
	for _, manager := range []*runningManager{first, second} {
		if got := manager.requests.Total(); got.Lists+got.Streams != 1 {
			problems = append(problems, fmt.Sprintf("a cache made %v, not one list or stream", got))
		}
	}
	note := fmt.Sprintf("%d and %d reconciles; %v", first.reconciles.Load(), second.reconciles.Load(), second.requests.Total())
	if len(problems) > 0 {
		return note, errors.New(strings.Join(problems, "\n"))
	}
	return note, nil
}

// writeSources writes the same text to all sources concurrently.
func writeSources(ctx context.Context, direct client.Client, namespace, text string) error {
	failures := make([]error, sourceCount)
	var writing sync.WaitGroup
	for index := range sourceCount {
		writing.Go(func() {
			source := corev1apply.ConfigMap(fmt.Sprintf("source-%d", index), namespace).
				WithLabels(map[string]string{roleLabel: sourceRole}).WithData(map[string]string{"text": text})
			failures[index] = direct.Apply(ctx, source, client.FieldOwner("ground-writer"))
		})
	}
	writing.Wait()
	return errors.Join(failures...)
}

// waitForCopies waits until each source has a copy with the text, made by the manager.
func waitForCopies(ctx context.Context, direct client.Client, namespace, text, manager string) error {
	return waitFor(ctx, syncTimeout, func() string {
		for index := range sourceCount {
			var copied corev1.ConfigMap
			key := client.ObjectKey{Namespace: namespace, Name: fmt.Sprintf("source-%d%s", index, copySuffix)}
			if err := direct.Get(ctx, key, &copied); err != nil {
				return fmt.Sprintf("a copy is missing: %v", err)
			}
			if maker := copied.Labels["ground.crowsnest.io/manager"]; copied.Data["text"] != text || maker != manager {
				return fmt.Sprintf("%s has the text %q of the %s manager, not %q of the %s", key.Name, copied.Data["text"], maker, text, manager)
			}
		}
		return ""
	})
}

// checkOwnership checks that the manager owns the fields of a copy, that another owner's apply conflicts, and that a repeated apply writes
// nothing.
func checkOwnership(ctx context.Context, direct client.Client, namespace string) error {
	key := client.ObjectKey{Namespace: namespace, Name: "source-0" + copySuffix}
	var before, after corev1.ConfigMap
	if err := direct.Get(ctx, key, &before); err != nil {
		return err
	}
	applied := false
	for _, entry := range before.ManagedFields {
		applied = applied || entry.Manager == copierOwner && entry.Operation == metav1.ManagedFieldsOperationApply
	}
	if !applied {
		return fmt.Errorf("%s has no managed fields of %s: %v", key.Name, copierOwner, before.ManagedFields)
	}
	other := corev1apply.ConfigMap(key.Name, namespace).WithData(map[string]string{"text": "other"})
	if err := direct.Apply(ctx, other, client.FieldOwner("ground-other")); !apierrors.IsConflict(err) {
		return fmt.Errorf("another owner's apply did not conflict: %v", err)
	}
	same := corev1apply.ConfigMap("source-1", namespace).
		WithLabels(map[string]string{roleLabel: sourceRole}).WithData(map[string]string{"text": "two"})
	key.Name = "source-1"
	if err := direct.Get(ctx, key, &before); err != nil {
		return err
	}
	if err := direct.Apply(ctx, same, client.FieldOwner("ground-writer")); err != nil {
		return err
	}
	if err := direct.Get(ctx, key, &after); err != nil {
		return err
	}
	if before.ResourceVersion != after.ResourceVersion {
		return fmt.Errorf("a repeated apply changed the resource version from %s to %s", before.ResourceVersion, after.ResourceVersion)
	}
	return nil
}

// quietDuration is the time without reconciles after which a manager is considered idle.
const quietDuration = 2 * time.Second

// checkQuiet checks that a manager becomes idle: a write without a change must not cause another reconcile.
func checkQuiet(ctx context.Context, manager *runningManager) error {
	last, since := manager.reconciles.Load(), time.Now()
	return waitFor(ctx, syncTimeout, func() string {
		if now := manager.reconciles.Load(); now != last {
			last, since = now, time.Now()
		}
		if idle := time.Since(since); idle < quietDuration {
			return fmt.Sprintf("the manager was idle for only %v", idle.Round(time.Millisecond))
		}
		return ""
	})
}

// deleteSources deletes the sources and waits until the garbage collector has deleted their copies.
func deleteSources(ctx context.Context, direct client.Client, namespace string) error {
	options := []client.DeleteAllOfOption{
		client.InNamespace(namespace), client.MatchingLabels{roleLabel: sourceRole}, client.PropagationPolicy(metav1.DeletePropagationBackground),
	}
	if err := direct.DeleteAllOf(ctx, &corev1.ConfigMap{}, options...); err != nil {
		return err
	}
	return waitFor(ctx, syncTimeout, func() string {
		var left corev1.ConfigMapList
		if err := direct.List(ctx, &left, client.InNamespace(namespace), client.HasLabels{"ground.crowsnest.io/manager"}); err != nil {
			return err.Error()
		}
		if len(left.Items) > 0 {
			return fmt.Sprintf("%d copies still exist after the deletion of their owners", len(left.Items))
		}
		return ""
	})
}
