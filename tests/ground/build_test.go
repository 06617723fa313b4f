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
	withSources := product{name: "with-sources", folder: "module", hasSources: true}
	write("go.mod", "module a")
	write("go.sum", "")
	write("part/main.go", "package main")
	firstPinned, firstWithSources := target(pinned), target(withSources)
	write("part/main.go", "package main // changed")
	if target(pinned) != firstPinned {
		t.Error("the build of a pinned module depends on files other than go.mod and go.sum")
	}
	secondWithSources := target(withSources)
	if secondWithSources == firstWithSources {
		t.Error("a changed source file leads to no new build")
	}
	write("go.sum", "changed")
	if target(pinned) == firstPinned || target(withSources) == secondWithSources {
		t.Error("a changed go.sum leads to no new build")
	}
	suite := pinned
	suite.suite = "example.com/suite"
	if target(suite) == target(pinned) {
		t.Error("a suite and the programs of its module have the same folder")
	}
}
