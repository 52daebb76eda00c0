package relay

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// formerVersion in the environment has the process speak as versions did that kept no accounts
// and were not asked whether they are full.
const formerVersion = "ONPATH_TEST_FORMER"

// serveFormer is that process. Each question costs it processor time; how often it was asked what
// it does not know, it says as connections of a tenant.
func serveFormer(l net.Listener) {
	var unknown atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /instances/{id}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /end", func(http.ResponseWriter, *http.Request) { os.Exit(0) })
	mux.HandleFunc("GET /instances", func(w http.ResponseWriter, _ *http.Request) {
		for began := time.Now(); time.Since(began) < 30*time.Millisecond; {
		}
		tenants := map[string]any{"t": map[string]any{"connections": unknown.Load()}}
		_ = json.NewEncoder(w).Encode(map[string]any{"pid": os.Getpid(), "instances": []string{"one", "two"}, "stats": map[string]any{"Tenants": tenants}})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		unknown.Add(1)
		http.NotFound(w, r)
	})
	_ = http.Serve(l, mux)
}

// TestFormer: of a process that an agent of an earlier version began, the next agent bounds the
// memory, divides evenly what it takes, and does not ask again what it does not know.
func TestFormer(t *testing.T) {
	t.Setenv(formerVersion, "1")
	s := subject(t)
	rt := s.Open(t)
	t.Cleanup(func() {
		if err := rt.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for id, syn := range map[string]onpath.SYNAnswer{"one": "", "two": onpath.SYNWait} {
		spec := s.Spec(nil)
		spec.Relay.Work.SYN = syn
		p, err := rt.Start(t.Context(), onpath.RunSpec{ID: id, Labels: map[string]string{TenantLabel: "t"}, Spec: spec, NetNS: namespace(t)})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.(onpath.Lacking).Lacks(); (err != nil) != (syn == onpath.SYNWait) {
			t.Errorf("started to answer as %q, it lacks %v", syn, err)
		}
	}
	pid := rt.(*Driver).pid
	if err := os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("7"), 0); err != nil {
		t.Fatal(err)
	}
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	rt = s.Open(t)
	before := ofProcess(t, pid)
	all, err := rt.Adopt(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%d instances are found, %v", len(all), err)
	}
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj"); err != nil || strings.TrimSpace(string(b)) != "0" {
		t.Errorf("the process is not bounded: its oom_score_adj is %q, %v", b, err)
	}
	var sum time.Duration
	for range 10 {
		sum = 0
		for id, p := range all {
			u, err := p.Usage(t.Context())
			if err != nil || u.Memory <= 0 {
				t.Fatalf("%s uses %+v, %v", id, u, err)
			}
			sum += u.CPU
		}
	}
	if took := ofProcess(t, pid) - before; sum > took || sum < took/2 {
		t.Errorf("the relays took %s, and the process %s", sum, took)
	}
	for _, x := range []struct {
		syn     onpath.SYNAnswer
		refused bool
	}{{onpath.SYNWait, true}, {"", false}} {
		spec := s.Spec(nil)
		spec.Relay.Work.SYN = x.syn
		if err := all["one"].(onpath.Reconfigurable).Reconfigure(t.Context(), &spec); (err != nil) != x.refused {
			t.Errorf("told to answer as %q, it says %v", x.syn, err)
		}
	}
	relays := all["one"].(onpath.Relaying)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := relays.AwaitFull(ctx, ""); ctx.Err() == nil {
		t.Errorf("it is asked again at once whether it is full: %v", err)
	}
	if r, err := relays.Relayed(t.Context()); err != nil || r.Connections != 1 {
		t.Errorf("it was asked %d times what it does not know, %v", r.Connections, err)
	}
	told := make(chan struct{})
	go func() { defer close(told); _, _ = relays.AwaitFull(t.Context(), "") }()
	s.Kill(t, all["one"])
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Error("the process has ended, and is still waited for")
	}
}
