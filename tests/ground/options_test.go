package main

import (
	"slices"
	"testing"
)

func TestParseOptions(t *testing.T) {
	o, err := parseOptions([]string{"--members", "3", "--kubernetes", "1.36,1.34", "--prefix=m", "--", "sh", "-c", "true"})
	if err != nil {
		t.Fatal(err)
	}
	var names, versions []string
	for index := 0; index <= o.members; index++ {
		names = append(names, o.name(index))
		versions = append(versions, o.version(index))
	}
	if want := []string{"cp", "m1", "m2", "m3"}; !slices.Equal(names, want) {
		t.Errorf("names %v, not %v", names, want)
	}
	if want := []string{"1.36", "1.36", "1.34", "1.36"}; !slices.Equal(versions, want) {
		t.Errorf("versions %v, not %v", versions, want)
	}
	if want := []string{"sh", "-c", "true"}; !slices.Equal(o.command, want) {
		t.Errorf("command %v, not %v", o.command, want)
	}
}

func TestParseOptionsRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"--members", "-1"},
		{"--members", "61"},
		{"--nodes", "-1"},
		{"--detach", "--", "true"},
	} {
		if o, err := parseOptions(args); err == nil {
			t.Errorf("%v: no error, but %+v", args, o)
		}
	}
}
