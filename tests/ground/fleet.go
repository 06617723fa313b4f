package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// startTimeout limits each step of the start of a cluster.
const startTimeout = 3 * time.Minute

// fleet is a control plane and its members, or members alone.
type fleet struct {
	directory  string
	clusters   []*cluster
	supervisor *supervisor
	kubectl    string
	// versions and phases of the clusters, for the report
	versions []string
	phases   [][]phase
	// lock is held while the fleet runs.
	lock *os.File
}

// phase is a step of the start of a cluster, with its duration.
type phase struct {
	name     string
	duration time.Duration
}

// newFleet chooses ports and writes certificates and kubeconfigs.
func newFleet(ctx context.Context, b *builder, o options, directory string) (*fleet, error) {
	f := &fleet{directory: directory, supervisor: newSupervisor()}
	if err := f.lockDirectory(); err != nil {
		return nil, err
	}
	const portsPerCluster = 6
	indices := o.indices()
	free, err := freePorts(portsPerCluster * len(indices))
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(directory, "kubeconfigs"), 0o700); err != nil {
		return nil, err
	}
	var administrators []access
	for position, index := range indices {
		c := &cluster{
			name: o.name(index), index: index, directory: filepath.Join(directory, o.name(index)),
			stages: o.stages, exec: o.exec, auditPolicy: o.auditPolicy,
		}
		p := free[portsPerCluster*position:]
		c.ports = ports{etcd: p[0], etcdPeer: p[1], apiServer: p[2], controllerManager: p[3], scheduler: p[4], kubelet: p[5]}
		if index > 0 {
			c.nodes, c.nodeCPU, c.nodeMemory = o.nodes, valueOfMember(o.cpu, index), valueOfMember(o.memory, index)
		}
		kubernetes, err := b.kubernetesProduct(o.version(index))
		if err != nil {
			return nil, err
		}
		if c.programs, err = b.buildPrograms(ctx, kubernetes); err != nil {
			return nil, err
		}
		if err := c.prepare(); err != nil {
			return nil, err
		}
		if err := newKubeconfig(c.admin).write(f.kubeconfig(c)); err != nil {
			return nil, err
		}
		administrators = append(administrators, c.admin)
		f.clusters = append(f.clusters, c)
		f.versions = append(f.versions, kubernetes.version())
	}
	f.kubectl = filepath.Join(f.clusters[0].programs.kubernetes, "kubectl")
	f.phases = make([][]phase, len(f.clusters))
	return f, newKubeconfig(administrators...).write(f.allContexts())
}

// kubeconfig is the path of a cluster administrator's kubeconfig.
func (f *fleet) kubeconfig(c *cluster) string {
	return filepath.Join(f.directory, "kubeconfigs", c.name+".kubeconfig")
}

// allContexts is the path of the kubeconfig that has a context for each cluster.
func (f *fleet) allContexts() string { return filepath.Join(f.directory, "kubeconfig") }

// lockDirectory takes the lock of the fleet's folder and writes the id of this process into it.
func (f *fleet) lockDirectory() error {
	lock, err := os.OpenFile(lockPath(f.directory), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("cannot lock %s: %w", lock.Name(), err)
	}
	f.lock = lock
	_, err = fmt.Fprintln(lock, os.Getpid())
	return err
}

// start starts all clusters concurrently and returns when all are ready, or one has failed.
func (f *fleet) start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failures := make([]error, len(f.clusters))
	var running sync.WaitGroup
	for index, c := range f.clusters {
		running.Go(func() {
			if failures[index] = f.startCluster(ctx, index, c); failures[index] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	// A failure cancels the start of the other clusters, so an error that is not a cancellation is the cause.
	for _, failure := range failures {
		if failure != nil && !errors.Is(failure, context.Canceled) && !errors.Is(failure, errStopping) {
			return failure
		}
	}
	return errors.Join(failures...)
}

func (f *fleet) startCluster(ctx context.Context, index int, c *cluster) error {
	client, err := newClient(c.admin)
	if err != nil {
		return err
	}
	phaseStart := time.Now()
	endPhase := func(name string) {
		f.phases[index] = append(f.phases[index], phase{name, time.Since(phaseStart)})
		phaseStart = time.Now()
	}
	if err := f.runUntilHealthy(ctx, client, c, c.etcd()); err != nil {
		return err
	}
	endPhase("etcd")
	if err := f.runUntilHealthy(ctx, client, c, c.apiServer()); err != nil {
		return err
	}
	endPhase("kube-apiserver")
	controllers := []server{c.controllerManager()}
	if !c.isControlPlane() {
		controllers = append(controllers, c.scheduler())
	}
	if c.nodes > 0 {
		controllers = append(controllers, c.kwok())
		for _, manifest := range c.nodeManifests() {
			if err := client.createNode(ctx, manifest); err != nil {
				return err
			}
		}
	}
	if err := f.runUntilHealthy(ctx, client, c, controllers...); err != nil {
		return err
	}
	endPhase("controllers")
	if c.isControlPlane() {
		return nil
	}
	manager := f.find(c, "kube-controller-manager")
	if err := manager.waitFor(ctx, client.checkDefaultServiceAccount); err != nil {
		return err
	}
	if c.nodes > 0 {
		if err := f.find(c, "kwok").waitFor(ctx, func(ctx context.Context) error { return client.checkNodesReady(ctx, c.nodes) }); err != nil {
			return err
		}
	}
	endPhase("nodes")
	return nil
}

// runUntilHealthy starts servers and waits until all are healthy.
func (f *fleet) runUntilHealthy(ctx context.Context, client *client, c *cluster, servers ...server) error {
	var processes []*process
	for _, server := range servers {
		p, err := f.supervisor.run(c, server)
		if err != nil {
			return err
		}
		processes = append(processes, p)
	}
	for index, p := range processes {
		url := servers[index].health
		if url == "" {
			continue
		}
		if err := p.waitFor(ctx, func(ctx context.Context) error { return client.checkHealth(ctx, url) }); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) find(c *cluster, name string) *process {
	for _, p := range f.supervisor.all() {
		if p.cluster == c.name && p.name == name {
			return p
		}
	}
	panic("no " + name + " of " + c.name + " was started")
}

// waitFor waits for a condition that depends on the process; it fails if the process exits or the wait takes too long.
func (p *process) waitFor(ctx context.Context, condition func(context.Context) error) error {
	timeoutCtx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		reason := condition(timeoutCtx)
		if reason == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.exitError()
		case <-timeoutCtx.Done():
			if err := ctx.Err(); err != nil {
				return err
			}
			return p.failure(fmt.Sprintf("was not usable after %v (%v)", startTimeout, reason))
		case <-poll.C:
		}
	}
}

// remove ends the servers and removes the folder.
func (f *fleet) remove() error {
	f.supervisor.stop()
	return os.RemoveAll(f.directory)
}

func lockPath(directory string) string { return filepath.Join(directory, "lock") }
