package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
)

// listening serves connections with do until the test ends.
func listening(t *testing.T, do func(net.Listener)) *Client {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); do(l) }()
	t.Cleanup(func() { l.Close(); <-done })
	c := Unix(l.Addr().String())
	c.quietFor, c.aliveWithin = 100*time.Millisecond, 200*time.Millisecond
	t.Cleanup(c.Close)
	return c
}

// TestMute: a server that takes connections and answers nothing is named as such,
// also if it falls silent in the middle of a stream.
func TestMute(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	mute := listening(t, func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	})
	_, _, err := mute.List(ctx, onpath.KindNode, "")
	if onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(err.Error(), "answers nothing") {
		t.Errorf("a list: %v", err)
	}
	stalls := listening(t, func(l net.Listener) {
		hold := make(chan struct{})
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/healthz" {
				<-hold // as a process that was stopped
				return
			}
			_, _ = io.WriteString(w, "one\n")
			_ = http.NewResponseController(w).Flush()
			<-hold
		})}
		_ = s.Serve(l)
		close(hold)
		s.Close()
	})
	var out bytes.Buffer
	err = stalls.Logs(ctx, "default", "x", LogsOptions{Tail: -1, Follow: true}, &out)
	if onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(err.Error(), "answers nothing") || out.String() != "one\n" {
		t.Errorf("logs: %q, %v", out.String(), err)
	}
}

// TestExecMute: a command's caller does not wait for a server that was stopped,
// before the command began or while it runs; one that is silent is waited for.
func TestExecMute(t *testing.T) {
	for _, c := range []struct {
		name          string
		begins, alive bool
	}{{"before", false, false}, {"while it runs", true, false}, {"a silent command", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			stalls := listening(t, func(l net.Listener) {
				hold := make(chan struct{})
				s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch {
					case r.URL.Path == "/healthz" && c.alive:
					case r.URL.Path == "/healthz" || !c.begins:
						<-hold // as a process that was stopped
					default:
						conn, err := session.Accept(w, session.ExecProtocol)
						if err != nil {
							return
						}
						defer conn.Close()
						if c.alive { // it ends by itself, after a while, with code 7
							_ = session.ServeExec(r.Context(), conn, func(context.Context, session.ExecIO) (int, error) {
								time.Sleep(time.Second)
								return 7, nil
							})
							return
						}
						<-hold
					}
				})}
				_ = s.Serve(l)
				close(hold)
				s.Close()
			})
			if c.alive { // also on a busy machine
				stalls.aliveWithin = time.Minute
			}
			code, err := stalls.Exec(ctx, "default", "x", []string{"true"}, false, session.ExecIO{})
			if c.alive {
				if err != nil || code != 7 {
					t.Errorf("code %d, %v", code, err)
				}
			} else if onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(err.Error(), "answers nothing") {
				t.Errorf("code %d, %v", code, err)
			}
		})
	}
}

// TestSlow: a request may take long, and a stream be silent, while the server
// answers others.
func TestSlow(t *testing.T) {
	slow := listening(t, func(l net.Listener) {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				time.Sleep(time.Second)
			}
			_, _ = io.WriteString(w, `{"items":[],"revision":7}`)
		})}
		_ = s.Serve(l)
		s.Close()
	})
	slow.aliveWithin = time.Minute
	if _, revision, err := slow.List(t.Context(), onpath.KindNode, ""); err != nil || revision != 7 {
		t.Errorf("revision %d, %v", revision, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	if _, _, err := slow.List(ctx, onpath.KindNode, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("given up by the caller: %v", err)
	}
}
