package e2e

import (
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
	accepted, unanswered []string
	refused              int
}

// TestNotificationsOutliveKills: 20 instances tell 5,000 notifications a second together for
// ten seconds; server and agent are killed meanwhile. What was accepted is stored and listed,
// once; what was not answered 429 and not accepted either had no answer, as the agent was dead.
func TestNotificationsOutliveKills(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set")
	}
	apply(ctx, t, talkers)
	spaces := talkersReady(ctx, t)
	end := time.Now().Add(10 * time.Second)
	all := make([]toldByOne, len(spaces))
	var senders sync.WaitGroup
	for i, ns := range spaces {
		senders.Go(func() { all[i] = tellUntil(end, fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), i) })
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
	for _, x := range all {
		for _, title := range x.accepted {
			accepted[title] = true
		}
		for _, title := range x.unanswered {
			unanswered[title] = true
		}
		refused += x.refused
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
	t.Logf("%d accepted (%d a second), %d refused with 429, %d without an answer; %d listed", len(accepted), len(accepted)/10, refused,
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

// tellUntil tells 250 notifications a second inside a namespace.
func tellUntil(end time.Time, netns string, number int) (x toldByOne) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: func(context.Context, string, string) (c net.Conn, err error) {
		err = doIn(netns, func() (err error) { c, err = net.Dial("tcp", onpath.NotifyAddress); return err })
		return c, err
	}}}
	tick := time.NewTicker(time.Second / 250)
	defer tick.Stop()
	for k := 0; time.Now().Before(end); k++ {
		<-tick.C
		title := fmt.Sprintf("talk %d-%d", number, k)
		resp, err := client.Post("http://node/notify", "application/json", strings.NewReader(fmt.Sprintf(`{"title":%q}`, title)))
		switch {
		case err != nil:
			x.unanswered = append(x.unanswered, title)
			continue
		case resp.StatusCode == http.StatusAccepted:
			x.accepted = append(x.accepted, title)
		case resp.StatusCode == http.StatusTooManyRequests:
			x.refused++
		default:
			x.unanswered = append(x.unanswered, title+" "+resp.Status) // which is never listed so
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return x
}
