package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTargetsDependOnTheirSources(t *testing.T) {
	b := &builder{source: t.TempDir(), cache: "/cache"}
	write := func(file, text string) {
		t.Helper()
		path := filepath.Join(b.source, "module", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	target := func(p product) string {
		t.Helper()
		path, err := b.target(p)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	pinned := product{name: "pinned", folder: "module"}
	own := product{name: "own", folder: "module", hasSources: true}
	write("go.mod", "module a")
	write("go.sum", "")
	write("part/main.go", "package main")
	firstPinned, firstOwn := target(pinned), target(own)
	write("part/main.go", "package main // changed")
	if target(pinned) != firstPinned {
		t.Error("a build of a pinned module depends on files that it has not")
	}
	secondOwn := target(own)
	if secondOwn == firstOwn {
		t.Error("a change of a source makes no new build")
	}
	write("go.sum", "changed")
	if target(pinned) == firstPinned || target(own) == secondOwn {
		t.Error("a change of the pinned modules makes no new build")
	}
	suite := pinned
	suite.suite = "example.com/suite"
	if target(suite) == target(pinned) {
		t.Error("a suite and the programs of its module have one folder")
	}
}
