package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// TestNotifyLoad: 20 instances tell 5,000 notifications a second together for ten seconds;
// the server dies twice meanwhile, and the agent once. What was accepted comes to the server,
// once by its number, and all else was refused with 429.
func TestNotifyLoad(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set")
	}
	const instances, rate, lasts = 20, 250, 10 * time.Second
	dir, spaces := t.TempDir(), make([]string, instances)
	start := func() *notifier {
		n, err := openNotifier("n1", dir, time.Now, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for i, ns := range spaces {
			plan := onpath.InstancePlan{Tenant: "default", Name: fmt.Sprint("i", i), Function: "default/f"}
			if err := n.open(plan.Name, ns, plan); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	for i := range spaces {
		spaces[i] = fmt.Sprintf("%s/ns%d", t.TempDir(), i)
		if err := netnsrun.Create(spaces[i]); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = netnsrun.Remove(spaces[i]) }()
		err := netnsrun.Do(spaces[i], func() error {
			h, err := netlink.NewHandle()
			if err != nil {
				return err
			}
			defer h.Close()
			return up(h, "lo", 0)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	stored := map[uint64]bool{}
	n := start()
	fetch := func(n *notifier, d time.Duration) { // a server that dies after a while
		server, agent := net.Pipe()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		context.AfterFunc(ctx, func() { server.Close(); agent.Close() })
		go func() { _ = n.deliver(ctx, agent) }()
		r := bufio.NewReader(server)
		_, _ = r.ReadBytes('\n')
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			var one onpath.NumberedNotification
			if json.Unmarshal(line, &one) == nil {
				mu.Lock()
				stored[one.Number] = true
				mu.Unlock()
				if one.Number%100 == 0 {
					_, _ = fmt.Fprintln(server, one.Number)
				}
			}
		}
	}
	var accepted, tooMuch, lost atomic.Int64
	var senders sync.WaitGroup
	end := time.Now().Add(lasts)
	for _, ns := range spaces {
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: func(context.Context, string, string) (c net.Conn, err error) {
			err = netnsrun.Do(ns, func() (err error) { c, err = net.Dial("tcp", onpath.NotifyAddress); return err })
			return c, err
		}}}
		senders.Go(func() {
			tick := time.NewTicker(time.Second / rate)
			defer tick.Stop()
			for time.Now().Before(end) {
				<-tick.C
				resp, err := client.Post("http://node/notify", "application/json", strings.NewReader(`{"title":"load"}`))
				switch {
				case err != nil:
					lost.Add(1) // neither accepted nor refused: the agent was away
				case resp.StatusCode == http.StatusAccepted:
					accepted.Add(1)
				case resp.StatusCode == http.StatusTooManyRequests:
					tooMuch.Add(1)
				default:
					t.Errorf("answered %s", resp.Status)
				}
				if err == nil {
					resp.Body.Close()
				}
			}
		})
	}
	fetch(n, 3*time.Second)
	fetch(n, 2*time.Second)
	n.close() // the agent's end
	n = start()
	go fetch(n, lasts)
	senders.Wait()
	want, _ := n.spool.Last()
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		mu.Lock()
		got := len(stored)
		mu.Unlock()
		if uint64(got) == want {
			break
		}
	}
	n.close()
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d accepted (%d a second), %d refused with 429, %d unanswered as the agent ended; %d on disk, %d stored", accepted.Load(),
		accepted.Load()/int64(lasts.Seconds()), tooMuch.Load(), lost.Load(), want, len(stored))
	if int64(len(stored)) < accepted.Load() || int64(len(stored)) > accepted.Load()+lost.Load() || uint64(len(stored)) != want {
		t.Errorf("%d of %d accepted are stored", len(stored), accepted.Load())
	}
}
