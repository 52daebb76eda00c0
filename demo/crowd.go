package demo

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onpath/onpath/internal/netnsrun"
)

// The web site of the demonstration: files from 1 KB to 20 MB, and a live stream.
const (
	siteFiles             = 50
	smallFile, largeFile  = 1_000, 20_000_000
	livePath              = "/live/match"
	liveLine              = 64 // bytes
	liveEvery             = 20 * time.Millisecond
	liveLines             = 8 // at a time
	crowdClients, perSite = 200, 50
)

// fileSize is the size of the i-th file, in bytes.
func fileSize(i int) int64 {
	return int64(smallFile * math.Pow(float64(largeFile)/smallFile, float64(i)/(siteFiles-1)))
}

// fileBytes fills b with what stands in a file from an offset on.
func fileBytes(file int, from int64, b []byte) {
	var word [8]byte
	for k := 0; k < len(b); {
		at := from + int64(k)
		x := uint64(file)<<40 ^ uint64(at/8)
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(word[:], x^x>>31)
		k += copy(b[k:], word[at%8:])
	}
}

// webSite is the origin's web server.
type webSite struct {
	dir string

	mu      sync.Mutex
	fetched map[string]int // by modules: ADDRESS PATH

}

// newWebSite writes the files.
func newWebSite(dir string) (*webSite, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for i := range siteFiles {
		b := make([]byte, fileSize(i))
		fileBytes(i, 0, b)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%02d", i)), b, 0o644); err != nil {
			return nil, err
		}
	}
	return &webSite{dir: dir, fetched: map[string]int{}}, nil
}

// serve runs the origin in a network until ctx ends.
func (s *webSite) serve(ctx context.Context, netns, address string) error {
	var l net.Listener
	err := netnsrun.Do(netns, func() (err error) { l, err = net.Listen("tcp", address); return err })
	if err != nil {
		return err
	}
	files := http.FileServer(http.Dir(s.dir))
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from := r.Header.Get("X-Forwarded-For"); strings.HasPrefix(from, "10.12.") { // a node's
			s.mu.Lock()
			s.fetched[from+" "+r.URL.Path]++
			s.mu.Unlock()
		}
		if r.URL.Path == livePath {
			live(w, r)
			return
		}
		files.ServeHTTP(w, r)
	})}
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	go func() { _ = srv.Serve(l) }()
	return nil
}

// live sends numbered lines without an end.
func live(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "video/mp2t")
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	for n := 0; ; n += liveLines {
		for i := range liveLines {
			fmt.Fprintf(w, "%0*d\n", liveLine-1, n+i)
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// crowd are clients of the web site, at several places.
type crowd struct {
	netns func(place int) string
	base  string // of the web site
	began time.Time

	edge, origin [600]atomic.Int64 // bytes from modules, and from the web site, by tenths of a second
	done, wrong  atomic.Int64      // requests
	ranges, slow atomic.Int64
	asked        [4]atomic.Int64 // requests that began, by place
	crossed      atomic.Int64    // ns after began: a place had asked so often last
	threshold    int64
	failure      atomic.Value // the first, a string
}

// run has the clients ask until ctx ends.
func (c *crowd) run(ctx context.Context, seed uint64) {
	var wg sync.WaitGroup
	for k := range crowdClients {
		wg.Go(func() {
			place := k / perSite
			r := rand.New(rand.NewPCG(seed, uint64(k)))
			from := netip.AddrFrom4([4]byte{10, byte(place + 1), 0, byte(11 + k%5)})
			client := c.client(place, from)
			pause(ctx, time.Duration(r.IntN(1000))*time.Millisecond)
			for ctx.Err() == nil {
				c.ask(ctx, client, r, place, k%3 == 0)
				pause(ctx, time.Duration(500+r.IntN(1500))*time.Millisecond)
			}
		})
	}
	wg.Wait()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// client connects from an address of a place.
func (c *crowd) client(place int, from netip.Addr) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Timeout: 10 * time.Second}
			err = netnsrun.Do(c.netns(place), func() error { conn, err = d.DialContext(ctx, network, address); return err })
			return conn, err
		}}}
}

// ask fetches a file, or a part of one, and checks every byte.
func (c *crowd) ask(ctx context.Context, client *http.Client, r *rand.Rand, place int, slow bool) {
	u := r.Float64()
	file := int(u * u * siteFiles)
	if slow {
		file = r.IntN(siteFiles / 2)
		c.slow.Add(1)
	}
	from, length := int64(0), fileSize(file)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/f%02d", c.base, file), nil)
	if err != nil {
		return
	}
	want := http.StatusOK
	if r.IntN(4) == 0 {
		from = r.Int64N(length)
		length = 1 + r.Int64N(length-from)
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, from+length-1))
		want = http.StatusPartialContent
		c.ranges.Add(1)
	}
	if c.asked[place].Add(1) == c.threshold {
		c.crossed.Store(int64(time.Since(c.began)))
	}
	err = c.fetch(client, req, want, file, from, length, slow)
	switch {
	case ctx.Err() != nil: // the crowd is over
	case err != nil:
		c.wrong.Add(1)
		c.failure.CompareAndSwap(nil, fmt.Sprintf("f%02d from %d, %d bytes: %v", file, from, length, err))
	default:
		c.done.Add(1)
	}
}

func (c *crowd) fetch(client *http.Client, req *http.Request, want, file int, from, length int64, slow bool) error {
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		return fmt.Errorf("%s answers %s", resp.Request.URL.Host, resp.Status)
	}
	count := &c.origin
	if "http://"+resp.Request.URL.Host != c.base {
		count = &c.edge
	}
	b, right := make([]byte, 32<<10), make([]byte, 32<<10)
	if slow {
		b = b[:4<<10]
	}
	for at := from; ; {
		n, err := resp.Body.Read(b)
		fileBytes(file, at, right[:n])
		if string(b[:n]) != string(right[:n]) {
			return fmt.Errorf("%s: other bytes than the file's, at %d", resp.Request.URL.Host, at)
		}
		at += int64(n)
		count[min(int(time.Since(c.began)/(100*time.Millisecond)), len(count)-1)].Add(int64(n))
		switch {
		case errors.Is(err, io.EOF) && at == from+length:
			return nil
		case err != nil:
			return fmt.Errorf("%s: after %d of %d bytes: %w", resp.Request.URL.Host, at-from, length, err)
		}
		if slow {
			pause(req.Context(), 30*time.Millisecond)
		}
	}
}

// bytes are those from modules and from the web site, from a time on.
func (c *crowd) bytes(after time.Duration) (edge, origin int64) {
	for i := max(int(after/(100*time.Millisecond)), 0); i < len(c.edge); i++ {
		edge += c.edge[i].Load()
		origin += c.origin[i].Load()
	}
	return edge, origin
}

// watch reads the live stream until ctx ends, and says how many lines came in their order; where
// they did not, or came from the web site itself, it is an error.
func (c *crowd) watch(ctx context.Context, place int) (lines int, err error) {
	client := c.client(place, netip.AddrFrom4([4]byte{10, byte(place + 1), 0, 11}))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+livePath, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if "http://"+resp.Request.URL.Host == c.base || resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s answers %s", resp.Request.URL.Host, resp.Status)
	}
	in := bufio.NewScanner(resp.Body)
	in.Scan() // perhaps the end of a line
	for last := -1; in.Scan(); lines++ {
		var n int
		if _, err := fmt.Sscanf(in.Text(), "%d", &n); err != nil || len(in.Text()) != liveLine-1 || last >= 0 && n != last+1 {
			return lines, fmt.Errorf("after line %d comes %q", last, in.Text())
		}
		last = n
	}
	if ctx.Err() == nil {
		return lines, fmt.Errorf("the stream ended: %w", in.Err())
	}
	return lines, nil
}
