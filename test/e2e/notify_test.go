package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

const talkers = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: talker}
spec:
  container: {image: host, command: [sleep, infinity], attach: routed, addresses: none}
  state: none
  packets: keep
  resources: {cpu: 1m, memory: 8Mi}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: talker}
spec: {function: talker, instances: 20, drain: 1s, place: {nodes: {name: n1}}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: talker}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: tcp, destinationPorts: ["5999"]}]
  through: [{deployment: talker}]
`

// toldByOne is what became of the notifications of one instance, by title.
type toldByOne struct {
	sync.Mutex
	accepted, unanswered []string
	refused              int
}

// How much instances tell a second, half of them more than one may (300), and by how many
// connections each.
const (
	talkative, quiet = 480, 40
	mouths           = 4
)

// TestNotificationsOutliveKills: 20 instances tell more than 5,000 notifications a second
// together for ten seconds; server and agent are killed meanwhile. What was accepted is stored
// and listed, once; all else was answered 429, and only to who told too much, or had no answer
// as the agent was dead.
func TestNotificationsOutliveKills(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set")
	}
	apply(ctx, t, talkers)
	spaces := talkersReady(ctx, t)
	begin := time.Now()
	all := make([]toldByOne, len(spaces))
	var senders sync.WaitGroup
	for i, ns := range spaces {
		senders.Go(func() {
			all[i].tell(begin, fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), i, []int{talkative, quiet}[i%2])
		})
	}
	time.Sleep(3 * time.Second)
	for _, step := range []func() error{
		func() error { return testbed.Kill("server", syscall.SIGKILL) },
		func() error { return testbed.StartServer(ctx) },
		func() error { return testbed.Kill("n1", syscall.SIGKILL) },
		func() error { return testbed.StartNode(ctx, "n1") },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	senders.Wait()
	accepted, unanswered, refused := map[string]bool{}, map[string]bool{}, 0
	for i := range all {
		x := &all[i]
		if i%2 == 1 && x.refused > 0 {
			t.Errorf("instance %d told %d a second, and %d were refused with 429", i, quiet, x.refused)
		}
		for _, title := range x.accepted {
			accepted[title] = true
		}
		for _, title := range x.unanswered {
			unanswered[title] = true
		}
		refused += x.refused
	}
	sent := len(accepted) + len(unanswered) + refused
	if sent < 50_000 || refused == 0 || len(accepted) < sent/3 {
		t.Errorf("%d were sent in ten seconds, %d accepted, %d refused", sent, len(accepted), refused)
	}
	listed := map[string]int{}
	err := testbed.WaitFor(ctx, "all that was accepted is listed", time.Minute, func() (bool, error) {
		out, err := testbed.Onpath(ctx, "notifications", "-n", "100000", "-o", "json")
		if err != nil {
			return false, err
		}
		var list []onpath.Notification
		clear(listed)
		if err := json.Unmarshal(out, &list); err != nil {
			return false, err
		}
		missing := len(accepted)
		for _, n := range list {
			if strings.HasPrefix(n.Title, "talk ") {
				if listed[n.Title]++; accepted[n.Title] {
					missing--
				}
			}
		}
		return missing <= 0, nil
	})
	t.Logf("%d sent in ten seconds: %d accepted, %d refused with 429, %d without an answer; %d listed", sent, len(accepted), refused,
		len(unanswered), len(listed))
	if err != nil {
		t.Error(err)
	}
	for title, n := range listed {
		if n != 1 || !accepted[title] && !unanswered[title] {
			t.Errorf("%s is listed %d times; accepted %t, unanswered %t", title, n, accepted[title], unanswered[title])
		}
	}
}

// talkersReady waits for the instances and opens their network namespaces.
func talkersReady(ctx context.Context, t *testing.T) (spaces []*os.File) {
	t.Helper()
	err := testbed.WaitFor(ctx, "20 instances are ready", time.Minute, func() (bool, error) {
		ready := 0
		list, err := testbed.Instances(ctx)
		for _, i := range list {
			if i.Spec.Deployment == "talker" && i.Status.State == onpath.InstanceReady {
				ready++
			}
		}
		return ready == 20, err
	})
	if err != nil {
		t.Fatal(err)
	}
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/var/lib/onpath/node/netns/*", testbed.Pid("n1")))
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		spaces = append(spaces, f)
	}
	if len(spaces) != 20 {
		t.Fatalf("there are %d network namespaces: %q", len(spaces), paths)
	}
	return spaces
}

// tell tells so many a second inside a namespace, for ten seconds; what the machine had no time
// for follows as soon as it has.
func (x *toldByOne) tell(begin time.Time, netns string, number, rate int) {
	var all sync.WaitGroup
	for m := range mouths {
		all.Go(func() {
			var conn net.Conn
			for k := m; k < 10*rate; {
				time.Sleep(time.Until(begin.Add(time.Duration(k) * time.Second / time.Duration(rate))))
				since := time.Since(begin)
				if since > 10*time.Second {
					break
				}
				var due []string
				for ; k < 10*rate && k <= int(since.Seconds()*float64(rate)) && len(due) < 32; k += mouths {
					due = append(due, fmt.Sprintf("talk %d-%d", number, k))
				}
				if conn == nil {
					_ = doIn(netns, func() (err error) { conn, err = net.DialTimeout("tcp", onpath.NotifyAddress, time.Second); return err })
				}
				if !x.tellAll(conn, due) && conn != nil {
					_ = conn.Close()
					conn = nil
				}
			}
			if conn != nil {
				_ = conn.Close()
			}
		})
	}
	all.Wait()
}

// tellAll sends requests in a row, and then reads what they are answered.
func (x *toldByOne) tellAll(conn net.Conn, titles []string) bool {
	var requests strings.Builder
	for _, title := range titles {
		body := fmt.Sprintf(`{"title":%q}`, title)
		fmt.Fprintf(&requests, "POST /notify HTTP/1.1\r\nHost: node\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	answered := 0
	if conn != nil {
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.WriteString(conn, requests.String()); err == nil {
			answered = x.hear(bufio.NewReader(conn), titles)
		}
	}
	x.Lock()
	defer x.Unlock()
	x.unanswered = append(x.unanswered, titles[answered:]...)
	return answered == len(titles)
}

// hear reads the answers, and gives how many there were.
func (x *toldByOne) hear(r *bufio.Reader, titles []string) int {
	for i, title := range titles {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return i
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return i
		}
		x.Lock()
		switch resp.StatusCode {
		case http.StatusAccepted:
			x.accepted = append(x.accepted, title)
		case http.StatusTooManyRequests:
			x.refused++
		default:
			x.unanswered = append(x.unanswered, title+" "+resp.Status) // which is never listed so
		}
		x.Unlock()
	}
	return len(titles)
}
