package record

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) { return t(request) }

func TestCounter(t *testing.T) {
	const path = "/clusters/east/proxy/api/v1/namespaces/shop/configmaps"
	for _, c := range []struct {
		method, url string
		status      int
		want        Requests
	}{
		{"GET", path, 200, Requests{Lists: 1}},
		{"GET", path + "?limit=500&continue=abc", 200, Requests{Lists: 1}},
		{"GET", path + "?watch=true&resourceVersion=7", 200, Requests{Watches: 1}},
		{"GET", path + "?watch=1&sendInitialEvents=true", 200, Requests{Streams: 1}},
		{"GET", path + "?watch=true&sendInitialEvents=true", 422, Requests{Failed: 1}},
		{"GET", path, 0, Requests{Failed: 1}},
		{"GET", path + "/one", 200, Requests{}},
		{"POST", path, 201, Requests{}},
	} {
		counter := &Counter{Collection: "/namespaces/shop/configmaps", Next: transport(func(*http.Request) (*http.Response, error) {
			if c.status == 0 {
				return nil, errors.New("connection refused")
			}
			return &http.Response{StatusCode: c.status}, nil
		})}
		_, _ = counter.RoundTrip(httptest.NewRequest(c.method, "https://host"+c.url, nil))
		if got := counter.Total(); got != c.want {
			t.Errorf("%s %s answered %d: %v, not %v", c.method, c.url, c.status, got, c.want)
		}
	}
}
