// Package record records the requests and events of an informer.
package record

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// Requests counts the requests of one client by purpose and result.
type Requests struct {
	// Lists are GETs of a collection; pages of one list count once each.
	Lists int
	// Streams are watches that begin with the objects that exist (WatchList).
	Streams int
	// Watches are watches that begin at a resource version.
	Watches int
	// Failed are requests of these kinds that failed.
	Failed int
}

func (r Requests) String() string {
	return fmt.Sprintf("%d lists, %d streams, %d watches, %d failed", r.Lists, r.Streams, r.Watches, r.Failed)
}

// Since returns how many requests were made after an earlier count.
func (r Requests) Since(earlier Requests) Requests {
	return Requests{
		Lists: r.Lists - earlier.Lists, Streams: r.Streams - earlier.Streams,
		Watches: r.Watches - earlier.Watches, Failed: r.Failed - earlier.Failed,
	}
}

// Counter is a transport that counts the requests for one collection.
type Counter struct {
	// Collection is the end of the URL's path, such as "/namespaces/default/configmaps".
	Collection string
	Next       http.RoundTripper

	lock  sync.Mutex
	count Requests
}

// RoundTrip sends a request.
func (c *Counter) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.Next.RoundTrip(request)
	if request.Method == http.MethodGet && strings.HasSuffix(request.URL.Path, c.Collection) {
		c.add(request, err == nil && response.StatusCode == http.StatusOK)
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the transport that can cancel requests.
func (c *Counter) WrappedRoundTripper() http.RoundTripper { return c.Next }

func (c *Counter) add(request *http.Request, succeeded bool) {
	c.lock.Lock()
	defer c.lock.Unlock()
	query := request.URL.Query()
	switch {
	case !succeeded:
		c.count.Failed++
	case !isTrue(query.Get("watch")):
		c.count.Lists++
	case isTrue(query.Get("sendInitialEvents")):
		c.count.Streams++
	default:
		c.count.Watches++
	}
}

// Total returns the number of requests so far.
func (c *Counter) Total() Requests {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.count
}

func isTrue(value string) bool { return value == "true" || value == "1" }
