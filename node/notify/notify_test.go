package notify

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// tellIn posts a notification inside a namespace and gives the answer's status.
func tellIn(t *testing.T, netns, network, address, body string) int {
	t.Helper()
	var c net.Conn
	err := netnsrun.Do(netns, func() (err error) {
		c, err = net.DialTimeout(network, address, time.Minute)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, _ := http.NewRequest(http.MethodPost, "http://node/notify", strings.NewReader(body))
	if err := r.Write(c); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), r)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestNotify: a function tells something inside of its own namespace, by address or socket;
// what is wrong or too much is refused; what is accepted outlives the agent, reaches the
// server, and goes once the server has it.
func TestNotify(t *testing.T) {
	dir, clock := t.TempDir(), new(atomic.Int64)
	now := func() time.Time { return time.Unix(clock.Load(), 0) }
	n, err := Open("n1", dir, now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	netns := t.TempDir() + "/ns"
	if err := netnsrun.Create(netns); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = netnsrun.Remove(netns) }()
	err = netnsrun.Do(netns, func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.LinkSetUp(lo)
	})
	if err != nil {
		t.Fatal(err)
	}
	plan := onpath.InstancePlan{Tenant: "default", Name: "ids-1", Function: "default/ids"}
	if err := n.Open("i1", netns, plan); err != nil {
		t.Fatal(err)
	}
	tell := func(body string) int { return tellIn(t, netns, "tcp", onpath.NotifyAddress, body) }
	for body, want := range map[string]int{
		`{"title":"hello","fields":{"a":"<script>"}}`: 202, `{"title":"hello","level":"loud"}`: 400, `{"text":"no title"}`: 400, `{`: 400,
		`{"title":"` + strings.Repeat("x", 300) + `"}`: 400, `{"title":"x","tenant":"other"}`: 400,
		`{"title":"x","text":"` + strings.Repeat("y", 20_000) + `"}`: 400,
	} {
		if got := tell(body); got != want {
			t.Errorf("%.40s: %d, must be %d", body, got, want)
		}
	}
	if got := tellIn(t, netns, "unix", onpath.NotifySocket, `{"title":"by socket"}`); got != 202 {
		t.Errorf("by socket: %d", got)
	}
	accepted, refused := 2, 0
	for i := range notifyBurst + 50 {
		switch got := tell(fmt.Sprintf(`{"title":"t%d"}`, i)); got {
		case 202:
			accepted++
		case 429:
			refused++
		default:
			t.Fatal(got)
		}
	}
	if refused < 50 {
		t.Errorf("%d of %d were refused", refused, notifyBurst+50)
	}
	clock.Add(1)
	if got := tell(`{"title":"a second later"}`); got != 202 {
		t.Errorf("after a rest: %d", got)
	}
	n.Close()
	if n, err = Open("n1", dir, now, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	server, agent := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Deliver(ctx, agent) }()
	r := bufio.NewReader(server)
	if first, err := r.ReadBytes('\n'); err != nil || !bytes.HasPrefix(first, []byte{'"'}) {
		t.Fatalf("%s %v", first, err)
	}
	for i := range accepted + 1 {
		line, err := r.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var got onpath.NumberedNotification
		if err := json.Unmarshal(line, &got); err != nil || got.Number != uint64(i+1) || got.Said.Tenant != "default" || got.Said.Instance != "ids-1" {
			t.Fatalf("%s: %v", line, err)
		}
	}
	cancel()
	server.Close()
	<-done
}
