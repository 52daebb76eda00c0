package attach_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/bench/fleet"
	"github.com/onpath/onpath/cli/console"
)

// TestLarge: a browser shows an installation of 100 virtual nodes and 400 instances, as the
// planner settled it and the API gives it, with traffic on each of them; how long that takes,
// and how evenly it goes on, against one of five nodes.
func TestLarge(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes a minute")
	}
	needBrowser(t)
	small := show(t, fleet.Size{Cloudlets: 1, Nodes: 5, Chains: 7})
	large := show(t, fleet.Size{Cloudlets: 4, Nodes: 25, Chains: 34})
	if large.Complete > 3*small.Complete {
		t.Errorf("the map takes %v ms, with five nodes %v ms: more than three times as long", large.Complete, small.Complete)
	}
	if large.Bytes > 600_000 {
		t.Errorf("the first view takes %d bytes, of 600,000 at most", large.Bytes)
	}
	if large.Frame > 34 || large.Idle < 0.6 {
		t.Errorf("a frame takes %.1f ms, of 34 at most; the page is idle for %.2f of the time, of 0.6 at least", large.Frame, large.Idle)
	}
}

// shown is what web/large.mjs measured: milliseconds, and the share of time without a task.
type shown struct {
	Paint, Complete, Frame, Frame95, Idle float64
	Bytes, Nodes, Requests                int
	Says                                  string
}

func show(t *testing.T, size fleet.Size) (s shown) {
	t.Helper()
	f, err := fleet.New(size, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	loop, err := fleet.Serve(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	defer loop.Close()
	at, stop := consoleOf(t, loop, f)
	defer stop()
	folder := os.Getenv("ONPATH_PICTURES")
	if folder == "" {
		folder = t.TempDir()
	}
	picture := filepath.Join(folder, fmt.Sprintf("map-of-%d.png", size.Cloudlets*size.Nodes))
	cmd := exec.CommandContext(t.Context(), "node", "large.mjs", at, picture)
	cmd.Dir, cmd.WaitDelay, cmd.Stderr = "../../web", 5*time.Second, os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%v: %s", size, out)
	return s
}

// consoleOf serves the pages over the API of a fleet, whose nodes cannot be asked for their
// counters: traffic is made up here.
func consoleOf(t *testing.T, loop *fleet.Server, f *fleet.Fleet) (address string, stop func()) {
	t.Helper()
	dir := t.TempDir()
	discard := slog.New(slog.DiscardHandler)
	hub := session.NewHub(discard, time.Now)
	server, err := api.New(api.Options{Store: loop.Store(), Controller: loop.Controller(), Admission: loop.Controller(), Hub: hub,
		Dir: dir, Version: "test", Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	socket, err := api.ListenUnix(filepath.Join(dir, "server.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go server.Run(ctx)
	go func() { _ = server.ServeUnix(ctx, socket) }()
	cl := client.Unix(filepath.Join(dir, "server.sock"))
	base, _ := url.Parse(cl.URL())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := console.New(console.Options{Address: l.Addr().String(), Pages: os.DirFS("../../web/dist"), Server: base,
		Transport: withTraffic{cl.HTTP().Transport, f}})
	pages := &httptest.Server{Listener: l, Config: &http.Server{Handler: c}}
	pages.Start()
	return c.Open(), func() { cancel(); pages.CloseClientConnections(); pages.Close(); cl.Close() }
}

// withTraffic answers for the nodes of a fleet what they carry, each second something else.
type withTraffic struct {
	http.RoundTripper
	fleet *fleet.Fleet
}

func (w withTraffic) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != "/v1/traffic" {
		return w.RoundTripper.RoundTrip(r)
	}
	read, write := io.Pipe()
	go func() {
		for turn := 1; r.Context().Err() == nil; turn++ {
			b, _ := json.Marshal(w.sample(turn))
			if _, err := write.Write(append(b, '\n')); err != nil {
				return
			}
			select {
			case <-r.Context().Done():
			case <-time.After(time.Second):
			}
		}
		_ = write.Close()
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/x-ndjson"}}, Body: read, Request: r}, nil
}

func (w withTraffic) sample(turn int) onpath.Traffic {
	s := onpath.Traffic{Time: time.Now(), Chains: map[string]onpath.Carried{}, Instances: map[string]onpath.Carried{}, Nodes: map[string]onpath.Carried{}}
	for k := range w.fleet.Objects {
		carried := onpath.Carried{Packets: float64(turn * 1000), Bits: float64(turn * 1e6 * (1 + len(s.Instances)%7))}
		switch k.Kind {
		case onpath.KindInstance:
			s.Instances[k.Tenant+"/"+k.Name] = carried
		case onpath.KindChain:
			s.Chains[k.Tenant+"/"+k.Name] = carried
		case onpath.KindNode:
			s.Nodes[k.Name] = carried
		}
	}
	return s
}
