package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/release"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

//go:embed chart
var chartFiles embed.FS

const (
	releaseName = "crew"
	helmTimeout = time.Minute
)

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	sailors     = schema.GroupVersionResource{Group: "ground.crowsnest.io", Version: "v1", Resource: "sailors"}
	secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// loadChart reads the chart of this program.
func loadChart() (*chart.Chart, error) {
	var files []*loader.BufferedFile
	err := fs.WalkDir(chartFiles, "chart", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := chartFiles.ReadFile(path)
		files = append(files, &loader.BufferedFile{Name: strings.TrimPrefix(path, "chart/"), Data: data})
		return err
	})
	if err != nil {
		return nil, err
	}
	return loader.LoadFiles(files)
}

// helm runs Helm's actions on one release.
type helm struct {
	address
	config *action.Configuration
	client dynamic.Interface
}

func newHelm(a address, cache string) (*helm, error) {
	client, err := dynamic.NewForConfig(a.config)
	if err != nil {
		return nil, err
	}
	flags := genericclioptions.NewConfigFlags(false)
	flags.CacheDir, flags.Namespace = &cache, &a.namespace
	flags.WrapConfigFn = func(*rest.Config) *rest.Config { return rest.CopyConfig(a.config) }
	h := &helm{address: a, config: &action.Configuration{}, client: client}
	return h, h.config.Init(flags, a.namespace, "secret", func(string, ...any) {})
}

// checkHelm installs a chart, upgrades it, rolls it back and uninstalls it.
func checkHelm(ctx context.Context, a address) (note string, failure error) {
	crewChart, err := loadChart()
	if err != nil {
		return "", err
	}
	cache, err := os.MkdirTemp("", "crowsnest-helm-")
	if err != nil {
		return "", err
	}
	defer func() { failure = errors.Join(failure, os.RemoveAll(cache)) }()
	h, err := newHelm(a, cache)
	if err != nil {
		return "", err
	}
	// Helm does not delete CustomResourceDefinitions when it uninstalls a chart.
	defer func() {
		failure = errors.Join(failure, ignoreNotFound(h.client.Resource(definitions).Delete(context.WithoutCancel(ctx), "sailors.ground.crowsnest.io", metav1.DeleteOptions{})))
	}()
	steps := []struct {
		name     string
		act      func() error
		text     string
		revision int
	}{
		{"install", func() error { return h.install(ctx, crewChart, "one") }, "one", 1},
		{"upgrade", func() error { return h.upgrade(ctx, crewChart, "two") }, "two", 2},
		{"rollback", func() error { return h.rollback(1) }, "one", 3},
	}
	for _, step := range steps {
		if err := step.act(); err != nil {
			return "", fmt.Errorf("%s: %w", step.name, err)
		}
		if err := h.verify(ctx, step.text, step.revision); err != nil {
			return "", fmt.Errorf("after %s: %w", step.name, err)
		}
	}
	if err := h.uninstall(ctx); err != nil {
		return "", fmt.Errorf("uninstall: %w", err)
	}
	return "install, upgrade, rollback, uninstall", nil
}

func (h *helm) values(text string) map[string]any {
	return map[string]any{"text": text, "workloads": h.workloads}
}

func (h *helm) install(ctx context.Context, crewChart *chart.Chart, text string) error {
	install := action.NewInstall(h.config)
	install.ReleaseName, install.Namespace = releaseName, h.namespace
	install.Wait, install.WaitForJobs, install.Timeout = true, true, helmTimeout
	_, err := install.RunWithContext(ctx, crewChart, h.values(text))
	return err
}

func (h *helm) upgrade(ctx context.Context, crewChart *chart.Chart, text string) error {
	upgrade := action.NewUpgrade(h.config)
	upgrade.Namespace = h.namespace
	upgrade.Wait, upgrade.WaitForJobs, upgrade.Timeout = true, true, helmTimeout
	_, err := upgrade.RunWithContext(ctx, releaseName, crewChart, h.values(text))
	return err
}

func (h *helm) rollback(revision int) error {
	rollback := action.NewRollback(h.config)
	rollback.Version, rollback.Wait, rollback.Timeout = revision, true, helmTimeout
	return rollback.Run(releaseName)
}

// verify checks the release's record and the objects in the cluster.
func (h *helm) verify(ctx context.Context, text string, revision int) error {
	recorded, err := action.NewGet(h.config).Run(releaseName)
	if err != nil {
		return err
	}
	if recorded.Version != revision || recorded.Info.Status != release.StatusDeployed {
		return fmt.Errorf("revision %d is %s, not revision %d deployed", recorded.Version, recorded.Info.Status, revision)
	}
	history, err := action.NewHistory(h.config).Run(releaseName)
	if err != nil {
		return err
	}
	if len(history) != revision {
		return fmt.Errorf("the history has %d revisions, not %d", len(history), revision)
	}
	for _, want := range []struct {
		resource schema.GroupVersionResource
		name     string
		path     []string
		value    string
	}{
		{configMaps, releaseName, []string{"data", "text"}, text},
		{configMaps, releaseName + "-hook", []string{"data", "text"}, text},
		{sailors, releaseName, []string{"spec", "rank"}, text},
		{sailors, releaseName, []string{"spec", "watch"}, "morning"},
	} {
		object, err := h.client.Resource(want.resource).Namespace(h.namespace).Get(ctx, want.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if value, _, err := unstructured.NestedString(object.Object, want.path...); err != nil || value != want.value {
			return fmt.Errorf("%s %s: %s is %q, not %q", want.resource.Resource, want.name, strings.Join(want.path, "."), value, want.value)
		}
	}
	return nil
}

// uninstall removes the release and checks that its objects and records are deleted.
func (h *helm) uninstall(ctx context.Context) error {
	uninstall := action.NewUninstall(h.config)
	uninstall.Wait, uninstall.Timeout = true, helmTimeout
	if _, err := uninstall.Run(releaseName); err != nil {
		return err
	}
	for _, resource := range []schema.GroupVersionResource{configMaps, sailors} {
		if _, err := h.client.Resource(resource).Namespace(h.namespace).Get(ctx, releaseName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s %s is not deleted: %v", resource.Resource, releaseName, err)
		}
	}
	records, err := h.client.Resource(secrets).Namespace(h.namespace).List(ctx, metav1.ListOptions{LabelSelector: "owner=helm"})
	if err != nil {
		return err
	}
	if len(records.Items) > 0 {
		return fmt.Errorf("%d records of the release are left", len(records.Items))
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
