package console

import (
	"compress/gzip"
	"net/http"
	"strings"
)

// compressing compresses pages and lists, for a browser at the other end of a slow tunnel.
// Streams go as they come.
type compressing struct {
	http.ResponseWriter
	begun bool
	z     *gzip.Writer // nil: as it is
}

func compress(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, func()) {
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") || r.Method != http.MethodGet || r.Header.Get("Upgrade") != "" {
		return w, func() {}
	}
	c := &compressing{ResponseWriter: w}
	return c, func() {
		if c.z != nil {
			_ = c.z.Close() // a browser that left is told nothing
		}
	}
}

// Unwrap is for http.ResponseController, which flushes streams.
func (c *compressing) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *compressing) WriteHeader(code int) {
	if h := c.Header(); !c.begun && code == http.StatusOK && h.Get("Content-Encoding") == "" {
		switch kind, _, _ := strings.Cut(h.Get("Content-Type"), ";"); kind {
		case "application/json", "text/javascript", "text/css":
			h.Del("Content-Length")
			h.Set("Content-Encoding", "gzip")
			c.z = gzip.NewWriter(c.ResponseWriter)
		}
	}
	c.begun = true
	c.ResponseWriter.WriteHeader(code)
}

func (c *compressing) Write(b []byte) (int, error) {
	if !c.begun {
		c.WriteHeader(http.StatusOK)
	}
	if c.z != nil {
		return c.z.Write(b)
	}
	return c.ResponseWriter.Write(b)
}
