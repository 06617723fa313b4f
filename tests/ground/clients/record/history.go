package record

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// State identifies an object and the write that produced its current state.
type State struct {
	UID string
	// Sequence counts the writes to objects of this name.
	Sequence int
	// Version is the resource version.
	Version string
}

// History records the events of an informer, in order, for each object.
type History struct {
	lock sync.Mutex
	// events by the name of the object, formatted by Added, Updated and Deleted
	events map[string][]string
	// last state of the objects that exist
	last map[string]State
	// problems describe events that contradict earlier ones.
	problems []string
	// replayed is the number of updates without a change of the object, which a repeated list causes.
	replayed int
}

// NewHistory returns a history without events.
func NewHistory() *History {
	return &History{events: map[string][]string{}, last: map[string]State{}}
}

// Added is the event, or the write, that creates an object.
func Added(sequence int) string { return fmt.Sprintf("added %d", sequence) }

// Updated is the event, or the write, that changes an object.
func Updated(sequence int) string { return fmt.Sprintf("updated %d", sequence) }

// Deleted is the event, or the write, that deletes an object.
func Deleted(sequence int) string { return fmt.Sprintf("deleted %d", sequence) }

// Add records that an object appeared.
func (h *History) Add(name string, object State) {
	h.lock.Lock()
	defer h.lock.Unlock()
	if last, found := h.last[name]; found {
		h.addContradiction(name, "added at %d, although it already existed at %d", object.Sequence, last.Sequence)
	}
	h.record(name, Added(object.Sequence), object)
}

// Update records that an object changed.
func (h *History) Update(name string, object State) {
	h.lock.Lock()
	defer h.lock.Unlock()
	last, found := h.last[name]
	switch {
	case !found:
		h.addContradiction(name, "updated to %d, although it did not exist", object.Sequence)
	case last.Version == object.Version && last.UID == object.UID:
		h.replayed++
		return
	case object.Sequence <= last.Sequence:
		h.addContradiction(name, "updated to %d after %d", object.Sequence, last.Sequence)
	}
	h.record(name, Updated(object.Sequence), object)
}

// Delete records that an object disappeared. Its state is the last one that the informer knows.
func (h *History) Delete(name string, object State) {
	h.lock.Lock()
	defer h.lock.Unlock()
	last, found := h.last[name]
	if !found {
		h.addContradiction(name, "deleted at %d, although it did not exist", object.Sequence)
	} else if object.Sequence < last.Sequence {
		h.addContradiction(name, "deleted at %d after %d", object.Sequence, last.Sequence)
	}
	h.events[name] = append(h.events[name], Deleted(object.Sequence))
	delete(h.last, name)
}

func (h *History) record(name, event string, object State) {
	h.events[name] = append(h.events[name], event)
	h.last[name] = object
}

func (h *History) addContradiction(name, format string, values ...any) {
	h.problems = append(h.problems, name+" was "+fmt.Sprintf(format, values...))
}

// Count returns the number of events so far.
func (h *History) Count() int {
	h.lock.Lock()
	defer h.lock.Unlock()
	count := 0
	for _, events := range h.events {
		count += len(events)
	}
	return count
}

// Differences compares the events with the writes that caused them: none may be missing, repeated or out of order.
func (h *History) Differences(writes map[string][]string) []string {
	h.lock.Lock()
	defer h.lock.Unlock()
	var differences []string
	for _, name := range slices.Sorted(maps.Keys(writes)) {
		if difference := firstDifference(writes[name], h.events[name]); difference != "" {
			differences = append(differences, name+": "+difference)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.events)) {
		if _, found := writes[name]; !found {
			differences = append(differences, name+": events without a write")
		}
	}
	return differences
}

// Contradictions returns descriptions of the events that contradict earlier ones, and the number of replayed events.
func (h *History) Contradictions() ([]string, int) {
	h.lock.Lock()
	defer h.lock.Unlock()
	return slices.Clone(h.problems), h.replayed
}

func firstDifference(writes, events []string) string {
	for index := range max(len(writes), len(events)) {
		switch {
		case index >= len(events):
			return fmt.Sprintf("no event for the write %q and %d after it", writes[index], len(writes)-index-1)
		case index >= len(writes):
			return fmt.Sprintf("the event %q has no write", events[index])
		case writes[index] != events[index]:
			return fmt.Sprintf("event %d is %q, the write was %q", index+1, events[index], writes[index])
		}
	}
	return ""
}

// StoreDifferences compares an informer's store with a direct list, by name.
func StoreDifferences(store, list map[string]State) []string {
	var differences []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		stored, found := store[name]
		switch {
		case !found:
			differences = append(differences, name+" is missing from the store")
		case stored != list[name]:
			differences = append(differences, fmt.Sprintf("%s is %+v in the store, %+v in the list", name, stored, list[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(store)) {
		if _, found := list[name]; !found {
			differences = append(differences, name+" is in the store, but not in the list")
		}
	}
	return differences
}
