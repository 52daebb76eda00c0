package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rolled serves do behind rolling with a short patience.
func rolled(t *testing.T, d time.Duration, do http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w, r, done := Rolling(w, r, d)
		defer done()
		do(w, r)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// once tries until it goes well, for a minute: where the machine is busy, patience ends early,
// and what patience ended whenever the whole takes longer than it would never go well.
func once(t *testing.T, try func() error) {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatal(err)
		}
		t.Log("again, because", err)
	}
}

// TestStalledBody: who stops sending is given up, and who sends slowly is not.
func TestStalledBody(t *testing.T) {
	read := make(chan error, 2)
	address := rolled(t, 200*time.Millisecond, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		read <- err
	})
	once(t, func() error {
		slow, in := io.Pipe()
		go func() {
			for range 8 {
				time.Sleep(50 * time.Millisecond)
				_, _ = in.Write([]byte("x"))
			}
			in.Close()
		}()
		answer, err := http.Post("http://"+address, "text/plain", slow)
		if err == nil {
			answer.Body.Close()
		}
		return errors.Join(err, <-read)
	})
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-read:
		var e net.Error
		if !errors.As(err, &e) || !e.Timeout() {
			t.Errorf("a stalled body: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("a stalled body is waited for")
	}
}

// TestStalledReader: who stops reading an answer is given up.
func TestStalledReader(t *testing.T) {
	wrote := make(chan error, 1)
	address := rolled(t, 200*time.Millisecond, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				wrote <- err
				return
			}
		}
	})
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-wrote:
	case <-time.After(time.Minute):
		t.Error("an answer that nobody reads is kept for ever")
	}
}

// TestLongRequest: a request that takes its time is not ended by the patience with
// its body, with one or without, and the connection serves the next one.
func TestLongRequest(t *testing.T) {
	ended := make(chan error, 100)
	address := rolled(t, 100*time.Millisecond, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = r.Body.Read(make([]byte, 1)) // net/http waits for the caller to leave by now
		select {
		case <-r.Context().Done():
			ended <- context.Cause(r.Context())
		case <-time.After(400 * time.Millisecond):
			ended <- nil
		}
	})
	one := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	for _, body := range []string{"", "a body", ""} {
		once(t, func() error {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address, strings.NewReader(body))
			answer, err := one.Do(r)
			if err != nil {
				return fmt.Errorf("body %q: %w", body, err)
			}
			_, _ = io.Copy(&bytes.Buffer{}, answer.Body)
			answer.Body.Close()
			if err := <-ended; err != nil {
				return fmt.Errorf("body %q: the request was ended: %w", body, err)
			}
			return nil
		})
		time.Sleep(200 * time.Millisecond)
	}
}

// TestStalledRest: net/http waits for what a handler leaves of a body before it
// answers, and that, too, must end.
func TestStalledRest(t *testing.T) {
	for what, do := range map[string]http.HandlerFunc{
		"that reads all":     func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"that reads nothing": func(http.ResponseWriter, *http.Request) {},
		"that answers first": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<10)) },
	} {
		c, err := net.Dial("tcp", rolled(t, 200*time.Millisecond, do))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Errorf("after a handler %s, the connection is kept: %v", what, err)
		}
	}
}

// TestSlowReader: an answer in one piece may take as long as it makes progress.
func TestSlowReader(t *testing.T) {
	const size = 16 << 20
	wrote := make(chan error, 100)
	address := rolled(t, time.Second, func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(make([]byte, size))
		wrote <- err
	})
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { // or the kernel takes all of it at once
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 64<<10) })
	}}
	once(t, func() error {
		c, err := d.DialContext(t.Context(), "tcp", address)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("GET / HTTP/1.0\r\nHost: x\r\n\r\n")); err != nil {
			return err
		}
		b := make([]byte, 256<<10)
		for read := 0; read < size; {
			n, err := c.Read(b)
			if err != nil {
				<-wrote
				return fmt.Errorf("after %d bytes: %w", read, err)
			}
			read += n
			time.Sleep(20 * time.Millisecond * time.Duration(n) / time.Duration(64<<10))
		}
		return <-wrote
	})
}
