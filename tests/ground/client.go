package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// client sends requests to the servers of one cluster as its administrator.
type client struct {
	http   *http.Client
	server string
}

func newClient(a access) (*client, error) {
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(a.authority) {
		return nil, errors.New("no certificate of the authority")
	}
	certificate, err := tls.X509KeyPair(a.client.certificate, a.client.key)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities, Certificates: []tls.Certificate{certificate}}}
	return &client{http: &http.Client{Transport: transport, Timeout: 10 * time.Second}, server: a.server}, nil
}

// checkHealth returns nil if the response of the URL has status 200.
func (c *client) checkHealth(ctx context.Context, url string) error {
	_, err := c.send(ctx, http.MethodGet, url, "")
	return err
}

// checkDefaultServiceAccount returns nil once pods can be created in the namespace "default".
func (c *client) checkDefaultServiceAccount(ctx context.Context) error {
	return c.checkHealth(ctx, c.server+"/api/v1/namespaces/default/serviceaccounts/default")
}

func (c *client) createNode(ctx context.Context, manifest string) error {
	_, err := c.send(ctx, http.MethodPost, c.server+"/api/v1/nodes", manifest)
	return err
}

// checkNodesReady returns nil if this many nodes are ready for pods.
func (c *client) checkNodesReady(ctx context.Context, count int) error {
	body, err := c.send(ctx, http.MethodGet, c.server+"/api/v1/nodes", "")
	if err != nil {
		return err
	}
	ready, err := countReady(body)
	if err == nil && ready < count {
		err = fmt.Errorf("%d of %d nodes are ready", ready, count)
	}
	return err
}

// countReady counts the nodes of a NodeList that are ready and have no taint.
func countReady(list []byte) (int, error) {
	var nodes struct {
		Items []struct {
			Spec struct {
				Taints []struct{ Key string }
			}
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := json.Unmarshal(list, &nodes); err != nil {
		return 0, err
	}
	ready := 0
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == "Ready" && condition.Status == "True" && len(node.Spec.Taints) == 0 {
				ready++
			}
		}
	}
	return ready, nil
}

func (c *client) send(ctx context.Context, method, url, body string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewBufferString(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	responseBody, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, response.Status, responseBody)
	}
	return responseBody, nil
}
