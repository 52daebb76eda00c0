package api_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/onpath/onpath"
)

// silentStore does not answer, as one whose file is being rewritten or whose cluster is away.
type silentStore struct{ onpath.Store }

var errSilent = onpath.Errorf(onpath.CodeUnavailable, "list: the store does not answer: etcdserver: request timed out")

func (s silentStore) List(context.Context, onpath.Kind, string) ([]onpath.Object, int64, error) {
	return nil, 0, errSilent
}

func (s silentStore) Get(context.Context, onpath.Key) (onpath.Object, error) { return nil, errSilent }

// TestStoreAway: while the store does not answer, requests are answered with 503 and when to ask
// again.
func TestStoreAway(t *testing.T) {
	w := newWorld(t)
	w.stop()
	w.wrapped = silentStore{w.store}
	w.start()
	for _, path := range []string{"/v1/hosts", "/v1/hosts/default/web"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.operator.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := w.operator.HTTP().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %s, Retry-After %q", path, answer.Status, answer.Header.Get("Retry-After"))
		}
	}
}
