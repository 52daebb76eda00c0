package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/session"
)

// counting is a node whose instance gets a packet between any two looks.
type counting struct {
	agent
	asked *atomic.Int64
}

func (c counting) Serve(ctx context.Context, op onpath.NodeOp, request json.RawMessage, stream io.ReadWriteCloser) error {
	n := uint64(c.asked.Add(1))
	if op != onpath.OpCounters {
		return c.agent.Serve(ctx, op, request, stream)
	}
	tally := onpath.Tally{Packets: n, Bytes: 100 * n}
	return json.NewEncoder(stream).Encode(onpath.Counters{Vports: map[onpath.VportID]onpath.VportCounters{42: {Out: tally}, 43: {Out: tally}}})
}

// TestTraffic: twenty who look cost a node no more questions than one, nobody costs none, and
// a tenant sees its own instances only, whatever it asks for.
func TestTraffic(t *testing.T) {
	w := newWorld(t)
	c, err := w.join(auth.TokenRequest{Role: auth.RoleNode}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	asked := &atomic.Int64{}
	ctx, cancel := context.WithCancel(t.Context())
	s := session.Dial(ctx, session.Options{Connect: c.Dial, Hello: func() onpath.NodeHello { return onpath.NodeHello{Node: "n1"} }},
		counting{asked: asked})
	defer func() { cancel(); <-s.Done() }()
	<-w.nodes.connected
	alice := w.user("acme")
	for v, tenant := range map[onpath.VportID]string{42: "acme", 43: "rival"} {
		o, _ := onpath.New(onpath.KindInstance)
		i := o.(*onpath.Instance)
		i.Metadata.Tenant, i.Metadata.Name = tenant, "web-1"
		i.Spec.Node, i.Spec.Vport = "n1", v
		if _, err := w.store.Write(ctx, onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(i), Object: i}}}); err != nil {
			t.Fatal(err)
		}
	}
	if asked.Load() != 0 {
		t.Errorf("nobody looks, and the node was asked %d times", asked.Load())
	}
	const consoles, samples = 20, 3
	began := time.Now()
	open := make([]*bufio.Reader, 0, consoles)
	for i := range consoles {
		from := w.operator
		path := "/v1/traffic"
		if i%2 == 1 {
			from, path = alice, path+strings.Repeat("?tenant=acme", i%4/3)
		}
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, from.URL()+path, nil)
		resp, err := from.HTTP().Do(r)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		defer resp.Body.Close()
		open = append(open, bufio.NewReader(resp.Body))
	}
	for i, r := range open {
		for range samples {
			line, err := r.ReadBytes('\n')
			if err != nil {
				t.Fatal(err)
			}
			var x onpath.Traffic
			if err := json.Unmarshal(line, &x); err != nil || x.Instances["acme/web-1"].Packets <= 0 {
				t.Errorf("%s: %v", line, err)
			}
			if theirs := strings.Contains(string(line), "rival"); theirs == (i%2 == 1) {
				t.Errorf("console %d is told %s", i, line)
			}
		}
	}
	if got, most := asked.Load(), 2+int64(1.1*time.Since(began).Seconds()); got < samples+1 || got > most {
		t.Errorf("%d samples for %d consoles were %d questions, must be at most %d", samples, consoles, got, most)
	}
}
