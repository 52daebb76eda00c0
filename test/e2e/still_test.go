package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// A download that stands still is looked at while it does: at the sockets of both its
// connections, which tell where data waits.

// A download may stand still for so long after a firewall's death; so many that do are
// looked at.
const (
	stillAfter = stillFor
	mostLooks  = 3
)

func (f *fleet) opened(w *watched, open, again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if again {
		f.again++
	}
	if open {
		f.open[w] = true
	} else {
		delete(f.open, w)
	}
}

// lookAtStill looks at the first downloads that stand still, until the fleet ends.
func (f *fleet) lookAtStill(ctx context.Context) {
	for {
		select {
		case <-f.stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
		if still := f.still(); still != nil {
			found := look(ctx, addrPort(still.LocalAddr()).String())
			f.mu.Lock()
			f.looks = append(f.looks, found)
			f.mu.Unlock()
		}
	}
}

// still is one that nobody has looked at.
func (f *fleet) still() *watched {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.looks) == mostLooks {
		return nil
	}
	for w := range f.open {
		if !w.looked && time.Since(time.Unix(0, w.at.Load())) > stillAfter {
			w.looked = true
			return w
		}
	}
	return nil
}

// look gives the sockets of one client's connection, and all that are as still as that.
func look(ctx context.Context, client string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %s the download to %s stands still", time.Now().UTC().Format("15:04:05.000"), client)
	show := func(where string, out []byte, err error) {
		fmt.Fprintf(&b, "\n%s:", where)
		if err != nil {
			fmt.Fprintf(&b, " %v", err)
		}
		for line := range strings.SplitSeq(string(out), "\n") {
			if strings.Contains(line, client) || restsFor(line) > stillAfter {
				fmt.Fprintf(&b, "\n  %s", strings.Join(strings.Fields(line), " "))
			}
		}
	}
	sockets := []string{"ss", "-tinoOH", "state", "connected", "( sport = :80 or dport = :80 )"}
	for _, host := range []string{"client", "origin"} {
		out, err := testbed.Lab.Exec(ctx, host, sockets[0], sockets[1:]...)
		show(host, out, err)
	}
	list, err := testbed.Instances(ctx)
	if err != nil {
		show("instances", nil, err)
	}
	slices.SortFunc(list, func(x, y onpath.Instance) int { return strings.Compare(x.Metadata.Name, y.Metadata.Name) })
	for _, i := range list {
		where := fmt.Sprintf("%s on %s, %s", i.Metadata.Name, i.Spec.Node, i.Status.State)
		if i.Spec.Deployment != "dl-cache" || i.Status.State != onpath.InstanceReady {
			show(where, nil, nil)
			continue
		}
		out, err := testbed.Onpath(ctx, append([]string{"exec", i.Metadata.Name, "--"}, sockets...)...)
		show(where, out, err)
	}
	return b.String()
}

var lastReceived = regexp.MustCompile(`lastrcv:(\d+)`)

// restsFor is for how long a socket has got no data, as ss tells.
func restsFor(line string) time.Duration {
	m := lastReceived.FindStringSubmatch(line)
	if m == nil {
		return 0
	}
	ms, _ := strconv.Atoi(m[1])
	return time.Duration(ms) * time.Millisecond
}
