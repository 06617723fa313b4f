package record

import (
	"slices"
	"strings"
	"testing"
)

func TestHistoryFindsContradictions(t *testing.T) {
	at := func(sequence int) State {
		return State{UID: "a", Sequence: sequence, Version: strings.Repeat("v", sequence)}
	}
	for _, c := range []struct {
		name     string
		events   func(h *History)
		problem  string
		replayed int
	}{
		{"created, updated, deleted and created again", func(h *History) { h.Add("a", at(1)); h.Update("a", at(2)); h.Delete("a", at(2)); h.Add("a", at(3)) }, "", 0},
		{"a second list", func(h *History) { h.Add("a", at(1)); h.Update("a", at(1)) }, "", 1},
		{"deleted after an update without an event", func(h *History) { h.Add("a", at(1)); h.Delete("a", at(2)) }, "", 0},
		{"added twice", func(h *History) { h.Add("a", at(1)); h.Add("a", at(2)) }, "a was added at 2, although it already existed at 1", 0},
		{"updated before it is added", func(h *History) { h.Update("a", at(1)) }, "a was updated to 1, although it did not exist", 0},
		{"back in time", func(h *History) { h.Add("a", at(2)); h.Update("a", at(1)) }, "a was updated to 1 after 2", 0},
		{"deleted twice", func(h *History) { h.Add("a", at(1)); h.Delete("a", at(1)); h.Delete("a", at(1)) }, "a was deleted at 1, although it did not exist", 0},
	} {
		h := NewHistory()
		c.events(h)
		problems, replayed := h.Contradictions()
		if strings.Join(problems, "\n") != c.problem || replayed != c.replayed {
			t.Errorf("%s: %q, %d replayed", c.name, problems, replayed)
		}
	}
}

func TestHistoryComparesEventsWithWrites(t *testing.T) {
	writes := map[string][]string{"a": {Added(1), Updated(2), Deleted(2)}}
	for _, c := range []struct {
		events     []string
		difference string
	}{
		{[]string{"added 1", "updated 2", "deleted 2"}, ""},
		{[]string{"added 1"}, `a: no event for the write "updated 2" and 1 after it`},
		{[]string{"added 1", "deleted 2"}, `a: event 2 is "deleted 2", the write was "updated 2"`},
		{[]string{"added 1", "updated 2", "deleted 2", "deleted 2"}, `a: the event "deleted 2" has no write`},
	} {
		h := NewHistory()
		h.events["a"] = c.events
		if got := strings.Join(h.Differences(writes), "\n"); got != c.difference {
			t.Errorf("%v: %q, not %q", c.events, got, c.difference)
		}
	}
	h := NewHistory()
	h.Add("b", State{Sequence: 1})
	if got := h.Differences(nil); !slices.Equal(got, []string{"b: events without a write"}) {
		t.Errorf("an unknown object: %q", got)
	}
}

func TestStoreDifferences(t *testing.T) {
	list := map[string]State{"a": {UID: "1", Sequence: 2}, "b": {UID: "2", Sequence: 1}}
	for _, c := range []struct {
		store map[string]State
		want  []string
	}{
		{list, nil},
		{map[string]State{"a": list["a"]}, []string{"b is missing from the store"}},
		{map[string]State{"a": list["a"], "b": list["b"], "c": {}}, []string{"c is in the store, but not in the list"}},
		{map[string]State{"a": list["a"], "b": {UID: "9", Sequence: 1}}, []string{
			"b is {UID:9 Sequence:1 Version:} in the store, {UID:2 Sequence:1 Version:} in the list",
		}},
	} {
		if got := StoreDifferences(c.store, list); !slices.Equal(got, c.want) {
			t.Errorf("%v: %q", c.store, got)
		}
	}
}
