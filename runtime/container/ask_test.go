package container

import (
	"archive/tar"
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/onpath/onpath"
)

// TestRegistryAway: what is on disk starts without a registry: by its digest nobody is
// asked, whatever tag it was fetched by; by a tag a registry that does not answer is not
// waited for.
func TestRegistryAway(t *testing.T) {
	var silent atomic.Bool
	var asked atomic.Int32
	good := registry.New()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if silent.Load() {
			<-r.Context().Done()
			return
		}
		good.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	digest := push(t, server.URL+"/v2/tenant/small", archiveOf(t, func(w *tar.Writer) {
		entry(t, w, tar.Header{Typeflag: tar.TypeReg, Name: "f"}, []byte("small"))
	}))
	d := open(t, machine(t))
	defer d.Close()
	var to atomic.Value
	var connections atomic.Int32
	d.BeforeConnect(func(_ context.Context, a netip.AddrPort) func() {
		to.Store(a)
		connections.Add(1)
		return func() { connections.Add(-1) }
	})
	prepare := func(image string) time.Duration {
		t.Helper()
		began := time.Now()
		if err := d.Prepare(t.Context(), &onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: image}}, nil); err != nil {
			t.Fatalf("%s: %v", image, err)
		}
		return time.Since(began)
	}
	tag := host + "/tenant/small:1"
	prepare(tag)
	if a, _ := to.Load().(netip.AddrPort); a.String() != host {
		t.Errorf("before the connection to %s it is told %v", host, a)
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("it is told of %d connections that are open", n)
	}
	server.CloseClientConnections()
	for end := time.Now().Add(time.Minute); connections.Load() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after the end of all connections %d count as open", connections.Load())
		}
	}
	silent.Store(true)
	asked.Store(0)
	if took := prepare(host + "/tenant/small:1@" + digest.String()); asked.Load() != 0 {
		t.Errorf("what is here by its digest: the registry is asked %d times, for %s", asked.Load(), took)
	}
	if took := prepare(tag); asked.Load() == 0 || took > 2*askPatience && os.Getenv("ONPATH_SOAK") != "" {
		t.Errorf("what is here by its tag: the registry is asked %d times, for %s", asked.Load(), took)
	}
}
