package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/internal/funcbuild"
)

// serving is an engine that serves HTTP on loopback, supplied as by an agent.
type serving struct {
	t     *testing.T
	e     *Engine
	url   string
	dials atomic.Int64
	dial  func(ctx context.Context, address string) (net.Conn, error)
	told  string // where notifications go
}

func newServing(t *testing.T, disk onpath.Size) *serving {
	t.Helper()
	e, err := New(slog.New(slog.NewTextHandler(t.Output(), nil)), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	s := &serving{t: t, e: e, dial: func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	path := filepath.Join(t.TempDir(), "control")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = e.Listen(ctx, l) }()
	client := control.Client{Path: path}
	go func() { _ = client.Supply(ctx, s.open) }()
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if disk > 0 {
		f, err := os.Create(filepath.Join(t.TempDir(), "blobs"))
		if err == nil {
			err = client.Disk(ctx, f, disk)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	served := &served{tcp: map[uint16]net.Listener{80: web}, http: map[uint16]*http.Server{}}
	served.serve(e)
	s.url = "http://" + web.Addr().String()
	t.Cleanup(func() {
		served.close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *serving) open(ctx context.Context, w control.Want) (*os.File, error) {
	s.dials.Add(1)
	var c net.Conn
	var err error
	if w.Notify {
		c, err = net.Dial("tcp", s.told)
	} else {
		c, err = s.dial(ctx, w.Dial)
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.(*net.TCPConn).File()
}

func (s *serving) set(code []byte, config onpath.Env, fetch ...string) {
	s.t.Helper()
	m := onpath.WasmModule{Name: "m", Code: code, Config: config, Fetch: fetch}
	if err := s.e.Set(s.t.Context(), control.Config{Modules: []onpath.WasmModule{m}}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *serving) counts() map[string]uint64 {
	s.t.Helper()
	st, err := s.e.Status(s.t.Context())
	if err != nil || st.Modules[0].Why != "" {
		s.t.Fatalf("%+v, %v", st, err)
	}
	return st.Modules[0].Counters
}

func (s *serving) get(path string) (string, *http.Response) {
	s.t.Helper()
	resp, err := http.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Errorf("%s: %v after %d bytes", path, err, len(b))
	}
	return string(b), resp
}

// eventually waits for something that becomes so beside the test.
func (s *serving) eventually(what string, is func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%s does not become so; %v", what, s.counts())
		}
	}
}

var blocksModule = sync.OnceValues(func() ([]byte, error) {
	return funcbuild.Compile(context.Background(), "testdata/blocks.c", funcbuild.ToWasm)
})

// withBlocks is an engine that runs testdata/blocks.c, and an origin with what handler gives.
func withBlocks(t *testing.T, disk onpath.Size, handler http.HandlerFunc) *serving {
	t.Helper()
	code, err := blocksModule()
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	origin := httptest.NewServer(handler)
	t.Cleanup(origin.Close)
	s := newServing(t, disk)
	s.set(code, onpath.Env{"url": origin.URL + "/file"}, strings.TrimPrefix(origin.URL, "http://"))
	return s
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// TestRelay: a module hands on what it fetches, piece by piece, however long it is, and to a
// client that reads late; the origin sees the module's header, and the host that it was asked for.
func TestRelay(t *testing.T) {
	file := randomBytes(3 << 20)
	asked := make(chan *http.Request, 1)
	s := withBlocks(t, 0, func(w http.ResponseWriter, r *http.Request) {
		asked <- r
		_, _ = w.Write(file)
	})
	resp, err := http.Get(s.url + "/relay")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	time.Sleep(100 * time.Millisecond) // the queue is full meanwhile
	b, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(b, file) {
		t.Errorf("%d bytes of %d came: %v", len(b), len(file), err)
	}
	if r := <-asked; r.Header.Get("X-Told") != "yes" || r.Host == "other" {
		t.Errorf("the origin was asked %v by name %s", r.Header, r.Host)
	}
	s.eventually("the answer's end", func() bool { return s.counts()["sent"] == 1 })
}

// TestFetchQuota: of many fetches as many are begun as there may be at a time; a host that the
// function does not name is refused before anything is dialed.
func TestFetchQuota(t *testing.T) {
	hold := make(chan struct{})
	s := withBlocks(t, 0, func(http.ResponseWriter, *http.Request) { <-hold })
	t.Cleanup(func() { close(hold) })
	if said, _ := s.get("/elsewhere"); said != "2" || s.dials.Load() != 0 {
		t.Errorf("elsewhere: %s, %d dials", said, s.dials.Load())
	}
	if said, _ := s.get("/many"); said != fmt.Sprint(maxFetches) {
		t.Errorf("%s fetches at a time, want %d", said, maxFetches)
	}
	if said, _ := s.get("/many"); said != "0" || s.counts()["refused"] != 400-maxFetches {
		t.Errorf("then %s; %v", said, s.counts())
	}
}

// TestEndless: a module that reads bodies without end, as fast as it can, holds up no other event
// of its engine; when it goes, so do its fetches.
func TestEndless(t *testing.T) {
	var open atomic.Int64
	s := withBlocks(t, 0, func(w http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Add(-1)
		for b := make([]byte, 32<<10); r.Context().Err() == nil; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})
	if said, _ := s.get("/drain"); said != "16" {
		t.Fatal(said)
	}
	s.eventually("bodies that come", func() bool { return s.counts()["pieces"] > 200 })
	for range 50 {
		if said, _ := s.get("/elsewhere"); said != "2" {
			t.Errorf("another request is answered %s", said)
		}
	}
	before := s.counts()["pieces"]
	s.eventually("more of the bodies", func() bool { return s.counts()["pieces"] > before+200 })
	if n := open.Load(); n != 16 {
		t.Errorf("%d bodies come, want 16", n)
	}
	if err := s.e.Set(t.Context(), control.Config{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); open.Load() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bodies still come", open.Load())
		}
	}
}

// TestUpload: a body that is longer than the buffer, and than all that is read ahead, reaches
// the module as a stream.
func TestUpload(t *testing.T) {
	s := withBlocks(t, 0, nil)
	for _, n := range []int{20 << 10, 5 << 20} {
		resp, err := http.Post(s.url+"/upload", "text/plain", bytes.NewReader(make([]byte, n)))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(b) != fmt.Sprint(n) {
			t.Errorf("of %d bytes %q came (%s)", n, b, resp.Status)
		}
	}
}

// TestStore: a blob is read while it is written, and outlives the module's replacement.
func TestStore(t *testing.T) {
	file := randomBytes(1 << 20)
	more := make(chan struct{})
	s := withBlocks(t, 16<<20, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(file[:100<<10])
		_ = http.NewResponseController(w).Flush()
		<-more
		_, _ = w.Write(file[100<<10:])
	})
	resp, err := http.Get(s.url + "/store")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := make([]byte, 100<<10)
	if _, err := io.ReadFull(resp.Body, got); err != nil || !bytes.Equal(got, file[:100<<10]) {
		t.Errorf("while it comes: %v", err)
	}
	close(more)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(rest, file[100<<10:]) {
		t.Errorf("the rest has %d bytes: %v", len(rest), err)
	}
	s.eventually("the blob's end", func() bool { return s.counts()["ends"] == 1 })
	code, _ := blocksModule()
	s.set(append(code[:len(code):len(code)], 0, 2, 1, 'x'), nil) // another hash
	if s.counts()["ends"] != 0 {
		t.Error("the module was not replaced")
	}
	if said, _ := s.get("/blob"); said != string(file[5:]) {
		t.Errorf("after the replacement the blob has %d bytes", len(said))
	}
}

// TestDiskQuota: a module writes no more a second than it may, and the oldest blobs make room.
func TestDiskQuota(t *testing.T) {
	s := withBlocks(t, 4<<20, nil)
	began, wrote, least := time.Now(), 0, writeRate/(16<<10)
	for n := 16; n == 16 && wrote < 4*least; wrote += n { // a slow disk may never be over the rate
		said, _ := s.get("/fill")
		if _, err := fmt.Sscan(said, &n); err != nil {
			t.Fatal(said)
		}
	}
	if most := least + int(time.Since(began).Seconds()*float64(least)) + 1; wrote < least || wrote > most {
		t.Errorf("%d blobs were written at once, want %d to %d", wrote, least, most)
	}
	st := s.e.disk.Load().Status()
	if st.Blocks*16<<10 > 4<<20 || st.Evicted == 0 || st.Blobs < 50 {
		t.Errorf("%+v", st)
	}
}

// TestFlood: a client that reads nothing holds what an answer may queue, and nobody else.
func TestFlood(t *testing.T) {
	s := withBlocks(t, 0, nil)
	var closers []io.Closer
	for range maxKeptOf {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		closers = append(closers, c)
		fmt.Fprintf(c, "GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	s.eventually("as many kept requests as a client may have", func() bool { return s.counts()["refused"] == maxKeptOf })
	if said, _ := s.get("/keep"); said != "0" {
		t.Errorf("one more is kept: %s", said)
	}
	for _, c := range closers {
		_ = c.Close()
	}
	s.eventually("the clients' end", func() bool { return s.counts()["failed"] == maxKeptOf })
	s.eventually("the end of the kept requests", func() bool { // each ends after its module was told
		s.e.kept.mu.Lock()
		defer s.e.kept.mu.Unlock()
		return s.e.kept.n == 0
	})
}

// TestNotifyQuota: a module tells its owner so much a second.
func TestNotifyQuota(t *testing.T) {
	var told atomic.Int64
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if strings.Contains(string(b), `"title":"crowd"`) && strings.Contains(string(b), `"level":"warning"`) {
			told.Add(1)
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	defer door.Close()
	s := withBlocks(t, 0, nil)
	s.told = strings.TrimPrefix(door.URL, "http://")
	if said, _ := s.get("/notify"); said != fmt.Sprint(tellRate) {
		t.Errorf("%s notifications at once, want %d", said, tellRate)
	}
	s.eventually("what it told", func() bool { return told.Load() == tellRate })
}

// TestMissed: notifications that nobody takes and fetches that fail are counted, for whoever
// runs the node: a module may keep both to itself.
func TestMissed(t *testing.T) {
	s, o := newCDN(t, nil)
	s.dial = func(context.Context, string) (net.Conn, error) { return nil, errors.New("not public") }
	if status, _, b := s.body("/page.html"); status != http.StatusBadGateway || o.count("/page.html") != 0 {
		t.Errorf("%d %q", status, b)
	}
	if n := s.numbers(); n.FetchFailed != 1 {
		t.Errorf("%+v", n)
	}
	full := httptest.NewServer(http.NotFoundHandler())
	defer full.Close()
	s = withBlocks(t, 0, nil)
	s.told = strings.TrimPrefix(full.URL, "http://")
	_, _ = s.get("/notify")
	s.eventually("the count of what is lost", func() bool { return s.numbers().NotifyLost == tellRate })
}

func (s *serving) numbers() control.ModuleNumbers {
	s.t.Helper()
	st, err := s.e.Status(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return st.Modules[0].ModuleNumbers
}
