package options

import (
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	o, err := Parse([]string{"--crowsnest", "target/debug/crowsnest", "--checks", "helm"})
	if err != nil {
		t.Fatal(err)
	}
	if o.Member != SimulatedMember || !slices.Equal(o.Checks, []string{"helm"}) {
		t.Errorf("unexpected options: %+v", o)
	}
	for _, args := range [][]string{
		{},
		{"--crowsnest", "a", "--kubeconfig", "b"},
		{"--crowsnest", "a", "--member", "east"},
		{"--kubeconfig", "b", "--checks", "informer"},
		{"--kubeconfig", "b", "--rate", "0"},
		{"--kubeconfig", "b", "--duration", "0s"},
		{"--kubeconfig", "b", "more"},
	} {
		if o, err := Parse(args); err == nil {
			t.Errorf("%v: no error, but %+v", args, o)
		}
	}
}
