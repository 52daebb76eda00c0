package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// Downloads: how many clients, and how the origin paces each. Every chunk wakes up
// programs at both ends and a cache, 2,000 times a second: so small as to leave a
// cache time for twice as many, and the machine some for those that start.
const (
	downloads = 250 // of which breath leaves 200
	chunkSize = 2 << 10
	chunks    = 40
	pace      = 100 * time.Millisecond
	breath    = time.Second // clients wait up to so long before the next file
)

// What is promised: flows of a stateless element go on within stillFor; those of
// one that ends TCP are reset, and new ones served, within anewFor. The origin's
// own pace comes on top.
const (
	stillFor = 300*time.Millisecond + pace
	anewFor  = 500*time.Millisecond + pace
)

const downloadChain = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: dl-firewall}
spec:
  container: {image: IMAGES/firewall, attach: routed, capabilities: [NET_ADMIN], addresses: none}
  state: none
  packets: keep
  health: {exec: [test, -e, /run/ready], every: 1s}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: dl-cache}
spec:
  container: {image: IMAGES/cache, attach: routed, capabilities: [NET_ADMIN, NET_RAW], addresses: private}
  state: terminates
  packets: originate
  resources: {cpu: "1", memory: 256Mi}
  health: {tcp: 3129, every: 500ms}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: dl-firewall}
spec: {function: dl-firewall, instances: 2, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: dl-cache}
spec: {function: dl-cache, instances: 2, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: downloads}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: tcp, destinationPorts: ["80"]}]
  through:
  - {deployment: dl-firewall, lost: repick}
  - {deployment: dl-cache, lost: reset}
`

// TestDownloads kills an instance of every element in turn in the middle of 200
// downloads, again and again: none hangs for longer than promised, none gets
// wrong bytes, and a stateless element's death breaks none. ONPATH_SOAK says for how
// long.
func TestDownloads(t *testing.T) {
	idle(t)
	span := soak(t, 30*time.Second)
	ctx := need(t, span+3*time.Minute)
	serveFiles(t)
	apply(ctx, t, strings.ReplaceAll(downloadChain, "IMAGES", images(t, "firewall", "cache")))
	active(ctx, t, "downloads")
	ready(ctx, t, 4)
	f := startFleet(ctx, t)
	time.Sleep(3 * time.Second)
	begin := time.Now()
	for turn := 0; time.Since(begin) < span; turn++ {
		ready(ctx, t, 4)
		victim := nextVictim(ctx, t, []string{"dl-firewall", "dl-cache"}[turn%2], turn/2)
		f.kill(victim.Spec.Deployment)
		if _, err := testbed.Onpath(ctx, "fault", "kill-instance", victim.Metadata.Name, "--yes", "--watch", "0"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2500 * time.Millisecond)
	}
	f.end()
	f.checkReport(t)
}

// images is where the images of first-party functions are; it skips without them.
func images(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := filepath.Abs("../../bin/images")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Skipf("needs the image %s: make images", name)
		}
	}
	return dir
}

// nextVictim takes the instances of a deployment by turns.
func nextVictim(ctx context.Context, t *testing.T, deployment string, turn int) onpath.Instance {
	t.Helper()
	list, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	list = slices.DeleteFunc(list, func(i onpath.Instance) bool { return i.Spec.Deployment != deployment })
	if len(list) == 0 {
		t.Fatalf("deployment %s has no instance", deployment)
	}
	return list[turn%len(list)]
}

// content is what the origin serves under a number.
func content(n uint64) io.Reader {
	var seed [32]byte
	for i := range 8 {
		seed[i] = byte(n >> (8 * i))
	}
	return io.LimitReader(rand.NewChaCha8(seed), chunkSize*chunks)
}

// serveFiles is an origin that sends chunks at a steady pace.
func serveFiles(t *testing.T) {
	t.Helper()
	serveWeb(t, "origin", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseUint(strings.TrimPrefix(r.URL.Path, "/"), 10, 64)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(chunkSize*chunks))
		w.Header().Set("Cache-Control", "no-store")
		from := content(n)
		for range chunks {
			if _, err := io.CopyN(w, from, chunkSize); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			time.Sleep(pace)
		}
	})
}

// serveWeb answers at a host's port 80 until the test ends.
func serveWeb(t *testing.T, host string, handler http.HandlerFunc) {
	t.Helper()
	var l net.Listener
	in(t, host, func() (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	})
	s := &http.Server{Handler: handler}
	var wg sync.WaitGroup
	t.Cleanup(func() { s.Close(); wg.Wait() })
	wg.Go(func() { _ = s.Serve(l) })
}

// fleet is many clients that download, one file after another.
type fleet struct {
	stop  chan struct{}
	wg    sync.WaitGroup
	mu    sync.Mutex
	total int
	died  []death
	kills map[string]int
	// by the deployment to whose death it is put down
	broken map[string]int
	hang   map[string]time.Duration
	wrong  []string
	why    map[string]int // how downloads broke
	long   []silence      // the longest, longest first
	again  int            // connections from the ports of one that broke
	open   map[*watched]bool
	looks  []string // what was found while downloads stood still
}

func startFleet(ctx context.Context, t *testing.T) *fleet {
	f := &fleet{stop: make(chan struct{}), kills: map[string]int{}, broken: map[string]int{}, hang: map[string]time.Duration{},
		why: map[string]int{}, open: map[*watched]bool{}}
	f.wg.Go(func() { f.lookAtStill(ctx) })
	client := testbed.Lab.NetNS("client")
	for worker := range uint64(downloads) {
		f.wg.Go(func() {
			time.Sleep(time.Duration(rand.Int64N(int64(chunks * pace)))) // not all at once
			var again net.Addr
			for n := worker; ; n += downloads {
				select {
				case <-f.stop:
					return
				default:
				}
				wait := breath
				if again = f.download(ctx, client, n, again); again != nil {
					wait /= 10 // who lost a file is at it again soon
				}
				time.Sleep(time.Duration(rand.Int64N(int64(wait))))
			}
		})
	}
	t.Cleanup(f.end)
	return f
}

func (f *fleet) end() {
	f.mu.Lock()
	select {
	case <-f.stop:
	default:
		close(f.stop)
	}
	f.mu.Unlock()
	f.wg.Wait()
}

func (f *fleet) kill(deployment string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.died = append(f.died, death{time.Now(), deployment})
	f.kills[deployment]++
}

// death is when an instance of a deployment was killed.
type death struct {
	at         time.Time
	deployment string
}

// cause is the deployment to whose death a silence is put down: the first that
// died in it, else the last before.
func (f *fleet) cause(s silence) (deployment string) {
	for _, d := range f.died {
		if d.at.After(s.to) {
			break
		}
		deployment = d.deployment
		if d.at.After(s.from) {
			break
		}
	}
	return deployment
}

// note takes the silences of a download, the longest and the last, and how it ended.
func (f *fleet) note(longest, last silence, err error, wrong string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total++
	cause := f.cause(longest)
	f.hang[cause] = max(f.hang[cause], longest.length())
	f.long = append(f.long, longest)
	slices.SortFunc(f.long, func(a, b silence) int { return cmp.Compare(b.length(), a.length()) })
	f.long = f.long[:min(len(f.long), 5)]
	if err != nil {
		cause = f.cause(last)
		f.broken[cause]++
		f.why[cause+": "+reason(err)]++
	}
	if wrong != "" {
		f.wrong = append(f.wrong, wrong)
	}
}

// reason is an error without the addresses in it.
func reason(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "ended early"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timed out"
	}
	return err.Error()
}

// download gets one file and compares every byte, from an address if that is free. Of one
// that broke it returns the client's address, for the next: ports that are used again
// soon meet what is left of a connection.
func (f *fleet) download(ctx context.Context, client string, n uint64, from net.Addr) net.Addr {
	w := &watched{}
	w.saw()
	err := netnsrun.Do(client, func() (err error) {
		d := net.Dialer{Timeout: 5 * time.Second, KeepAlive: -1, LocalAddr: from}
		w.Conn, err = d.DialContext(ctx, "tcp", "10.9.0.2:80")
		if errors.Is(err, syscall.EADDRINUSE) {
			d.LocalAddr = nil
			w.Conn, err = d.DialContext(ctx, "tcp", "10.9.0.2:80")
		}
		return err
	})
	if err != nil {
		w.saw()
		f.note(w.longest, w.last, err, "")
		return nil
	}
	defer w.Close()
	f.opened(w, true, from != nil && w.LocalAddr().String() == from.String())
	defer f.opened(w, false, false)
	_ = w.SetDeadline(time.Now().Add(time.Minute))
	request, _ := http.NewRequest(http.MethodGet, fmt.Sprintf("http://10.9.0.2/%d", n), nil)
	request.Close = true
	err = request.Write(w)
	wrong := ""
	if err == nil {
		wrong, err = compare(w, request, content(n))
	}
	w.saw()
	f.note(w.longest, w.last, err, wrong)
	if err != nil {
		return w.LocalAddr()
	}
	return nil
}

// silence is a time without data, after so many bytes of a connection.
type silence struct {
	from, to time.Time
	after    int
}

// explain says how long a silence was, and where: in its download, and after which death.
func (f *fleet) explain(s silence) string {
	since := "before any death"
	for _, d := range f.died {
		if d.at.Before(s.to) {
			since = fmt.Sprintf("begins %s after %s died", s.from.Sub(d.at).Round(time.Millisecond), d.deployment)
		}
	}
	return fmt.Sprintf("%s after %d bytes, %s, at %s", s.length().Round(time.Millisecond), s.after, since, s.from.UTC().Format("15:04:05.000"))
}

func (s silence) length() time.Duration { return s.to.Sub(s.from) }

// watched notes the longest and the last time without data.
type watched struct {
	net.Conn
	longest, last silence
	read          int          // bytes
	at            atomic.Int64 // Unix ns of the last data
	looked        bool
}

func (w *watched) saw() {
	now := time.Now()
	w.at.Store(now.UnixNano())
	w.last = silence{w.last.to, now, w.read}
	if w.last.from.IsZero() {
		w.last.from = now
	}
	if w.last.length() > w.longest.length() {
		w.longest = w.last
	}
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.saw()
	w.read += n
	return n, err
}
