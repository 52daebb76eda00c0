package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// LoadSpec says what a client fetches.
type LoadSpec struct {
	Base     string        `json:"base"`     // http://10.9.0.2
	Kind     string        `json:"kind"`     // object (caches may keep it) or live
	Objects  int           `json:"objects"`  // how many different ones
	Bytes    int64         `json:"bytes"`    // of each
	Requests int           `json:"requests"` // in all, over the objects in turn
	Parallel int           `json:"parallel"` // connections at a time
	Timeout  time.Duration `json:"timeout"`  // of one request
	// For is how long new requests begin, where Requests is more than that allows.
	For time.Duration `json:"for,omitempty"`
}

// LoadResult is what the client saw.
type LoadResult struct {
	Requests int           `json:"requests"`
	Failed   int           `json:"failed"`
	Wrong    int           `json:"wrong"` // bodies that differ from what the origin sends
	Bytes    int64         `json:"bytes"`
	Hits     int           `json:"hits"` // answers that a cache marked as its own
	Took     time.Duration `json:"took"`
	Median   time.Duration `json:"median"` // of one request, connection included
	P95      time.Duration `json:"p95"`
	Error    string        `json:"error,omitempty"` // the first failure
}

// Rate is the goodput in bits per second.
func (r LoadResult) Rate() float64 {
	if r.Took <= 0 {
		return 0
	}
	return float64(r.Bytes) * 8 / r.Took.Seconds()
}

// RunLoad fetches and checks every byte. Each request has a connection of its
// own, as short web transfers do.
func RunLoad(ctx context.Context, s LoadSpec) (LoadResult, error) {
	if s.Objects < 1 || s.Requests < 1 || s.Parallel < 1 {
		return LoadResult{}, fmt.Errorf("load: objects, requests and parallel must be at least 1")
	}
	client := &http.Client{Timeout: s.Timeout, Transport: &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, Proxy: nil,
		DialContext: (&net.Dialer{Timeout: s.Timeout}).DialContext,
	}}
	var (
		mu    sync.Mutex
		res   LoadResult
		times []time.Duration
		wg    sync.WaitGroup
		next  = make(chan int)
	)
	start := time.Now()
	for range s.Parallel {
		wg.Go(func() {
			for i := range next {
				name := fmt.Sprintf("o%d", i%s.Objects)
				t := time.Now()
				n, hit, wrong, err := fetch(ctx, client, fmt.Sprintf("%s/%s/%s/%d", s.Base, s.Kind, name, s.Bytes), name, s.Bytes)
				took := time.Since(t)
				mu.Lock()
				res.Requests++
				res.Bytes += n
				switch {
				case err != nil:
					res.Failed++
					if res.Error == "" {
						res.Error = err.Error()
					}
				case wrong:
					res.Wrong++
				default:
					times = append(times, took)
				}
				if hit {
					res.Hits++
				}
				mu.Unlock()
			}
		})
	}
	var over <-chan time.Time
	if s.For > 0 {
		over = time.After(s.For)
	}
feed:
	for i := range s.Requests {
		select {
		case next <- i:
		case <-over:
			break feed
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	res.Took = time.Since(start)
	if len(times) > 0 {
		slices.Sort(times)
		res.Median, res.P95 = times[len(times)/2], times[len(times)*95/100]
	}
	return res, ctx.Err()
}

// fetch reads one object and compares it with what it must be.
func fetch(ctx context.Context, c *http.Client, url, name string, size int64) (n int64, hit, wrong bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, false, false, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, false, false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, false, false, fmt.Errorf("%s: %s", url, resp.Status)
	}
	hit = strings.HasPrefix(resp.Header.Get("X-Cache"), "HIT")
	want, buf, ref := content(name), make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		k, err := resp.Body.Read(buf)
		if k > 0 {
			_, _ = io.ReadFull(want, ref[:k]) // endless, cannot fail
			wrong = wrong || !bytes.Equal(buf[:k], ref[:k])
			n += int64(k)
		}
		if err == io.EOF {
			return n, hit, wrong || n != size, nil
		}
		if err != nil {
			return n, hit, wrong, err
		}
	}
}

// ProbeResult is what connecting to an address gave.
type ProbeResult struct {
	Address string        `json:"address"`
	Open    bool          `json:"open"`
	Median  time.Duration `json:"median"` // of TCP's handshake; 0 if never open
	Error   string        `json:"error,omitempty"`
}

// RunProbe connects count times and reports the median time of the handshake.
func RunProbe(ctx context.Context, address string, count int, timeout time.Duration) (ProbeResult, error) {
	if count < 1 {
		return ProbeResult{}, fmt.Errorf("probe: count must be at least 1")
	}
	res := ProbeResult{Address: address}
	var times []time.Duration
	for range count {
		t := time.Now()
		c, err := (&net.Dialer{Timeout: timeout}).DialContext(ctx, "tcp", address)
		if err != nil {
			res.Error = err.Error()
			break // what is closed once stays closed for a demonstration
		}
		times = append(times, time.Since(t))
		c.Close()
	}
	if len(times) > 0 {
		slices.Sort(times)
		res.Open, res.Median = true, times[len(times)/2]
	}
	return res, ctx.Err()
}
