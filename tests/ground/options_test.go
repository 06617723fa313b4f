package main

import (
	"slices"
	"testing"
)

func TestParseOptions(t *testing.T) {
	o, err := parseOptions([]string{"--members", "3", "--kubernetes", "1.36,1.34", "--prefix=m", "--cpu=2,4", "--", "sh", "-c", "true"})
	if err != nil {
		t.Fatal(err)
	}
	var names, versions, cpu []string
	for _, index := range o.indices() {
		names = append(names, o.name(index))
		versions = append(versions, o.version(index))
		if index > 0 {
			cpu = append(cpu, valueOfMember(o.cpu, index))
		}
	}
	if want := []string{"2", "4", "2"}; !slices.Equal(cpu, want) {
		t.Errorf("CPUs %v, not %v", cpu, want)
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

func TestMembersByNameWithoutControlPlane(t *testing.T) {
	o, err := parseOptions([]string{"--control-plane=false", "--names", "east,west", "--members", "5"})
	if err != nil {
		t.Fatal(err)
	}
	if indices := o.indices(); !slices.Equal(indices, []int{1, 2}) || o.name(1) != "east" || o.name(2) != "west" {
		t.Errorf("indices %v of %v", indices, o.names)
	}
}

func TestParseOptionsErrors(t *testing.T) {
	for _, args := range [][]string{
		{"--members", "-1"},
		{"--members", "61"},
		{"--nodes", "-1"},
		{"--detach", "--", "true"},
		{"--control-plane=false", "--members", "0"},
		{"--names", "east,east"},
		{"--names", "cp"},
		{"--names", "East"},
		{"--names", "../east"},
		{"--audit-policy-file", "missing.yaml"},
	} {
		if o, err := parseOptions(args); err == nil {
			t.Errorf("%v: no error, but %+v", args, o)
		}
	}
}
