package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/typed/core/v1"

	"crowsnest/ground/clients/record"
)

const (
	// sequenceAnnotation contains the number of the last write to an object.
	sequenceAnnotation = "ground.crowsnest.io/sequence"
	// writers is the number of concurrent writers, each with its own objects.
	writers = 4
	// objectsPerWriter is small enough for objects to be deleted and created again many times.
	objectsPerWriter = 10
	// payloadBytes is the size of an object's data.
	payloadBytes = 200
)

// churn writes random ConfigMaps and records the order of the writes.
type churn struct {
	client v1.ConfigMapInterface
	// interval between two writes of one writer
	interval time.Duration
	// tolerant is true if the churn continues after failures, because the server is being restarted.
	tolerant bool
	// startedAt is the time at which the first run began.
	startedAt time.Time

	lock sync.Mutex
	// writes by the name of the object, in the format of the events of record.History; incomplete after a failure
	writes map[string][]string
	// sequences are the numbers of the last writes, by the name of the object.
	sequences map[string]int
	failures  int
}

func newChurn(client v1.ConfigMapInterface, rate int) *churn {
	return &churn{
		client: client, interval: time.Second * writers / time.Duration(rate),
		writes: map[string][]string{}, sequences: map[string]int{},
	}
}

// run writes until the context is done. It fails at the first failure unless the churn is tolerant.
func (c *churn) run(ctx context.Context, seed uint64) error {
	if c.startedAt.IsZero() {
		c.startedAt = time.Now()
	}
	writeCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	failures := make([]error, writers)
	var running sync.WaitGroup
	for writer := range writers {
		running.Go(func() {
			if failures[writer] = c.write(writeCtx, writer, rand.New(rand.NewPCG(seed, uint64(writer)))); failures[writer] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	return errors.Join(failures...)
}

// write is the loop of one writer. When writeCtx is done, the current write is completed, so that its outcome is known.
func (c *churn) write(writeCtx context.Context, writer int, rng *rand.Rand) error {
	ctx := context.WithoutCancel(writeCtx)
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	objects := map[string]*corev1.ConfigMap{}
	for object := range objectsPerWriter {
		name := fmt.Sprintf("churn-%d-%d", writer, object)
		current, err := c.readWithRetries(ctx, writeCtx.Done(), ticker, name)
		if err != nil && writeCtx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read ConfigMap %s: %w", name, err)
		}
		objects[name] = current
	}
	for {
		select {
		case <-writeCtx.Done():
			return nil
		case <-ticker.C:
		}
		name := fmt.Sprintf("churn-%d-%d", writer, rng.IntN(objectsPerWriter))
		changed, err := c.change(ctx, name, objects[name], rng)
		if err == nil {
			objects[name] = changed
			continue
		}
		c.lock.Lock()
		c.failures++
		c.lock.Unlock()
		if !c.tolerant {
			return fmt.Errorf("cannot write ConfigMap %s: %w", name, err)
		}
		// It is unknown whether the server performed the write.
		if objects[name], err = c.readWithRetries(ctx, writeCtx.Done(), ticker, name); err != nil {
			return nil
		}
	}
}

// readWithRetries returns the current object; a tolerant churn repeats the request until it succeeds or stop is closed.
func (c *churn) readWithRetries(ctx context.Context, stop <-chan struct{}, ticker *time.Ticker, name string) (*corev1.ConfigMap, error) {
	for {
		current, err := c.read(ctx, name)
		if err == nil || !c.tolerant {
			return current, err
		}
		select {
		case <-stop:
			return nil, err
		case <-ticker.C:
		}
	}
}

// read returns the current object, or nil if it does not exist.
func (c *churn) read(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	current, err := c.client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return current, err
}

// change makes one write to an object, which is nil if it does not exist, and returns the object afterwards.
func (c *churn) change(ctx context.Context, name string, current *corev1.ConfigMap, rng *rand.Rand) (*corev1.ConfigMap, error) {
	if current != nil && rng.IntN(5) == 0 {
		if err := c.client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return nil, err
		}
		c.recordWrite(name, record.Deleted(c.sequence(name)))
		return nil, nil
	}
	next := c.next(name)
	text := strings.Repeat(string(rune('a'+rng.IntN(26))), payloadBytes)
	if current == nil {
		created := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		mark(created, next, text)
		created, err := c.client.Create(ctx, created, metav1.CreateOptions{})
		if err == nil {
			c.recordWrite(name, record.Added(next))
		}
		return created, err
	}
	var written *corev1.ConfigMap
	var err error
	if rng.IntN(2) == 0 {
		written = current.DeepCopy()
		mark(written, next, text)
		written, err = c.client.Update(ctx, written, metav1.UpdateOptions{})
	} else {
		patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: "%d"}}, "data": {"text": %q}}`, sequenceAnnotation, next, text)
		written, err = c.client.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	}
	if err == nil {
		c.recordWrite(name, record.Updated(next))
	}
	return written, err
}

func mark(object *corev1.ConfigMap, sequence int, text string) {
	object.Annotations = map[string]string{sequenceAnnotation: strconv.Itoa(sequence)}
	object.Data = map[string]string{"text": text}
}

// next returns a new number for a write to an object.
func (c *churn) next(name string) int {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.sequences[name]++
	return c.sequences[name]
}

// sequence returns the number of the last write to an object.
func (c *churn) sequence(name string) int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.sequences[name]
}

func (c *churn) recordWrite(name, write string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.writes[name] = append(c.writes[name], write)
}

// count returns the number of writes that the server performed.
func (c *churn) count() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	count := 0
	for _, writes := range c.writes {
		count += len(writes)
	}
	return count
}
