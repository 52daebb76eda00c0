package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// OriginStats is what the origin web server saw since it started.
type OriginStats struct {
	Requests int64            `json:"requests"`
	Bytes    int64            `json:"bytes"` // of bodies sent
	Clients  map[string]int64 `json:"clients"`
}

// origin is the web server at the far end of the demonstration. An object's
// path says its size and its content follows from the path, so that a client
// can check every byte.
type origin struct {
	mu    sync.Mutex
	stats OriginStats
}

// RunOrigin serves on the given addresses ("10.9.0.2:80") until ctx ends.
// GET /object/NAME/BYTES gives an object that caches may keep, /live/NAME/BYTES
// one that they may not, /stats the server's figures.
func RunOrigin(ctx context.Context, addresses []string) error {
	o := &origin{stats: OriginStats{Clients: map[string]int64{}}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /object/{name}/{bytes}", o.object)
	mux.HandleFunc("GET /live/{name}/{bytes}", o.object)
	mux.HandleFunc("GET /stats", o.serveStats)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, len(addresses))
	for _, a := range addresses {
		l, err := net.Listen("tcp", a)
		if err != nil {
			return fmt.Errorf("origin: %w", err)
		}
		go func() { failed <- srv.Serve(l) }()
	}
	select {
	case <-ctx.Done():
	case err := <-failed:
		if !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("origin: %w", err)
		}
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = srv.Shutdown(stop) // connections that do not end in a second are cut
	return nil
}

func (o *origin) object(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(r.PathValue("bytes"), 10, 64)
	if err != nil || size < 0 || size > 1<<32 {
		http.Error(w, "the last part of the path is a size in bytes", http.StatusBadRequest)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	if strings.HasPrefix(r.URL.Path, "/object/") {
		h.Set("Cache-Control", "public, max-age=3600")
		h.Set("Last-Modified", time.Now().Add(-24*time.Hour).UTC().Format(http.TimeFormat))
	} else {
		h.Set("Cache-Control", "no-store")
	}
	client, _, _ := net.SplitHostPort(r.RemoteAddr)
	o.mu.Lock()
	o.stats.Requests++
	o.stats.Clients[client]++
	o.mu.Unlock()
	n, _ := io.CopyN(w, content(r.PathValue("name")), size) // a client that went away is no fault of ours
	o.mu.Lock()
	o.stats.Bytes += n
	o.mu.Unlock()
}

func (o *origin) serveStats(w http.ResponseWriter, _ *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(o.stats)
}

// content is the endless body of the object of that name: its hash, repeated.
func content(name string) io.Reader {
	sum := sha256.Sum256([]byte(name))
	block := []byte(strings.Repeat(hex.EncodeToString(sum[:]), 512))
	return &repeat{block: block}
}

type repeat struct {
	block []byte
	at    int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		c := copy(p[n:], r.block[r.at:])
		n += c
		r.at = (r.at + c) % len(r.block)
	}
	return n, nil
}
