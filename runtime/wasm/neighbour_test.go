package wasm

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/functions"
	"github.com/onpath/onpath/internal/funcbuild"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/testprogram"
)

// greedy are modules that take what they can: the first three break a bound of one event at
// each packet, the others stay within all bounds and work as long and as often as they may.
// The three before the last do so with what an engine is given.
var greedy = []struct{ name, source string }{
	{"an endless loop", "ONPATH_FUNCTION(p) { volatile unsigned n = p->ttl; for (;;) n++; }"},
	{"memory growth", "ONPATH_FUNCTION(p) { for (;;) __builtin_wasm_memory_grow(0, 1); }"},
	{"a host-call flood", "ONPATH_FUNCTION(p) { for (;;) bpf_get_prandom_u32(); }"},
	{"loops at each tick", "ONPATH_START { onpath_every(10); } ONPATH_TIMER { volatile unsigned n = 0; while (n < 1500000) n++; }"},
	{"its memory written at each tick", "ONPATH_START { __builtin_wasm_memory_grow(0, 240); onpath_every(10); }" +
		" ONPATH_TIMER { for (int i = 0; i < 4; i++) __builtin_memset((void *)131072, i, __builtin_wasm_memory_size(0) * 65536 - 131072); }"},
	{"bodies without end", `static void all(void) { while (onpath_fetch("http://10.255.0.1/", 18, "", 0) > 0); }
		ONPATH_START { onpath_every(1000); all(); } ONPATH_TIMER { all(); } ONPATH_EVENT(e) { onpath_fetch_read(e->stream); }`},
	{"10,000 fetches a second", `ONPATH_START { onpath_every(10); }
		ONPATH_TIMER { for (int i = 0; i < 100; i++) onpath_fetch_cancel(onpath_fetch("http://10.255.0.1/0", 19, "", 0)); }`},
	{"the disk written at each tick", `static char b[65536];
		ONPATH_START { onpath_every(10); }
		ONPATH_TIMER {
			for (int i = 0; i < 16; i++)
				if (onpath_blob_create(&i, 4, "", 0) || onpath_blob_add(&i, 4, b, sizeof b) || onpath_blob_whole(&i, 4))
					break;
		}`},
	{"host calls at each tick", "ONPATH_START { onpath_every(10); } ONPATH_TIMER { for (int i = 0; i < 19999; i++) bpf_get_prandom_u32(); }"},
}

// TestNeighbour: beside an engine whose module takes what it can, the engine of another
// tenant has at least 0.95 of the throughput that it has beside an idle engine of the same
// limits. The two take turns, often, as others on the machine take from both: which of them runs,
// the other stands still.
func TestNeighbour(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it occupies the machine for two minutes")
	}
	opt := options(t)
	opt.Program = testprogram.Path(t)
	origin := endless(t)
	opt.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, origin)
	}
	d, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	defer sender(t, startOne(t, d, "measured", functions.NetmonitorModule), 0)()
	for i, g := range greedy {
		t.Run(g.name, func(t *testing.T) {
			var turn [2]onpath.Process // idle, greedy
			node := ""
			for k, code := range [][]byte{functions.NetmonitorModule, greedyModule(t, g.source)} {
				id := []string{"idle", "greedy"}[k] + itoa(i)
				node = startOne(t, d, id, code)
				turn[k], _ = d.lookup(id)
			}
			end := sender(t, node, time.Millisecond)
			defer func() {
				end()
				for k := range turn {
					_ = unix.Kill(turn[k].Pid(), unix.SIGCONT)
					if err := turn[k].Stop(context.Background(), 0); err != nil {
						t.Error(err)
					}
				}
			}()
			var through [2]uint64
			var busy [2]time.Duration
			for round := range 48 {
				k := (round + round/2) % 2 // 0 1 1 0: whatever changes with time changes both
				_ = unix.Kill(turn[1-k].Pid(), unix.SIGSTOP)
				_ = unix.Kill(turn[k].Pid(), unix.SIGCONT)
				time.Sleep(100 * time.Millisecond) // a period of the control group
				before, used := d.sent(t, "measured"), usage(t, turn[k])
				time.Sleep(300 * time.Millisecond)
				through[k] += d.sent(t, "measured") - before
				busy[k] += usage(t, turn[k]) - used
			}
			ratio := float64(through[1]) / float64(through[0])
			t.Logf("%.3f: %d packets beside it, %d beside an idle engine; in 7.2 s each it took %s of the processor, the idle one %s",
				ratio, through[1], through[0], busy[1].Round(time.Millisecond), busy[0].Round(time.Millisecond))
			if ratio < 0.95 {
				t.Errorf("beside %s a neighbour keeps %.3f of its throughput, and must keep 0.95", g.name, ratio)
			}
			if busy[1] <= busy[0] {
				t.Errorf("%s took no more of the processor than an idle engine: this shows nothing", g.name)
			}
		})
	}
}

// endless is a web server whose bodies do not end; its address.
func endless(t *testing.T) string {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for b := make([]byte, 64<<10); r.Context().Err() == nil && r.URL.Path == "/"; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}))
	t.Cleanup(web.Close)
	return strings.TrimPrefix(web.URL, "http://")
}

// startOne starts an engine, with the limits that all have here, in namespaces of its own.
func startOne(t *testing.T, d *Driver, id string, code []byte) (node string) {
	t.Helper()
	node, instance := namespaces(t)
	spec := onpath.FunctionSpec{
		Wasm: &onpath.WasmSpec{Modules: []onpath.WasmModule{{Name: "m", Code: code, None: onpath.NoneBypass,
			Fetch: []string{"10.255.0.1"}}}},
		Resources: onpath.Resources{CPU: 400, Memory: 64 << 20}, Packets: onpath.PacketsKeep,
	}
	run := onpath.RunSpec{ID: id, Labels: map[string]string{"tenant": id}, Spec: spec, NetNS: instance}
	if _, err := d.Start(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	return node
}

func greedyModule(t *testing.T, does string) []byte {
	t.Helper()
	source := filepath.Join(t.TempDir(), "greedy.c")
	text := "#include \"onpath.h\"\nONPATH_LICENSE(\"GPL\");\n" + does + "\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, err := funcbuild.Compile(t.Context(), source, funcbuild.ToWasm)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// sender sends datagrams through an engine until end is called: one after each pause, or as
// many as it can.
func sender(t *testing.T, node string, pause time.Duration) (end func()) {
	t.Helper()
	var c *net.UDPConn
	if err := netnsrun.Do(node, func() (err error) {
		c, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.9.0.3:9")))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !over.Load() {
			_, _ = c.Write([]byte("hello"))
			time.Sleep(pause)
		}
	}()
	return func() {
		over.Store(true)
		<-done
		_ = c.Close()
	}
}

// sent is how many packets have passed an engine.
func (d *Driver) sent(t *testing.T, id string) uint64 {
	t.Helper()
	s, err := d.Control(id).Status(t.Context())
	if err != nil || strings.TrimSpace(s.Modules[0].Why) != "" {
		t.Fatalf("%+v, %v", s, err)
	}
	return s.Sent
}

func usage(t *testing.T, p onpath.Process) time.Duration {
	t.Helper()
	u, err := p.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return u.CPU
}
