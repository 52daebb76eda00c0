package e2e

import (
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
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// Downloads: how many at once, and how the origin paces each.
const (
	downloads = 200
	chunkSize = 8 << 10
	chunks    = 20
	pace      = 100 * time.Millisecond
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
// wrong bytes, and a stateless element's death breaks none. ONPATH_SOAK makes it
// last longer than half a minute.
func TestDownloads(t *testing.T) {
	missed(t)
	span := soak(t, 30*time.Second)
	ctx := need(t, span+3*time.Minute)
	images, err := filepath.Abs("../../bin/images")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"firewall", "cache"} {
		if _, err := os.Stat(filepath.Join(images, name)); err != nil {
			t.Skipf("needs the image %s: make images", name)
		}
	}
	serveFiles(t)
	apply(ctx, t, strings.ReplaceAll(downloadChain, "IMAGES", images))
	active(ctx, t, "downloads")
	ready(ctx, t, 4)
	f := startFleet(ctx, t)
	time.Sleep(3 * time.Second)
	begin := time.Now()
	for turn := 0; time.Since(begin) < span; turn++ {
		ready(ctx, t, 4)
		victim := nextVictim(ctx, t, []string{"dl-firewall", "dl-cache"}[turn%2], turn/2)
		f.kill(victim.Spec.Deployment)
		if _, err := stage.Onpath(ctx, "fault", "kill-instance", victim.Metadata.Name, "--yes", "--watch", "0"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2500 * time.Millisecond)
	}
	f.end()
	f.judge(t)
}

// nextVictim takes the instances of a deployment by turns.
func nextVictim(ctx context.Context, t *testing.T, deployment string, turn int) onpath.Instance {
	t.Helper()
	list, err := stage.Instances(ctx)
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
	var l net.Listener
	in(t, "origin", func() (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	})
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	})}
	var wg sync.WaitGroup
	t.Cleanup(func() { s.Close(); wg.Wait() })
	wg.Go(func() { _ = s.Serve(l) })
}

// fleet is many clients that download, one file after another.
type fleet struct {
	stop  chan struct{}
	wg    sync.WaitGroup
	mu    sync.Mutex
	last  string // deployment killed last
	total int
	kills map[string]int
	// by the deployment killed last
	broken map[string]int
	hang   map[string]time.Duration
	wrong  []string
	why    map[string]int // how downloads broke
}

func startFleet(ctx context.Context, t *testing.T) *fleet {
	f := &fleet{stop: make(chan struct{}), kills: map[string]int{}, broken: map[string]int{}, hang: map[string]time.Duration{}, why: map[string]int{}}
	client := stage.Lab.NetNS("client")
	for worker := range uint64(downloads) {
		f.wg.Go(func() {
			for n := worker; ; n += downloads {
				select {
				case <-f.stop:
					return
				default:
				}
				f.download(ctx, client, n)
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
	f.last = deployment
	f.kills[deployment]++
}

// note takes the longest silence of a download and how it ended.
func (f *fleet) note(silence time.Duration, err error, wrong string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total++
	f.hang[f.last] = max(f.hang[f.last], silence)
	if err != nil {
		f.broken[f.last]++
		f.why[f.last+": "+reason(err)]++
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

// download gets one file and compares every byte.
func (f *fleet) download(ctx context.Context, client string, n uint64) {
	var c net.Conn
	begin := time.Now()
	err := netnsrun.Do(client, func() (err error) {
		c, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", "10.9.0.2:80")
		return err
	})
	if err != nil {
		f.note(time.Since(begin), err, "")
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	w := &watched{Conn: c, last: begin}
	request, _ := http.NewRequest(http.MethodGet, fmt.Sprintf("http://10.9.0.2/%d", n), nil)
	request.Close = true
	err = request.Write(c)
	wrong := ""
	if err == nil {
		wrong, err = compare(w, request, content(n))
	}
	w.saw()
	f.note(w.longest, err, wrong)
}

// watched notes the longest time without data.
type watched struct {
	net.Conn
	last    time.Time
	longest time.Duration
}

func (w *watched) saw() {
	now := time.Now()
	w.longest = max(w.longest, now.Sub(w.last))
	w.last = now
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.saw()
	return n, err
}
