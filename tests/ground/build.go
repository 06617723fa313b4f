package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// defaultVersion is the Kubernetes version of a fleet unless flags name others.
const defaultVersion = "1.36"

// stagesFile is the file in a build of kwok that defines the state transitions of simulated nodes and pods.
const stagesFile = "stages.yaml"

// builder builds the pinned modules in `source`, with results in `cache`.
type builder struct {
	source, cache string
}

// product is the output of one pinned module.
type product struct {
	name string
	// folder of the module, relative to builder.source
	folder string
	// programs by the name of their file
	programs map[string]string
	// suite is a package whose tests become the program suiteProgram; empty if there is none.
	suite string
	// hasSources is true if the module has source files in addition to go.mod and go.sum.
	hasSources bool
	// flags for the linker
	linker string
	// finish completes the folder of the build.
	finish func(ctx context.Context, module, target string) error
}

func etcdProduct() product {
	return product{name: "etcd", folder: "etcd", programs: map[string]string{"etcd": "go.etcd.io/etcd/server/v3"}}
}

func kwokProduct() product {
	return product{name: "kwok", folder: "kwok", programs: map[string]string{"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, finish: writeStages}
}

func (b *builder) kubernetesProduct(minor string) (product, error) {
	folder := filepath.Join("kubernetes", minor)
	text, err := os.ReadFile(filepath.Join(b.source, folder, "go.mod"))
	if err != nil {
		versions, _ := b.listVersions()
		return product{}, fmt.Errorf("no module builds Kubernetes %q (there are %s); add one with `.ci/ground pin`", minor, strings.Join(versions, ", "))
	}
	version, err := requiredVersion(string(text), "k8s.io/kubernetes")
	if err != nil {
		return product{}, err
	}
	programs := map[string]string{}
	for _, command := range serverCommands {
		programs[command[strings.LastIndex(command, "/")+1:]] = command
	}
	return product{name: "kubernetes-" + version, folder: folder, programs: programs, linker: versionFlags(version)}, nil
}

// suiteProduct is Kubernetes' own e2e suite, as one program.
func (b *builder) suiteProduct(minor string) (product, error) {
	folder := filepath.Join("e2e", minor)
	text, err := os.ReadFile(filepath.Join(b.source, folder, "go.mod"))
	if err != nil {
		return product{}, fmt.Errorf("no module builds the e2e suite of Kubernetes %q; add one with `.ci/ground pin --e2e`", minor)
	}
	version, err := requiredVersion(string(text), "k8s.io/kubernetes")
	if err != nil {
		return product{}, err
	}
	return product{name: "e2e-" + version, folder: folder, suite: suitePackage, linker: versionFlags(version), finish: writeSpecs}, nil
}

// clientsProduct is the program that checks an API with Go clients.
func clientsProduct() product {
	return product{name: "clients", folder: "clients", programs: map[string]string{"clients": "crowsnest/ground/clients"}, hasSources: true}
}

// requiredVersion returns the version of a module that the text of a go.mod requires.
func requiredVersion(text, module string) (string, error) {
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("go.mod does not require %s", module)
}

// versionFlags returns the linker flags that set the version reported by the servers; a module's build has no other source for it.
func versionFlags(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	var flags []string
	for _, value := range [][2]string{{"gitVersion", version}, {"gitMajor", parts[0]}, {"gitMinor", parts[1]}, {"gitTreeState", "clean"}} {
		flags = append(flags, fmt.Sprintf("-X k8s.io/component-base/version.%s=%s", value[0], value[1]))
	}
	return strings.Join(flags, " ")
}

// listVersions lists the Kubernetes versions that have a module.
func (b *builder) listVersions() ([]string, error) {
	modules, err := filepath.Glob(filepath.Join(b.source, "kubernetes", "*", "go.mod"))
	var versions []string
	for _, module := range modules {
		versions = append(versions, filepath.Base(filepath.Dir(module)))
	}
	return versions, err
}

// buildAll builds all programs that fleets of these Kubernetes versions need.
func (b *builder) buildAll(ctx context.Context, versions []string) error {
	products := []product{etcdProduct(), kwokProduct()}
	for _, version := range versions {
		kubernetes, err := b.kubernetesProduct(version)
		if err != nil {
			return err
		}
		products = append(products, kubernetes)
	}
	for _, product := range products {
		if _, err := b.build(ctx, product); err != nil {
			return err
		}
	}
	return nil
}

// build returns the folder with the programs of a product, and builds them unless they exist.
//
// The folder's name contains a digest of the inputs of the build. Concurrent builds of one product wait for each other.
func (b *builder) build(ctx context.Context, p product) (string, error) {
	target, err := b.target(p)
	if err != nil || exists(target) {
		return target, err
	}
	lock, err := os.Create(filepath.Join(b.cache, p.name+".lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if exists(target) {
		return target, nil
	}
	started := time.Now()
	fmt.Fprintf(os.Stderr, "building %s in %s\n", p.name, target)
	work, err := os.MkdirTemp(b.cache, p.name+".")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	module := filepath.Join(b.source, p.folder)
	for _, arguments := range p.commands(work) {
		command := goCommand(ctx, arguments...)
		command.Dir = module
		if output, err := command.CombinedOutput(); err != nil {
			return "", fmt.Errorf("cannot build %s: go %s: %w\n%s", p.name, strings.Join(arguments, " "), err, lastLines(output, 20))
		}
	}
	if p.finish != nil {
		if err := p.finish(ctx, module, work); err != nil {
			return "", fmt.Errorf("cannot complete the build of %s: %w", p.name, err)
		}
	}
	if err := os.Chmod(work, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(work, target); err != nil {
		return "", err
	}
	fmt.Fprintf(os.Stderr, "built %s in %.0f s\n", p.name, time.Since(started).Seconds())
	return target, nil
}

// commands returns the arguments of `go` that build the programs of a product into a folder. Programs that are named like their
// packages are built by one command, which compiles their common packages in parallel.
func (p product) commands(folder string) [][]string {
	flags := []string{"-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", strings.TrimSpace("-s -w " + p.linker)}
	common := append([]string{"build"}, flags...)
	var commands [][]string
	if p.suite != "" {
		commands = append(commands, append(append([]string{"test", "-c"}, flags...), "-o", filepath.Join(folder, suiteProgram), p.suite))
	}
	jointBuild := append(append([]string{}, common...), "-o", folder+string(os.PathSeparator))
	size := len(jointBuild)
	for _, file := range slices.Sorted(maps.Keys(p.programs)) {
		path := p.programs[file]
		if strings.HasSuffix(path, "/"+file) {
			jointBuild = append(jointBuild, path)
		} else {
			commands = append(commands, append(append([]string{}, common...), "-o", filepath.Join(folder, file), path))
		}
	}
	if len(jointBuild) > size {
		commands = append(commands, jointBuild)
	}
	return commands
}

// target returns the folder of a build, which is named after its inputs: the pinned modules, the sources, the flags and the toolchain.
func (b *builder) target(p product) (string, error) {
	digest := sha256.New()
	files := []string{"go.mod", "go.sum"}
	if p.hasSources {
		var err error
		if files, err = filesBelow(filepath.Join(b.source, p.folder)); err != nil {
			return "", err
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(b.source, p.folder, file))
		if err != nil {
			return "", err
		}
		if p.hasSources {
			fmt.Fprintln(digest, file, len(text))
		}
		digest.Write(text)
	}
	fmt.Fprintln(digest, p.programs, p.linker, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if p.suite != "" {
		fmt.Fprintln(digest, p.suite)
	}
	return filepath.Join(b.cache, fmt.Sprintf("%s-%x", p.name, digest.Sum(nil)[:8])), nil
}

// filesBelow returns the paths of the files in a folder and its subfolders, in order.
func filesBelow(folder string) ([]string, error) {
	var files []string
	err := fs.WalkDir(os.DirFS(folder), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	})
	return files, err
}

// writeStages copies kwok's default stages for nodes and pods into the folder of its program, because the program does not contain them.
func writeStages(ctx context.Context, module, target string) error {
	command := goCommand(ctx, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok")
	command.Dir = module
	output, err := command.Output()
	if err != nil {
		return err
	}
	folder := filepath.Join(strings.TrimSpace(string(output)), "kustomize", "stage")
	var documents [][]byte
	for _, pattern := range []string{"node/fast/node-*.yaml", "pod/fast/pod-*.yaml"} {
		files, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("no stages at %s", filepath.Join(folder, pattern))
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			documents = append(documents, text)
		}
	}
	return os.WriteFile(filepath.Join(target, stagesFile), bytes.Join(documents, []byte("\n---\n")), 0o644)
}

// writeSpecs writes the names of the suite's specs into the folder of its program.
func writeSpecs(ctx context.Context, _, target string) error {
	command := exec.CommandContext(ctx, filepath.Join(target, suiteProgram), "--list-tests", "--provider=skeleton")
	command.Dir = target
	output, err := command.Output()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(target, specsFile), output, 0o644)
}

// pin writes the module that builds the servers of a Kubernetes version, or its e2e suite, in place of the one that builds another patch
// release of that version.
func (b *builder) pin(ctx context.Context, args []string) error {
	kind := serversModule
	if len(args) > 0 && args[0] == "--e2e" {
		kind, args = suiteModule, args[1:]
	}
	if len(args) != 1 {
		return errors.New("usage: .ci/ground pin [--e2e] VERSION")
	}
	version := args[0]
	download := goCommand(ctx, "mod", "download", "-json", "k8s.io/kubernetes@"+version)
	download.Dir = os.TempDir()
	output, err := download.Output()
	if err != nil {
		return fmt.Errorf("cannot download k8s.io/kubernetes %s: %w\n%s", version, err, lastLines(output, 20))
	}
	var downloaded struct{ GoMod string }
	if err := json.Unmarshal(output, &downloaded); err != nil {
		return err
	}
	upstream, err := os.ReadFile(downloaded.GoMod)
	if err != nil {
		return err
	}
	text, err := kind.text(version, string(upstream))
	if err != nil {
		return err
	}
	folder := filepath.Join(b.source, kind.folder, strings.Join(strings.Split(strings.TrimPrefix(version, "v"), ".")[:2], "."))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "go.mod"), []byte(text), 0o644); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(folder, "go.sum")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	tidy := goCommand(ctx, "mod", "tidy")
	tidy.Dir = folder
	if output, err := tidy.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot tidy %s: %w\n%s", folder, err, lastLines(output, 20))
	}
	fmt.Printf("%s builds %s of Kubernetes %s\n", folder, kind.name, version)
	return nil
}

// goCommand returns a command of the Go toolchain that is terminated when the context is done. It ignores workspaces.
func goCommand(ctx context.Context, arguments ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	return command
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// buildPrograms builds the programs of a cluster unless they exist, and returns their folders.
func (b *builder) buildPrograms(ctx context.Context, kubernetes product) (programs, error) {
	var p programs
	var err error
	if p.etcd, err = b.build(ctx, etcdProduct()); err != nil {
		return p, err
	}
	if p.kwok, err = b.build(ctx, kwokProduct()); err != nil {
		return p, err
	}
	p.kubernetes, err = b.build(ctx, kubernetes)
	return p, err
}

// version is the Kubernetes version that a product of kubernetesProduct builds.
func (p product) version() string { return strings.TrimPrefix(p.name, "kubernetes-") }
